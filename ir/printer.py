"""The text of the IR. All of it: `parser.parse_module` reads it back to an equal module.

One line is one op, except that the region of a fused op or of a scan stands between braces. A
statement looks like the mathematics, `%y: f32[8, 4] = [i, j] sum[k < 16](%a[i, k] * %b[k, j])`;
then follow, where there are any, attributes in braces and, after two spaces and `//`, the origin
`file:line:col path`. Extents of index variables are printed only where the type of the result does
not give them.

Operands of a compute are numbered in the order in which the line reads them. Where that is not so,
an attribute `operands=(%b, %a)` lists them, and `#1[i]` reads by number what has no name of its
own (a value that is an operand twice).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from anabranch.ir.core import Argument, Block, Function, Module, Op, Value
from anabranch.ir.diagnostics import NOWHERE, Loc, Span
from anabranch.ir.expr import Call, Cast, Const, Expr, Origin, Rand, Read, Var
from anabranch.ir.ops import (
    Box,
    Compute,
    Fused,
    Gradient,
    Order,
    Pin,
    Return,
    Scan,
    Transfer,
    region_of,
)
from anabranch.ir.types import DTYPES, is_float

# primitive -> (sign, level): a higher level binds tighter; equal levels associate to the left,
# but for comparisons, which do not, and `**`, which does to the right
INFIX: dict[str, tuple[str, int]] = {
    "or": ("or", 1), "and": ("and", 2),
    "eq": ("==", 4), "ne": ("!=", 4), "lt": ("<", 4), "le": ("<=", 4), "gt": (">", 4),
    "ge": (">=", 4),
    "add": ("+", 5), "sub": ("-", 5),
    "mul": ("*", 6), "div": ("/", 6), "floordiv": ("//", 6), "mod": ("%", 6),
    "pow": ("**", 8),
}
LOOSEST, NOT, COMPARISON, NEGATION, POWER, ATOM = 0, 3, 4, 7, 8, 9
DEFAULT_DTYPES = ("f32", "i64", "bool")  # of literals that do not name one
FLOATS = tuple(filter(is_float, DTYPES))
RANDOM_CALLS = {"uniform": "rand", "normal": "randn"}

MAX_HEADER = 100  # a longer list of parameters takes a line for each
UNPRINTABLE = re.compile(r"[^\w.]")


class Names(dict[Value, str]):
    """Printed names, given at first sight: the value's hint, made unique with a number."""

    def __init__(self, reserved: Iterable[Value] = ()) -> None:
        super().__init__()
        self.taken: set[str] = set()
        self.counters: dict[str, int] = {}
        for value in reserved:
            self[value]

    def __missing__(self, value: Value) -> str:
        hint = UNPRINTABLE.sub("_", value.name)
        name = hint
        while not name or name in self.taken:
            number = self.counters[hint] = self.counters.get(hint, -1 if not hint else 0) + 1
            name = f"{hint}.{number}" if hint else str(number)
        self.taken.add(name)
        self[value] = text = f"%{name}"
        return text


def print_module(module: Module, *, locations: bool = True) -> str:
    """The whole module, ending in a newline."""
    mesh = "" if module.mesh is None else f" mesh={{{_fields(module.mesh.axes)}}}"
    functions = (print_function(f, locations=locations) for f in module.functions.values())
    return "\n".join([f"module phase={module.phase}{mesh}\n", *functions])


def print_function(function: Function, *, locations: bool = True) -> str:
    names = Names(a.value for a in function.states())
    lines = _body(function.body, names, locations, "  ")
    return "\n".join([*_header(function, names, locations), *lines, "}\n"])


def print_op(op: Op, *, locations: bool = True) -> str:
    """One op by itself; names are those of its values, unique within the op only."""
    return "\n".join(_lines(op, Names(), locations, ""))


def print_expr(expr: Expr, operands: Sequence[str]) -> str:
    """An expression whose reads go to operands of the given names."""
    return _write(expr, _Reads(operands), LOOSEST)


# Functions and ops


def _header(function: Function, names: Names, locations: bool) -> list[str]:
    parameters = [_parameter(a, names) for a in function.arguments]
    spans = [_span(a.span) if locations else "" for a in function.arguments]
    line = f"func @{function.name}({', '.join(parameters)}) {{"
    if len(line) <= MAX_HEADER and not any(spans):
        return [line]
    rows = [f"  {text},{span}" for text, span in zip(parameters, spans, strict=True)]
    return [f"func @{function.name}(", *rows, ") {"]


def _parameter(argument: Argument, names: Names) -> str:
    role = "" if argument.role == "input" else f"{argument.role} "
    pin = "" if argument.pin is None else f" pin {argument.pin}"
    stage = f" stage {argument.stage}" if argument.stage else ""
    return f"{role}{names[argument.value]}: {argument.value.type}{pin}{stage}"


