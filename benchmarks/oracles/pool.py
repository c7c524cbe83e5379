"""Processes that judge, of which none is trusted to come back.

Each takes one operator after another, and says before every step which sample it is at. One that
says nothing for too long is asked where it stands and ended, and counts as a `hang`, one that dies
as a `crash`, of that sample; another process then goes on behind it. They are forked from one that
has imported torch.
"""

from __future__ import annotations

import faulthandler
import multiprocessing as mp
import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from benchmarks.oracles.judge import Verdict

TOGETHER = -1  # at the kernels of all samples

Send = Callable[[object], None]


@dataclass(frozen=True, slots=True)
class At:
    """The process is at this sample (or `TOGETHER`) and may take so long."""

    sample: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of a sample."""

    sample: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Finished:
    """The operator is done."""


@dataclass(slots=True)
class Job:
    """An operator of an oracle: at most so many samples, each in so many placements. What is in
    `known` is not tried again; `apart` compiles the kernels of each sample by themselves."""

    suite: str
    name: str
    samples: int = 20
    placements: int = 12
    apart: bool = False
    known: dict[int, Verdict] = field(default_factory=dict)


Work = Callable[[Job, Send], None]


@dataclass(slots=True)
class _Worker:
    process: ForkServerProcess
    pipe: Connection
    job: Job
    at: At
    since: float

    @property
    def deadline(self) -> float:
        return self.since + self.at.seconds


def run(jobs: Sequence[Job], work: Work, processes: int, start_seconds: float) -> Iterator[Job]:
    """Every job, finished, in the order in which they are."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([work.__module__])
    waiting, busy = deque(jobs), list[_Worker]()
    idle: list[tuple[ForkServerProcess, Connection]] = []
    while waiting or busy:
        while waiting and len(busy) < processes:
            process, pipe = idle.pop() if idle else _started(context, work)
            job = waiting.popleft()
            pipe.send(job)
            busy.append(_Worker(process, pipe, job, At(TOGETHER, start_seconds), time.monotonic()))
        for worker in _heard(busy):
            outcome = _step(worker)
            if outcome == "busy":
                continue
            busy.remove(worker)
            if outcome == "again":
                waiting.appendleft(worker.job)
                continue
            if outcome == "done":
                idle.append((worker.process, worker.pipe))
            yield worker.job
    for process, pipe in idle:
        pipe.close()
        process.join()


def _started(context: mp.context.ForkServerContext, work: Work
             ) -> tuple[ForkServerProcess, Connection]:
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, work), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _serve(pipe: Connection, work: Work) -> None:
    stack = _stack_of(os.getpid()).open("w")
    faulthandler.register(signal.SIGUSR1, stack)
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            stack.close()
            _stack_of(os.getpid()).unlink()
            return
        work(job, pipe.send)
        pipe.send(Finished())


def _heard(busy: Sequence[_Worker]) -> list[_Worker]:
    """Those that said something, or have been silent for too long."""
    first = min(worker.deadline for worker in busy)
    ready = wait([w.pipe for w in busy], max(0.0, first - time.monotonic()))
    now = time.monotonic()
    return [w for w in busy if w.pipe in ready or now > w.deadline]


def _step(worker: _Worker) -> str:
    """After one message, or its absence: `busy`, `done`, `again` where the process is lost, `lost`
    where nothing can be had of the job."""
    try:
        message = worker.pipe.recv() if worker.pipe.poll() else None
    except (EOFError, OSError):
        worker.process.join(timeout=5)
        _stack_of(worker.process.pid).unlink(missing_ok=True)
        return _lost(worker, Verdict("crash", f"the process died: {_died(worker.process)}"))
    match message:
        case Finished():
            return "done"
        case Judged(sample, verdict):
            worker.job.known[sample] = verdict
        case At():
            worker.at = message
        case None:
            place = _place(worker.process)
            worker.process.kill()
            worker.process.join()
            said = f"sample {worker.at.sample}: nothing for {worker.at.seconds:g} seconds, {place}"
            return _lost(worker, Verdict("hang", said))
    worker.since = time.monotonic()
    return "busy"


def _stack_of(pid: int | None) -> Path:
    return Path(tempfile.gettempdir(), f"coverage-{pid}.stack")


def _place(process: ForkServerProcess) -> str:
    """The innermost functions of the threads of a process, as its fault handler tells them."""
    stack = _stack_of(process.pid)
    if process.pid is None or not stack.exists():
        return "before it began"
    os.kill(process.pid, signal.SIGUSR1)
    time.sleep(0.5)
    lines = [line.strip() for line in stack.read_text().splitlines()]
    stack.unlink()
    return "in " + "; ".join([line for line in lines if line.startswith("File")][:12])


def _died(process: ForkServerProcess) -> str:
    code = process.exitcode
    return f"signal {-code}" if code is not None and code < 0 else f"exit {code}"


def _lost(worker: _Worker, verdict: Verdict) -> str:
    """Blame the sample; where it was not one sample, try each by itself."""
    job, together = worker.job, worker.at.sample == TOGETHER
    if not together or job.apart:
        job.known[worker.at.sample] = verdict
    given_up = together and job.apart
    job.apart = job.apart or together
    return "lost" if given_up else "again"
