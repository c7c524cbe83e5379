"""The library's functions of whole tensors: reductions along axes, clipping, schedules, and the
initialisers by the statistics of their draws."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from anabranch.gradient_check import check_gradients
from anabranch.ir.core import Module
from anabranch.ir.reference import evaluate
from anabranch.lowering.differentiate import differentiate
from anabranch.trials import Trial
from tests.frontend.running import call, module_of, program
from tests.library.ops import DEFS, library, stepped

AXES = ["None", "0", "-1", "(0, 2)", "(0, 1, 2)"]
Reduction = Callable[..., torch.Tensor]

REDUCTIONS: dict[str, Reduction] = {
    "norm": torch.linalg.vector_norm,
    "var": torch.var,
    "var correction=0": lambda x, **where: torch.var(x, correction=0, **where),
    "std": torch.std,
    "logsumexp": torch.logsumexp,
}


def reduction(name: str, axis: str, keep: str) -> str:
    function, *more = name.split()
    arguments = ", ".join(["x", f"axis={axis}", f"keepdims={keep}", *more])
    return f"def f(x: f32[A, B, C]):\n    return {function}({arguments})\n"


@pytest.mark.parametrize("keep", ["False", "True"])
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_along_axes_is_that_of_pytorch(name: str, axis: str, keep: str) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 2)).astype(np.float32)
    source = program(reduction(name, axis, keep))
    dims = (0, 1, 2) if axis == "None" else eval(axis)
    expected = REDUCTIONS[name](torch.from_numpy(x), dim=dims, keepdim=keep == "True")
    actual = call(source, "f", x=x)
    assert actual.shape == tuple(expected.shape)
    np.testing.assert_allclose(actual, expected.numpy(), 1e-5, 1e-6)
    function = module_of(source, "f", {"x": x}).functions["f"]
    assert check_gradients(function, [x]).fault is None


def test_the_norm_of_zeros_has_gradient_zero() -> None:
    zeros = np.zeros((2, 3, 4), np.float32)
    source = program(reduction("norm", "1", "False"))
    step = stepped(Trial(module_of(source, "f", {"x": zeros}).functions["f"], (zeros,), {}))
    differentiate(Module({"f": step.function}))
    value, gradient = evaluate(step.function, step.arguments)
    assert not value.any()
    assert not gradient.any()


def test_the_logarithm_of_a_sum_of_zeros_is_minus_infinity() -> None:
    low = call(program(reduction("logsumexp", "-1", "False")), "f",
               x=np.full((2, 3, 4), -np.inf, np.float32))
    assert (low == -np.inf).all()


CLIPPED = """
def f(a: f32[N], b: f32[M, K]) -> f32[N], f32[M, K]:
    x, y = {call}
    return x, y