def _span(span: Span | None) -> str:
    if span is None:
        return ""
    return f"  // {span.file}:{span.line}:{span.col}-{span.end_line}:{span.end_col}"


def _body(block: Block, names: Names, locations: bool, indent: str) -> list[str]:
    for value in block.args:
        names[value]
    return [line for op in block for line in _lines(op, names, locations, indent)]


def _lines(op: Op, names: Names, locations: bool, indent: str) -> list[str]:
    """The line of an op, or lines where it has a region."""
    statement, own = _STATEMENTS[type(op)](op, names)
    results = ", ".join([f"{names[r]}: {r.type.text}" for r in op.results])
    equals = " = " if results else ""
    tail = _attributes(op, own)
    loc = _location(op.loc) if locations and op.loc is not NOWHERE else ""
    region = region_of(op)
    if region is None:
        return [f"{indent}{results}{equals}{statement}{tail}{loc}"]
    inner = _body(region, names, locations, indent + "  ")
    return [f"{indent}{results}{equals}{statement}{tail} {{{loc}", *inner, f"{indent}}}"]


def _attributes(op: Op, own: dict[str, str]) -> str:
    if op.stage:
        own["stage"] = str(op.stage)
    if op.recompute:
        own["recompute"] = str(op.recompute)
    return " {" + ", ".join(f"{k}={v}" for k, v in own.items()) + "}" if own else ""


def _location(loc: Loc) -> str:
    return f"  // {loc.file}:{loc.line}:{loc.col} {loc.path}".rstrip() if loc != NOWHERE else ""


Statement = tuple[str, dict[str, str]]  # the text after `=`, and the attributes of the kind


def _compute(op: Compute, names: Names) -> Statement:
    extent = op.extents
    operands = [names[v] for v in op.operands]
    reads = _Reads(_labels(operands))
    if op.reduce:
        over = ", ".join([f"{v} < {extent.get(v, '?')}" for v in op.reduced])
        guard = "" if op.guard is None else f" if {_write(op.guard, reads, LOOSEST)}"
        text = f"{op.reduce}[{over}{guard}]({_write(op.body, reads, LOOSEST)})"
    else:
        text = _write(op.body, reads, LOOSEST)
    dims = ", ".join([d[0] if len(d) == 1 else f"({_ranges(d, extent)})" for d in op.dims])
    in_order = list(reads.seen) == list(range(len(operands))) and reads.labels == operands
    return f"[{dims}] {text}", {} if in_order else {"operands": f"({', '.join(operands)})"}


def _ranges(variables: Sequence[str], extent: dict[str, int]) -> str:
    return ", ".join(f"{v} < {extent.get(v, '?')}" for v in variables)


def _labels(operands: list[str]) -> list[str]:
    """How reads call the operands: by name, or by number where the name stands for another."""
    if len(set(operands)) == len(operands):
        return operands
    return [name if operands.index(name) == i else f"#{i}" for i, name in enumerate(operands)]


def _order(op: Order, names: Names) -> Statement:
    """How many come first is read off the type of the result."""
    own = {"axis": str(op.axis)} | ({"descending": "true"} if op.descending else {})
    return f"order({_values(op.operands, names)})", own


def _pin(op: Pin, names: Names) -> Statement:
    return f"pin({names[op.operands[0]]}, {op.layout})", {}


def _gradient(op: Gradient, names: Names) -> Statement:
    return f"gradient({_values(op.operands, names)})", {}


def _box(op: Box, names: Names) -> Statement:
    return f"box({_values(op.operands, names)})", _present(op, "step", "axis")


def _transfer(op: Transfer, names: Names) -> Statement:
    return f"transfer({_values(op.operands, names)})", _present(op, *Transfer.attributes)


def _fused(op: Fused, names: Names) -> Statement:
    """`fused(%inside = %outside)` names the region's arguments next to what they stand for."""
    return f"fused({_pairs(op.region.args, op.operands, names)})", {}


def _scan(op: Scan, names: Names) -> Statement:
    """`scan[t < 8, reverse](%inside = %outside; %history)`. Results have the first say on names."""
    for result in op.results:
        names[result]
    head = f"scan[{op.variable} < {op.extent}{', reverse' if op.reverse else ''}]"
    inside = _pairs(op.inputs, op.operands, names)
    return f"{head}({inside}; {_values(op.histories, names)})", {}


def _pairs(inside: Sequence[Value], outside: Sequence[Value], names: Names) -> str:
    pairs = zip(inside, outside, strict=False)
    return ", ".join(f"{names[a]} = {names[v]}" for a, v in pairs)


