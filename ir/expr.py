"""The expression tree of a compute: subscripts, guards and bodies are all made of it.

Expressions are immutable and hashable. Every node has a dtype that follows from its leaves
(`dtype_of`); casts are explicit, so the arguments of a primitive agree. Index variables and
everything computed from them only are i64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import is_


@dataclass(frozen=True, slots=True)
class Expr:
    """Base of all nodes; build arithmetic with `call` and the helpers below."""


@dataclass(frozen=True, slots=True)
class Const(Expr):
    """A literal of a fixed dtype; `inf` and `nan` are float literals."""

    value: float | int | bool
    dtype: str


@dataclass(frozen=True, slots=True)
class Var(Expr):
    """The value of an index variable (in a localised compute: its local position)."""

    name: str


@dataclass(frozen=True, slots=True)
class Origin(Expr):
    """Where a shard starts: `base + step * micro-batch`. An i64 that is never folded away,
    so that all ranks have the same text and pass the number as an argument."""

    base: int
    step: int = 0


@dataclass(frozen=True, slots=True)
class Read(Expr):
    """An element of an operand. `pad` is the value outside the tensor; it is lazy, and reading
    outside without `pad` is legal only where a guard or a `where` does not choose the element."""

    operand: int
    subscripts: tuple[Expr, ...]
    pad: Expr | None = None


@dataclass(frozen=True, slots=True)
class Call(Expr):
    """A primitive of `scalar.PRIMITIVES` applied to expressions."""

    fn: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    """Conversion to a dtype; floats to integers truncate toward zero, anything to bool is != 0."""

    dtype: str
    arg: Expr


@dataclass(frozen=True, slots=True)
class Rand(Expr):
    """One draw of a counter-based generator (Philox4x32-10), f32: `kind` is uniform ([0, 1)) or
    normal. `stream` numbers the occurrence, `counter` the logical element; seed and step are i64.

    Key words: (low, high) of the seed; counter words: (low, high of `counter`, step, stream).
    """

    kind: str
    stream: int
    seed: Expr
    step: Expr
    counter: Expr


TRUE = Const(True, "bool")
FALSE = Const(False, "bool")


def integer(value: int) -> Const:
    return Const(value, "i64")


def children(expr: Expr) -> tuple[Expr, ...]:
    """Direct sub-expressions, in the order of evaluation."""
    if isinstance(expr, Call):  # the most usual first: nothing else is asked as often as this
        return expr.args
    if isinstance(expr, Read):
        return expr.subscripts if expr.pad is None else (*expr.subscripts, expr.pad)
    if isinstance(expr, Cast):
        return (expr.arg,)
    if isinstance(expr, Rand):
        return expr.seed, expr.step, expr.counter
    return ()


def with_children(expr: Expr, new: tuple[Expr, ...]) -> Expr:
    """The same node over other sub-expressions (as many as `children` gives)."""
    match expr:
        case Read(operand, subscripts, pad):
            n = len(subscripts)
            return Read(operand, new[:n], None if pad is None else new[n])
        case Call(fn, _):
            return Call(fn, new)
        case Cast(dtype, _):
            return Cast(dtype, new[0])
        case Rand(kind, stream, _, _, _):
            return Rand(kind, stream, *new)
    return expr


def walk(expr: Expr) -> Iterator[Expr]:
    """Every node, parents first."""
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        if below := children(node):
            stack += below[::-1]


def levels(expr: Expr) -> int:
    """How many nodes stand below one another."""
    count, row = 0, [expr]
    while row:
        count, row = count + 1, [child for node in row for child in children(node)]
    return count


def transform(expr: Expr, rule: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild bottom-up; `rule` returns a replacement for a rebuilt node, or None to keep it."""
    node, old = expr, children(expr)
    if old:
        new = tuple([transform(child, rule) for child in old])
        node = expr if all(map(is_, old, new)) else with_children(expr, new)
    replaced = rule(node)
    return node if replaced is None else replaced


def shared(expr: Expr) -> Expr:
    """The same expression, in which equal parts are one object: what is known of a part can then be
    kept under its identity, and is found once for all places where it stands."""
    known: dict[tuple[object, ...], Expr] = {}

    def one(node: Expr) -> Expr:
        parts = tuple(map(one, children(node)))
        key = (type(node), *_own(node), *map(id, parts))
        if key not in known:
            known[key] = with_children(node, parts)
        return known[key]

    return one(expr)


def _own(node: Expr) -> tuple[object, ...]:
    """What a node says beside its parts."""
    match node:
        case Const(value, dtype):
            return repr(value), dtype  # 0.0 and -0.0 differ, 1 and True too
        case Var(name):
            return (name,)
        case Origin(base, step):
            return base, step
        case Read(operand, subscripts, pad):
            return operand, len(subscripts), pad is None
        case Call(fn, args):
            return fn, len(args)
        case Cast(dtype, _):
            return (dtype,)
        case Rand(kind, stream, _, _, _):
            return kind, stream
    raise TypeError(f"no expression: {node!r}")


def substitute(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """Replace index variables by expressions."""
    return transform(expr, lambda e: values.get(e.name) if isinstance(e, Var) else None)


def renumber(expr: Expr, operand: Callable[[int], int]) -> Expr:
    """Replace operand numbers of reads."""

    def rule(e: Expr) -> Expr | None:
        return Read(operand(e.operand), e.subscripts, e.pad) if isinstance(e, Read) else None

    return transform(expr, rule)


def variables(expr: Expr) -> set[str]:
    return {node.name for node in walk(expr) if isinstance(node, Var)}


def reads(expr: Expr) -> list[Read]:
    """All reads, nested ones (inside subscripts) included, parents first, duplicates kept."""
    return [node for node in walk(expr) if isinstance(node, Read)]


def literals(*exprs: Expr | None) -> tuple[str, ...]:
    """Literals as text: Python takes -0.0 for 0.0 and True for 1, and no nan for another."""
    return tuple(str(node.value) for expr in exprs if expr is not None for node in walk(expr)
                 if isinstance(node, Const))


def call(fn: str, *args: Expr) -> Expr:
    return Call(fn, args)


def add(a: Expr, b: Expr) -> Expr:
    return Call("add", (a, b))


def sub(a: Expr, b: Expr) -> Expr:
    return Call("sub", (a, b))


def mul(a: Expr, b: Expr) -> Expr:
    return Call("mul", (a, b))


def where(condition: Expr, yes: Expr, no: Expr) -> Expr:
    return Call("where", (condition, yes, no))