"""


@pytest.mark.parametrize("limit", [0.5, 100.0])
@pytest.mark.parametrize(("name", "theirs"), [
    ("clip_by_norm", torch.nn.utils.clip_grad_norm_),
    ("clip_by_value", torch.nn.utils.clip_grad_value_),
])
def test_gradients_are_clipped_as_in_pytorch(
    name: str, theirs: Callable[..., object], limit: float
) -> None:
    random = np.random.default_rng(1)
    a, b = (random.normal(size=shape).astype(np.float32) for shape in [(5,), (2, 3)])
    parameters = [torch.nn.Parameter(torch.zeros(x.shape)) for x in (a, b)]
    for parameter, x in zip(parameters, (a, b), strict=True):
        parameter.grad = torch.from_numpy(x.copy())
    theirs(parameters, limit)
    ours = call(program(CLIPPED.format(call=f"{name}([a, b], {limit})")), "f", a=a, b=b)
    for x, parameter in zip(ours, parameters, strict=True):
        np.testing.assert_allclose(x, parameter.grad.numpy(), 1e-5)


def lifted(step: int, warmup: int) -> float:
    return min(1.0, (step + 1) / warmup)


def fraction(step: int, warmup: int, total: int) -> float:
    return min(1.0, max(0.0, (step - warmup) / (total - warmup)))


SCHEDULES: dict[str, Callable[[int], float]] = {
    "warmup(peak=0.5, steps=4)": lambda n: 0.5 * lifted(n, 4),
    "progress(4, 10)": lambda n: fraction(n, 4, 10),
    "linear_decay(peak=0.5, warmup=4, total=10, floor=0.1)":
        lambda n: 0.5 * lifted(n, 4) if n < 4 else 0.5 - 0.4 * fraction(n, 4, 10),
    "cosine(peak=0.5, warmup=4, total=10, floor=0.1)":
        lambda n: 0.5 * lifted(n, 4) if n < 4
        else 0.3 + 0.2 * math.cos(math.pi * fraction(n, 4, 10)),
    "exponential(peak=0.5, warmup=4, total=10, floor=0.05)":
        lambda n: 0.5 * lifted(n, 4) if n < 4 else 0.5 * 0.1 ** fraction(n, 4, 10),
    "inverse_sqrt(peak=0.5, warmup=4)":
        lambda n: 0.5 * lifted(n, 4) if n < 4 else 0.5 * (4 / (n + 1)) ** 0.5,
    "cosine(peak=1.0, warmup=0, total=0)": lambda n: 1.0 if n == 0 else 0.0,
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_gives_a_number_for_every_step(schedule: str) -> None:
    source = program(f"def f() -> f32[]:\n    return f32({schedule})\n")
    for step in range(13):
        expected = SCHEDULES[schedule](step)
        assert call(source, "f", step=step) == pytest.approx(expected, rel=1e-5, abs=1e-7)


SHAPE = [300, 40, 3]
FAN_IN, FAN_OUT = 40 * 3, 300 * 3
VARIANCES: dict[str, float] = {
    "normal": 1.0,
    "normal(std=0.02)": 0.02 ** 2,
    "uniform": 1 / 3,
    "uniform(bound=2.0)": 4 / 3,
    "kaiming_normal": 2 / FAN_IN,
    "kaiming_normal(slope=1.0)": 1 / FAN_IN,
    "kaiming_uniform": 1 / (3 * FAN_IN),
    "xavier_normal": 2 / (FAN_IN + FAN_OUT),
    "xavier_uniform": 2 / (FAN_IN + FAN_OUT),
}


@pytest.mark.parametrize("initialiser", VARIANCES)
def test_draws_have_the_variance_of_their_initialiser(initialiser: str) -> None:
    name, _, more = initialiser.rstrip(")").partition("(")
    arguments = ", ".join(filter(None, [str(SHAPE), more]))
    drawn = call(program(f"def f() -> f32{SHAPE}:\n    return {name}({arguments})\n"), "f")
    assert drawn.var() == pytest.approx(VARIANCES[initialiser], rel=0.03)
    assert drawn.mean() == pytest.approx(0, abs=0.02 * float(drawn.std()))
    if "uniform" in name:
        assert np.abs(drawn).max() <= (3 * VARIANCES[initialiser]) ** 0.5 * 1.0001


def test_constants_are_constant() -> None:
    for name, sizes, value in [("zeros", {}, 0), ("ones", {}, 1), ("constant", {"value": 2}, 2)]:
        made = call(library(), name, sizes={"shape": [2, 3], **sizes})
        np.testing.assert_array_equal(made, np.full((2, 3), value, np.float32))


def test_no_function_of_the_library_is_left_out() -> None:
    """Helpers are tried through those that use them."""
    helpers = {"fan_in", "fan_out", "decayed", "gathered", "moving_average"}
    words = " ".join([*REDUCTIONS, *SCHEDULES, *VARIANCES, "clip_by_norm clip_by_value"])
    assert {name for name in DEFS if name not in words} == helpers
