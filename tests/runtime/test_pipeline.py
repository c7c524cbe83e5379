"""Micro-batches overlap as far as slots let them, and no value depends on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from anabranch.ir.plan import Plan
from anabranch.runtime.session import Session
from tests.runtime.models import pipeline

MICRO = 4


def timeline(plan: Plan, steps: int) -> tuple[list[Any], list[str], float]:
    """Results, what stage 0 fired in its last step, and the time of the fastest step."""
    results: list[Any] = []
    with Session(plan, trace=steps) as session:
        for step in range(steps):
            results.append({k: v[0] for k, v in session.step("train", step=step).items()})
        assert session.trace
        firings = [f for f in session.trace.firings if f.kind == "cpu"]
    order = [f"{f.name[0]}{f.k}" for f in firings if f.rank == 0 and f.step == steps - 1]
    spans = [_span([f for f in firings if f.step == step]) for step in range(steps)]
    return results, order, min(spans)


def _span(firings: list[Any]) -> float:
    return float(max(f.end for f in firings) - min(f.begin for f in firings))


def sequenced(plan: Plan, stages: list[str]) -> Plan:
    """Fix the order of each stage's cpu stream, written like F0 F1 B0."""
    program = plan.programs[0]
    streams = list(program.streams)
    for rank, text in enumerate(stages):
        number = {a.name[0]: a.id for a in program.actors if a.name in (f"F{rank}", f"B{rank}")}
        events = tuple((number[word[0]], int(word[1:])) for word in text.split())
        streams[rank] = replace(streams[rank], sequence=events)
    return replace(plan, programs=(replace(program, streams=tuple(streams)),))


def test_slots_change_the_time_of_a_step_and_no_value() -> None:
    expected = {f"total_{r}": sum(111.0 + k for k in range(MICRO)) for r in range(2)}
    times = []
    for slots in (1, 2, 3):
        results, _, seconds = timeline(pipeline(MICRO, slots, 4000, 8000), 3)
        assert all(result == expected for result in results)
        times.append(seconds)
    assert times[1] < 0.9 * times[0]
    assert times[2] < 0.9 * times[0]


def test_a_stage_fires_in_the_order_of_its_sequence() -> None:
    """One forward, one backward, as two activation slots allow; stage 1 alternates."""
    one_f_one_b = "F0 F1 B0 F2 B1 F3 B2 B3"
    plan = sequenced(pipeline(MICRO, 2, 200, 400), [one_f_one_b, "F0 B0 F1 B1 F2 B2 F3 B3"])
    results, order, _ = timeline(plan, 2)
    assert order == one_f_one_b.split()
    assert results[0] == results[1]


def test_one_slot_forces_forward_and_backward_to_alternate() -> None:
    _, order, _ = timeline(pipeline(MICRO, 1, 200, 400), 2)
    assert order == ["F0", "B0", "F1", "B1", "F2", "B2", "F3", "B3"]
