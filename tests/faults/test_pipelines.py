"""Pipelines of more stages than micro-batches, without a step of training, and with metrics."""

from __future__ import annotations

import numpy as np
import pytest

import anabranch as ab
from anabranch.ir.diagnostics import UserError
from tests.faults.cases import Case, check, everywhere, mesh_of, scattered

STAGED = """
model Lines():
    w: f32[3, 2] = normal()
    v: f32[2, 2] = normal()

    def forward(x: f32[B, 3]) -> f32[B, 2]:
        with stage(0):
            y = x @ w
        with stage(1 % stages):
            y = tanh(y)
        with stage(2 % stages):
            y = y @ v
        with stage(stages - 1):
            return y ** 2

    def loss(x: f32[B, 3], label: i64[B]) -> f32[]:
        report(lr=rate(), largest=max(forward(x)))
        return cross_entropy(forward(x), label)

    def accuracy(x: f32[B, 3], label: i64[B]) -> f32[]:
        return mean(argmax(forward(x), axis=1) == label)

def rate():
    return 0.25

train Lines():
    steps     = 2
    data      = arrays(batch=6)
    optimizer = sgd(lr=rate())
    metrics   = [accuracy]
"""
BATCH = {"x": scattered(6, 3), "label": np.arange(6) % 2}


def trained(mesh: str, micro: int) -> dict[str, np.ndarray]:
    """The losses, reports and metrics of two steps, and the weights after them."""
    found: dict[str, np.ndarray] = {}
    plan = ab.compile(ab.loads(STAGED).train, mesh=mesh_of(mesh), micro=micro)
    with ab.Session(plan) as session:
        for step in range(2):
            session.step(**BATCH)
            found |= {f"{step} {name}": value for name, value in session.results.items()}
        session.evaluate(**BATCH)
        found |= {f"evaluated {name}": value for name, value in session.results.items()}
        return found | session.state_dict()


@pytest.mark.parametrize(("mesh", "micro"), [
    ("stage=4", 1), ("stage=4", 2), ("stage=4", 3), ("stage=2", 1), ("stage=2", 6),
    ("stage=2,data=2", 3), ("stage=3", 2)])
def test_stages_and_micro_batches_of_any_number_give_what_one_device_gives(
    mesh: str, micro: int
) -> None:
    """With the rate and the metrics beside the loss."""
    alone, found = trained("", 1), trained(mesh, micro)
    assert {"0 loss", "0 lr", "0 largest", "evaluated accuracy"} <= found.keys()
    assert alone.keys() == found.keys()
    assert found["1 lr"] == 0.25
    for name, value in alone.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_micro_batches_that_are_not_equal_are_refused_with_their_line() -> None:
    with pytest.raises(UserError, match="4 micro-batches cannot share a batch of 6 evenly"):
        trained("stage=2", 4)


FORWARD = """
def f(x: f32[8, 3], w: f32[3, 2]):
    with stage(0):
        y = x @ w
    with stage(stages - 1):
        return y ** 2
"""
SLOPE = """
def f(x: f32[8, 3], w: f32[3, 2]):
    with stage(0):
        y = x @ w
    with stage(stages - 1):
        return grad(mean(y ** 2), w)
"""
SLOPES = [[-.25598, -.022944], [.331974, -.366702], [.015372, .439526]]
ARRAYS = {"x": scattered(8, 3), "w": scattered(3, 2)}


@everywhere(
    Case("values", FORWARD, (scattered(8, 3, dtype="f8") @ scattered(3, 2, dtype="f8")) ** 2,
         ARRAYS, ("stage=2",)),
    Case("a gradient", SLOPE, SLOPES, ARRAYS, ("stage=2",)))
def test_stages_need_no_training(case: Case, mesh: str) -> None:
    check(case, mesh)