def _return(op: Return, names: Names) -> Statement:
    plain = len(op.operands) - len(op.states)
    values = _values(op.operands[:plain], names)
    pairs = zip(op.states, op.operands[plain:], strict=False)
    updates = ", ".join(f'"{state}": {names[v]}' for state, v in pairs)
    states = f"; state {updates}" if updates else ""
    return f"return {values}{states}" if values else f"return{states}", {}


_STATEMENTS: dict[type[Op], Callable[[Any, Names], Statement]] = {
    Compute: _compute, Order: _order, Pin: _pin, Gradient: _gradient, Box: _box,
    Transfer: _transfer, Fused: _fused, Scan: _scan, Return: _return,
}


def _values(values: Sequence[Value], names: Names) -> str:
    return ", ".join([names[v] for v in values])


def _present(op: Op, *attributes: str) -> dict[str, str]:
    """The attributes that are not empty, as text."""
    given = ((name, getattr(op, name)) for name in attributes)
    return {name: _plain(value) for name, value in given if value not in ("", ())}


def _plain(value: int | str | tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def _fields(pairs: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in pairs)


# Expressions


@dataclass(slots=True)
class _Reads:
    """What reads call the operands, and which have been read, in order."""

    labels: Sequence[str]
    seen: dict[int, None] = field(default_factory=dict)

    def label(self, operand: int) -> str:
        self.seen[operand] = None
        return self.labels[operand] if operand < len(self.labels) else f"#{operand}"


def _write(expr: Expr, reads: _Reads, level: int) -> str:
    """The text of an expression, in parentheses where it binds looser than `level`."""
    return _WRITERS[type(expr)](expr, reads, level)


def literal(value: float | int | bool, dtype: str) -> str:
    """`0.5`, `3`, `true`, and with its dtype where that is not the usual one: `0.5:f64`."""
    if dtype == "bool":
        return "true" if value else "false"
    text = repr(float(value)) if dtype in FLOATS else str(+value)
    return text if dtype in DEFAULT_DTYPES else f"{text}:{dtype}"


def _const(expr: Const, _reads: _Reads, level: int) -> str:
    text = literal(expr.value, expr.dtype)
    return f"({text})" if level > NEGATION and text[0] == "-" else text


def _var(expr: Var, _reads: _Reads, _level: int) -> str:
    return expr.name


def _origin(expr: Origin, _reads: _Reads, _level: int) -> str:
    return f"origin({expr.base}, {expr.step})" if expr.step else f"origin({expr.base})"


def _read(expr: Read, reads: _Reads, _level: int) -> str:
    label = reads.label(expr.operand)
    parts = [_write(s, reads, LOOSEST) for s in expr.subscripts]
    if expr.pad is not None:
        parts.append(f"pad={_write(expr.pad, reads, LOOSEST)}")
    return f"{label}[{', '.join(parts)}]"


def _call(expr: Call, reads: _Reads, level: int) -> str:
    fn, args = expr.fn, expr.args
    if fn in INFIX and len(args) == 2:
        sign, own = INFIX[fn]
        left, right = own + (own in (COMPARISON, POWER)), NEGATION if own == POWER else own + 1
        text = f"{_write(args[0], reads, left)} {sign} {_write(args[1], reads, right)}"
        return f"({text})" if level > own else text
    if fn == "not" and len(args) == 1:
        text = f"not {_write(args[0], reads, NOT)}"
        return f"({text})" if level > NOT else text
    if fn == "neg" and len(args) == 1:
        return _negation(args[0], reads, level)
    return f"{fn}({', '.join([_write(a, reads, LOOSEST) for a in args])})"


def _negation(arg: Expr, reads: _Reads, level: int) -> str:
    """`-x`; the negation of a literal is `-(1.0)`, because `-1.0` is a literal too."""
    text = _write(arg, reads, ATOM if isinstance(arg, Const) else NEGATION)
    if isinstance(arg, Const) and text[0] != "(":
        text = f"({text})"
    return f"(-{text})" if level > NEGATION else f"-{text}"


def _cast(expr: Cast, reads: _Reads, _level: int) -> str:
    return f"{expr.dtype}({_write(expr.arg, reads, LOOSEST)})"


def _rand(expr: Rand, reads: _Reads, _level: int) -> str:
    inner = [_write(e, reads, LOOSEST) for e in (expr.seed, expr.step, expr.counter)]
    return f"{RANDOM_CALLS.get(expr.kind, expr.kind)}({', '.join([str(expr.stream), *inner])})"


_WRITERS: dict[type[Expr], Callable[[Any, _Reads, int], str]] = {
    Const: _const, Var: _var, Origin: _origin, Read: _read, Call: _call, Cast: _cast, Rand: _rand,
}
