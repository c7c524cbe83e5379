"""Reads the text of the IR (see `printer.py`) back into a module.

One op a line, taken apart with a few regular expressions; right sides of computes go to
`expr_parser.py`. A mistake in the text is a `UserError` with a caret; whether the module makes
sense is the verifier's business, except that printed types must agree with what the op gives.

A comment that is no location is skipped.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from anabranch.ir.core import Block, Function, Module, Op, Value
from anabranch.ir.diagnostics import NOWHERE, Loc, Note, Span, nearest
from anabranch.ir.expr_parser import Line, Operands, Tokens, right_side
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Box, Compute, Fused, Gradient, Order, Pin, Return, Scan, Transfer
from anabranch.ir.sbp import PARTIAL_OPS, B, Layout, P, S, Sbp
from anabranch.ir.types import DTYPES, TensorType, tensor

NAME, FIELDS = r"%[\w.]+", r"\{[^{}]*\}"
TYPE = rf"(\w+)\[([\d, ]*)\](?: @ ({FIELDS}))?"
MODULE = re.compile(rf"module phase=(\w+)(?: mesh=({FIELDS}))?$")
FUNCTION = re.compile(r"func @([\w.]+)\(")
PARAMETER = re.compile(
    rf"\s*(?:(input|state|step|seed) +)?({NAME}): ({TYPE})(?: pin ({FIELDS}))?(?: stage (\d+))?,?")
HEADER_END = re.compile(r"\s*\) \{$")
SPAN = re.compile(r"(.*?):(\d+):(\d+)-(\d+):(\d+)$")
LOCATION = re.compile(r"(.*?):(\d+):(\d+)(?: (.*))?$")
RESULT = re.compile(rf"({NAME}): ({TYPE})(, | = )")
ENTRY = re.compile(r"(\w+): (?:(B)|S\((\d+)\)|P(?:\((\w+)\))?)(?:, |\}$)")
AXIS = re.compile(r"(\w+): (\d+)(?:, |\}$)")
ATTRIBUTE = re.compile(r"(\w+)=(\([^()]*\)|\[[^\[\]]*\]|[\w.]+)(?:, |\}$)")
DIMENSION = re.compile(r"(?:([^\W\d][\w.]*)|\(([^()]*)\))(?:, |$)")
EXTENT = re.compile(r"([^\W\d][\w.]*) < (\d+)(?:, |$)")
STATEMENT = re.compile(r"(\w+)\(([^()]*)\)$")
PIN = re.compile(rf"pin\(({NAME}), ({FIELDS})\)$")
RETURN = re.compile(r"return ?([^;]*?)(?:; state (.*))?$")
UPDATE = re.compile(rf'"([\w.]+)": ({NAME})(?:, |$)')
SCAN = re.compile(r"scan\[([^\W\d][\w.]*) < (\d+)(, reverse)?\]\(([^;()]*); ([^;()]*)\)$")
REGION_ARGUMENT = re.compile(rf"({NAME}) = ({NAME})(?:, |$)")


def parse_module(text: str, file: str = "<ir>") -> Module:
    """The module that `print_module` printed."""
    lines = _meaningful(text, file)
    first = next(lines, Line(1, "", file))
    found = MODULE.match(_code(first))
    if found is None:
        raise first.fault("expected 'module phase=...'", 0, len(first.text))
    mesh = None if found[2] is None else Mesh(_pairs(first, found[2]))
    module = Module(phase=found[1], mesh=mesh)
    for line in lines:
        module.add(_function(line, lines))
    return module


def _meaningful(text: str, file: str) -> Iterator[Line]:
    """The lines with more than a comment on them."""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.lstrip()
        if stripped and not stripped.startswith("//"):
            yield Line(number, line, file)


def _code(line: Line) -> str:
    return line.text.partition("  // ")[0].rstrip()


def _pairs(line: Line, text: str) -> tuple[tuple[str, int], ...]:
    found = _sequence(AXIS, text[1:] if text != "{}" else "")
    if found is None:
        raise line.fault_at("expected a mesh such as {data: 2, model: 4}", text)
    return tuple((m[1], int(m[2])) for m in found)


def _sequence(pattern: re.Pattern[str], text: str) -> list[re.Match[str]] | None:
    """Matches of the pattern that follow each other to the end of the text, or None."""
    found = list(pattern.finditer(text))
    return found if sum(len(m[0]) for m in found) == len(text) else None


# Functions


@dataclass(slots=True)
class _Scope:
    """The values of a function by name, and where each was defined."""

    values: dict[str, Value] = field(default_factory=dict)
    lines: dict[str, Line] = field(default_factory=dict)

    def define(self, name: str, value: Value, line: Line) -> None:
        if name in self.values:
            first = self.lines[name]
            start = first.text.find(name)
            note = Note("first defined here", first.span(start, start + len(name)))
            raise line.fault_at(f"{name} is defined twice", name, note)
        value.name = name[1:]
        self.values[name], self.lines[name] = value, line

    def value(self, name: str, line: Line) -> Value:
        found = self.values.get(name)
        if found is None:
            raise line.fault_at(f"{name} is not defined", name, help=nearest(name, self.values))
        return found


def _function(line: Line, lines: Iterator[Line]) -> Function:
    found = FUNCTION.match(line.text)
    if found is None:
        raise line.fault("expected 'func @name('", 0, len(line.text))
    function, scope = Function(found[1]), _Scope()
    at = found.end()
    while not _parameters(function, scope, line, at):
        line, at = _following(lines, line, ") {"), 0
    _block(function.body, scope, lines, line)
    return function


def _parameters(function: Function, scope: _Scope, line: Line, at: int) -> bool:
    """Read the parameters on a line; whether the list ends there."""
    code, _, comment = line.text.partition("  // ")
    code = code.rstrip()
    while found := PARAMETER.match(code, at):
        type = _type(line, found[3])
        pin = None if found[7] is None else _layout(line, found[7])
        value = function.add_argument(found[2][1:], type, found[1] or "input", pin,
                                      int(found[8] or 0), _span(comment))
        scope.define(found[2], value, line)
        at = found.end()
    if HEADER_END.match(code, at):
        return True
    if code[at:].strip():
        raise line.fault("expected a parameter such as 'state %w: f32[4]'", at + 1, len(code))
    return False


def _following(lines: Iterator[Line], last: Line, wanted: str) -> Line:
    line = next(lines, None)
    if line is None:
        end = len(last.text)
        raise last.fault(f"expected '{wanted}' before the end of the text", end, end + 1)
    return line


def _span(comment: str) -> Span | None:
    found = SPAN.match(comment)
    return None if found is None else Span(found[1], *map(int, found.groups()[1:]))


def _type(line: Line, text: str) -> TensorType:
    try:
        return _type_of(text)
    except ValueError as error:
        raise line.fault_at(str(error), text) from None


def _layout(line: Line, text: str) -> Layout:
    try:
        return _layout_of(text)
    except ValueError as error:
        raise line.fault_at(str(error), text) from None


@functools.lru_cache(maxsize=65536)
def _type_of(text: str) -> TensorType:
    found = re.fullmatch(TYPE, text)
    if found is None or found[1] not in DTYPES:
        known = ", ".join(DTYPES)
        raise ValueError(f"expected a type such as f32[8, 4] with a dtype of {known}")
    shape = tuple(int(n) for n in found[2].split(",")) if found[2].strip() else ()
    return tensor(found[1], shape, None if found[3] is None else _layout_of(found[3]))


@functools.lru_cache(maxsize=65536)
def _layout_of(text: str) -> Layout:
    found = _sequence(ENTRY, text[1:] if text != "{}" else "")
    if found is None or any(m[4] not in (None, *PARTIAL_OPS) for m in found):
        raise ValueError("expected a layout such as {data: S(0), model: B} or P(max)")
    return Layout(tuple((m[1], _entry(m)) for m in found))


def _entry(found: re.Match[str]) -> Sbp:
    if found[2]:
        return B
    return S(int(found[3])) if found[3] else P(found[4] or "sum")


# Ops


@dataclass(slots=True)
class _Statement:
    """One line of a block, taken apart: results = code {attributes}  // loc."""

    line: Line
    scope: _Scope
    results: list[tuple[str, TensorType]]
    start: int
    code: str
    attributes: dict[str, str]
    common: dict[str, Any]
    opens: bool

    @property
    def type(self) -> TensorType:
        """The type of the only result."""
        if len(self.results) != 1:
            raise self.fault(f"expected one result, found {len(self.results)}")
        return self.results[0][1]

    def fault(self, message: str, help: str = "") -> Exception:
        """The error with the whole right side underlined."""
        return self.line.fault(message, self.start, self.start + len(self.code), help=help)

    def values(self, text: str) -> list[Value]:
        names = text.split(", ") if text else []
        return [self.scope.value(name, self.line) for name in names]

    def take(self, name: str, default: str = "") -> str:
        return self.attributes.pop(name, default)

    def numbers(self, name: str) -> tuple[int, ...]:
        """An attribute `[1, 2]`."""
        text = self.take(name, "[]")
        if not re.fullmatch(r"\[(?:\d+(?:, \d+)*)?\]", text):
            raise self.line.fault_at("expected a list such as [0, 1]", text)
        return tuple(int(n) for n in text[1:-1].split(",") if n)

    def number(self, name: str) -> int:
        text = self.take(name, "0")
        if not text.isdecimal():
            raise self.line.fault_at(f"expected a number, found '{text}'", text)
        return int(text)

    def check_types(self, found: Sequence[TensorType]) -> None:
        """The op must give what the line says."""
        told = [type for _, type in self.results]
        if told != list(found):
            given = ", ".join(map(str, found)) or "nothing"
            raise self.line.fault(f"the right side gives {given}", *self._told())

    def _told(self) -> tuple[int, int]:
        start = len(self.line.text) - len(self.line.text.lstrip())
        return start, max(self.line.text.find(" = "), start + 1)


