"""A plan's memory is what was predicted, and a step allocates nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import anabranch as ab
from anabranch.progress import resident_bytes
from anabranch.runtime.session import Session
from anabranch.training import predicted_peak
from tests.end_to_end.conftest import TINY


@pytest.fixture(params=["", "data=2", "stage=2"], ids=["one rank", "data=2", "stage=2"])
def plan(request: pytest.FixtureRequest) -> ab.Plan:
    axes = dict(part.split("=") for part in request.param.split(",") if part)
    mesh = ab.Mesh(**{name: int(size) for name, size in axes.items()})
    return ab.compile(ab.load(TINY).train, mesh=mesh, micro=2, set={"dim": 64})


def batches() -> Iterator[dict[str, np.ndarray]]:
    rows = np.random.default_rng(0).integers(0, 256, (4, 17))
    while True:
        yield {"tokens": rows[:, :-1], "targets": rows[:, 1:]}


def test_the_predicted_peak_is_what_is_allocated(plan: ab.Plan) -> None:
    with Session(plan) as session:
        assert session.allocated_bytes == predicted_peak(plan, session.ranks)
        assert session.allocated_bytes == sum(arena.nbytes for arena in plan.arenas)


def test_200_steps_leave_the_memory_of_the_process_as_it_was(plan: ab.Plan) -> None:
    feed = batches()
    with Session(plan, trace=4) as session:
        session.run("init", 1)
        session.run("train", 50, lambda step: next(feed))
        before = resident_bytes()
        session.run("train", 200, lambda step: next(feed), first=50)
        assert resident_bytes() - before < 1_000_000


def test_no_step_writes_beside_its_registers(plan: ab.Plan) -> None:
    """With guard bytes around every range; the run looks at them when it ends."""
    feed = batches()
    with Session(plan, canaries=True) as guarded, Session(plan) as plain:
        for session in (guarded, plain):
            session.run("init", 1)
        for step in range(2):
            batch = next(feed)
            loss = guarded.step("train", batch, step)["loss"]
            assert loss == plain.step("train", batch, step)["loss"]
        assert guarded.step("eval", next(feed))["loss"] == plain.step("eval", next(feed))["loss"]
