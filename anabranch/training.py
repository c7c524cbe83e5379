"""A recipe, run: steps with progress, validation, checkpoints, a trace and a loss curve.

    report = train(session, reader, Run(Path("runs/gpt"), steps=600))

Everything a run leaves is in its folder: `checkpoint.safetensors`, `trace.json` (open it in
Perfetto), `loss.csv`. An interrupt finishes the steps under way, saves a checkpoint and is raised
again. Under several processes all of them call these functions, and the first writes the files.
"""

from __future__ import annotations

import csv
import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from anabranch.ir.plan import Plan
from anabranch.progress import Display, Pace, Seen, display
from anabranch.runtime import checkpoint
from anabranch.runtime.data import Reader
from anabranch.runtime.errors import RunError
from anabranch.runtime.interrupts import deferred
from anabranch.runtime.rows import Batch
from anabranch.runtime.session import Session

CHECKPOINT, TRACE, CURVE = "checkpoint.safetensors", "trace.json", "loss.csv"


@dataclass(frozen=True, slots=True)
class Report:
    """What a run came to; losses are means over targets."""

    val_loss: float
    train_loss: float
    steps: int
    tokens_per_second: float
    peak_bytes: int
    predicted_peak_bytes: int
    compile_seconds: float
    train_seconds: float
    scored_targets: int
    checkpoint: str
    trace: str
    loss_curve: str

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

    @staticmethod
    def before(path: Path, first: int) -> Curve:
        """What an earlier part of the run left there, up to the step where this one goes on."""
        if first == 0 or not path.is_file():
            return Curve()
        with path.open(newline="") as file:
            rows = [(int(row["step"]), float(row["loss"])) for row in csv.DictReader(file)]
        return Curve([row for row in rows if row[0] < first])


@dataclass(frozen=True, slots=True)
class Run:
    """How to train: the steps first .. steps - 1. Every `every` steps a checkpoint is saved (0:
    only at the end), with `notes` about the program beside the states. `unit` names what is
    scored."""

    folder: Path
    steps: int
    first: int = 0
    seed: int = 0
    every: int = 0
    show: bool = True
    notes: str = ""
    unit: str = "targets"

    @property
    def checkpoint(self) -> Path:
        return self.folder / CHECKPOINT


def train(session: Session, reader: Reader, run: Run, compile_seconds: float = 0.0) -> Report:
    """Do the steps of a run on a session whose states are set, then score the held-out data."""
    run.folder.mkdir(parents=True, exist_ok=True)
    curve = Curve.before(run.folder / CURVE, run.first)
    began = time.perf_counter()
    with display(run.steps, run.first, run.unit, show=run.show) as shown:
        done = _steps(session, reader, run, curve, shown)
    seconds = time.perf_counter() - began
    _save(session, run, curve, run.first + done)
    loss, scored = validate(session, reader)
    return Report(
        val_loss=loss, train_loss=curve.mean(), steps=run.first + done,
        tokens_per_second=done * _targets(reader) / max(seconds, 1e-9),
        peak_bytes=session.allocated_bytes,
        predicted_peak_bytes=predicted_peak(session.plan, session.ranks),
        compile_seconds=compile_seconds, train_seconds=seconds, scored_targets=scored,
        checkpoint=str(run.checkpoint), trace=str(run.folder / TRACE) if session.trace else "",
        loss_curve=str(run.folder / CURVE))


def _steps(session: Session, reader: Reader, run: Run, curve: Curve, show: Display) -> int:
    """The number of steps done. A checkpoint is saved every so often and when interrupted."""
    done = 0
    pace = Pace(run.first, _targets(reader), time.perf_counter())

    def seen(step: int, results: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        curve.add(step, float(next(iter(results.values()))))
        show(Seen(step + 1, run.steps, curve.losses[-1][1], pace.rate(step + 1)))

    with deferred() as interrupt:
        try:
            while done < run.steps - run.first:
                interrupt.check()
                left = run.steps - run.first - done
                count = min(run.every, left) if run.every else left
                session.run("train", count, reader.batch, seen, first=run.first + done)
                if run.every and done < run.steps - run.first:
                    _save(session, run, curve, run.first + done)
        except KeyboardInterrupt:
            _save(session, run, curve, run.first + done)
            raise
    return done


def _save(session: Session, run: Run, curve: Curve, step: int) -> None:
    """Everything that a run leaves, as it stands."""
    checkpoint.save(session, run.checkpoint, checkpoint.Progress(step, run.seed, run.notes))
    if session.process:
        return
    curve.write(run.folder / CURVE)
    if session.trace is not None:
        session.trace.save(run.folder / TRACE)


def validate(session: Session, reader: Reader, least: int = 100_000) -> tuple[float, int]:
    """(mean loss, targets scored) over held-out batches, at least `least` targets if there are."""
    first = next(iter(_last(reader.batch(0)).shape), 1)  # rows of a batch
    each = _targets(reader) // first
    total, rows = 0.0, 0
    for batch, number in reader.validation():
        results = session.step("eval", batch)
        total += number * float(next(iter(results.values())))
        rows += number
        if rows * each >= least:
            break
    return (total / rows if rows else math.nan), rows * each


def _targets(reader: Reader) -> int:
    """Elements of the last argument of a batch: what a loss is the mean over."""
    return int(_last(reader.batch(0)).size)


def _last(batch: Batch) -> Any:
    return list(batch.values())[-1]


def predicted_peak(plan: Plan, ranks: tuple[int, ...]) -> int:
    """Bytes of the arenas of these ranks, as the compiler predicted them."""
    return sum(max((p.peak[a.id] for p in plan.programs), default=0)
               for a in plan.arenas if a.rank in ranks)
