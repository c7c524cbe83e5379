"""Convolutions and norms under splits: strides, halos, statistics, more than one axis."""

from __future__ import annotations

import numpy as np
import pytest

import anabranch as ab
from tests.faults.cases import Case, check, everywhere, mesh_of, run, scattered

FIRST_ROW = [-3.0224, 2.6896, .9476, -1.2084, -2.8004, 1.5188, .8328, .612, -3.9164]
HALO_ROW = [-2.4824, 3.1872, -2.164, -3.0308, 3.4552, -1.6564]
IMAGES = {"x": scattered(2, 3, 6, 6), "w": scattered(4, 3, 3, 3), "b": scattered(4)}

STRIDED = """
def f(x: f32[2, 3, 6, 6] @ {a: S(0)}, w: f32[4, 3, 3, 3] @ {a: S(0)}, b: f32[4]):
    y = conv2d(x, w, stride=2, padding=1) + reshape(b, [4, 1, 1])
    return sum(y), reshape(y[1, 3], [9])
"""
HALO = """
def f(x: f32[2, 3, 6, 6] @ {a: S(3)}, w: f32[4, 3, 3, 3], b: f32[4]):
    y = conv2d(x, w, padding=1) + reshape(b, [4, 1, 1])
    return sum(y), y[0, 0, 0]
"""


@everywhere(
    Case("batch and channels split", STRIDED, (-17.5264, FIRST_ROW), IMAGES, ("a=2",), 1e-4),
    Case("a split axis of places", HALO, (-60.232, HALO_ROW), IMAGES, ("a=2", "a=3"), 1e-4))
def test_a_convolution_is_that_of_the_whole_image(case: Case, mesh: str) -> None:
    check(case, mesh)


LAST_AXES = """
def f(x: f32[4, 5, 6] @ {a: S(0)}, w: f32[6], b: f32[6], w2: f32[30], b2: f32[30]):
    one = layer_norm(x, w, b)
    two = reshape(layer_norm(reshape(x, [4, 30]), w2, b2), [4, 5, 6])
    return one, two, layer_norm(x), reshape(layer_norm(reshape(x, [4, 30])), [4, 5, 6])
"""


def test_norms_over_one_axis_and_over_two_are_planned_apart() -> None:
    x = scattered(4, 5, 6)
    arrays = {"x": x, "w": np.full(6, 2, "f4"), "b": np.ones(6, "f4"),
              "w2": np.full(30, 3, "f4"), "b2": np.zeros(30, "f4")}
    for mesh in ("", "a=2"):
        one, two, plain, both = run(LAST_AXES, arrays, mesh)
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        np.testing.assert_allclose(plain, (x - mean) / np.sqrt(var + 1e-5), atol=1e-5)
        np.testing.assert_allclose(one, (x - mean) / np.sqrt(var + 1e-5) * 2 + 1, atol=1e-5)
        mean, var = x.mean((1, 2), keepdims=True), x.var((1, 2), keepdims=True)
        np.testing.assert_allclose(both, (x - mean) / np.sqrt(var + 1e-5), atol=1e-5)
        np.testing.assert_allclose(two, (x - mean) / np.sqrt(var + 1e-5) * 3, atol=1e-5)


WIDE_HALO = """
def f(x: f32[1, 1, 1, 8] @ {a: S(3)}, w: f32[1, 1, 1, 3]):
    y = conv2d(x, w, padding=[0, 1])
    return y[0, 0, 0], grad(sum(y ** 2 * 0.5), x)[0, 0, 0]
"""
EIGHT, TAPS = scattered(8).astype("f8"), np.array([1.0, -2, 3])
SUMS = np.correlate(EIGHT, TAPS, "same")


@everywhere(Case("two places for each rank", WIDE_HALO, (SUMS, np.convolve(SUMS, TAPS, "same")),
                 {"x": EIGHT.astype("f4").reshape(1, 1, 1, 8), "w": TAPS.astype("f4").reshape(
                     1, 1, 1, 3)}, ("a=2", "a=3", "a=4")))
def test_windows_reach_into_the_shards_beside_theirs(case: Case, mesh: str) -> None:
    check(case, mesh)


STATISTICS = """
model Net():
    norm: BatchNorm(1)

    def loss(x: f32[B, 1]) -> f32[]:
        report(mean=mean(x), variance=var(x, correction=0))
        return mean(norm(x) ** 2)

train Net():
    steps     = 1
    data      = arrays(batch=6)
    optimizer = sgd(lr=0.1)
"""


@pytest.mark.parametrize("mesh", ["", "data=2", "data=4", "data=5", "model=2"])
def test_statistics_of_unlike_shards_are_those_of_the_batch(mesh: str) -> None:
    """On four ranks two have 2 rows and two have 1, on five one has 2."""
    plan = ab.compile(ab.loads(STATISTICS).train, mesh=mesh_of(mesh))
    with ab.Session(plan) as session:
        session.step(x=np.array([[0], [2], [4], [4], [4], [10]], "f4"))
        states = session.state_dict()
        assert session.results["mean"] == pytest.approx(4)
        assert session.results["variance"] == pytest.approx(9.333333)
    assert states["norm.running_mean"] == pytest.approx(0.4)
    assert states["norm.running_var"] == pytest.approx(2.02)


FROZEN = """
def f(x: f32[4, 6, 8] @ {a: S(0), b: S(1)}, w: f32[8]):
    return grad(sum(rms_norm(x, w) ** 2 * 0.5), x)
"""


@pytest.mark.parametrize("mesh", ["a=2,b=2", "a=4"])
def test_a_frozen_norm_has_the_gradient_of_its_input_alone(mesh: str) -> None:
    arrays = {"x": scattered(4, 6, 8), "w": scattered(8)}
    (whole,), (split,) = run(FROZEN, arrays), run(FROZEN, arrays, mesh)
    np.testing.assert_allclose(split, whole, rtol=1e-5, atol=1e-6)


SHARED = """
def f(d: f32[8] @ {a: S(0)}, w: f32[]):
    loss = sum((w ** 2 + 1) * d)
    return loss, grad(loss, w)
"""


@everywhere(Case("a sum over ranks", SHARED, (56, 56),
                 {"d": np.arange(8, dtype="f4"), "w": np.float32(1)}, ("a=8", "a=2")))
def test_a_gradient_through_a_sum_over_ranks_is_whole(case: Case, mesh: str) -> None:
    check(case, mesh)
