"""Whatever breaks, a run ends soon, with one error that says what, where and on which rank."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anabranch.ir.plan import Arg, Edge, Launch, Plan, Port, Transfer, Use
from anabranch.runtime import session as session_module
from anabranch.runtime.errors import RunError
from anabranch.runtime.session import Session
from tests.runtime.hand import KERNEL, Builder
from tests.runtime.models import WIDTH, counter


def looking_up(ranks: int, bound: int) -> Plan:
    """Rank 1 looks up an index it is fed, then all ranks meet."""
    b = Builder(ranks)
    group = b.comm(*range(ranks))
    fed = []
    x, y = b.value("x", ranks, sbp="S0"), b.value("y", 1)
    for rank in range(ranks):
        io, cpu, comm = b.stream(rank, "io"), b.stream(rank), b.stream(rank, "comm")
        feed = b.actor("feed", io, "feed")
        chain = b.actor("embed", cpu, loc=b.loc(7, "embedding"))
        meet = b.actor("meet", comm, "comm")
        b.sequence(comm, (meet, 0))
        given = b.register(x, feed, Use(chain), local=(1,), origin=(rank,))
        found = b.register(y, chain, Use(meet))
        summed = b.register(b.value("s", 1), meet)
        args = (Arg("reg", found), Arg("reg", given), Arg("int", bound))
        b.launch(chain, Launch(KERNEL["look_up"], args, loc=b.loc(40, "embedding table[ids]")))
        part = (group, rank, "f64", (1,), found, summed)
        b.transfer(meet, Transfer(0, "all_reduce", *part, reduce="sum"))
        fed.append(given)
    b.feeds.append(Port("x", x, tuple(fed)))
    return b.plan()


def test_an_index_out_of_range_names_itself_its_line_and_its_rank() -> None:
    with Session(looking_up(2, bound=10)) as session:
        session.step("train", {"x": np.array([3.0, 9.0])})
        with pytest.raises(RunError) as failed:
            session.step("train", {"x": np.array([3.0, 12.0])})
    message = str(failed.value)
    begin = "hand.ab:40: error: index 12 is outside 0..9, in embedding table[ids]\nhelp: "
    assert message.startswith(begin)
    assert message.splitlines()[-1] == "note: in step 0, on rank 1"


def test_after_a_failure_the_session_refuses_to_go_on() -> None:
    with Session(looking_up(2, bound=10)) as session:
        with pytest.raises(RunError):
            session.step("train", {"x": np.array([-1.0, 0.0])})
        with pytest.raises(RunError, match="failed before; go on from the last checkpoint"):
            session.step("train", {"x": np.array([0.0, 0.0])})


def test_a_failure_ends_every_thread() -> None:
    before = set(threading.enumerate())
    with Session(looking_up(3, bound=10)) as session, pytest.raises(RunError):
        session.step("train", {"x": np.array([0.0, 99.0, 0.0])})
    assert set(threading.enumerate()) <= before


def test_two_failures_are_one_error() -> None:
    """Each rank may be the first; the other, if it got that far, is a note."""
    with Session(looking_up(2, bound=10)) as session:
        with pytest.raises(RunError, match=r"index 1[12] is outside") as failed:
            session.step("train", {"x": np.array([11.0, 12.0])})
        assert len(getattr(failed.value, "__notes__", [])) <= 1


def test_a_stall_says_what_every_actor_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check would refuse this plan, so it is left out: rank 0 waits for its own next token."""
    monkeypatch.setattr(session_module, "check_plan", lambda plan: None)
    plan = counter(2)
    program = plan.programs[0]
    update = next(a for a in program.actors if a.name == "update")
    reduce = next(a for a in program.actors if a.name == "reduce")
    edge = Edge(update.id, 0, reduce.id, 0, 0, "a planted edge")
    dead = replace(plan, programs=(replace(program, edges=(edge,)),))
    with Session(dead, stall_seconds=0.5) as session:
        begin = time.monotonic()
        with pytest.raises(RunError) as failed:
            session.step("train", {"x": np.zeros((2, WIDTH))})
        assert time.monotonic() - begin < 5
    message = str(failed.value)
    assert "train has made no progress for 0.5 s" in message
    assert "reduce on rank 0 waits for firing 0 of update on rank 0 (hand.ab:9 update)" in message
    assert "(a planted edge)" in message
    assert "update on rank 1 (hand.ab:9 update) waits for token 0 of %total from reduce" in message
    assert "reduce on rank 1 has begun and does not end" in message


def test_a_stalled_reader_ends_the_run_when_a_limit_is_set() -> None:
    release = threading.Event()

    def feed(step: int) -> Any:
        if step == 2:
            release.wait(10)
        return {"x": np.zeros((2, WIDTH))}

    with Session(counter(2), reader_seconds=1.0) as session:
        with pytest.raises(RunError, match=r"reader has not given the batch of step 2 for 1 s"):
            session.run("train", 10, feed)
        release.set()


def test_a_slow_reader_is_not_a_stall() -> None:
    def feed(step: int) -> Any:
        time.sleep(1.5 * (step == 1))
        return {"x": np.zeros((2, WIDTH))}

    with Session(counter(2), stall_seconds=1.0) as session:
        assert session.run("train", 3, feed) == 3


def test_an_error_of_a_reader_is_the_users_own() -> None:
    def feed(step: int) -> Any:
        raise OSError("the disk is gone")

    with Session(counter(2)) as session:
        with pytest.raises(OSError, match="the disk is gone"):
            session.run("train", 3, feed)
        session.step("train", {"x": np.zeros((2, WIDTH))})
