"""Slots are the knob of the pipeline: they change when things happen, never what comes out."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from anabranch.driver import Options, compile_training
from anabranch.frontend.program import load
from anabranch.ir.mesh import Mesh
from anabranch.ir.plan import Actor, Plan, Program
from anabranch.lowering.simulate import simulate, step_seconds
from anabranch.runtime.session import Session
from anabranch.runtime.trace import Firing

SOURCE = Path(__file__).with_name("gpt.ab")
MICRO = 4


@cache
def plan(slots: int) -> Plan:
    training = load(SOURCE).training(stages=2)
    options = Options(mesh=Mesh.of(stage=2), micro=MICRO, slots=slots)
    return compile_training(training, options).plan


def chains(program: Program, rank: int) -> tuple[Actor, Actor]:
    """The forward and the backward chain of a stage: of those that fire with every micro-batch
    and are not early, the first and the last in the order of dependence."""
    found = [a for a in program.actors if a.rank == rank and a.kind == "chain"
             and a.fires == MICRO and a.priority > -1000]
    found.sort(key=lambda a: -a.priority)
    return found[0], found[-1]


def order(program: Program, rank: int) -> list[str]:
    """F0 F1 B0 ...: the sequence of a stage's stream."""
    forward, backward = chains(program, rank)
    names = {forward.id: "F", backward.id: "B"}
    stream = program.streams[forward.stream]
    return [f"{names[a]}{k}" for a, k in stream.sequence if a in names]


def test_two_slots_give_one_forward_one_backward() -> None:
    assert order(plan(1).program("train"), 0) == ["F0", "B0", "F1", "B1", "F2", "B2", "F3", "B3"]
    assert order(plan(2).program("train"), 0) == ["F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3"]


def test_more_slots_shorten_the_simulated_step() -> None:
    one, two = (step_seconds(plan(slots).program("train")) for slots in (1, 2))
    assert two < 0.95 * one


def test_stages_work_on_different_micro_batches_at_once() -> None:
    program = plan(2).program("train")
    first, second = chains(program, 0)[0], chains(program, 1)[0]
    firings = simulate(program)
    own = {f.number: f for f in firings if f.actor == first.id}
    next_stage = {f.number: f for f in firings if f.actor == second.id}
    assert any(
        own[k + 1].begin < next_stage[k].end and next_stage[k].begin < own[k + 1].end
        for k in range(MICRO - 1)
    )


@pytest.mark.parametrize("slots", [1, 2])
def test_the_trace_shows_the_order_and_the_values_do_not_change(slots: int) -> None:
    losses, firings = run(slots)
    forward, backward = chains(plan(slots).program("train"), 0)
    begin = {(f.name, f.k): f.begin for f in firings
             if f.rank == 0 and f.program == "train" and f.step == 1}
    ahead = begin[forward.name, 1] < begin[backward.name, 0]
    assert ahead == (slots == 2)
    assert losses == run(3 - slots)[0]


@cache
def run(slots: int) -> tuple[tuple[float, ...], list[Firing]]:
    random = np.random.default_rng(0)
    tokens = random.integers(0, 11, (8, 7))
    with Session(plan(slots), seed=3, trace=True) as session:
        session.run("init", 1)
        losses = tuple(
            float(session.step("train", {"tokens": tokens, "targets": tokens}, step)["loss"])
            for step in range(2))
        assert session.trace is not None
        return losses, list(session.trace.firings)
