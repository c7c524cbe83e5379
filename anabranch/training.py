"""A recipe, run: steps with progress, validation, checkpoints, a trace and a loss curve.

    report = train(session, reader, Run(Path("runs/gpt"), steps=600))

Everything a run leaves is in its folder: `checkpoint.safetensors`, `trace.json` (open it in
Perfetto), `loss.csv`, which has a column for everything that the program reports. An interrupt
finishes the steps under way, saves a checkpoint and is raised again. Under several processes all
of them call these functions, and the first writes the files.
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.evaluation import EVALUATE, LEAST, Scores, measure, taken, targets_of
from anabranch.ir.plan import Plan
from anabranch.progress import Display, Pace, Seen, display
from anabranch.runtime import checkpoint
from anabranch.runtime.data import Reader
from anabranch.runtime.errors import FeedError, RunError
from anabranch.runtime.interrupts import deferred
from anabranch.runtime.ports import fitted, wanted
from anabranch.runtime.rows import Batch
from anabranch.runtime.session import Session

AVERAGED = 20  # steps, of which the training loss of a run is the mean
CHECKPOINT, TRACE, CURVE = "checkpoint.safetensors", "trace.json", "loss.csv"


@dataclass(frozen=True, slots=True)
class Report:
    """What a run came to. `train_loss` is the mean of the last `averaged` steps; `val_loss` and
    `metrics` are means over `scored_rows` held-out rows, each of which counts once; `reports` are
    the last step's."""

    val_loss: float | None
    train_loss: float
    averaged: int
    steps: int
    tokens_per_second: float
    peak_bytes: int
    predicted_peak_bytes: int
    compile_seconds: float
    train_seconds: float
    scored_targets: int
    scored_rows: int
    metrics: dict[str, float]
    reports: dict[str, float]
    checkpoint: str
    trace: str
    loss_curve: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class Curve:
    """The loss of every step so far, and what it reported."""

    losses: list[tuple[int, float]] = field(default_factory=list)
    reports: list[dict[str, float]] = field(default_factory=list)

    def add(self, step: int, loss: float, reports: Mapping[str, float]) -> None:
        self.losses.append((step, loss))
        self.reports.append(dict(reports))

    @property
    def last(self) -> list[float]:
        return [loss for _, loss in self.losses[-AVERAGED:]]

    def mean(self) -> float:
        tail = self.last
        return sum(tail) / len(tail) if tail else math.nan

    def write(self, path: Path) -> None:
        names = list(dict.fromkeys(name for each in self.reports for name in each))
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["step", "loss", *names])
            for (step, loss), given in zip(self.losses, self.reports, strict=True):
                writer.writerow([step, loss, *(given.get(name, "") for name in names)])

    @staticmethod
    def before(path: Path, first: int) -> Curve:
        """What an earlier part of the run left there, up to the step where this one goes on."""
        curve = Curve()
        if first == 0 or not path.is_file():
            return curve
        try:
            with path.open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    step, loss = int(row.pop("step")), float(row.pop("loss"))
                    if step < first:
                        curve.add(step, loss, {k: float(v) for k, v in row.items() if v})
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{path} is not the curve that a run left there: {error!r}; move it away"
                           ) from error
        return curve


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
    scores = validate(session, reader)
    means = scores.means
    return Report(
        val_loss=means.pop("loss", None), train_loss=curve.mean(), averaged=len(curve.last),
        steps=run.first + done,
        tokens_per_second=done * _targets(reader) / max(seconds, 1e-9),
        peak_bytes=session.allocated_bytes,
        predicted_peak_bytes=predicted_peak(session.plan, session.ranks),
        compile_seconds=compile_seconds, train_seconds=seconds,
        scored_targets=scores.targets, scored_rows=scores.rows, metrics=means,
        reports=curve.reports[-1] if curve.reports else {},
        checkpoint=str(run.checkpoint), trace=str(run.folder / TRACE) if session.trace else "",
        loss_curve=str(run.folder / CURVE))


