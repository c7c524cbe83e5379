"""Ranks that are processes, over torch.distributed: Gloo by default, another back end by name.

Transfers move bytes: gathers and exchanges are the library's, every reduction is our own, in
member order, so that processes get the bits that threads get (the library's max loses nan, and its
sums depend on the order of arrival). Each communicator has a group of its own, made by all
processes in the plan's order and touched once before anything runs.

Beside the groups there is the store of the job: a thread of every process counts up there once a
second and looks at the others. One that stops for ten seconds, or that has left a reason for
failing, ends the run here too.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from anabranch.ir.plan import Comm, Plan, Transfer
from anabranch.runtime.arrays import STORAGE, Array, Bytes
from anabranch.runtime.errors import RunError
from anabranch.runtime.failure import Failure
from anabranch.runtime.outline import difference, outline
from anabranch.runtime.transport import (
    REDUCING,
    SMALL_BYTES,
    chunk,
    reduce_into,
    source_count,
    starts,
)

T = TypeVar("T")

BEAT_SECONDS = 1.0
SILENCE_SECONDS = 10.0
STUCK_SECONDS = 10.0
GROUP_SECONDS = 60.0
REASON_SECONDS = 3.0
POLL_SECONDS = 0.001


class ProcessWorld:
    """One rank per process, started by torchrun or with the same environment variables."""

    def __init__(self, backend: str = "gloo", device: str = "cpu") -> None:
        import torch.distributed as distributed

        self.distributed, self.device = distributed, device
        self.timeout = timedelta(seconds=GROUP_SECONDS)
        self.store = self._join(backend)
        self.process, self.processes = distributed.get_rank(), distributed.get_world_size()
        self.host_group = distributed.new_group(backend="gloo", timeout=self.timeout)
        self._connection: _Watch | None = None
        self._connections = self._turns = 0
        self._groups: dict[tuple[int, tuple[int, ...]], Any] = {}

    def ranks(self, plan: Plan) -> tuple[int, ...]:
        if plan.ranks != self.processes:
            raise RunError(f"the plan is for {plan.ranks} ranks; there are {self.processes}")
        return (self.process,)

    def connect(self, plan: Plan, failure: Failure) -> ProcessTransport:
        digests = self.exchange(plan.digest())
        if len(set(digests)) > 1:
            what = difference(self.exchange(outline(plan)))
            raise RunError(f"the processes were given different programs: {what}")
        groups = [self._group(comm) for comm in plan.comms]
        self._connections += 1
        watch = self._connection = _Watch(self, self._connections, failure, groups)
        transport = ProcessTransport(self, watch, plan, groups)
        transport.touch_all()
        watch.thread.start()
        return transport

    def _group(self, comm: Comm) -> Any:
        """Of each communicator of the plan; sessions that follow one another share them."""
        key = (comm.id, comm.ranks)
        if key not in self._groups:
            self._groups[key] = self.distributed.new_group(list(comm.ranks), timeout=self.timeout)
        return self._groups[key]

    def exchange(self, item: Any) -> list[Any]:
        items: list[Any] = [None] * self.processes
        try:
            self.distributed.all_gather_object(items, item, group=self.host_group)
        except RuntimeError as error:
            reason = self._connection.reason() if self._connection else ""
            raise RunError(reason or f"another process is gone: {error}") from error
        return items

    def first(self, make: Callable[[], T]) -> T:
        key = f"first/{self._turns}"
        self._turns += 1
        if self.process == 0:
            try:
                made = [make()]
            except BaseException:
                self.store.set(key, "failed")
                raise
            self.store.set(key, "made")
        else:
            self._wait_for(key)
            made = []
        found: T = self.exchange(made)[0][0]
        return found

    def _wait_for(self, key: str) -> None:
        """However long the first process takes, as long as it is there."""
        try:
            while not self.store.check([key]):
                time.sleep(POLL_SECONDS)
            outcome = self.store.get(key).decode()
        except RuntimeError as error:
            raise RunError(f"process 0 is gone: {error}") from error
        if outcome == "failed":
            raise RunError("process 0 failed; it says why")

    def grant(self, run: int, steps: int, last: bool) -> int:
        key = f"grant/{self._connections}"
        if self.process == 0:
            self.store.set(key, f"{run},{steps},{int(last)}")
            return steps
        while True:
            if self._connection:
                self._connection.failure.raise_error()
            if self.store.check([key]):
                told_run, told, final = map(int, self.store.get(key).decode().split(","))
                if told_run == run and (final or (told >= steps and not last)):
                    return told if final else steps
                if told_run > run:
                    raise RunError("another process is already in a later run")
            time.sleep(POLL_SECONDS)

    def _join(self, backend: str) -> Any:
        """Enter the job, once, and return the store that its processes share."""
        if not STORES:
            if self.distributed.is_initialized():
                raise RunError("torch.distributed is in use already; let the runtime start it")
            store, rank, size = next(self.distributed.rendezvous("env://"))
            self.distributed.init_process_group(
                backend, store=store, rank=rank, world_size=size, timeout=self.timeout
            )
            STORES.append(self.distributed.PrefixStore("anabranch", store))
            atexit.register(self._leave)
        return STORES[0]

    def _leave(self) -> None:
        """End the groups before the interpreter does: their threads must not outlive it."""
        with contextlib.suppress(RuntimeError, AssertionError):
            self.distributed.destroy_process_group()


class _Watch:
    """The thread of one session that looks at the other processes and carries failures."""

    def __init__(
        self, world: ProcessWorld, number: int, failure: Failure, groups: Sequence[Any]
    ) -> None:
        self.failure, self.closed = failure, False
        self._world, self._number, self._groups = world, number, groups
        self._store = world.store
        self._others = [p for p in range(world.processes) if p != world.process]
        self._seen = dict.fromkeys(self._others, (-1, time.monotonic()))
        self._sleep = failure.wakes(threading.Condition())
        self.thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def _key(self, what: str) -> str:
        return f"{self._number}/{what}"

    def reason(self) -> str:
        """Why another process failed, if it says so soon."""
        end = time.monotonic() + REASON_SECONDS
        with contextlib.suppress(RuntimeError):
            while time.monotonic() < end:
                if self._store.check([self._key("failed")]):
                    return str(self._store.get(self._key("failed")).decode())
                time.sleep(POLL_SECONDS)
        return ""

    def close(self) -> None:
        with self._sleep:
            self.closed = True
            self._sleep.notify_all()
        self.thread.join()
        with contextlib.suppress(RuntimeError):
            self._store.set(self._key(f"bye/{self._world.process}"), "")

    def _run(self) -> None:
        try:
            while not self.closed and not self.failure.aborted:
                self._store.add(self._key(f"beat/{self._world.process}"), 1)
                self._look()
                self._pause(BEAT_SECONDS, lambda: self.closed or self.failure.aborted)
        except RuntimeError as error:
            if not self.closed:
                self.failure.abort(RunError(f"process 0 is gone: {error}"))
        if self.failure.aborted:
            self._leave()

    def _pause(self, seconds: float, over: Callable[[], bool]) -> None:
        """Not longer than until it is over."""
        with self._sleep:
            self._sleep.wait_for(over, seconds)

    def _look(self) -> None:
        if self._store.check([self._key("failed")]):
            self.failure.abort(RunError(self._store.get(self._key("failed")).decode()))
        now = time.monotonic()
        for other in self._others:
            beats = self._store.add(self._key(f"beat/{other}"), 0)
            if beats != self._seen[other][0]:
                self._seen[other] = (beats, now)
            late = now - self._seen[other][1] > SILENCE_SECONDS
            if late and not self._store.check([self._key(f"bye/{other}")]):
                silent = f"process {other} is silent for {SILENCE_SECONDS:g} s"
                self.failure.abort(RunError(silent))

    def _leave(self) -> None:
        """Tell the others, free threads that wait in the library, end the process if that fails."""
        own = f"process {self._world.process} failed: {self.failure}"
        with contextlib.suppress(RuntimeError):
            self._store.compare_set(self._key("failed"), "", own)
        self._pause(2 * BEAT_SECONDS, lambda: False)
        for group in self._groups:
            with contextlib.suppress(RuntimeError, AttributeError):
                group.abort()
        self._pause(STUCK_SECONDS, lambda: self.closed)
        stuck = [t.name for t in threading.enumerate() if t.name.startswith("rank ")]
        if stuck and not self.closed:
            print(f"{self.failure}\nstuck in a transfer: {stuck}", file=sys.stderr, flush=True)
            os._exit(3)


STORES: list[Any] = []
"""The store of the job this process is in, if it is in one."""


class ProcessTransport:
    """Transfers of this process's rank."""

    def __init__(
        self, world: ProcessWorld, watch: _Watch, plan: Plan, groups: Sequence[Any]
    ) -> None:
        import torch

        self._torch, self._device, self._groups = torch, world.device, groups
        self._distributed, self._watch = world.distributed, watch
        self._comms = plan.comms
        self._own = world.process
        self._work = {comm.id: np.empty(0, np.uint8) for comm in plan.comms}
        for transfer in _transfers(plan, self._own):
            need = _workspace(transfer, len(plan.comms[transfer.comm].ranks))
            if need > self._work[transfer.comm].nbytes:
                self._work[transfer.comm] = np.empty(need, np.uint8)

    @property
    def workspace_bytes(self) -> int:
        """What reductions need beside the arenas."""
        return sum(work.nbytes for work in self._work.values())

    def touch_all(self) -> None:
        """Connections are made lazily; make them in one order on all processes."""
        for comm, group in zip(self._comms, self._groups, strict=True):
            if self._own in comm.ranks and len(comm.ranks) > 1:
                tensor = self._torch.zeros(1, device=self._device)
                self._distributed.all_reduce(tensor, group=group)

    def run(self, transfer: Transfer, step: int, source: Array, target: Array) -> None:
        try:
            OPS[transfer.op](self, transfer, source, target)
        except RuntimeError as error:
            ranks = self._comms[transfer.comm].ranks
            reason = self._watch.reason()
            raise RunError(reason or f"the members {ranks} cannot meet: {error}") from error

    def close(self) -> None:
        """The groups end with the process; nobody watches any more."""
        self._watch.close()

    def _all_gather(self, transfer: Transfer, source: Array, target: Array) -> None:
        at = starts(transfer.counts)
        target[at[transfer.member] : at[transfer.member + 1]] = source
        self._share(transfer.comm, target, at)

    def _share(self, comm: int, target: Array, at: list[int]) -> None:
        """Everyone gives its own part of the target, which it has filled."""
        for member, rank in enumerate(self._comms[comm].ranks):
            part = target[at[member] : at[member + 1]]
            if part.size and len(self._comms[comm].ranks) > 1:
                group = self._groups[comm]
                broadcast = partial(self._distributed.broadcast, src=rank, group=group)
                self._on_device(part, broadcast)

    def _all_to_all(self, transfer: Transfer, source: Array, target: Array) -> None:
        self._swap(transfer.comm, source, target, transfer.counts, transfer.counts_back)

    def _swap(
        self, comm: int, source: Array, target: Array, give: Sequence[int], take: Sequence[int]
    ) -> None:
        if len(self._comms[comm].ranks) == 1:
            target[:] = source
            return
        size = source.itemsize
        outgoing, incoming = self._tensor(source), self._tensor(target)
        self._distributed.all_to_all_single(
            incoming,
            outgoing,
            [count * size for count in take],
            [count * size for count in give],
            group=self._groups[comm],
        )
        self._bring_back(target, incoming)

    def _reduce_scatter(self, transfer: Transfer, source: Array, target: Array) -> None:
        self._reduce(transfer, source, target, transfer.counts)

    def _reduce(
        self, transfer: Transfer, source: Array, target: Array, counts: Sequence[int]
    ) -> None:
        """Everyone's share of what I reduce, side by side, combined in member order."""
        members, own = len(counts), counts[transfer.member]
        work = self._workspace(transfer, members * own)
        self._swap(transfer.comm, source, work, counts, [own] * members)
        parts = [work[i * own : (i + 1) * own] for i in range(members)]
        reduce_into(target, parts, transfer.reduce, transfer.dtype)

    def _all_reduce(self, transfer: Transfer, source: Array, target: Array) -> None:
        members = len(self._comms[transfer.comm].ranks)
        if source.nbytes <= SMALL_BYTES:
            work = self._workspace(transfer, members * source.size)
            at = [i * source.size for i in range(members + 1)]
            parts = [work[a:b] for a, b in pairwise(at)]
            parts[transfer.member][:] = source
            self._share(transfer.comm, work, at)
            reduce_into(target, parts, transfer.reduce, transfer.dtype)
            return
        chunks = [chunk(transfer, members, i) for i in range(members)]
        counts = [c.stop - c.start for c in chunks]
        self._reduce(transfer, source, target[chunks[transfer.member]], counts)
        self._share(transfer.comm, target, starts(counts))

    def _send(self, transfer: Transfer, source: Array, target: Array) -> None:
        if source.size:
            group, to = self._groups[transfer.comm], self._comms[transfer.comm].ranks[1]
            self._distributed.send(self._tensor(source), to, group=group)

    def _receive(self, transfer: Transfer, source: Array, target: Array) -> None:
        if target.size:
            group, sender = self._groups[transfer.comm], self._comms[transfer.comm].ranks[0]
            self._on_device(target, partial(self._distributed.recv, src=sender, group=group))

    def _workspace(self, transfer: Transfer, count: int) -> Array:
        storage = np.dtype(STORAGE[transfer.dtype])
        return self._work[transfer.comm][: count * storage.itemsize].view(storage)

    def _tensor(self, array: Array) -> Any:
        """Its bytes as a tensor on the device of the back end; on the CPU, the same memory."""
        as_bytes: Bytes = array.view(np.uint8)
        return self._torch.from_numpy(as_bytes).to(self._device)

    def _on_device(self, array: Array, call: Callable[[Any], Any]) -> None:
        tensor = self._tensor(array)
        call(tensor)
        self._bring_back(array, tensor)

    def _bring_back(self, array: Array, tensor: Any) -> None:
        if tensor.device.type != "cpu":
            array.view(np.uint8)[:] = tensor.cpu().numpy()


OPS: dict[str, Callable[[ProcessTransport, Transfer, Array, Array], None]] = {
    "all_gather": ProcessTransport._all_gather,
    "reduce_scatter": ProcessTransport._reduce_scatter,
    "all_reduce": ProcessTransport._all_reduce,
    "all_to_all": ProcessTransport._all_to_all,
    "send": ProcessTransport._send,
    "recv": ProcessTransport._receive,
}


def _transfers(plan: Plan, rank: int) -> list[Transfer]:
    return [
        actor.transfer
        for program in plan.programs
        for actor in program.actors
        if actor.rank == rank and actor.transfer
    ]


def _workspace(transfer: Transfer, members: int) -> int:
    """Bytes in which a reduction collects what it combines."""
    if transfer.op not in REDUCING:
        return 0
    size = np.dtype(STORAGE[transfer.dtype]).itemsize
    own = transfer.counts[transfer.member] if transfer.op == "reduce_scatter" else 0
    if transfer.op == "all_reduce":
        count = source_count(transfer)
        own = count if count * size <= SMALL_BYTES else -(-count // members)
    return members * own * size
