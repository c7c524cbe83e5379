"""Text -> syntax tree.

`parse` returns the tree of a whole file, or raises one `UserError` with the mistakes of all its
top-level definitions. It promises that the text is well-formed, nothing about what its names mean.

A definition starts at the left margin, and nothing else but an import or an assignment does. So the
text is cut there first and each piece is parsed on its own: that is the whole of error recovery,
and a bracket left open cannot swallow the rest of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

from lark import UnexpectedInput
from lark.exceptions import VisitError

from anabranch.frontend.explain import explain
from anabranch.frontend.grammar import SCAN, BadIndentation, parser
from anabranch.frontend.syntax import Expr, Item, Module
from anabranch.frontend.tree import TreeBuilder
from anabranch.ir.diagnostics import Collector, Span

_AT_MARGIN = re.compile(r"[^\s#)\]}]")
_DEFINITION = re.compile(r"(?:op|def|model|train|from)[ \t]+\w")


def parse(text: str, file: str) -> Module:
    """The tree of a program; `file` is its name in messages."""
    found = Collector()
    items: list[Item] = []
    for piece in pieces(text):
        items += _parse(piece, file, "module", found)
    found.raise_if_any({file: text})
    lines = text.split("\n")
    return Module(tuple(items), span=Span(file, 1, 1, len(lines), len(lines[-1]) + 1))


def parse_expression(text: str, file: str = "<argument>") -> Expr:
    """The tree of one expression, such as a value given on the command line."""
    found = Collector()
    parsed = _parse(text + "\n", file, "expression", found)
    found.raise_if_any({file: text})
    return cast(Expr, parsed[0])


def pieces(text: str) -> Iterator[str]:
    """The top-level items, each after as many empty lines as there are lines above it."""
    starts = [0, *_margins(text), len(text)]
    for start, end in pairwise(starts):
        if piece := text[start:end].rstrip():
            yield "\n" * text.count("\n", 0, start) + piece + "\n"


def _margins(text: str) -> Iterator[int]:
    """Where items start: at the margin and outside brackets, or where a definition clearly does."""
    depth = 0
    for match in SCAN.finditer(text):
        if match["open"]:
            depth += 1
        elif match["close"]:
            depth = max(0, depth - 1)
        elif match["newline"] and _starts_item(text, match.end(), depth):
            depth = 0
            yield match.end()


def _starts_item(text: str, position: int, depth: int) -> bool:
    begins = _AT_MARGIN if depth == 0 else _DEFINITION
    return begins.match(text, position) is not None


def _parse(text: str, file: str, start: str, found: Collector) -> list[Any]:
    try:
        tree = parser().parse(text, start=start)
    except (UnexpectedInput, BadIndentation) as error:
        found.diagnostics.append(explain(error, text, file))
        return []
    try:
        return cast(list[Any], TreeBuilder(file, found).transform(tree))
    except (RecursionError, VisitError) as error:
        if not isinstance(getattr(error, "orig_exc", error), RecursionError):
            raise
        line = text.count("\n") - text.strip().count("\n")
        found.add("this definition is nested too deeply", Span(file, line, 1, line, 2))
        return []
