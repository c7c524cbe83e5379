"""Where things are in a program, and the two kinds of error.

A `Span` is a piece of source text; a `Loc` is a span plus the path of definitions that led there
(`gpt.ab:34 blocks.3.attn softmax`). `UserError` is the user's mistake, rendered with the source
line and a caret; `CompilerBug` is ours and asks to be reported.
"""

from __future__ import annotations

import difflib
import linecache
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of text: lines and columns count from 1; `end_col` is one past the end."""

    file: str
    line: int
    col: int
    end_line: int
    end_col: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col}"

    def to(self, other: Span) -> Span:
        """The span from the start of this one to the end of `other`."""
        return Span(self.file, self.line, self.col, other.end_line, other.end_col)


@dataclass(frozen=True, slots=True)
class Loc:
    """The origin of an op: where it was written and the definitions that were being expanded."""

    file: str = ""
    line: int = 0
    col: int = 0
    path: str = ""

    def __str__(self) -> str:
        place = f"{Path(self.file).name}:{self.line}" if self.line else Path(self.file).name
        return f"{place} {self.path}".strip()


NOWHERE = Loc()


@dataclass(frozen=True, slots=True)
class Note:
    """A second place that explains an error ("first bound here")."""

    message: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One mistake: what is wrong, where, related places, and what would be legal instead."""

    message: str
    span: Span | None = None
    notes: tuple[Note, ...] = ()
    help: str = ""

    def render(self, sources: dict[str, str] | None = None) -> str:
        """The message with its source line and a caret under the span, then notes and help."""
        where = f"{self.span}: " if self.span else ""
        lines = [f"{where}error: {self.message}", *_excerpt(self.span, sources)]
        for note in self.notes:
            at = f"{note.span}: " if note.span else ""
            lines += [f"{at}note: {note.message}", *_excerpt(note.span, sources)]
        if self.help:
            lines.append(f"help: {self.help}")
        return "\n".join(lines)


class UserError(Exception):
    """One or more mistakes of the user. `sources` maps file names to text not on disk."""

    def __init__(
        self, *diagnostics: Diagnostic, sources: dict[str, str] | None = None
    ) -> None:
        self.diagnostics = diagnostics
        self.sources = sources or {}
        super().__init__(diagnostics[0].message if diagnostics else "")

    def __str__(self) -> str:
        return self.render()

    def render(self) -> str:
        return "\n\n".join(d.render(self.sources) for d in self.diagnostics)


class CompilerBug(Exception):
    """A broken invariant of the compiler itself; `ir` is the text of the offending program."""

    def __init__(self, message: str, loc: Loc = NOWHERE, ir: str = "") -> None:
        self.message, self.loc, self.ir = message, loc, ir
        at = f"\n  at {loc}" if loc is not NOWHERE else ""
        super().__init__(f"{message}{at}\nThis is a fault of Anabranch; please report it.")


@dataclass(slots=True)
class Collector:
    """Gathers independent mistakes so that a file reports all of them at once."""

    diagnostics: list[Diagnostic] = field(default_factory=list)

    def add(
        self, message: str, span: Span | None = None, *notes: Note, help: str = ""
    ) -> None:
        diagnostic = Diagnostic(message, span, notes, help)
        if diagnostic not in self.diagnostics:
            self.diagnostics.append(diagnostic)

    def raise_if_any(self, sources: dict[str, str] | None = None) -> None:
        if self.diagnostics:
            raise UserError(*self.diagnostics, sources=sources)


def fail(message: str, span: Span | None = None, *notes: Note, help: str = "") -> UserError:
    """A `UserError` with one diagnostic; the caller raises it."""
    return UserError(Diagnostic(message, span, notes, help))


def nearest(name: str, candidates: Iterable[str]) -> str:
    """`did you mean 'softmax'?`, or an empty string when nothing is close."""
    best = closest(name, candidates)
    return f"did you mean '{best}'?" if best else ""


def closest(name: str, candidates: Iterable[str]) -> str | None:
    """The one that may have been meant. Upper and lower case count last: `adamW` is `adamw` before
    it is `adam`."""
    folded: dict[str, list[str]] = {}
    for candidate in candidates:
        folded.setdefault(candidate.casefold(), []).append(candidate)
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    same = folded[close[0]] if close else []
    best = difflib.get_close_matches(name, same, n=1, cutoff=0)
    return best[0] if best else None


def _excerpt(span: Span | None, sources: dict[str, str] | None) -> list[str]:
    if span is None:
        return []
    text = (sources or {}).get(span.file)
    if text is not None:
        lines = text.splitlines()
        line = lines[span.line - 1] if 0 < span.line <= len(lines) else ""
    else:
        line = linecache.getline(span.file, span.line).rstrip("\n")
    if not line.strip():
        return []
    end = span.end_col if span.end_line == span.line else len(line) + 1
    width = max(1, end - span.col)
    indent = "".join("\t" if c == "\t" else " " for c in line[: span.col - 1])
    return [f"    {line}", f"    {indent}^{'~' * (width - 1)}"]
