"""What can go wrong in a run. Every message says where and what to do or what was awaited."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anabranch.ir.plan import Check, Loc


class RuntimeFailure(Exception):
    """Base of all errors of the runtime."""


class BuildError(RuntimeFailure):
    """Kernels could not be compiled or a cached library could not be trusted."""


class DeadPlan(RuntimeFailure):
    """A plan that the check refuses: it could hang, race or overrun its memory."""


class FeedError(RuntimeFailure):
    """Data that cannot be read, or an array that does not fit what the program wants. `help` says
    what would do."""

    def __init__(self, message: str, help: str = "") -> None:
        super().__init__(f"{message}\nhelp: {help}" if help else message)

    def of(self, source: object) -> FeedError:
        """The same, said of the file or folder that the data are from."""
        known = not isinstance(source, str | Path) or str(source) in str(self)
        return self if known else FeedError(f"{source}: {self}")


class WeightError(RuntimeFailure):
    """Weights that cannot be read, or do not fit the program."""


class RunError(RuntimeFailure):
    """The first failure of a run; the session is closed. Later failures are its notes."""


class PlacedError(RunError):
    """A mistake in what a program was fed, told like the compiler tells one: the line of the
    program first, then what is wrong, the text of that line if it is at hand, and help."""

    def __init__(self, message: str, loc: Loc, help: str) -> None:
        place = f"{loc.file}:{loc.line}" + (f":{loc.col}" if loc.col else "")
        where = f"{place}: " if loc.line else ""
        inside = f", in {loc.path}" if loc.path else ""
        lines = [f"{where}error: {message}{inside}", *_excerpt(loc), f"help: {help}"]
        super().__init__("\n".join(lines))


class Aborted(RuntimeFailure):
    """Raised inside a wait when another thread has failed; never reaches the user."""


class OutOfRange(IndexError):
    """An index into a dimension of another size."""

    def __init__(self, index: int, size: int) -> None:
        super().__init__(index, size)
        self.index, self.size = index, size

    def __str__(self) -> str:
        return f"index {self.index} is outside " + (
            f"0..{self.size - 1}" if self.size else "of a dimension without elements")

    def told(self, checks: Sequence[Check]) -> str:
        """With what holds the index, and what it is a place in, as far as one can know: it is of
        one of these checks."""
        held = " or ".join(dict.fromkeys(f"'{check.index}'" for check in checks if check.index))
        tables = {(check.table, check.axis) for check in checks}
        (table, axis), = tables if len(tables) == 1 else [("", 0)]
        what = f"dimension {axis} of '{table}'" if table else f"a dimension of size {self.size}"
        return f"{self}: {held} holds places along {what}" if held else str(self)


def _excerpt(loc: Loc) -> list[str]:
    """The line with a caret under the column."""
    line = linecache.getline(loc.file, loc.line).rstrip("\n")
    if not line.strip() or not loc.col:
        return []
    indent = "".join("\t" if c == "\t" else " " for c in line[: loc.col - 1])
    return [f"    {line}", f"    {indent}^"]
