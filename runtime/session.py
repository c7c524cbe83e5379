"""A plan, running: programs for n steps, arrays in and out, states by name.

    with Session(plan) as session:
        session.run("init", 1)
        loss = session.step("train", {"tokens": tokens, "targets": targets}, step=0)["loss"]

A session proves the plan safe, builds its kernels, allocates its arenas and starts one thread per
(rank, stream). It grants steps a few at a time, each after its batch is there, so that an
interrupt or a reader that runs dry loses nothing: what was granted is finished, then all tokens
are home. `trace` is the number of last steps whose firings are kept. The first failure of a run
ends the session, since states may then differ between ranks.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from anabranch.ir.plan import Plan, State
from anabranch.runtime import settings
from anabranch.runtime.arrays import STORAGE, Array, from_storage, to_storage, typed
from anabranch.runtime.build import find_toolchain
from anabranch.runtime.check import check_plan
from anabranch.runtime.engine import Engine, Resources
from anabranch.runtime.errors import RunError
from anabranch.runtime.failure import Failure
from anabranch.runtime.interrupts import Interrupt, deferred
from anabranch.runtime.kernels import Interpret, load_kernels
from anabranch.runtime.native import load_pool
from anabranch.runtime.ports import Batch, Feed, Reader
from anabranch.runtime.reference_kernel import interpret
from anabranch.runtime.registers import Memory
from anabranch.runtime.tenancy import TENANCY
from anabranch.runtime.trace import Trace
from anabranch.runtime.watchdog import Watchdog
from anabranch.runtime.world import ThreadWorld, World

WINDOW = 4
"""Steps granted beyond the last one whose result was seen."""

NO_COMPILER = (
    "no C compiler was found, so kernels are interpreted, which is slow: install cc, clang or gcc, "
    "or the package ziglang"
)

Results = dict[str, Array]


class Session:
    """See the module. Every process of `world` makes the same calls in the same order."""

    def __init__(
        self,
        plan: Plan,
        *,
        world: World | None = None,
        interpret: Interpret = interpret,
        seed: int | None = None,
        cores: int | None = None,
        canaries: bool = False,
        trace: int = 0,
        stall_seconds: float | None = None,
        reader_seconds: float | None = None,
    ) -> None:
        check_plan(plan)
        seed = plan.seed if seed is None else seed
        if not isinstance(seed, int | np.integer) or not -(2**63) <= seed < 2**63:
            raise RunError(f"a seed is an integer of 64 bits, not {seed!r}")
        for name, count, least in (("cores", cores, 1), ("trace", trace, 0)):
            if count is not None and (not isinstance(count, int) or count < least):
                raise RunError(f"'{name}' is an integer of at least {least}, not {count!r}")
        self.plan = plan
        self.trace = Trace(trace) if trace else None
        self._world = world or ThreadWorld()
        self._failure = Failure()
        self._progress = self._failure.wakes(threading.Condition())
        self._running = threading.Lock()
        self._engines: dict[str, Engine] = {}
        self._runs = 0
        self._closed = False
        self._stall_seconds, self._reader_seconds = stall_seconds, reader_seconds
        self._canaries = canaries
        self._resources = self._prepare(interpret, seed)
        if self._pool:
            self._pool.use_cores(cores or settings.cores())
        TENANCY.enter()

    def _prepare(self, interpret: Interpret, seed: int) -> Resources:
        plan, ranks = self.plan, self._world.ranks(self.plan)
        toolchain = find_toolchain()
        self._pool = load_pool(toolchain) if toolchain else None
        wanted = any(kernel.kind == "c" for kernel in plan.kernels)
        if wanted and toolchain is None and self._world.process == 0:
            warnings.warn(NO_COMPILER, stacklevel=1)  # from one place, so shown once
        kernels = load_kernels(plan, toolchain, interpret)
        self._memory = Memory(plan, ranks, canaries=self._canaries)
        transport = self._world.connect(plan, self._failure)
        return Resources(
            plan, ranks, self._memory, kernels, transport,
            self._failure, self._progress, seed, self.trace,
        )  # fmt: skip

    @property
    def allocated_bytes(self) -> int:
        """What the arenas of this process take: what the plan predicted."""
        return self._memory.allocated_bytes()

    def step(self, program: str, feeds: Batch | None = None, step: int = 0) -> Results:
        """One step, and its fetches."""
        results: list[Results] = []
        self.run(program, 1, lambda _: feeds or {}, lambda _, r: results.append(r), first=step)
        return results[0]

    def run(
        self,
        program: str,
        steps: int,
        feed: Feed | None = None,
        on_step: Callable[[int, Results], None] | None = None,
        *,
        first: int = 0,
    ) -> int:
        """Run steps first, first + 1, …; `on_step` sees the results of each, in order.

        Returns how many were done: fewer than `steps` if the feed raised StopIteration. An
        interrupt, or an error in `feed` or `on_step`, is raised after what was granted is done.
        """
        if not self._running.acquire(blocking=False):
            raise RunError("the session is running; it runs one program at a time")
        try:
            self._check_open()
            with deferred() as interrupt:
                return _Run(self, self._engine(program), feed, on_step, first, interrupt).go(steps)
        finally:
            self._running.release()

    def _engine(self, name: str) -> Engine:
        if name not in self._engines:
            program = self.plan.program(name)
            if self.trace is not None:
                self.trace.expect(program, self.ranks)
            self._engines[name] = Engine(self._resources, program)
        return self._engines[name]

    def _check_open(self) -> None:
        if self._closed:
            raise RunError("the session is closed")
        if self._failure.aborted:
            past = "the session has failed before; go on from the last checkpoint"
            raise RunError(f"{past}. It said: {self._failure}")

    @property
    def process(self) -> int:
        """The number of this process among those that run the plan."""
        return self._world.process

    def exchange(self, item: Any) -> list[Any]:
        """What every process gives, in order; all of them call it."""
        return self._world.exchange(item)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that run in this process."""
        return self._resources.ranks

    def states(self) -> list[str]:
        return [state.name for state in self.plan.states]

    def state(self, name: str) -> Array:
        """A copy of the whole tensor, put together from the ranks that hold it."""
        state = self._state(name)
        value = self.plan.values[state.value]
        own = [
            (shard.origin, typed(self._memory.shard(shard), value.dtype, shard.local).copy())
            for shard in state.shards
            if shard.rank in self._resources.ranks
        ]
        result = np.zeros(value.shape, STORAGE[value.dtype])
        for pieces in self._world.exchange(own):
            for origin, piece in pieces:
                result[_at(origin, piece.shape)] = piece
        return from_storage(result, value.dtype)

    def set_state(self, name: str, given: Any) -> None:
        """Give every rank its part of a whole tensor. Every process gives the same one."""
        state = self._state(name)
        value = self.plan.values[state.value]
        array = to_storage(given, value.dtype, value.shape, name)
        for shard in state.shards:
            if shard.rank in self._resources.ranks:
                target = typed(self._memory.shard(shard), value.dtype, shard.local)
                target[...] = array[_at(shard.origin, shard.local)]

    def load_states(self, arrays: Mapping[str, Any]) -> None:
        for name, array in arrays.items():
            self.set_state(name, array)

    def _state(self, name: str) -> State:
        for state in self.plan.states:
            if state.name == name:
                return state
        raise RunError(f"there is no state {name!r}; the states are {', '.join(self.states())}")

    def close(self) -> None:
        """End the threads. Called by `with`; again, it does nothing."""
        if self._closed:
            return
        self._closed = True
        for engine in self._engines.values():
            engine.close()
        for engine in self._engines.values():
            for stream in engine.streams:
                stream.thread.join(timeout=5)
        self._resources.transport.close()
        TENANCY.leave()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()


