"""What crosses the border of a program: feeds in, fetches out.

A batch is checked and converted before its step is granted, so a wrong array is an ordinary error
that stops nothing. Feed actors copy their rank's rectangle of it into registers; fetch actors copy
registers out, and a step's result is complete when every piece of every fetch has arrived.
"""

from __future__ import annotations

import difflib
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anabranch.ir.plan import Plan, Port, Program, Register, Value
from anabranch.runtime.arrays import STORAGE, Array, Bytes, from_storage, to_storage, typed
from anabranch.runtime.errors import FeedError, RunError

Batch = Mapping[str, Any]
Feed = Callable[[int], Batch]
"""The batch of a step. Raises StopIteration when there are no more."""


def region(register: Register, k: int) -> tuple[slice, ...]:
    """The rectangle of the logical value that the register holds for micro-batch k."""
    advance = register.advance or (0,) * len(register.local)
    starts = [o + k * a for o, a in zip(register.origin, advance, strict=True)]
    return tuple(slice(s, s + n) for s, n in zip(starts, register.local, strict=True))


def wanted(plan: Plan, program: Program) -> dict[str, Value]:
    """What a program is fed, by name."""
    return {port.name: plan.values[port.value] for port in program.feeds}


def fitted(values: Mapping[str, Value], given: Batch) -> dict[str, Array]:
    """A batch as it is fed. Raises `FeedError` where it is not what is wanted."""
    missing = sorted(values.keys() - given.keys())
    unknown = sorted(given.keys() - values.keys())
    if missing or unknown:
        names = ", ".join(values) or "nothing"
        wrong = [f"{name} is missing" for name in missing]
        for name in unknown:
            near = difflib.get_close_matches(name.casefold(), missing or values, n=1)
            wrong.append(f"it takes no {name}{f'; did you mean {near[0]}?' if near else ''}")
        types = "".join(f"; {name} is {_type(values[name])}" for name in missing)
        raise FeedError(f"the program wants {names}: {', '.join(wrong)}{types}")
    return {name: to_storage(given[name], value.dtype, value.shape, name)
            for name, value in values.items()}


def _type(value: Value) -> str:
    return f"{value.dtype}[{', '.join(map(str, value.shape))}]"


class Feeds:
    """Batches of granted steps, kept until every feed actor of this process has copied them."""

    def __init__(self, plan: Plan, program: Program, readers: int) -> None:
        self._wanted = wanted(plan, program)
        self._port_of = {r: port.name for port in program.feeds for r in port.registers}
        self._readers = readers
        self._lock = threading.Lock()
        self._batches: dict[int, dict[str, Array]] = {}
        self._left: dict[int, int] = {}

    def put(self, step: int, given: Batch) -> None:
        batch = fitted(self._wanted, given)
        with self._lock:
            self._batches[step] = batch
            self._left[step] = self._readers

    def copy(self, step: int, register: Register, k: int, target: Bytes, dtype: str) -> None:
        array = self._batches[step][self._port_of[register.id]]
        typed(target, dtype, register.local)[...] = array[region(register, k)]

    def done_with(self, step: int) -> None:
        """A feed actor has fired for the last time in this step."""
        with self._lock:
            self._left[step] -= 1
            if not self._left[step]:
                del self._left[step], self._batches[step]


@dataclass(frozen=True, slots=True)
class Piece:
    """A rectangle of a fetched value. `index` says which of several tokens of a step it is."""

    port: int
    register: int
    index: int
    data: Array


