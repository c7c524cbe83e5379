"""Steps of training in which other systems went wrong: accumulation, clipping, tied or frozen
weights. Each is that of one device with the whole batch, on every mesh and in micro-batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from tests.faults.cases import mesh_of, scattered

MESHES = [("", 1), ("", 4), ("data=2", 1), ("data=2", 2), ("model=2", 2)]
on_meshes = pytest.mark.parametrize(("mesh", "micro"), MESHES)


def after(
    text: str, arrays: dict[str, Any], mesh: str = "", micro: int = 1, steps: int = 1,
    weights: dict[str, Any] | None = None,
) -> tuple[list[float], dict[str, Any]]:
    """The losses of some steps on one batch, and the weights then."""
    plan = ab.compile(ab.loads(text).train, mesh=mesh_of(mesh), micro=micro)
    with ab.Session(plan) as session:
        session.load_state_dict(weights or {}, strict=False)
        losses = [float(session.step(**arrays)) for _ in range(steps)]
        return losses, session.state_dict()


LINE = """
model Line():
    w: f32[3] = ones()

    def loss(x: f32[B, 3], y: f32[B]) -> f32[]:
        return {reduced}((x @ w - y) ** 2)

train Line():
    steps     = 1
    data      = arrays(batch=8)
    optimizer = sgd(lr=1.0)
"""


@on_meshes
@pytest.mark.parametrize("reduced", ["sum", "mean"])
def test_accumulation_divides_only_what_is_a_mean(reduced: str, mesh: str, micro: int) -> None:
    x, y = scattered(8, 3), scattered(8)
    error = x @ np.ones(3) - y
    gradient = 2 * x.T @ error / (8 if reduced == "mean" else 1)
    (loss,), weights = after(LINE.format(reduced=reduced), {"x": x, "y": y}, mesh, micro)
    assert loss == pytest.approx(getattr(np, reduced)(error ** 2), rel=1e-5)
    np.testing.assert_allclose(weights["w"], 1 - gradient, rtol=1e-5, atol=1e-6)


STAGED_LINES = """
model Lines():
    w: f32[3, 2] = zeros()

    def loss(x: f32[B, 3]) -> f32[]:
        with stage(0):
            y = x @ w
        with stage(stages - 1):
            return {reduced}(y ** 2)

train Lines():
    steps     = 1
    data      = arrays(batch=8)
    optimizer = sgd(lr=1.0)
"""
SLOPES = np.array([[-.25598, -.022944], [.331974, -.366702], [.015372, .439526]])


@pytest.mark.parametrize(
    ("mesh", "micro"), [("", 1), ("stage=2", 4), ("stage=2", 1), ("data=3", 2)])
@pytest.mark.parametrize(("reduced", "factor"), [("mean", 1), ("sum", 16)])
def test_a_pipeline_accumulates_what_one_device_has(
    reduced: str, factor: float, mesh: str, micro: int
) -> None:
    w = scattered(3, 2)
    (loss,), weights = after(STAGED_LINES.format(reduced=reduced), {"x": scattered(8, 3)}, mesh,
                             micro, weights={"w": w})
    assert loss == pytest.approx(.521842 * factor, rel=1e-5)
    np.testing.assert_allclose((w - weights["w"]) / factor, SLOPES, atol=2e-6)


MASKED = """
model Masked():
    w: f32[] = ones()

    def loss(x: f32[B, T], ignored: f32[B, T]) -> f32[]:
        return sum(where(ignored > 0, 0, w * x)) / sum(1 - ignored)

train Masked():
    steps     = 1
    data      = arrays(batch=2)
    optimizer = sgd(lr=1.0)
"""


@pytest.mark.parametrize(("mesh", "micro"), [("", 1), ("", 2), ("data=2", 1)])
def test_the_mean_over_targets_is_that_of_all_devices(mesh: str, micro: int) -> None:
    """Five losses of 1 on one device and one of 7 on the other are 2 on average, not 4."""
    x, ignored = np.ones((2, 5), np.float32), np.zeros((2, 5), np.float32)
    x[1, 0], ignored[1, 1:] = 7, 1
    batch = {"x": x, "ignored": ignored}
    plan = ab.compile(ab.loads(MASKED).train, mesh=mesh_of(mesh), micro=micro,
                      x=x, ignored=ignored)
    with ab.Session(plan) as session:
        assert session.step(**batch) == pytest.approx(2)
        assert session.state_dict()["w"] == pytest.approx(-1)


CLIPPED = """
model Clipped():
    a: f32[2] @ {model: S(0)} = zeros()
    b: f32[1] @ {model: B} = zeros()

    def loss(x: f32[B, 2]) -> f32[]:
        with stage(0):
            y = mean(x @ a)
        with stage(stages - 1):
            return y + 12 * b[0]