def _block(block: Block, scope: _Scope, lines: Iterator[Line], last: Line) -> None:
    """The lines of a block up to its closing brace."""
    while True:
        line = _following(lines, last, "}")
        if line.text.strip() == "}":
            return
        statement = _take_apart(line, scope)
        op = _op(statement, lines)
        if statement.attributes:
            name = next(iter(statement.attributes))
            raise line.fault_at(f"'{op.kind}' has no attribute '{name}'", name)
        if len(op.results) != len(statement.results):
            raise statement.fault(f"'{op.kind}' has {len(op.results)} results")
        for (name, _), value in zip(statement.results, op.results, strict=True):
            scope.define(name, value, line)
        block.append(op)
        last = line


def _take_apart(line: Line, scope: _Scope) -> _Statement:
    code, _, comment = line.text.partition("  // ")
    code = code.rstrip()
    start = len(code) - len(code.lstrip())
    results = []
    while found := RESULT.match(code, start):
        results.append((found[1], _type(line, found[2])))
        start = found.end()
        if found[6] == " = ":
            break
    if code[start : start + 1] == "%":
        raise line.fault("expected a result such as '%y: f32[4] = '", start, len(code))
    opens = code.endswith(" {")
    code = code.removesuffix(" {")
    attributes, stop = _attributes(line, code) if code.endswith("}") else ({}, len(code))
    statement = _Statement(line, scope, results, start, code[start:stop], attributes, {}, opens)
    statement.common = {"loc": _loc(comment) if comment else NOWHERE}
    if attributes:
        statement.common |= {
            "stage": statement.number("stage"), "recompute": statement.number("recompute")}
    return statement