class Fetches:
    """Pieces of results by step, and how they make logical arrays."""

    def __init__(self, plan: Plan, program: Program, ranks: tuple[int, ...]) -> None:
        self._ports = program.fetches
        self._values = [plan.values[port.value] for port in program.fetches]
        self._registers = program.registers
        self._port_of = {r: i for i, port in enumerate(self._ports) for r in port.registers}
        self._expected = sum(
            self._tokens(program, r) for r in self._port_of if program.registers[r].rank in ranks
        )
        self._whole = all(_on_all_ranks(plan, program, port) for port in self._ports)
        self._pieces: dict[int, list[Piece]] = {}

    @property
    def exist(self) -> bool:
        return bool(self._ports)

    @property
    def need_peers(self) -> bool:
        """Whether some process alone cannot put the results together."""
        return not self._whole

    def _tokens(self, program: Program, register: int) -> int:
        producer = program.actors[program.registers[register].producer]
        return producer.fires // program.registers[register].hold

    def add(self, step: int, register: Register, index: int, source: Bytes, dtype: str) -> None:
        """The caller holds the lock of progress."""
        port = self._port_of[register.id]
        data = typed(source, dtype, register.local).copy()
        self._pieces.setdefault(step, []).append(Piece(port, register.id, index, data))

    def complete(self, step: int) -> bool:
        return len(self._pieces.get(step, ())) == self._expected

    def take(self, step: int) -> list[Piece]:
        return self._pieces.pop(step, [])

    def assemble(self, pieces: list[Piece]) -> dict[str, Array]:
        results: dict[str, Array] = {}
        for i, (port, value) in enumerate(zip(self._ports, self._values, strict=True)):
            own = [piece for piece in pieces if piece.port == i]
            results[port.name] = from_storage(
                self._join(own, value.dtype, value.shape), value.dtype
            )
        return results

    def check_copies(self, pieces: list[Piece]) -> None:
        """Ranks that hold the same part of a result hold the same bytes."""
        seen: dict[object, Piece] = {}
        for piece in pieces:
            register = self._registers[piece.register]
            place = piece.port, piece.index, register.origin, register.local
            first = seen.setdefault(place, piece)
            if first.data.tobytes() != piece.data.tobytes():
                ranks = sorted((self._registers[first.register].rank, register.rank))
                raise RunError(f"ranks {ranks[0]} and {ranks[1]} have different copies of the "
                               f"result '{self._ports[piece.port].name}'")

    def _join(self, pieces: list[Piece], dtype: str, shape: tuple[int, ...]) -> Array:
        """Tokens of one step that cover the same rectangle are stacked along a new axis."""
        moving = any(any(self._registers[p.register].advance) for p in pieces)
        count = 1 + max((piece.index for piece in pieces), default=0)
        if count > 1 and not moving:
            by_index = [[p for p in pieces if p.index == i] for i in range(count)]
            return np.stack([self._join(_first(own), dtype, shape) for own in by_index])
        result = np.zeros(shape, STORAGE[dtype])
        for piece in pieces:
            result[region(self._registers[piece.register], piece.index)] = piece.data
        return result


def _first(pieces: list[Piece]) -> list[Piece]:
    return [Piece(p.port, p.register, 0, p.data) for p in pieces]


def _on_all_ranks(plan: Plan, program: Program, port: Port) -> bool:
    registers = [program.registers[r] for r in port.registers]
    shape = plan.values[port.value].shape
    whole = all(r.local == shape and not any(r.advance) for r in registers)
    return whole and len({r.rank for r in registers}) == plan.ranks


class Reader:
    """Calls a feed for consecutive steps in a thread of its own, a little ahead of the run."""

    def __init__(self, feed: Feed, first: int, steps: int, timeout: float | None) -> None:
        self._feed, self._timeout = feed, timeout
        self._ready: queue.Queue[Batch | BaseException] = queue.Queue(maxsize=2)
        self._stopped = False
        self._thread = threading.Thread(
            target=self._read, args=(first, steps), name="reader", daemon=True
        )
        self._thread.start()

    def _read(self, first: int, steps: int) -> None:
        for step in range(first, first + steps):
            if self._stopped:
                return
            try:
                self._put(self._feed(step))
            except BaseException as error:
                self._put(error)
                return

    def _put(self, item: Batch | BaseException) -> None:
        while not self._stopped:
            try:
                return self._ready.put(item, timeout=0.2)
            except queue.Full:
                continue

    def next(self, step: int) -> Batch:
        """Waits for the batch; what the feed raised is raised here."""
        try:
            item = self._ready.get(timeout=self._timeout)
        except queue.Empty:
            waited = f"the reader has not given the batch of step {step} for {self._timeout:g} s"
            raise RunError(waited) from None
        if isinstance(item, BaseException):
            raise item
        return item

    def stop(self) -> None:
        self._stopped = True
