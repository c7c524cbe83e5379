"""Every optimizer with every option, as torch's over ten steps; and its own definition for those
that torch has not. All in one program, each with parameters of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

import anabranch as ab
from tests.library.test_models import OPTIMIZERS

NAMES = {
    "SGD": "sgd", "Adam": "adam", "AdamW": "adamw", "Adamax": "adamax", "NAdam": "nadam",
    "RAdam": "radam", "RMSprop": "rmsprop", "Adagrad": "adagrad", "Adadelta": "adadelta",
    "Rprop": "rprop"}
NUMERIC = ("foreach", "fused", "capturable", "differentiable")  # how, not what
STEPS, WIDTH = 10, 3
Update = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """An optimizer as it is called here, what it is elsewhere, and the sign of its loss."""

    text: str
    make: Callable[[torch.Tensor], Any]
    sign: int = 1


def of_torch() -> Iterator[Case]:
    for info in optim_db:
        name = NAMES.get(info.optim_cls.__name__)
        for given in info.optim_inputs_func(device="cpu") if name else ():
            options = {k: float(v) if isinstance(v, torch.Tensor) else v
                       for k, v in given.kwargs.items() if k not in NUMERIC}
            if name == "sgd":
                options.setdefault("lr", 1e-3)
            words = ", ".join(f"{k}={v}" for k, v in options.items() if k != "maximize")
            sign = -1 if options.get("maximize") else 1
            yield Case(f"{name}({words})", _maker(info.optim_cls, options), sign)


def _maker(kind: Any, options: dict[str, Any]) -> Callable[[torch.Tensor], Any]:
    return lambda p: kind([p], **options)


class ByHand:
    """An optimizer given as a function of a parameter, its gradient and its own memory."""

    def __init__(self, parameter: torch.Tensor, rule: Callable[..., torch.Tensor]) -> None:
        self.parameter, self.rule, self.memory = parameter, rule, {"t": 0}

    def step(self) -> None:
        p, g, s = self.parameter.data.double(), self.parameter.grad.double(), self.memory
        s["t"] += 1
        self.parameter.data = self.rule(p, g, s).float()


def by_hand(text: str, rule: Callable[..., torch.Tensor]) -> Case:
    return Case(text, lambda p: ByHand(p, rule))


def lamb(p: Any, g: Any, s: Any, wd: float = 0.01) -> Any:
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.999 * s.get("v", 0) + 0.001 * g * g
    m, v = s["m"] / (1 - 0.9 ** s["t"]), s["v"] / (1 - 0.999 ** s["t"])
    d = m / (v.sqrt() + 1e-6) + wd * p
    return p - 0.02 * (p.norm() / d.norm() if p.norm() * d.norm() > 0 else 1) * d


def lars(p: Any, g: Any, s: Any, wd: float, nesterov: bool) -> Any:
    scale = 0.01 * p.norm() / (g.norm() + wd * p.norm() + 1e-8) if p.norm() * g.norm() > 0 else 1
    d = scale * (g + wd * p)
    s["m"] = 0.8 * s.get("m", 0) + d
    return p - 0.5 * (d + 0.8 * s["m"] if nesterov else s["m"])


def lion(p: Any, g: Any, s: Any, wd: float) -> Any:
    m = s.get("m", torch.zeros_like(g))
    s["m"] = 0.99 * m + 0.01 * g
    return p * (1 - 1e-2 * wd) - 1e-2 * torch.sign(0.9 * m + 0.1 * g)


CASES = [
    *of_torch(),
    by_hand("lamb(lr=0.02)", lamb),
    by_hand("lamb(lr=0.02, weight_decay=0.0)", lambda p, g, s: lamb(p, g, s, 0.0)),
    by_hand("lars(lr=0.5, momentum=0.8, trust=0.01)", lambda p, g, s: lars(p, g, s, 0.0, False)),
    by_hand("lars(lr=0.5, momentum=0.8, trust=0.01, weight_decay=0.1, nesterov=True)",
            lambda p, g, s: lars(p, g, s, 0.1, True)),
    by_hand("lion(lr=0.01)", lambda p, g, s: lion(p, g, s, 0.0)),
    by_hand("lion(lr=0.01, weight_decay=0.1)", lambda p, g, s: lion(p, g, s, 0.1)),
]


def program(cases: list[Case]) -> str:
    """Parameters of rank 2 and 0 for every case, in sums of terms of their own."""
    fields, terms, groups = [], [], []
    for n, case in enumerate(cases):
        fields += [f"    w{n}: f32[{WIDTH}, 2] = normal(std=0.5)", f"    b{n}: f32[] = zeros()"]
        terms.append(f"({case.sign}) * mean((x @ w{n} + b{n} - y) ** 2)")
        groups.append(f"    optimizer[{json.dumps(f'w{n}')}, {json.dumps(f'b{n}')}] = {case.text}")
    return "\n".join([
        "model Many():", *fields, f"    def loss(x: f32[B, {WIDTH}], y: f32[B, 2]) -> f32[]:",
        f"        return sum([{', '.join(terms)}])", "train Many():", "    steps = 10",
        "    data = arrays(batch=6)", *groups, ""])


def expected(cases: list[Case], states: dict[str, Any], batches: list[Any]) -> dict[str, Any]:
    found = {}
    for n, case in enumerate(cases):
        w, b = (torch.tensor(states[f"{k}{n}"], requires_grad=True) for k in "wb")
        optimizers = [case.make(w), case.make(b)]
        for batch in batches:
            w.grad = b.grad = None
            x, y = torch.tensor(batch["x"]), torch.tensor(batch["y"])
            ((x @ w + b - y) ** 2).mean().backward()
            for optimizer in optimizers:
                optimizer.step()
        found[f"w{n}"], found[f"b{n}"] = w.detach().numpy(), b.detach().numpy()
    return found


@pytest.mark.parametrize(("mesh", "every"), [({}, 1), ({"data": 2}, 3), ({"model": 2}, 3)])
def test_optimizers_are_those_of_torch(mesh: dict[str, int], every: int) -> None:
    """`maximize` is a loss of the other sign here."""
    cases = CASES[::every] + CASES[-2:]
    random = np.random.default_rng(0)
    batches = [{"x": random.normal(size=(6, WIDTH)).astype("f4"),
                "y": random.normal(size=(6, 2)).astype("f4")} for _ in range(STEPS)]
    plan = ab.compile(ab.loads(program(cases)).train, mesh=ab.Mesh(**mesh))
    with ab.Session(plan) as session:
        wanted = expected(cases, session.state_dict(), batches)
        for batch in batches:
            session.step(**batch)
        states = session.state_dict()
    for n, case in enumerate(cases):
        for name in (f"w{n}", f"b{n}"):
            np.testing.assert_allclose(states[name], wanted[name], rtol=2e-4, atol=2e-6,
                                       err_msg=f"{case.text} {name}")


def test_no_optimizer_is_left_without_an_oracle() -> None:
    assert {case.text.partition("(")[0] for case in CASES} == set(OPTIMIZERS)
