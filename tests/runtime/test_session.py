"""What a session promises: values, states, programs, memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anabranch.ir.plan import Plan
from anabranch.runtime.errors import FeedError, RunError
from anabranch.runtime.session import Session
from tests.runtime.models import WIDTH, counter


def batch(step: int, ranks: int = 2) -> dict[str, Any]:
    random = np.random.default_rng(step)
    return {"x": random.integers(0, 9, (ranks, WIDTH)).astype(float)}


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_n_steps_are_n_times_one_step(ranks: int) -> None:
    plan = counter(ranks)
    with Session(plan) as at_once, Session(plan) as one_by_one:
        results: list[Any] = []
        steps = at_once.run("train", 7, lambda s: batch(s, ranks), lambda _, r: results.append(r))
        assert steps == 7
        for step in range(7):
            result = one_by_one.step("train", batch(step, ranks), step)
            np.testing.assert_array_equal(result["y"], results[step]["y"])
        np.testing.assert_array_equal(at_once.state("w"), one_by_one.state("w"))
        expected = sum(batch(step, ranks)["x"].sum(0) for step in range(7))
        np.testing.assert_array_equal(at_once.state("w"), expected)


def test_the_last_session_leaves_the_process_as_the_first_one_found_it() -> None:
    before = sys.getswitchinterval()
    first, second = Session(counter(1)), Session(counter(1))
    first.close()
    assert sys.getswitchinterval() < before
    second.close()
    assert sys.getswitchinterval() == before


def test_programs_take_turns_on_one_state() -> None:
    with Session(counter(2)) as session:
        session.set_state("w", np.arange(WIDTH))
        total = np.arange(WIDTH, dtype=float)
        for step in range(3):
            np.testing.assert_array_equal(session.step("eval")["z"], total)
            total = total + batch(step)["x"].sum(0)
            np.testing.assert_array_equal(session.step("train", batch(step), step)["y"], total)


def test_a_replicated_state_is_the_same_bits_on_all_ranks() -> None:
    plan = counter(3)
    with Session(plan) as session:
        session.run("train", 20, lambda s: {"x": np.random.default_rng(s).normal(size=(3, WIDTH))})
        shards = [session._memory.shard(shard).tobytes() for shard in plan.states[0].shards]
    assert len(set(shards)) == 1


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_slots_change_no_result(slots: int) -> None:
    results: list[list[Any]] = []
    for plan in (counter(2), counter(2, slots)):
        results.append([])
        with Session(plan, canaries=True) as session:
            session.set_state("w", np.zeros(WIDTH))
            session.run("train", 9, batch, lambda _, r: results[-1].append(r["y"].tolist()))
    assert results[0] == results[1]


def test_what_is_allocated_is_what_the_plan_says() -> None:
    plan = counter(2, slots=2)
    with Session(plan) as session:
        assert session.allocated_bytes == sum(arena.nbytes for arena in plan.arenas)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_a_step_allocates_nothing() -> None:
    with Session(counter(2)) as session:
        session.run("train", 100, batch)
        before = resident_bytes()
        session.run("train", 200, batch)
        assert resident_bytes() - before < 1 << 20


def test_canaries_see_one_element_too_many() -> None:
    with (
        Session(counter(1, canaries_break=True), canaries=True) as session,
        pytest.raises(RunError, match=r"something wrote behind train %y \(register 2\)"),
    ):
        session.step("train", batch(0, 1))


def test_a_reader_that_runs_dry_ends_the_run_and_loses_nothing() -> None:
    def feed(step: int) -> Any:
        if step == 3:
            raise StopIteration
        return batch(step)

    with Session(counter(2)) as session:
        assert session.run("train", 10, feed) == 3
        assert session.run("train", 2, lambda s: batch(s), first=3) == 2
        expected = sum(batch(step)["x"].sum(0) for step in range(5))
        np.testing.assert_array_equal(session.state("w"), expected)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_of_the_user_leaves_the_session_usable(error: type[BaseException]) -> None:
    def look(step: int, results: Any) -> None:
        if step == 2:
            raise error

    with Session(counter(2)) as session:
        with pytest.raises(error):
            session.run("train", 50, batch, look)
        done = int(session.state("w")[0])
        some = [int(sum(batch(s)["x"].sum(0) for s in range(n))[0]) for n in range(1, 10)]
        assert done in some
        session.step("train", batch(0))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": np.zeros((3, WIDTH))}, r"x is \[3, 4\] here; the program wants \[2, 4\]"),
        ({"y": 0}, "the program wants x: x is missing, it takes no y; x is f64"),
        ({"X": 0}, r"it takes no X; did you mean x\?; x is f64\[2, 4\]"),
        ({"x": np.zeros((2, WIDTH), complex)}, "x is complex128 here; the program wants f64"),
        ({"x": object()}, r"x is \[\] here"),
    ],
)
def test_a_wrong_feed_is_refused_before_anything_runs(given: Any, message: str) -> None:
    with Session(counter(2)) as session:
        with pytest.raises(FeedError, match=message):
            session.step("train", given)
        session.step("train", batch(0))


def test_arrays_of_torch_are_fed_and_set() -> None:
    torch = pytest.importorskip("torch")
    with Session(counter(2)) as session:
        session.set_state("w", torch.arange(WIDTH, requires_grad=False))
        session.step("train", {"x": torch.ones(2, WIDTH)})
        assert session.state("w").tolist() == [2, 3, 4, 5]


def test_an_unknown_state_is_named_with_those_there_are() -> None:
    with Session(counter(1)) as session, pytest.raises(RunError, match=r"no state 'v'; .* are w"):
        session.state("v")


def test_a_closed_session_says_so() -> None:
    session = Session(counter(1))
    session.close()
    with pytest.raises(RunError, match="closed"):
        session.step("train", batch(0, 1))


def test_a_saved_plan_runs_like_the_first(tmp_path: Path) -> None:
    counter(2).save(tmp_path / "plan")
    with Session(Plan.load(tmp_path / "plan")) as session:
        np.testing.assert_array_equal(session.step("train", batch(5))["y"], batch(5)["x"].sum(0))
