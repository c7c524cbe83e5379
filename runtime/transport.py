"""Transfers between ranks that are threads of one process.

A transfer is one transition with a part on each member. A member posts its buffers; when all have
posted, each pulls its own result from the others' inputs into its own output; when all have pulled,
each goes on, and its input may be overwritten. Nobody writes into another's memory. Reductions
combine members in their order, each element once, so all members get the same bits on every run.

A member that has nothing to give still posts. Waits see the abort flag.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from anabranch.ir.plan import Comm, Transfer
from anabranch.runtime.arrays import Array, narrow, widen
from anabranch.runtime.errors import RunError
from anabranch.runtime.failure import Failure

REDUCE: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,  # these two keep nan
    "min": np.minimum,
}
REDUCING = ("reduce_scatter", "all_reduce")
CHUNK = 1 << 15
SMALL_BYTES = 1 << 14
"""An all-reduce up to this size is combined whole by every member: one meeting less."""


class Transport(Protocol):
    """Does one member's part of a transfer; on return its source may be overwritten."""

    def run(self, transfer: Transfer, step: int, source: Array, target: Array) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Post:
    transfer: Transfer
    step: int
    source: Array
    target: Array


class _Meeting:
    """Where the members of one communicator meet."""

    def __init__(self, comm: Comm, failure: Failure) -> None:
        self.posts: list[_Post | None] = [None] * len(comm.ranks)
        self._failure = failure
        self._condition = failure.wakes(threading.Condition())
        self._arrived = 0
        self._phase = 0

    def wait_for_all(self) -> None:
        """Returns when every member has called it as often as this one."""
        with self._condition:
            phase = self._phase
            self._arrived += 1
            if self._arrived == len(self.posts):
                self._arrived = 0
                self._phase += 1
                self._condition.notify_all()
            while self._phase == phase:
                self._failure.check()
                self._condition.wait()

    def parts(self) -> list[_Post]:
        """What all members posted, in member order; they have to mean the same transfer."""
        posts = [post for post in self.posts if post]
        meant = {(post.transfer.match, post.step) for post in posts}
        if len(meant) > 1:
            raise RunError(f"members meet in different transfers: {sorted(meant)}")
        return posts


class ThreadTransport:
    """Collectives and channels between the ranks of this process."""

    def __init__(self, comms: Sequence[Comm], failure: Failure) -> None:
        self._meetings = [_Meeting(comm, failure) for comm in comms]

    def run(self, transfer: Transfer, step: int, source: Array, target: Array) -> None:
        meeting = self._meetings[transfer.comm]
        meeting.posts[transfer.member] = _Post(transfer, step, source, target)
        meeting.wait_for_all()
        parts = meeting.parts()
        if transfer.op == "all_reduce" and source.nbytes > SMALL_BYTES:
            _reduce_own_chunk(transfer, parts)
            meeting.wait_for_all()
            _collect_chunks(transfer, parts)
        else:
            PULLS[transfer.op](transfer, parts, target)
        meeting.wait_for_all()

    def close(self) -> None:
        """Nothing outlives the threads."""


def reduce_into(target: Array, inputs: Sequence[Array], reduce: str, dtype: str) -> None:
    """Combine in order. Short floats are combined in f32 and rounded once."""
    if dtype not in ("bf16", "f16"):
        _fold(target, inputs, REDUCE[reduce])
        return
    wide, back = (widen, narrow) if dtype == "bf16" else (_as_f32, _as_f16)
    for start in range(0, len(target), CHUNK):
        stop = start + CHUNK
        parts = [wide(x[start:stop]) for x in inputs]
        _fold(parts[0], parts, REDUCE[reduce])
        target[start:stop] = back(parts[0])


def _fold(target: Array, inputs: Sequence[Array], combine: Callable[..., Any]) -> None:
    if len(inputs) == 1:
        target[:] = inputs[0]
        return
    combine(inputs[0], inputs[1], out=target)
    for other in inputs[2:]:
        combine(target, other, out=target)


def _as_f32(array: Array) -> Array:
    return array.astype(np.float32)


def _as_f16(array: Array) -> Array:
    return array.astype(np.float16)


def starts(counts: Sequence[int]) -> list[int]:
    """Where each part begins in a buffer of all of them, and where the last one ends."""
    return [sum(counts[:i]) for i in range(len(counts) + 1)]


def chunk(transfer: Transfer, members: int, member: int) -> slice:
    """The elements of an all-reduce that a member combines for everyone."""
    (count,) = transfer.counts
    return slice(count * member // members, count * (member + 1) // members)


def _all_gather(transfer: Transfer, parts: list[_Post], target: Array) -> None:
    at = starts(transfer.counts)
    for i, part in enumerate(parts):
        target[at[i] : at[i + 1]] = part.source


def _reduce_scatter(transfer: Transfer, parts: list[_Post], target: Array) -> None:
    at = starts(transfer.counts)
    own = slice(at[transfer.member], at[transfer.member + 1])
    reduce_into(target, [part.source[own] for part in parts], transfer.reduce, transfer.dtype)


def _all_to_all(transfer: Transfer, parts: list[_Post], target: Array) -> None:
    to = starts(transfer.counts_back)
    for i, part in enumerate(parts):
        at = starts(part.transfer.counts)
        own = slice(at[transfer.member], at[transfer.member + 1])
        target[to[i] : to[i + 1]] = part.source[own]


def _send(transfer: Transfer, parts: list[_Post], target: Array) -> None:
    """The receiver pulls."""


def _receive(transfer: Transfer, parts: list[_Post], target: Array) -> None:
    target[:] = parts[0].source


def _reduce_whole(transfer: Transfer, parts: list[_Post], target: Array) -> None:
    reduce_into(target, [part.source for part in parts], transfer.reduce, transfer.dtype)


def _reduce_own_chunk(transfer: Transfer, parts: list[_Post]) -> None:
    own = chunk(transfer, len(parts), transfer.member)
    target = parts[transfer.member].target[own]
    reduce_into(target, [part.source[own] for part in parts], transfer.reduce, transfer.dtype)


def _collect_chunks(transfer: Transfer, parts: list[_Post]) -> None:
    target = parts[transfer.member].target
    for i, part in enumerate(parts):
        if i != transfer.member:
            own = chunk(transfer, len(parts), i)
            target[own] = part.target[own]


PULLS: dict[str, Callable[[Transfer, list[_Post], Array], None]] = {
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_reduce": _reduce_whole,
    "all_to_all": _all_to_all,
    "send": _send,
    "recv": _receive,
}


def source_count(transfer: Transfer) -> int:
    """Elements a member reads from its register."""
    if transfer.op == "all_gather":
        return transfer.counts[transfer.member]
    return 0 if transfer.op == "recv" else sum(transfer.counts)


def target_count(transfer: Transfer) -> int:
    """Elements a member writes to its register."""
    if transfer.op == "reduce_scatter":
        return transfer.counts[transfer.member]
    if transfer.op == "all_to_all":
        return sum(transfer.counts_back)
    return 0 if transfer.op == "send" else sum(transfer.counts)