def _attributes(line: Line, code: str) -> tuple[dict[str, str], int]:
    """The trailing attributes in braces, and where they begin."""
    start = max(code.rfind(" {"), 0)
    found = _sequence(ATTRIBUTE, code[start + 2 :])
    if found is None:
        raise line.fault("expected attributes such as {stage=1}", start + 1, len(code))
    return {m[1]: m[2] for m in found}, start


def _loc(comment: str) -> Loc:
    found = LOCATION.match(comment)
    return NOWHERE if found is None else Loc(found[1], int(found[2]), int(found[3]), found[4] or "")


def _op(statement: _Statement, lines: Iterator[Line]) -> Op:
    code = statement.code
    if code[:1] == "[":
        return _compute(statement)
    word = re.match(r"\w*", code)
    name = word[0] if word else ""
    if name in _REGIONS:
        return _REGIONS[name](statement, lines)
    if name not in _KINDS:
        raise statement.fault(
            f"expected '[' and a right side, or an op kind, found '{name or code[:1]}'",
            nearest(name, [*_KINDS, *_REGIONS]))
    if statement.opens:
        raise statement.fault(f"'{name}' has no region")
    return _KINDS[name](statement)


def _compute(statement: _Statement) -> Compute:
    line, type = statement.line, statement.type
    close = statement.code.find("]")
    dims, extents = _dimensions(statement, statement.code[1:close], type.shape)
    operands = Operands(statement.scope.values)
    if listed := statement.take("operands"):
        operands.list([v for v in listed[1:-1].split(", ") if statement.scope.value(v, line)])
    start = statement.start + close + 1
    right = right_side(Tokens(line, start, statement.start + len(statement.code)), operands)
    ranges = (*extents, *right.reduced)
    if len({name for name, _ in ranges}) != len(ranges):
        raise statement.fault("a variable is bound twice")
    op = Compute(
        operands.values, type.dtype, ranges, dims, right.body,
        reduce=right.reduce, reduced=tuple(v for v, _ in right.reduced), guard=right.guard,
        layout=type.layout, **statement.common)
    statement.check_types([op.result.type])
    return op


