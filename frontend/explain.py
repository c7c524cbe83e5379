"""A syntax error -> a message that names the mistake and says what to write.

Lark knows where the text stopped making sense and what it would have accepted there. Unbalanced
brackets are looked for first, because the place where the text stops making sense is then far from
the mistake; then the tables of `mistakes.py`; then the message says what was expected and found.

The parser runs over the `EXAMPLES` once, when first needed, and notes where each gets it stuck: the
state it is in and the kind of word it meets. (Lark's own `match_examples` also compares how deeply
the parser is nested, so that an example would have to be repeated for each depth, and falls back to
a match by state alone, which is often wrong.)
"""

from __future__ import annotations

import functools
import re
from copy import copy

from lark import Token, UnexpectedCharacters, UnexpectedInput, UnexpectedToken
from lark.lexer import PatternStr
from lark.parsers.lalr_parser_state import ParserState

from anabranch.frontend.grammar import SCAN, BadIndentation, parser
from anabranch.frontend.mistakes import EXAMPLES, FOREIGN, KEYWORD, SIGNS, Example, Phrase
from anabranch.ir.diagnostics import CompilerBug, Diagnostic, Note, Span

_CALLED = {
    "NAME": "a name",
    "NUMBER": "a number",
    "STRING": "a text in quotes",
    "_NEWLINE": "the end of the line",
    "_INDENT": "an indented block",
    "_DEDENT": "the end of the block",
    "$END": "the end of the definition",
    "PLUS": "an operator",
}
# What is worth naming of all that would be accepted. If one of the first is, it is what is missing.
_DECISIVE = ("_INDENT", "ELSE", "ARROW", "COLON", "IMPORT")
_TELLING = ("PLUS", "IN", "EQUAL", "NAME", "STRING", "COMMA", "RPAR", "RSQB", "RBRACE", "_NEWLINE")


def explain(error: UnexpectedInput | BadIndentation, text: str, file: str) -> Diagnostic:
    """The message for the error that stopped the parser; `text` is what it was given."""
    if isinstance(error, BadIndentation):
        return _explain_indentation(error, text, file)
    if isinstance(error, UnexpectedToken):
        return _explain_token(error, text, file)
    if not isinstance(error, UnexpectedCharacters):
        raise CompilerBug(f"a syntax error of an unknown kind: {type(error).__name__}")
    place = error.pos_in_stream or 0
    return (
        _find_foreign(text, place, place, file)
        or _find_bracket(text, place, file)
        or _explain_sign(text, place, file)
    )


def _explain_indentation(error: BadIndentation, text: str, file: str) -> Diagnostic:
    end = error.token.end_pos or 0
    start = text.rindex("\n", 0, end) + 1
    help = "indent with spaces, by as many as the other lines of the block"
    return Diagnostic(error.message, _span(text, start, end, file), help=help)


def _explain_sign(text: str, place: int, file: str) -> Diagnostic:
    for sign in SIGNS:
        if match := re.compile(sign.pattern).match(text, place):
            return _fill(sign, match, 0, text, file)
    raise CompilerBug("the last sign matches any character")


def _explain_token(error: UnexpectedToken, text: str, file: str) -> Diagnostic:
    token, state = error.token, error.state
    start, end = _extent(token, text)
    span = _span(text, start, end, file)
    if token.type == "_INDENT":
        message = "this line is indented, but the line above it opens no block"
        return Diagnostic(message, span, help="a block follows a line that ends with ':'")
    return (
        _find_bracket(text, start, file)
        or _find_foreign(text, start, end, file)
        or _find_example(state, token, span)
        or _expected(_accepts(state), token, span)
    )


def _find_bracket(text: str, place: int, file: str) -> Diagnostic | None:
    """The bracket that makes no sense at `place`, or that was opened before and is never closed."""
    stack: list[re.Match[str]] = []
    for match in SCAN.finditer(text):
        if match["open"]:
            stack.append(match)
        elif match["close"]:
            if not stack or stack[-1][0] + match[0] not in ("()", "[]", "{}"):
                return _wrong_close(text, stack, match, file) if match.start() == place else None
            stack.pop()
    unclosed = [match for match in stack if match.start() < place]
    if not unclosed:
        return None
    span = _span(text, unclosed[-1].start(), unclosed[-1].end(), file)
    return Diagnostic(f"this '{unclosed[-1][0]}' is never closed", span)


def _wrong_close(
    text: str, stack: list[re.Match[str]], close: re.Match[str], file: str
) -> Diagnostic:
    span = _span(text, close.start(), close.end(), file)
    if not stack:
        return Diagnostic(f"this '{close[0]}' closes nothing", span)
    opened = Note("opened here", _span(text, stack[-1].start(), stack[-1].end(), file))
    return Diagnostic(f"'{close[0]}' cannot close '{stack[-1][0]}'", span, (opened,))


