"""The parser tables for `grammar.lark`, and indentation.

Building the tables takes 130 ms, so they are kept for the next start.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import lark
from lark import Lark, Token
from lark.indenter import PythonIndenter

from anabranch.frontend.kept import aside, cache_file, put

# Brackets and ends of lines that are in no string, comment or joined line.
SCAN = re.compile(
    r'"""(?:\\.|[^\\])*?"""'
    r'|"(?!"")(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])*'"
    r"|#[^\n]*|\\\r?\n"
    r"|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<newline>\n)",
    re.DOTALL,
)

GRAMMAR = Path(__file__).with_name("grammar.lark")


class BadIndentation(Exception):
    """A line that begins at a column where no block does, or with a tab; `token` ends there."""

    def __init__(self, message: str, token: Token) -> None:
        self.message, self.token = message, token
        super().__init__(message)


class Indentation(PythonIndenter):
    """Python's rule, but by spaces only, so that what one sees is what is parsed."""

    def handle_NL(self, token: Token) -> Iterator[Token]:
        if self.paren_level > 0:
            return
        indent = token.rsplit("\n", 1)[1]
        if "\t" in indent:
            raise BadIndentation("this line is indented with a tab", token)
        if len(indent) < self.indent_level[-1] and len(indent) not in self.indent_level:
            raise BadIndentation("this line lines up with no block above it", token)
        yield from super().handle_NL(token)


@functools.cache
def parser() -> Lark:
    """Parses from `module` or from `expression`, to trees with positions."""
    path = cache_file("grammar", GRAMMAR.read_bytes(), lark.__version__.encode())
    if path is None or path.exists():
        return _parser(path)
    written = aside(path)
    made = _parser(written)
    put(written, path)
    return made


def _parser(tables: Path | None) -> Lark:
    """Its tables are read from this file; where there is none, they are written to it."""
    return Lark(
        GRAMMAR.read_text(encoding="utf-8"),
        parser="lalr",
        start=["module", "expression"],
        postlex=Indentation(),
        propagate_positions=True,
        maybe_placeholders=True,
        cache=str(tables) if tables else False,
    )
