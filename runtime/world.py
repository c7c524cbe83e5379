"""Which ranks live in this process, and how they reach the others.

`ThreadWorld` has all ranks here. `processes.ProcessWorld` has one, with the others in processes
of their own, on this host or elsewhere. All processes of a world make the same calls in the same
order.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from anabranch.ir.plan import Plan
from anabranch.runtime.errors import RunError
from anabranch.runtime.failure import Failure
from anabranch.runtime.processes import ProcessWorld
from anabranch.runtime.transport import ThreadTransport, Transport

T = TypeVar("T")


class World(Protocol):
    """The ranks of this process among those of the plan."""

    @property
    def processes(self) -> int: ...

    @property
    def process(self) -> int: ...

    def ranks(self, plan: Plan) -> tuple[int, ...]:
        """The ranks that run here; raises if the plan does not fit this world."""

    def connect(self, plan: Plan, failure: Failure) -> Transport: ...

    def exchange(self, item: Any) -> list[Any]:
        """What every process gives, in order; all processes call it."""

    def first(self, make: Callable[[], T]) -> T:
        """What process 0 makes, for all; it may take its time."""

    def grant(self, run: int, steps: int, last: bool) -> int:
        """How many steps of a run may begin: process 0 says so, and the others follow. `last`:
        it will not be more."""


class FailedElsewhere(RunError):
    """Another process could not do its part, and says so itself."""


def together(world: World, make: Callable[[], T]) -> T:
    """What each process makes for itself, if all of them can. Else the first that cannot raises
    its error and the others one that quotes it: a mistake of one ends the job, and is told once."""
    made: list[T] = []
    error: Exception | None = None
    try:
        made.append(make())
    except Exception as mistake:
        error = mistake
    told = world.exchange("" if error is None else f"{type(error).__name__}: {error}")
    first = next((number for number, text in enumerate(told) if text), None)
    if first is None:
        return made[0]
    if error is not None and first == world.process:
        raise error
    raise FailedElsewhere(f"process {first} failed: {told[first]}") from error


class ThreadWorld:
    """Every rank is a set of threads of this process."""

    processes = 1
    process = 0

    def ranks(self, plan: Plan) -> tuple[int, ...]:
        return tuple(range(plan.ranks))

    def connect(self, plan: Plan, failure: Failure) -> Transport:
        return ThreadTransport(plan.comms, failure)

    def exchange(self, item: Any) -> list[Any]:
        return [item]

    def first(self, make: Callable[[], T]) -> T:
        return make()

    def grant(self, run: int, steps: int, last: bool) -> int:
        return steps


JOB = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells each of its processes."""


def world_of_environment() -> World:
    """One rank per process where torchrun has started this one, else all ranks here."""
    return ProcessWorld() if all(name in os.environ for name in JOB) else ThreadWorld()