def _find_foreign(text: str, start: int, end: int, file: str) -> Diagnostic | None:
    """A foreign phrase on the line of the error that reaches to the error."""
    margin = text.rfind("\n", 0, start) + 1
    line = text[margin:].split("\n", maxsplit=1)[0]
    for phrase in FOREIGN:
        for match in re.finditer(phrase.pattern, line):
            if match.start() <= end - margin and start - margin <= match.end():
                return _fill(phrase, match, margin, text, file)
    return None


def _find_example(state: ParserState[int], token: Token, span: Span) -> Diagnostic | None:
    example = _stuck().get((state.position, token.type))
    return Diagnostic(example.message, span, help=example.help) if example else None


@functools.cache
def _stuck() -> dict[tuple[int, str], Example]:
    """Where the parser gets stuck in each example."""
    return {
        stuck_in(empty_line + snippet): example
        for example in EXAMPLES
        for snippet in example.snippets
        for empty_line in ("", "\n")
    }


def stuck_in(snippet: str) -> tuple[int, str]:
    """The state of the parser and the kind of word that stops it."""
    try:
        parser().parse(snippet, start="module")
    except UnexpectedToken as error:
        return int(error.state.position), error.token.type
    raise CompilerBug(f"this example does not get the parser stuck: {snippet!r}")


def _expected(accepted: set[str], token: Token, span: Span) -> Diagnostic:
    if re.fullmatch(KEYWORD, token) and "NAME" in accepted and "NUMBER" not in accepted:
        return Diagnostic(f"'{token}' is a word of the language and cannot be a name", span)
    *others, last = _wanted(accepted)
    listed = f"{', '.join(others)} or {last}" if others else last
    found = f"'{token}'" if token.strip() else _CALLED[token.type]
    return Diagnostic(f"expected {listed}, found {found}", span)


def _wanted(accepted: set[str]) -> list[str]:
    """What to say of the many words that could come next."""
    if {"NAME", "NUMBER", "STRING"} <= accepted:
        return ["an expression"]
    if "RSQB" in accepted:
        accepted = accepted - {"COLON"}  # a slice, which is seldom what is missing
    if "PLUS" in accepted:
        accepted = accepted - {"IN", "EQUAL"}  # a comparison, a keyword: seldom too
    decisive = [_call(kind) for kind in _DECISIVE if kind in accepted]
    telling = [_call(kind) for kind in _TELLING if kind in accepted]
    return decisive or telling[:3] or sorted(map(_call, accepted))[:3]


def _call(kind: str) -> str:
    """What a person calls a terminal of the grammar."""
    if kind in _CALLED:
        return _CALLED[kind]
    pattern = parser().get_terminal(kind).pattern
    return f"'{pattern.value}'" if isinstance(pattern, PatternStr) else f"'{kind.lower()}'"


def _accepts(state: ParserState[int]) -> set[str]:
    """The kinds of word that really could come next. The table of the state lists more: LALR merges
    states, so a word may be accepted there and refused after the reductions that it causes."""
    accepted = set()
    table = state.parse_conf.parse_table.states[state.position]
    for kind in filter(str.isupper, table):  # the names in lower case are rules
        trial = state.copy(deepcopy_values=False)
        trial.parse_conf = copy(trial.parse_conf)
        trial.parse_conf.callbacks = {}
        try:
            trial.feed_token(Token(kind, ""), is_end=kind == "$END")
        except UnexpectedToken:
            continue
        accepted.add(kind)
    return accepted


def _extent(token: Token, text: str) -> tuple[int, int]:
    """Where a word stands. The end of a line or block stands right after the text before it."""
    start, end = token.start_pos or 0, token.end_pos or 0
    if token.type == "_INDENT":
        return text.rindex("\n", 0, end) + 1, end
    if token.type in ("_NEWLINE", "_DEDENT", "$END"):
        start = len(text[:start].rstrip())
        return start, start + 1
    return start, end


def _span(text: str, start: int, end: int, file: str) -> Span:
    line = text.count("\n", 0, start) + 1
    column = start - (text.rfind("\n", 0, start) + 1) + 1
    return Span(file, line, column, line, column + max(1, end - start))


def _fill(phrase: Phrase, match: re.Match[str], margin: int, text: str, file: str) -> Diagnostic:
    """The message of a phrase found in the part of the text that starts at `margin`."""
    group = match.lastindex or 0
    span = _span(text, margin + match.start(group), margin + match.end(group), file)
    return Diagnostic(phrase.message.format(match[group]), span, help=phrase.help)
