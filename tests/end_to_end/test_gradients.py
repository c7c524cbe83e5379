"""`grad` is a value like any other: by arguments, parameters and whatever has a name, and by what
is made of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import anabranch as ab

X = np.array([[0.3, -1.2, 0.7], [1.1, 0.4, -0.6]], np.float32)
W = np.array([[0.5, -0.2], [0.1, 0.9], [-0.7, 0.3]], np.float32)
HEAD = "def f(x: f32[2, 3], w: f32[3, 2]):\n"
grad = torch.autograd.grad


def _second(x: Any, w: Any) -> Any:
    (g,) = grad((torch.tanh(x @ w) ** 2).sum(), x, create_graph=True)
    return grad((g * g).sum(), w)[0]


def _third(x: Any, w: Any) -> Any:
    (a,) = grad((torch.sin(x) ** 3).sum(), x, create_graph=True)
    (b,) = grad(a.sum(), x, create_graph=True)
    return grad((b * b).sum(), x)[0]


def _inner(x: Any, w: Any) -> Any:
    h = torch.tanh(x @ w)
    return grad((h ** 3).sum() + x.sum(), h)[0]


CASES: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "by an argument": (
        "    return grad(sum(tanh(x @ w)), x)", lambda x, w: grad(torch.tanh(x @ w).sum(), x)[0]),
    "by a list": (
        "    a, b = grad(sum(tanh(x @ w)), [x, w])\n    return sum(a) * b",
        lambda x, w: (lambda a, b: a.sum() * b)(*grad(torch.tanh(x @ w).sum(), [x, w]))),
    "by a value on the way": (
        "    h = tanh(x @ w)\n    return grad(sum(h ** 3) + sum(x), h)", _inner),
    "by a view, along its own way only": (
        "    t = x.T\n    y = sum(t * t) + sum(x ** 3)\n    return grad(y, t)",
        lambda x, w: 2 * x.T),
    "by what it does not use": (
        "    return grad(sum(x), w)", lambda x, w: torch.zeros_like(w)),
    "by what it only stops": (
        "    return grad(sum(stop(x * x) * x), x)", lambda x, w: x * x),
    "of itself": (
        "    y = sum(x * x)\n    return grad(y, y) * y", lambda x, w: (x * x).sum()),
    "of a gradient": (
        "    g = grad(sum(tanh(x @ w) ** 2), x)\n    return grad(sum(g * g), w)", _second),
    "of a gradient of a gradient": (
        "    a = grad(sum(sin(x) ** 3), x)\n    b = grad(sum(a), x)\n"
        "    return grad(sum(b * b), x)", _third),
    "through a maximum": (
        "    g = grad(sum(max(x @ w, axis=1) ** 2), w)\n    return sum(g * g) * g",
        lambda x, w: (lambda g: (g * g).sum() * g)(
            grad(((x @ w).amax(1) ** 2).sum(), w)[0])),
    "in a loop": (
        "    y = x\n    for _ in range(3):\n        y = y - 0.1 * grad(sum(y ** 4), y)\n"
        "    return y",
        lambda x, w: _descended(x)),
}


def _descended(x: Any) -> Any:
    y = x
    for _ in range(3):
        y = y - 0.4 * y ** 3
    return y


@pytest.mark.parametrize("mesh", [{}, {"data": 2}])
@pytest.mark.parametrize("case", CASES)
def test_a_gradient_is_that_of_torch(case: str, mesh: dict[str, int]) -> None:
    body, theirs = CASES[case]
    plan = ab.compile(ab.loads(f"{HEAD}{body}\n").f, mesh=ab.Mesh(**mesh))
    with ab.Session(plan) as session:
        found = session(x=X, w=W)
    tensors = (torch.tensor(v, requires_grad=True) for v in (X, W))
    np.testing.assert_allclose(found, theirs(*tensors).detach(), rtol=1e-5, atol=1e-6)


PENALTY = """
model Critic():
    up:   Linear(3, 4)
    down: Linear(4, 1)

    def forward(x: f32[B, 3]) -> f32[B, 1]:
        return down(tanh(up(x)))

    def loss(x: f32[B, 3]) -> f32[]:
        own = sum(grad(mean(forward(x)), up.weight) ** 2)
        report(own=own)
        return mean(forward(x) ** 2) + 0.1 * sum(grad(mean(forward(x)), x) ** 2) + own

train Critic():
    steps     = 3
    data      = arrays(batch=4)
    optimizer = sgd(lr=0.1)
"""


@pytest.mark.parametrize(("mesh", "micro"), [({}, 1), ({"data": 2}, 1), ({}, 2), ({"model": 2}, 2)])
def test_a_penalty_on_gradients_is_trained(mesh: dict[str, int], micro: int) -> None:
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    plan = ab.compile(ab.loads(PENALTY).train, mesh=ab.Mesh(**mesh), micro=micro)
    with ab.Session(plan) as session:
        p = {k: torch.tensor(v, requires_grad=True) for k, v in session.state_dict().items()}
        sgd = torch.optim.SGD(p.values(), lr=0.1)
        for _ in range(3):
            y = torch.tensor(x, requires_grad=True)
            hidden = torch.tanh(y @ p["up.weight"].T + p["up.bias"])
            out = hidden @ p["down.weight"].T + p["down.bias"]
            by_x, by_w = grad(out.mean(), [y, p["up.weight"]], create_graph=True)
            own = (by_w ** 2).sum()
            loss = (out ** 2).mean() + 0.1 * (by_x ** 2).sum() + own
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            assert session.step(x=x) == pytest.approx(loss.item(), rel=1e-5)
            assert session.results["own"] == pytest.approx(own.item(), rel=1e-5)
        for path, value in session.state_dict().items():
            np.testing.assert_allclose(value, p[path].detach(), rtol=1e-5, atol=1e-6)
        evaluated = session.evaluate(x=x)
        assert session.step(x=x) == pytest.approx(evaluated, rel=1e-6)
