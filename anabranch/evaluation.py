"""Held-out data, scored: every row once, however many there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anabranch.ir.plan import Plan
from anabranch.runtime.errors import FeedError
from anabranch.runtime.rows import whole_batches
from anabranch.runtime.session import Session

EVALUATE = "eval"
LEAST = 100_000  # targets that are enough for a held-out loss

Batch = Mapping[str, Any]


@dataclass(slots=True)
class Scores:
    """Means over the rows so far, by name: the loss, metrics, reports."""

    rows: int = 0
    targets: int = 0
    totals: dict[str, float] = field(default_factory=dict)

    def add(self, results: Mapping[str, Any], batch: Batch, rows: int) -> None:
        """The results of a batch in which so many rows differ."""
        self.rows += rows
        self.targets += rows * (targets_of(batch) // rows_of(batch))
        for name, value in results.items():
            self.totals[name] = self.totals.get(name, 0.0) + rows * float(value)

    @property
    def means(self) -> dict[str, float]:
        return {name: total / self.rows for name, total in self.totals.items()} if self.rows else {}


def rows_of(batch: Batch) -> int:
    """The leading extent of the first array that has one."""
    return next((int(np.shape(x)[0]) for x in batch.values() if np.ndim(x)), 1)


def targets_of(batch: Batch) -> int:
    """Elements of the last array of a batch: what a loss is the mean over."""
    return int(np.size(list(batch.values())[-1])) if batch else 0


def taken(plan: Plan, program: str, batch: Batch) -> dict[str, Any]:
    """What a program takes of all that a reader gives."""
    names = [port.name for port in plan.program(program).feeds]
    return {name: array for name, array in batch.items() if name in names}


def measure(
    session: Session, batches: Iterable[tuple[Batch, int]], least: int | None = None
) -> Scores:
    """Scores of batches with the number of different rows in each: of all, or until `least`
    targets have been scored."""
    scores = Scores()
    for batch, rows in batches:
        given = taken(session.plan, EVALUATE, batch)
        scores.add(session.step(EVALUATE, given), given, rows)
        if least is not None and scores.targets >= least:
            break
    return scores


def batches_of(plan: Plan, arrays: Mapping[str, Any]) -> Iterator[tuple[Batch, int]]:
    """Any number of rows in batches of the size that a plan evaluates."""
    size = rows_of({p.name: np.empty(plan.values[p.value].shape, np.bool_)
                    for p in plan.program(EVALUATE).feeds})
    counts = {name: int(np.shape(array)[0]) for name, array in arrays.items() if np.ndim(array)}
    if len(set(counts.values())) != 1:
        raise FeedError(f"rows of arrays of one length are scored; these have {counts}")
    for places, rows in whole_batches(next(iter(counts.values())), size):
        yield {name: np.asarray(array)[places] if name in counts else array
               for name, array in arrays.items()}, rows
