"""Malformed programs: what is said, that all mistakes of a file are, and that nothing else happens.

How each message reads is in `syntax_errors.md`; here is what documents cannot show.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.frontend.explain import stuck_in
from anabranch.frontend.mistakes import EXAMPLES, FOREIGN, SIGNS
from anabranch.frontend.parse import parse, parse_expression
from anabranch.ir.diagnostics import Diagnostic, UserError
from tests.conftest import goldens

DOCUMENT = Path(__file__).with_name("syntax_errors.md")
GOLDENS = list(goldens(DOCUMENT.read_text(encoding="utf-8")))

PROGRAM = """\
from blocks import Block, make as build

op softmax(x: T[*I, N], k: int = 1) -> T[*I, N]:
    "Exponentials."
    m[*i] = max[n if n < k](x[*i, n, pad=-inf])
    return m

model Net(dim: int):
    head = dim // 2
    w: f32[dim, dim] @ {model: S(0), data: B} = normal(std=0.02)
    buffer n: i64[] = zeros()

    def forward(x: T[B, dim], y=None):
        with stage(1), recompute:
            for i, (a, b) in enumerate([(1, 2)]):
                x = x[:, ..., 1:2] if a is not None else -x ** 2
        n := n + 1
        return x @ w.T
"""


def mistakes(text: str) -> tuple[Diagnostic, ...]:
    try:
        parse(text, "program.ab")
    except UserError as error:
        return error.diagnostics
    return ()


def messages(text: str) -> list[str]:
    return [diagnostic.message for diagnostic in mistakes(text)]


def test_the_program_that_is_damaged_below_is_well_formed() -> None:
    assert messages(PROGRAM) == []


@pytest.mark.parametrize("golden", GOLDENS, ids=[golden.block.heading for golden in GOLDENS])
def test_a_mistake_reads_as_documented(golden) -> None:
    with pytest.raises(UserError) as caught:
        parse(golden.source, "program.ab")
    assert caught.value.render() == golden.block.text


def test_every_message_of_the_tables_is_documented() -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    written = [row.message for row in (*SIGNS, *FOREIGN, *EXAMPLES)]
    patterns = {re.escape(message).replace(r"\{0\}", ".+") for message in written}
    assert [pattern for pattern in sorted(patterns) if not re.search(pattern, document)] == []


def test_no_two_messages_claim_the_same_mistake() -> None:
    claims = defaultdict(set)
    for example in EXAMPLES:
        for snippet in example.snippets:
            claims[stuck_in(snippet)].add(example.message)
    assert [claim for claim in claims.values() if len(claim) > 1] == []


def test_each_definition_reports_its_own_mistake() -> None:
    text = (
        "def f(x)\n    return x\n\nop g(x: T[N]):\n    return x\n\ny = {1: 2}\n\ndef h(x):\n    x\n"
    )
    assert messages(text) == [
        "expected '->' or ':', found the end of the line",
        "an op declares the type of its result",
        "braces hold a layout, and this is none",
    ]


def test_mistakes_that_the_grammar_allows_are_all_found_in_one_definition() -> None:
    text = "def f(x, x):\n    g(x) = 1\n    y[:] = h(a=1, a=2)\n"
    assert messages(text) == [
        "parameter 'x' is given twice",
        "this cannot stand on the left of '='",
        "argument 'a' is given twice",
        "a tensor cannot be written in part",
    ]


def test_an_open_bracket_does_not_swallow_the_next_definition() -> None:
    assert messages("x = [1,\n2\n\ndef f(y):\n    return (y\n") == [
        "this '[' is never closed",
        "this '(' is never closed",
    ]


def test_an_argument_of_the_command_line_is_an_expression() -> None:
    with pytest.raises(UserError, match="expected an expression, found the end of the line"):
        parse_expression("3 *")


def test_nesting_beyond_reason_is_an_error_of_the_program() -> None:
    text = "x = " + "-" * 5000 + "1\n"
    assert messages("\n\n" + text) == ["this definition is nested too deeply"]


def test_a_number_beyond_reason_is_an_error_of_the_program() -> None:
    assert messages("x = " + "1" * 5000 + "\n") == ["this number is too long"]


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, len(PROGRAM)),
    st.integers(0, 12),
    st.sampled_from(
        ["", " ", "\n", "\t", "(", "]", '"', '"""', "#", ":", "=", "*", "if", "\\", "é", "§"]
    )
    | st.text(max_size=3),
)
def test_a_damaged_program_is_parsed_or_explained(start: int, removed: int, inserted: str) -> None:
    text = PROGRAM[:start] + inserted + PROGRAM[start + removed :]
    found = mistakes(text)
    assert all(each.span is not None for each in found)
    assert UserError(*found, sources={"program.ab": text}).render().count("error: ") >= len(found)
