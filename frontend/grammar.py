"""The parser tables for `grammar.lark`, and indentation.

Building the tables takes 130 ms, so they are kept in the user's cache directory. Lark stores them
as a pickle, which can run code when loaded; so the file is used only from a directory that belongs
to this user and that nobody else can write to. Otherwise the tables are built each time.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import lark
from lark import Lark, Token
from lark.indenter import PythonIndenter

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
    return Lark(
        GRAMMAR.read_text(encoding="utf-8"),
        parser="lalr",
        start=["module", "expression"],
        postlex=Indentation(),
        propagate_positions=True,
        maybe_placeholders=True,
        cache=cache_file() or False,
    )


def cache_file() -> str | None:
    """Where the tables of this grammar and this lark are kept; None if no place is safe."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anabranch"
    key = hashlib.sha256(GRAMMAR.read_bytes() + lark.__version__.encode()).hexdigest()[:16]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError):
        return None
    is_ours = status.st_uid == os.getuid() and not status.st_mode & 0o022
    return str(folder / f"grammar-{key}") if is_ours else None
