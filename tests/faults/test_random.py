"""Draws are of logical elements: layouts, ranks and restarts do not change them."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import anabranch as ab
from tests.faults.cases import mesh_of, run

DRAWN = """
def f(key: Key):
    return to(normal([6, 10], key=key), {{a: {layout}}})
"""
DROPPED = """
op dropped(x: T[*I], p: float, key: Key) -> T[*I]:
    y[*i] = where(rand(key) >= p, x[*i] / (1 - p), 0)
    return y

def f(x: f32[8, 16] @ {{a: {layout}}}):
    return dropped(x, 0.5), dropped(x, 0.5)
"""


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("layout", ["B", "S(0)", "S(1)"])
def test_first_weights_do_not_depend_on_layouts(layout: str, ranks: int) -> None:
    source = DRAWN.replace("key: Key", "").replace(", key=key", "")
    (whole,) = run(source.format(layout="B"), {})
    (got,) = run(source.format(layout=layout), {}, f"a={ranks}")
    assert np.array_equal(whole, got)


@pytest.mark.parametrize("layout", ["B", "S(0)"])
def test_a_mask_is_one_mask_whatever_the_ranks(layout: str) -> None:
    x = np.ones((8, 16), "f4")
    first, second = run(DROPPED.format(layout=layout), {"x": x})
    again = run(DROPPED.format(layout=layout), {"x": x}, "a=4")
    assert np.array_equal(first, again[0])
    assert np.array_equal(second, again[1])
    assert not np.array_equal(first, second)
    assert set(np.unique(first)) == {0, 2}
    assert 0.35 <= (first > 0).mean() <= 0.65
    shards = [first[2 * i: 2 * i + 2] for i in range(4)]
    assert any(not np.array_equal(shards[0], other) for other in shards[1:])


MASKS = """
model Net():
    w: f32[4, 16] = ones()

    def loss(x: f32[B, 16]) -> f32[]:
        return mean((dropout(w, 0.5) + 10 * dropout(w, 0.5)) @ x.T)

train Net():
    steps     = 4
    data      = arrays(batch=4)
    optimizer = sgd(lr=32.0)
"""
X = np.ones((4, 16), np.float32)


def masks(session: ab.Session) -> list[np.ndarray]:
    """Which weights the two dropouts of a step kept, as its gradient shows."""
    before = session.state_dict()["w"]
    session.step(x=X)
    gradient = np.round((before - session.state_dict()["w"]) / 16 * 4).astype(int)
    return [gradient % 10 > 0, gradient // 10 > 0]


@pytest.mark.parametrize("mesh", ["", "data=2", "model=4"])
def test_every_step_and_every_place_has_a_mask_of_its_own(mesh: str, tmp_path: Path) -> None:
    """And a restart has the same ones, from the first step or from a checkpoint."""
    plan = ab.compile(ab.loads(MASKS).train, mesh=mesh_of(mesh))
    with ab.Session(plan, seed=3) as session:
        first = [*masks(session), *masks(session)]
        session.save(tmp_path / "two.safetensors")
        rest = [*masks(session), *masks(session)]
    assert all(0.3 < mask.mean() < 0.7 for mask in (*first, *rest))
    assert all((one != other).any() for one, other in combinations([*first, *rest], 2))
    with ab.Session(plan, seed=3) as session:
        np.testing.assert_array_equal([*masks(session), *masks(session)], first)
    with ab.Session(plan, seed=3) as session:
        session.resume(tmp_path / "two.safetensors")
        np.testing.assert_array_equal([*masks(session), *masks(session)], rest)
    with ab.Session(plan, seed=4) as session:
        assert (masks(session)[0] != first[0]).any()


INITIALISERS = ("normal", "uniform", "trunc_normal", "kaiming_uniform", "xavier_normal")
STARTED = """
model Net():
    w: f32[6, 10] {pin}= {initialiser}()

    def loss(x: f32[B, 10]) -> f32[]:
        return mean(x @ w.T)

train Net():
    steps     = 1
    data      = arrays(batch=4)
    optimizer = sgd(lr=1.0)
"""


@pytest.mark.parametrize("initialiser", INITIALISERS)
def test_a_model_starts_from_the_same_bits_on_every_mesh(initialiser: str) -> None:
    found = []
    for mesh, pin in [("", ""), ("data=2", ""), ("model=3", "@ {model: S(0)} "),
                      ("model=4", "@ {model: S(1)} "), ("model=4", "@ {model: S(0)} ")]:
        text = STARTED.format(pin=pin, initialiser=initialiser)
        with ab.Session(ab.compile(ab.loads(text).train, mesh=mesh_of(mesh))) as session:
            found.append(session.state_dict()["w"].tobytes())
    assert len(set(found)) == 1