Dimensions = tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, int], ...]]


def _dimensions(statement: _Statement, text: str, shape: tuple[int, ...]) -> Dimensions:
    try:
        return _dimensions_of(text, shape)
    except ValueError as error:
        start = statement.start
        raise statement.line.fault(str(error), start, start + len(text) + 2) from None


@functools.lru_cache(maxsize=4096)
def _dimensions_of(text: str, shape: tuple[int, ...]) -> Dimensions:
    """The variables of each dimension, and their extents, of `i, (g < 3, c < 4), ()`."""
    found = _sequence(DIMENSION, text)
    if found is None:
        raise ValueError("expected dimensions such as [i, (g < 3, c < 4), ()]")
    if len(found) != len(shape):
        raise ValueError(f"there are {len(found)} dimensions here, and {len(shape)} in the type")
    ranges = [_ranges(m, size) for m, size in zip(found, shape, strict=True)]
    return tuple(tuple(v for v, _ in r) for r in ranges), tuple(pair for r in ranges for pair in r)


def _ranges(dimension: re.Match[str], size: int) -> list[tuple[str, int]]:
    if dimension[1]:
        return [(dimension[1], size)]
    found = _sequence(EXTENT, dimension[2])
    if found is None:
        raise ValueError("expected a merged dimension such as (g < 3, c < 4)")
    return [(m[1], int(m[2])) for m in found]


def _operands(statement: _Statement) -> list[Value]:
    found = STATEMENT.match(statement.code)
    if found is None:
        raise statement.fault("expected operands in parentheses, such as (%x, %y)")
    return statement.values(found[2])


def _single(statement: _Statement) -> Value:
    operands = _operands(statement)
    if len(operands) != 1:
        raise statement.fault(f"expected one operand, found {len(operands)}")
    return operands[0]


def _order(statement: _Statement) -> Order:
    type, axis = statement.type, statement.number("axis")
    if axis >= type.rank:
        raise statement.fault(f"there is no axis {axis} in {type}")
    op = Order(_single(statement), axis, type.shape[axis], layout=type.layout,
               descending=statement.take("descending") == "true", **statement.common)
    statement.check_types([op.result.type])
    return op


def _pin(statement: _Statement) -> Pin:
    found = PIN.match(statement.code)
    if found is None:
        raise statement.fault("expected a pin such as pin(%x, {model: S(0)})")
    op = Pin(statement.values(found[1])[0], _layout(statement.line, found[2]), **statement.common)
    statement.check_types([op.result.type])
    return op


