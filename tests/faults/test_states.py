"""Weights that are saved, moved to other meshes, exchanged for others, and written in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from tests.faults.cases import counted, mesh_of, scattered

NET = """
model Net():
    up:    f32[7, 5] {up}= normal()
    down:  f32[3, 7] {down}= normal()
    buffer seen: f32[5] = zeros()

    def forward(x: f32[B, 5]) -> f32[B, 3]:
        return tanh(x @ up.T) @ down.T

    def loss(x: f32[B, 5], y: f32[B, 3]) -> f32[]:
        if training:
            seen := seen + mean(x, axis=0)
        return mse(forward(x), y)

train Net():
    steps     = 10
    data      = arrays(batch=6)
    optimizer = adamw(lr=1e-2)
"""
FREE = {"up": "", "down": ""}
ROWS = {"up": "@ {model: S(0)} ", "down": "@ {model: S(1)} "}
COLUMNS = {"up": "@ {model: S(1)} ", "down": "@ {model: S(0)} "}
BATCH = {"x": scattered(6, 5), "y": scattered(6, 3)}


def plan_of(mesh: str, pins: dict[str, str]) -> Any:
    return ab.compile(ab.loads(NET.format(**pins)).train, mesh=mesh_of(mesh))


@pytest.mark.parametrize("saved", [("data=2", FREE), ("model=2", ROWS), ("model=5", ROWS)], ids=str)
def test_a_checkpoint_is_loaded_on_any_other_mesh(saved: Any, tmp_path: Path) -> None:
    """Parameters, buffers and the optimizer bit for bit; the next loss to rounding."""
    path = tmp_path / "two.safetensors"
    with ab.Session(plan_of(*saved)) as session:
        session.step(**BATCH)
        session.step(**BATCH)
        session.save(path)
        states = session.state_dict(optimizer=True)
        expected = session.step(**BATCH)
    for mesh, pins in [("", FREE), ("data=3", FREE), ("model=3", COLUMNS), ("model=4", ROWS),
                       ("data=2,model=2", COLUMNS), ("stage=2", FREE)]:
        with ab.Session(plan_of(mesh, pins)) as session:
            session.resume(path)
            found = session.state_dict(optimizer=True)
            assert found.keys() == states.keys()
            for name, value in states.items():
                np.testing.assert_array_equal(found[name], value, err_msg=f"{name} on {mesh}")
            assert session.step(**BATCH) == pytest.approx(expected, rel=1e-6), mesh


KINDS = """
op fives(shape: Shape, dtype: str) -> {dtype}[*shape]:
    y[*i] = {dtype}(5)
    return y

model Net(n: int):
    table: {dtype}[n] @ {{model: S(0)}} = fives(dtype="{dtype}")
    one:   {dtype}[] = fives(dtype="{dtype}")
    none:  {dtype}[0, n] = fives(dtype="{dtype}")
    scale: f32[] = ones()

    def loss(x: f32[B]) -> f32[]:
        return mean((x * scale - 1) ** 2)

train Net(n=3):
    steps     = 1
    data      = arrays(batch=2)
    optimizer = nadam(lr=0.1)
"""


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "i64", "i8", "u8", "bool"])
def test_states_of_every_kind_and_rank_are_in_a_checkpoint(dtype: str, tmp_path: Path) -> None:
    """Single numbers and empty tensors too, of the program and of its optimizer."""
    batch = {"x": scattered(2)}
    program = ab.loads(KINDS.format(dtype=dtype)).train
    with ab.Session(ab.compile(program, mesh=mesh_of("model=2"))) as session:
        session.step(**batch)
        session.save(tmp_path / "c")
        states = session.state_dict(optimizer=True)
    with ab.Session(ab.compile(program, mesh=mesh_of("data=2"))) as session:
        session.resume(tmp_path / "c")
        for name, value in session.state_dict(optimizer=True).items():
            np.testing.assert_array_equal(value, states[name], err_msg=name)
    assert states["optimizer.scale.product"].shape == states["one"].shape == ()
    assert states["one"] == (1 if dtype == "bool" else 5)


TABLE = """
model Net():
    table: f32[7] @ {model: S(0)} = zeros()

    def loss(x: f32[B]) -> f32[]:
        return mean(x) * sum(table)

train Net():
    steps     = 1
    data      = arrays(batch=2)
    optimizer = sgd(lr=0.0)
"""


@pytest.mark.parametrize("other", ["", "model=2", "model=5", "model=8"])
@pytest.mark.parametrize("mesh", ["model=5", "model=8"])
def test_short_and_empty_shards_are_saved_in_their_places(
    mesh: str, other: str, tmp_path: Path
) -> None:
    """Of 7 numbers five ranks have 2, 2, 1, 1, 1; of eight the last has none."""
    program, path = ab.loads(TABLE), tmp_path / "table.safetensors"
    with ab.Session(ab.compile(program.train, mesh=mesh_of(mesh))) as session:
        session.load_state_dict({"table": counted(7)})
        session.save(path)
    with ab.Session(ab.compile(program.train, mesh=mesh_of(other))) as session:
        session.resume(path)
        np.testing.assert_array_equal(session.state_dict()["table"], counted(7))


@pytest.mark.parametrize("mesh", ["", "data=2", "model=2"])
def test_memory_that_is_used_again_changes_no_bit_in_200_steps(mesh: str) -> None:
    """Against a session whose states are written anew before every step."""
    plan = plan_of(mesh, FREE)
    random = np.random.default_rng(0)
    with ab.Session(plan) as session, ab.Session(plan) as other:
        for _ in range(200):
            batch = {name: random.normal(size=array.shape).astype("f4")
                     for name, array in BATCH.items()}
            other.load_state_dict(other.state_dict(optimizer=True))
            assert session.step(**batch) == other.step(**batch)
        states = other.state_dict(optimizer=True)
        for name, value in session.state_dict(optimizer=True).items():
            np.testing.assert_array_equal(value, states[name], err_msg=name)


@pytest.mark.parametrize("mesh", ["", "model=2"])
def test_other_weights_give_what_they_give_in_a_new_session(mesh: str) -> None:
    """Loaded as new arrays or by writing into the old ones, into a function or into a recipe."""
    program = ab.loads(NET.format(**FREE))
    forward = ab.compile(program.Net().forward, x=BATCH["x"], mesh=mesh_of(mesh))
    step = plan_of(mesh, FREE)
    weights = {"up": scattered(7, 5), "down": scattered(3, 7), "seen": np.zeros(5, "f4")}

    def alone() -> tuple[Any, Any]:
        with ab.Session(forward) as one, ab.Session(step) as recipe:
            one.load_state_dict(weights, strict=False)
            recipe.load_state_dict(weights)
            return one(x=BATCH["x"]), recipe.evaluate(**BATCH)

    with ab.Session(forward) as one, ab.Session(step) as recipe:
        for turn in range(3):
            if turn == 1:
                weights["up"] *= -2
            if turn == 2:
                weights = {name: array + 1 for name, array in weights.items()}
            one.load_state_dict(weights, strict=False)
            recipe.load_state_dict(weights)
            values, loss = alone()
            np.testing.assert_array_equal(one(x=BATCH["x"]), values)
            assert recipe.evaluate(**BATCH) == loss
            expected = np.tanh(BATCH["x"] @ weights["up"].T) @ weights["down"].T
            np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)
