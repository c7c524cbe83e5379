"""What a person sees of a run while it goes on: a bar on a terminal, a line now and then in a log.

Everything goes to stderr; whoever reads the results reads stdout.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

LINES = 10  # of a whole run, where there is no terminal


@dataclass(frozen=True, slots=True)
class Seen:
    """Where a run stands: steps done of how many, loss, targets per second, what was reported."""

    done: int
    total: int
    loss: float
    rate: float
    reports: Mapping[str, float] = field(default_factory=dict)

    @property
    def scalars(self) -> str:
        """The loss and the reports."""
        return "  ".join(f"{name} {value:.4g}"
                         for name, value in {"loss": self.loss, **self.reports}.items())


class Display(Protocol):
    """Shows where a run stands."""

    def __call__(self, seen: Seen) -> None: ...


@dataclass(slots=True)
class Pace:
    """Targets per second since the run began."""

    first: int
    targets: int
    began: float

    def rate(self, done: int) -> float:
        return (done - self.first) * self.targets / max(time.perf_counter() - self.began, 1e-9)


@contextmanager
def display(total: int, first: int, unit: str, *, show: bool) -> Iterator[Display]:
    """A display of a run of `total` steps that goes on after `first`."""
    console = Console(stderr=True)
    if not show:
        yield lambda _: None
    elif console.is_terminal:
        with _bar(console, unit) as bar:
            task = bar.add_task("train", total=total, completed=first, scalars="", rate=0.0,
                                memory=0.0)
            yield lambda seen: _move(bar, task, seen)
    else:
        every = max(1, (total - first) // LINES)
        yield lambda seen: _log(console, seen, every, unit)


def _bar(console: Console, unit: str) -> Progress:
    return Progress(
        TextColumn("step {task.completed:.0f}/{task.total:.0f}"), BarColumn(),
        TextColumn("{task.fields[scalars]}", markup=False),
        TextColumn("{task.fields[rate]:,.0f} " f"{unit}/s"),
        TextColumn("{task.fields[memory]:.0f} MB"), TimeRemainingColumn(),
        console=console)


def _move(bar: Progress, task: TaskID, seen: Seen) -> None:
    bar.update(task, completed=seen.done, scalars=seen.scalars, rate=seen.rate,
               memory=resident_bytes() / 1e6)


def _log(console: Console, seen: Seen, every: int, unit: str) -> None:
    if seen.done % every and seen.done != seen.total:
        return
    console.print(f"step {seen.done}/{seen.total}  {seen.scalars}  "
                  f"{seen.rate:,.0f} {unit}/s  {resident_bytes() / 1e6:.0f} MB", highlight=False)


def resident_bytes() -> int:
    """Memory of this process, in bytes (Linux; elsewhere 0)."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * 4096