def _steps(session: Session, reader: Reader, run: Run, curve: Curve, show: Display) -> int:
    """The number of steps done. A checkpoint is saved every so often and when interrupted."""
    done = kept = 0
    pace = Pace(run.first, _targets(reader), time.perf_counter())

    def seen(step: int, results: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        loss, *reports = ((name, float(value)) for name, value in results.items())
        if not math.isfinite(loss[1]):
            raise _not_finite(step, loss[1], batch(step), saved=run.first + kept > 0)
        curve.add(step, loss[1], dict(reports))
        show(Seen(step + 1, run.steps, loss[1], pace.rate(step + 1), curve.reports[-1]))

    def batch(step: int) -> dict[str, Any]:
        return taken(session.plan, "train", reader.batch(step))

    with deferred() as interrupt:
        try:
            while done < run.steps - run.first:
                interrupt.check()
                left = run.steps - run.first - done
                count = min(run.every, left) if run.every else left
                session.run("train", count, batch, seen, first=run.first + done)
                if run.every and done < run.steps - run.first:
                    _save(session, run, curve, run.first + done)
                    kept = done
        except KeyboardInterrupt:
            _save(session, run, curve, run.first + done)
            raise
    return done


def _not_finite(step: int, loss: float, batch: Batch, *, saved: bool) -> RunError:
    """What may be the cause: the data first, then what was learned, and that only if something
    was. `saved`: there is a checkpoint to go on from."""
    message = f"the loss of step {step} is {loss}"
    for name, value in batch.items():
        found = _first_odd_row(np.asarray(value))
        if found:
            return RunError(f"{message}: '{name}' has {found}")
    if step == 0:
        return RunError(f"{message}, and what it was fed is finite; look in the model for what is "
                        "not for these values, as a division by 0 or the log of 0")
    resume = ", or go on from the last checkpoint" if saved else ""
    return RunError(f"{message}; try a lower learning rate{resume}")


def _first_odd_row(array: NDArray[Any]) -> str:
    """`nan in row 17 of the batch`, or nothing if all is finite."""
    if array.dtype.kind not in "fc" or np.isfinite(array).all():
        return ""
    at = np.argwhere(~np.isfinite(array))[0]
    row = f" in row {at[0]} of the batch" if at.size else ""
    return f"{array[tuple(at)]}{row}"


def _save(session: Session, run: Run, curve: Curve, step: int) -> None:
    """Everything that a run leaves, as it stands."""
    checkpoint.save(session, run.checkpoint, checkpoint.Progress(step, run.seed, run.notes))
    if session.process:
        return
    curve.write(run.folder / CURVE)
    if session.trace is not None:
        session.trace.save(run.folder / TRACE)


def validate(session: Session, reader: Reader) -> Scores:
    """Scores of held-out batches: enough of them, or all there are."""
    if EVALUATE not in {program.name for program in session.plan.programs}:
        return Scores()
    return measure(session, reader.validation(), LEAST)


def try_validation(plan: Plan, reader: Reader) -> None:
    """The first held-out batch, if there is one, fits: it is told before training, not after."""
    program = next((each for each in plan.programs if each.name == EVALUATE), None)
    first = next(iter(reader.validation()), None)
    if program is None or first is None:
        return
    try:
        fitted(wanted(plan, program), taken(plan, EVALUATE, first[0]))
    except FeedError as error:
        raise FeedError(f"what validation() gives does not fit: {error}") from error


def _targets(reader: Reader) -> int:
    return targets_of(reader.batch(0))


def predicted_peak(plan: Plan, ranks: tuple[int, ...]) -> int:
    """Bytes of the arenas of these ranks, as the compiler predicted them."""
    return sum(max((p.peak[a.id] for p in plan.programs), default=0)
               for a in plan.arenas if a.rank in ranks)
