"""A recipe, run: steps with progress, validation, checkpoints, a trace and a loss curve.

    report = train(plan, reader, steps=600, folder=Path("runs/gpt"))

Everything a run leaves is in its folder: `checkpoint.safetensors`, `trace.json` (open it in
Perfetto), `loss.csv`. An interrupt finishes the granted steps, saves a checkpoint and is raised
again.
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from anabranch.ir.plan import Plan
from anabranch.runtime import checkpoint
from anabranch.runtime.data import Reader
from anabranch.runtime.errors import RunError
from anabranch.runtime.session import Session


@dataclass(frozen=True, slots=True)
class Report:
    """What a run came to; losses are in nats per target."""

    val_loss: float
    train_loss: float
    steps: int
    tokens_per_second: float
    peak_bytes: int
    predicted_peak_bytes: int
    compile_seconds: float
    train_seconds: float
    checkpoint: str
    trace: str
    loss_curve: str
    scored_bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class Curve:
    """The loss of every step so far."""

    losses: list[tuple[int, float]] = field(default_factory=list)

    def add(self, step: int, loss: float) -> None:
        if not math.isfinite(loss):
            raise RunError(
                f"the loss of step {step} is {loss}; try a lower learning rate, or go on from "
                "the last checkpoint")
        self.losses.append((step, loss))

    def mean(self, last: int = 20) -> float:
        tail = [loss for _, loss in self.losses[-last:]]
        return sum(tail) / len(tail) if tail else math.nan

    def write(self, path: Path) -> None:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["step", "loss"])
            writer.writerows(self.losses)


@dataclass(frozen=True, slots=True)
class Run:
    """How to train: `every` steps a checkpoint is saved (0: only at the end)."""

    folder: Path
    steps: int
    first: int = 0
    seed: int = 0
    every: int = 0
    show: bool = True


def train(session: Session, reader: Reader, run: Run, compile_seconds: float = 0.0) -> Report:
    """Do the steps of a run on a session whose states are set, then score the held-out data."""
    run.folder.mkdir(parents=True, exist_ok=True)
    curve = Curve()
    began = time.perf_counter()
    with _progress(run, session.plan, reader) as bar:
        done = _steps(session, reader, run, curve, bar)
    seconds = time.perf_counter() - began
    curve.write(run.folder / "loss.csv")
    path = _save(session, run, run.first + done)
    loss, scored = validate(session, reader)
    trace = run.folder / "trace.json"
    if session.trace is not None and session.process == 0:
        session.trace.save(trace)
    return Report(
        val_loss=loss, train_loss=curve.mean(), steps=run.first + done,
        tokens_per_second=done * _targets(reader) / max(seconds, 1e-9),
        peak_bytes=session.allocated_bytes, predicted_peak_bytes=predicted_peak(session.plan),
        compile_seconds=compile_seconds, train_seconds=seconds, checkpoint=str(path),
        trace=str(trace), loss_curve=str(run.folder / "loss.csv"), scored_bytes=scored)


def _steps(session: Session, reader: Reader, run: Run, curve: Curve, bar: Bar) -> int:
    """The number of steps done. A checkpoint is saved every so often and when interrupted."""
    done = 0

    def seen(step: int, results: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        curve.add(step, float(next(iter(results.values()))))
        bar.advance(step, curve.losses[-1][1])

    try:
        while done < run.steps - run.first:
            left = run.steps - run.first - done
            count = min(run.every, left) if run.every else left
            session.run("train", count, reader.batch, seen, first=run.first + done)
            if run.every and done < run.steps - run.first:
                _save(session, run, run.first + done)
    except KeyboardInterrupt:
        _save(session, run, run.first + done)
        raise
    return done


def _save(session: Session, run: Run, step: int) -> Path:
    path = run.folder / "checkpoint.safetensors"
    checkpoint.save(session, path, checkpoint.Progress(step, run.seed))
    return path


def validate(session: Session, reader: Reader, least: int = 100_000) -> tuple[float, int]:
    """(mean loss, targets scored) over held-out batches, at least `least` targets if there are."""
    total, batches, each = 0.0, 0, _targets(reader)
    for batch in reader.validation():
        results = session.step("eval", batch)
        total += float(next(iter(results.values())))
        batches += 1
        if batches * each >= least:
            break
    return (total / batches if batches else math.nan), batches * each


def _targets(reader: Reader) -> int:
    """Elements of the last argument of a batch: what a loss is the mean over."""
    return int(list(reader.batch(0).values())[-1].size)


def predicted_peak(plan: Plan) -> int:
    """Bytes of all arenas, as the compiler predicted them."""
    return sum(max((p.peak[a.id] for p in plan.programs), default=0) for a in plan.arenas)


# ---- progress -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Bar:
    """A progress bar, or nothing where nobody looks."""

    progress: Progress | None
    task: TaskID
    began: float
    first: int
    targets: int

    def advance(self, step: int, loss: float) -> None:
        if self.progress is None:
            return
        seconds = time.perf_counter() - self.began
        rate = (step + 1 - self.first) * self.targets / max(seconds, 1e-9)
        self.progress.update(self.task, completed=step + 1, loss=loss, rate=rate,
                             memory=resident_bytes() / 1e6)


@contextmanager
def _progress(run: Run, plan: Plan, reader: Reader) -> Iterator[Bar]:
    shown = Progress(
        TextColumn("step {task.completed:.0f}/{task.total:.0f}"), BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TextColumn("{task.fields[rate]:,.0f} tokens/s"),
        TextColumn("{task.fields[memory]:.0f} MB"), TimeRemainingColumn(),
        console=Console(stderr=True))
    if not run.show:
        yield Bar(None, TaskID(0), time.perf_counter(), run.first, _targets(reader))
        return
    with shown:
        task = shown.add_task("train", total=run.steps, completed=run.first, loss=math.nan,
                              rate=0.0, memory=0.0)
        yield Bar(shown, task, time.perf_counter(), run.first, _targets(reader))


def resident_bytes() -> int:
    """Memory of this process, in bytes (Linux; elsewhere 0)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * 4096