def _gradient(statement: _Statement) -> Gradient:
    operands = _operands(statement)
    if not operands:
        raise statement.fault("expected gradient(%of, %by, ...)")
    op = Gradient(operands[0], operands[1:], **statement.common)
    statement.check_types([r.type for r in op.results])
    return op


def _box(statement: _Statement) -> Box:
    layout = statement.type.layout
    if layout is None:
        raise statement.fault("the result of a box needs a layout, such as f32[4] @ {data: B}")
    op = Box(_single(statement), layout, step=statement.take("step"), axis=statement.take("axis"),
             **statement.common)
    statement.check_types([op.result.type])
    return op


def _transfer(statement: _Statement) -> Transfer:
    types = [type for _, type in statement.results]
    return Transfer(
        _operands(statement), types, statement.take("step"), statement.number("match"),
        statement.numbers("ranks"), reduce=statement.take("reduce"),
        counts=statement.numbers("counts"), counts_back=statement.numbers("counts_back"),
        **statement.common)


def _fused(statement: _Statement, lines: Iterator[Line]) -> Fused:
    found = STATEMENT.match(statement.code)
    pairs = _sequence(REGION_ARGUMENT, found[2]) if found else None
    if pairs is None or not statement.opens:
        raise statement.fault("expected a region such as fused(%inside = %outside) {")
    region = Block()
    operands = _stand_ins(region, pairs, statement)
    _region(region, statement, lines)
    op = Fused(operands, region, **statement.common)
    statement.check_types([r.type for r in op.results])
    return op


def _scan(statement: _Statement, lines: Iterator[Line]) -> Scan:
    found = SCAN.match(statement.code)
    pairs = _sequence(REGION_ARGUMENT, found[4]) if found else None
    if found is None or pairs is None or not statement.opens:
        raise statement.fault("expected a region such as scan[t < 8](%in = %out; %history) {")
    histories = found[5].split(", ") if found[5] else []
    if len(histories) != len(statement.results):
        raise statement.fault(f"expected a history for each of {len(statement.results)} results")
    region = Block()
    operands = _stand_ins(region, pairs, statement)
    for name, (_, type) in zip(histories, statement.results, strict=True):
        statement.scope.define(name, region.add_arg(name[1:], type), statement.line)
    _region(region, statement, lines)
    op = Scan(operands, region, found[1], int(found[2]), reverse=bool(found[3]),
              **statement.common)
    statement.check_types([r.type for r in op.results])
    return op


def _stand_ins(region: Block, pairs: list[re.Match[str]], statement: _Statement) -> list[Value]:
    """Give the region its arguments for the values outside, which are returned."""
    operands = [statement.scope.value(pair[2], statement.line) for pair in pairs]
    for pair, operand in zip(pairs, operands, strict=True):
        value = region.add_arg(pair[1][1:], operand.type)
        statement.scope.define(pair[1], value, statement.line)
    return operands


def _region(region: Block, statement: _Statement, lines: Iterator[Line]) -> None:
    _block(region, statement.scope, lines, statement.line)
    if not isinstance(region.last, Return):
        raise statement.fault("the region does not end in 'return'")


def _return(statement: _Statement) -> Return:
    found = RETURN.match(statement.code)
    updates = _sequence(UPDATE, found[2] or "") if found else None
    if found is None or updates is None:
        raise statement.fault('expected a return such as return %x; state "w": %w.next')
    values = statement.values(found[1])
    values += [statement.scope.value(update[2], statement.line) for update in updates]
    return Return(values, [update[1] for update in updates], **statement.common)


_KINDS: dict[str, Callable[[_Statement], Op]] = {
    Order.kind: _order, Pin.kind: _pin, Gradient.kind: _gradient, Box.kind: _box,
    Transfer.kind: _transfer, Return.kind: _return,
}
_REGIONS: dict[str, Callable[[_Statement, Iterator[Line]], Op]] = {
    Fused.kind: _fused, Scan.kind: _scan,
}
