"""A syntax error of lark -> a message that names the mistake."""

from __future__ import annotations

from lark import UnexpectedInput

from anabranch.frontend.grammar import BadIndentation
from anabranch.ir.diagnostics import Diagnostic, Span


def explain(error: UnexpectedInput | BadIndentation, text: str, file: str) -> Diagnostic:
    if isinstance(error, BadIndentation):
        line = error.token.end_line or 1
        return Diagnostic(error.message, Span(file, line, 1, line, error.token.end_column or 1))
    line, column = error.line, error.column
    span = Span(file, line, column, line, column + 1)
    return Diagnostic("unexpected text", span)