train Clipped():
    steps     = 1
    data      = arrays(batch=4)
    optimizer = sgd(lr=1.0)
    clip      = LIMIT
"""


@pytest.mark.parametrize(
    "mesh", ["", "model=2", "data=2", "data=2,model=2", "stage=2", "stage=2,model=2"])
def test_what_is_replicated_counts_once_in_the_norm(mesh: str) -> None:
    """[3 | 4] in two parts and [12] on both devices are 13 long."""
    x = {"x": np.tile(np.array([[3, 4]], np.float32), (4, 1))}
    _, weights = after(CLIPPED.replace("LIMIT", "6.5"), x, mesh)
    np.testing.assert_allclose(weights["a"], [-1.5, -2], rtol=1e-5)
    np.testing.assert_allclose(weights["b"], [-6], rtol=1e-5)
    _, weights = after(CLIPPED.replace("LIMIT", "13.1"), x, mesh)
    np.testing.assert_allclose(weights["b"], [-12], rtol=1e-5)


STAGED = """
model Staged():
    a: f32[1] = zeros()
    b: f32[1] = zeros()

    def loss(x: f32[B, 1]) -> f32[]:
        with stage(0):
            y = 3 * a[0] + 0 * mean(x)
        with stage(stages - 1):
            return y + 4 * b[0]

train Staged():
    steps     = 1
    data      = arrays(batch=4)
    optimizer = sgd(lr=1.0)
    clip      = 1.0
"""


@pytest.mark.parametrize(("mesh", "micro"), [("", 1), ("stage=2", 1), ("stage=2", 2)])
def test_the_norm_spans_the_stages_of_a_pipeline(mesh: str, micro: int) -> None:
    _, weights = after(STAGED, {"x": np.ones((4, 1), np.float32)}, mesh, micro)
    np.testing.assert_allclose([*weights["a"], *weights["b"]], [-0.6, -0.8], rtol=1e-5)


TIED = """
model Tied():
    table: f32[7, 4] @ {model: S(0)} = normal(std=0.5)
    body:  Linear(4, 4)

    def loss(tokens: i64[B, S], targets: i64[B, S]) -> f32[]:
        with stage(0):
            x = tanh(body(embedding(tokens, table)))
        with stage(stages - 1):
            return cross_entropy(x @ table.T, targets)

train Tied():
    steps     = 3
    data      = arrays(batch=4)
    optimizer = sgd(lr=0.5)
"""


@pytest.mark.parametrize(("mesh", "micro"), [("model=2", 1), ("stage=2", 1), ("stage=2", 2),
                                             ("data=2,model=2", 1), ("model=3", 1),
                                             ("stage=2,model=2", 1)])
def test_a_tied_table_is_one_parameter(mesh: str, micro: int) -> None:
    random = np.random.default_rng(0)
    tokens, targets = random.integers(0, 7, (2, 4, 5))
    program = ab.loads(TIED)
    found, losses = [], []
    for shape, parts in (("", 1), (mesh, micro)):
        plan = ab.compile(program.train, mesh=mesh_of(shape), micro=parts, tokens=tokens,
                          targets=targets)
        with ab.Session(plan) as session:
            losses.append([session.step(tokens=tokens, targets=targets) for _ in range(3)])
            found.append(session.state_dict())
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)
    assert list(found[0]) == list(found[1])
    assert sum("table" in path for path in found[0]) == 1
    for path, value in found[0].items():
        np.testing.assert_allclose(found[1][path], value, rtol=1e-6, atol=1e-6, err_msg=path)


FROZEN = """
model Frozen():
    w: f32[4, 6, 8] = normal()
    norm: RMSNorm(8)

    def loss(x: f32[B, 6, 8]) -> f32[]:
        return sum(norm(to(w * x, {data: S(0), model: S(1)})) ** 3)

train Frozen():
    steps     = 1
    data      = arrays(batch=4)
    optimizer = sgd(lr=1.0)
    optimizer["norm.*"] = None
"""


def test_a_frozen_weight_lets_the_gradient_through() -> None:
    x = {"x": scattered(4, 6, 8)}
    (one,), alone = after(FROZEN, x)
    (loss,), weights = after(FROZEN, x, "data=2,model=2")
    assert loss == pytest.approx(one, rel=1e-5)
    np.testing.assert_allclose(weights["w"], alone["w"], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(weights["norm.weight"], np.ones(8))
