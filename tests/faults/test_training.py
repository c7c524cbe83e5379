"""Training steps that other systems got wrong: shared tables, micro-batches, global norms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from tests.faults.cases import mesh_of, scattered

Array = np.ndarray[Any, Any]

TIED = """
model Tied(vocab: int, dim: int):
    table: f32[vocab, dim] @ {a: S(0)} = normal(std=0.5)

    def loss(ids: i64[B], targets: i64[B]):
        with stage(0):
            x = embedding(ids, table)
        with stage(stages - 1):
            y = cross_entropy(tanh(x) @ table.T, targets)
        return y

train Tied(vocab=7, dim=3):
    steps = 3
    data = arrays(batch=4)
    optimizer = sgd(lr=0.5)
"""

LINEAR = """
model Line():
    w: f32[3, 2] = zeros()

    def loss(x: f32[B, 3]):
        with stage(0):
            y = x @ w
        with stage(stages - 1):
            z = {kind}(y ** 2)
        return z

train Line():
    steps = 1
    data = arrays(batch=8)
    optimizer = sgd(lr=1.0)
"""

NORMS = """
model Weights():
    split: f32[2] @ {{a: S(0)}} = zeros()
    whole: f32[1] = zeros()

    def loss(g: f32[B, 2], h: f32[B, 1]):
        with stage(0):
            x = sum(g * split)
        with stage(stages - 1):
            y = sum(h * whole)
        return x + y

train Weights():
    steps = 1
    data = arrays(batch=1)
    optimizer = sgd(lr=1.0)
    clip = {clip}
"""


def trained(
    source: str, batches: list[dict[str, Array]], mesh: str = "", *,
    micro: int | None = None, states: dict[str, Array] | None = None,
) -> tuple[list[float], dict[str, Array]]:
    """The losses of some steps and the weights after them."""
    plan = ab.compile(ab.loads(source).train, mesh=mesh_of(mesh), micro=micro, **batches[0])
    with ab.Session(plan) as session:
        if states is not None:
            session.load_state_dict(states)
        losses = [float(session.step(**batch)) for batch in batches]
        return losses, session.state_dict()


@pytest.mark.parametrize("mesh", ["a=2", "a=3", "stage=2", "stage=2,a=2"])
def test_a_shared_table_is_one_parameter(mesh: str) -> None:
    random = np.random.default_rng(0)
    batches = [{"ids": random.integers(0, 7, 4), "targets": random.integers(0, 7, 4)}
               for _ in range(3)]
    losses, states = trained(TIED, batches)
    again, split = trained(TIED, batches, mesh)
    np.testing.assert_allclose(again, losses, rtol=1e-6)
    assert list(states) == list(split) == ["table"]
    np.testing.assert_allclose(split["table"], states["table"], rtol=1e-6, atol=1e-6)


GRADIENT = np.array([-.25598, -.022944, .331974, -.366702, .015372, .439526]).reshape(3, 2)


@pytest.mark.parametrize(("mesh", "micro"), [("", 1), ("stage=2", 4), ("stage=2", 1), ("a=3", 2)])
@pytest.mark.parametrize(("kind", "factor"), [("mean", 1), ("sum", 16)])
def test_micro_batches_give_the_loss_of_the_batch(
    kind: str, factor: float, mesh: str, micro: int
) -> None:
    """A sum is not divided by their number."""
    w = scattered(3, 2)
    (loss,), states = trained(LINEAR.format(kind=kind), [{"x": scattered(8, 3)}], mesh,
                              micro=micro, states={"w": w})
    assert loss == pytest.approx(.521842 * factor, rel=1e-5)
    np.testing.assert_allclose((w - states["w"]) / factor, GRADIENT, atol=2e-6)


@pytest.mark.parametrize("mesh", ["", "a=2", "stage=2", "stage=2,a=2"])
def test_a_norm_counts_every_weight_once(mesh: str) -> None:
    """3, 4 and 12 have the norm 13, wherever they are and however often they are held."""
    batch = {"g": np.array([[3, 4]], "f4"), "h": np.array([[12]], "f4")}
    _, states = trained(NORMS.format(clip=6.5), [batch], mesh)
    np.testing.assert_allclose(-states["split"], [1.5, 2], rtol=1e-6)
    np.testing.assert_allclose(-states["whole"], [6], rtol=1e-6)