def _at(origin: tuple[int, ...], local: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(o, o + n) for o, n in zip(origin, local, strict=True))


class _Run:
    """One call of `Session.run`: what was read, granted and delivered so far."""

    def __init__(
        self, session: Session, engine: Engine, feed: Feed | None,
        on_step: Callable[[int, Results], None] | None, first: int, interrupt: Interrupt,
    ) -> None:  # fmt: skip
        self._session, self._engine, self._interrupt = session, engine, interrupt
        self._feed, self._on_step, self._first = feed, on_step, first
        self._granted = self._delivered = self._target = 0
        self._reader: Reader | None = None
        self._watchdog = Watchdog(engine, session._stall_seconds)
        session._runs += 1
        self._number = session._runs

    def go(self, steps: int) -> int:
        self._engine.start_at(self._first)
        self._target = steps
        if steps > 1 and self._feed and self._engine.program.feeds:
            timeout = self._session._reader_seconds
            self._reader = Reader(self._feed, self._first, steps, timeout)
        interrupt = None
        try:
            while self._delivered < self._target:
                try:
                    self._interrupt.check()
                    self._grant_ahead()
                    self._deliver()
                except KeyboardInterrupt as error:
                    if interrupt:
                        self._session._failure.abort(RunError("interrupted twice"))
                        raise
                    interrupt = error
                    self._stop_early()
        except Exception as error:
            self._give_up(error)
            raise
        finally:
            if self._reader:
                self._reader.stop()
            self._drain()
        if self._session._canaries:
            self._session._memory.check_guards()
        if interrupt:
            raise interrupt
        return self._delivered

    def _stop_early(self) -> None:
        """Grant no more. Only process 0 decides this; the others go on as far as it says."""
        if self._session._world.process == 0:
            self._target = self._agree(self._granted, last=True)

    def _give_up(self, error: Exception) -> None:
        """After an error of the user's own code: what process 0 granted can still be finished,
        but another process that stops by itself fails the run, under its own name there."""
        self._stop_early()
        if self._session._world.process != 0 and self._target > 1:
            self._session._failure.abort(RunError(f"{type(error).__name__}: {error}"))

    def _grant_ahead(self) -> None:
        while self._granted < min(self._target, self._delivered + WINDOW):
            try:
                self._read(self._first + self._granted)
            except StopIteration:
                self._target = self._granted
                self._agree(self._granted, last=True)
                return
            if self._agree(self._granted + 1, last=False) <= self._granted:
                self._target = self._granted
                return
            self._granted += 1
            self._engine.grant(1)

    def _agree(self, steps: int, *, last: bool) -> int:
        """All processes grant the steps that process 0 does; a single step goes without saying."""
        alone = self._session._world.processes == 1 or self._target == 1
        return steps if alone else self._session._world.grant(self._number, steps, last)

    def _read(self, step: int) -> None:
        if not self._engine.program.feeds:
            return
        if self._feed is None:
            names = ", ".join(port.name for port in self._engine.program.feeds)
            raise RunError(f"{self._engine.program.name} wants to be fed {names}")
        batch = self._reader.next(step) if self._reader else self._feed(step)
        self._engine.feeds.put(step, batch)

    def _deliver(self) -> None:
        step = self._first + self._delivered
        if self._delivered == self._granted:
            return
        fetches = self._engine.fetches
        if not fetches.exist:
            self._wait(self._engine.finished)
            for step in range(self._first + self._delivered, self._first + self._granted):
                self._delivered += 1
                self._tell(step, {})
            return
        self._wait(lambda: fetches.complete(step))
        self._delivered += 1
        self._tell(step, self._results(step))

    def _tell(self, step: int, results: Results) -> None:
        if self._on_step:
            self._on_step(step, results)

    def _results(self, step: int) -> Results:
        fetches = self._engine.fetches
        with self._session._progress:
            pieces = fetches.take(step)
        if fetches.need_peers:
            pieces = [p for own in self._session._world.exchange(pieces) for p in own]
        if self._session._canaries:
            fetches.check_copies(pieces)
        return fetches.assemble(pieces)

    def _drain(self) -> None:
        """Everything granted ends; then all tokens are home and results not asked for are gone."""
        if self._session._failure.aborted:
            return
        self._wait(self._engine.finished)
        for step in range(self._first, self._first + self._granted):
            self._engine.fetches.take(step)

    def _wait(self, ready: Callable[[], bool]) -> None:
        failure, progress = self._session._failure, self._session._progress
        self._watchdog.restart()
        while True:
            with progress:
                if ready():
                    return
                failure.raise_error()
                progress.wait(timeout=self._watchdog.interval)
            stalled = self._watchdog.look(time.monotonic())
            if stalled:
                failure.abort(stalled)
