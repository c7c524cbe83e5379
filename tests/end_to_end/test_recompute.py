"""Recomputation trades time for memory and changes no bit, dropout included."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from anabranch.driver import Options, compile_training
from anabranch.frontend.program import loads
from anabranch.ir.mesh import Mesh
from anabranch.ir.plan import Plan
from anabranch.lowering.machine import CPU2, Link
from anabranch.runtime.session import Session

SOURCE = Path(__file__).with_name("gpt.ab")
SIZES = {"depth": 6, "dim": 24, "context": 32}
MESHES = {"one rank": (Mesh(), 1), "data=2": (Mesh.of(data=2), 1), "stage=2": (Mesh.of(stage=2), 2)}

# Launches and messages cost next to nothing here, so both programs split the batch. Where they
# count, the planner may lay out the two differently, and sums are then taken in another order.
MACHINE = replace(CPU2, launch=1e-6, inner=Link(1e-7, 6e9))


@cache
def plan(again: bool, name: str) -> Plan:
    text = SOURCE.read_text()
    if again:
        text = text.replace("stages // depth):", "stages // depth), recompute:")
        assert "recompute" in text
    mesh, micro = MESHES[name]
    training = loads(text, str(SOURCE)).training(overrides=SIZES, stages=mesh.stages)
    return compile_training(training, Options(mesh=mesh, micro=micro, machine=MACHINE)).plan


def losses(again: bool, name: str) -> list[float]:
    tokens = np.random.default_rng(0).integers(0, 11, (8, 32))
    with Session(plan(again, name), seed=1) as session:
        session.run("init", 1)
        return [float(session.step("train", {"tokens": tokens, "targets": tokens}, step)["loss"])
                for step in range(3)]


@pytest.mark.parametrize("name", MESHES)
def test_recomputation_changes_no_bit(name: str) -> None:
    assert losses(True, name) == losses(False, name)


def test_recomputation_needs_less_memory_and_more_work() -> None:
    kept, made_again = (plan(again, "one rank").program("train") for again in (False, True))
    assert made_again.peak[0] < 0.6 * kept.peak[0]
    work = [sum(x.flops for a in p.actors for x in a.launches) for p in (kept, made_again)]
    assert 1.1 * work[0] < work[1] < 1.6 * work[0]
