"""The syntax tree: what a program says, before anything is known about what its names mean.

Nodes are immutable and compare by content; where they were written (`span`) does not count. The
span of a definition or a compound statement is its header, so that a caret points at one line.
Types are expressions: `f32[vocab, dim] @ {model: S(0)}` is a `Binary` of an `Index` and a `Layout`.
A reduction `sum[k, *i](e)` is a `Call` of an `Index`; only scope can tell it from `blocks[0](e)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from anabranch.ir.diagnostics import Span


@dataclass(frozen=True, slots=True)
class Node:
    """Anything with a place in the text."""

    span: Span = field(compare=False, repr=False, kw_only=True)


# ---- Expressions


@dataclass(frozen=True, slots=True)
class Name(Node):
    id: str


@dataclass(frozen=True, slots=True)
class Number(Node):
    value: int | float


@dataclass(frozen=True, slots=True)
class String(Node):
    value: str


@dataclass(frozen=True, slots=True)
class Constant(Node):
    """`None`, `True` or `False`."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Tuple(Node):
    """`(a, b)`, or `a, b` where a statement allows it. As a subscript: a merged index."""

    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class List(Node):
    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Clause(Node):
    """`for target in iterable if condition ...` of a comprehension."""

    target: Target
    iterable: Expr
    conditions: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Comprehension(Node):
    """`[element for ...]`, or the same as the only argument of a call, without brackets."""

    element: Expr
    clauses: tuple[Clause, ...]


@dataclass(frozen=True, slots=True)
class LayoutEntry(Node):
    """One mesh axis: `kind` is S, B or P; `argument` is the axis of S or the operation of P."""

    axis: str
    kind: str
    argument: Expr | None


@dataclass(frozen=True, slots=True)
class Layout(Node):
    """`{data: S(0), model: B}`."""

    entries: tuple[LayoutEntry, ...]


@dataclass(frozen=True, slots=True)
class Unary(Node):
    """`-x`, `+x`, `not x`."""

    op: str
    operand: Expr


@dataclass(frozen=True, slots=True)
class Binary(Node):
    """`+ - * / // % ** @ and or`, and `|` between types."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Compare(Node):
    """`a < b`, or a chain `0 <= a < n`, which has one operand more than `ops`.
    The ops are `== != < <= > >= in is`, and `not in`, `is not`."""

    operands: tuple[Expr, ...]
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conditional(Node):
    """`then if condition else otherwise`."""

    condition: Expr
    then: Expr
    otherwise: Expr


@dataclass(frozen=True, slots=True)
class Keyword(Node):
    """`name=value` in a call or a subscript."""

    name: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Star(Node):
    """`*value`: a spread list, or, in a subscript, a pack of indices or sizes."""

    value: Expr


@dataclass(frozen=True, slots=True)
class Call(Node):
    function: Expr
    args: tuple[Expr, ...]
    keywords: tuple[Keyword, ...] = ()


@dataclass(frozen=True, slots=True)
class Attribute(Node):
    value: Expr
    name: str


@dataclass(frozen=True, slots=True)
class Index(Node):
    """`value[items, keywords]`. No items: `f32[]`. An item may also be a `Slice`, `Dots`, `Star`,
    a `Compare` (a range `j < k`), a `Tuple` (merged) or a `Guard`; the keyword is `pad=`."""

    value: Expr
    items: tuple[Expr, ...]
    keywords: tuple[Keyword, ...] = ()


@dataclass(frozen=True, slots=True)
class Slice(Node):
    """`start:stop:step`, only in a subscript."""

    start: Expr | None
    stop: Expr | None
    step: Expr | None


@dataclass(frozen=True, slots=True)
class Dots(Node):
    """`...`, only in a subscript."""


@dataclass(frozen=True, slots=True)
class Guard(Node):
    """`k if condition`, only in a subscript: the elements that a reduction takes."""

    item: Expr
    condition: Expr


Expr = (
    Name
    | Number
    | String
    | Constant
    | Tuple
    | List
    | Comprehension
    | Layout
    | Unary
    | Binary
    | Compare
    | Conditional
    | Star
    | Call
    | Attribute
    | Index
    | Slice
    | Dots
    | Guard
)
Target = Name | Tuple  # a tuple of targets, nested as in `for i, (a, b) in ...`


# ---- Statements


@dataclass(frozen=True, slots=True)
class Assign(Node):
    """`name = value` and `a, b = value`, on whole values."""

    target: Target
    value: Expr


@dataclass(frozen=True, slots=True)
class Equation(Node):
    """`target[items] = value`: a tensor defined element by element. No items: a 0-d tensor.
    An item is a `Name`, a `Star`, a `Compare` (`r < oh`), a `Tuple` of such or an expression."""

    target: Name
    items: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class Update(Node):
    """`target := value`: the next value of a buffer."""

    target: Name
    value: Expr


@dataclass(frozen=True, slots=True)
class Return(Node):
    """`return a, b` returns a `Tuple`."""

    value: Expr | None


@dataclass(frozen=True, slots=True)
class Assert(Node):
    condition: Expr
    message: Expr | None


@dataclass(frozen=True, slots=True)
class Run(Node):
    """An expression for its effect: `minimize(...)`, `report(...)`."""

    value: Expr


@dataclass(frozen=True, slots=True)
class If(Node):
    """`elif` is an `If` alone in `otherwise`. A body of `pass` is empty."""

    condition: Expr
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class For(Node):
    target: Target
    iterable: Expr
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class With(Node):
    """`with stage(1), recompute:`."""

    items: tuple[Expr, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Field(Node):
    """`name: type = init` in a model, or `buffer name: ...`; the type may be a model or a list."""

    name: str
    type: Expr
    init: Expr | None
    is_buffer: bool


@dataclass(frozen=True, slots=True)
class Setting(Node):
    """A line of a recipe; `patterns` are the paths of `optimizer["*.bias", "*norm*"] = value`."""

    target: Name
    patterns: tuple[String, ...]
    value: Expr


# ---- Definitions


@dataclass(frozen=True, slots=True)
class Param(Node):
    name: str
    type: Expr | None
    default: Expr | None


@dataclass(frozen=True, slots=True)
class OpDef(Node):
    """An operator. Every parameter has a type; `results` has at least one."""

    name: str
    params: tuple[Param, ...]
    results: tuple[Expr, ...]
    doc: str | None
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class FuncDef(Node):
    """`def`: `results` is empty where no type is stated."""

    name: str
    params: tuple[Param, ...]
    results: tuple[Expr, ...]
    doc: str | None
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class ModelDef(Node):
    """The body has fields, compile-time names, asserts, functions, and `if` around these."""

    name: str
    params: tuple[Param, ...]
    doc: str | None
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class TrainDef(Node):
    """A recipe for the model called `model`, made with these arguments."""

    model: Name
    args: tuple[Expr, ...]
    keywords: tuple[Keyword, ...]
    doc: str | None
    body: tuple[Setting | FuncDef, ...]


@dataclass(frozen=True, slots=True)
class ImportedName(Node):
    """`name as alias`; without `as` the alias is the name."""

    name: str
    alias: str


@dataclass(frozen=True, slots=True)
class Import(Node):
    """`from module import names`; the module is a dotted path."""

    module: str
    names: tuple[ImportedName, ...]


Statement = Assign | Equation | Update | Return | Assert | Run | If | For | With | FuncDef | Field
Definition = OpDef | FuncDef | ModelDef | TrainDef
Item = Import | Definition | Assign


@dataclass(frozen=True, slots=True)
class Module(Node):
    """A file."""

    items: tuple[Item, ...]


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, in the order of the text."""
    yield node
    for child in children(node):
        yield from walk(child)


def children(node: Node) -> Iterator[Node]:
    """The nodes directly below, in the order of the text."""
    names: tuple[str, ...] = type(node).__match_args__
    for name in names:
        value = getattr(node, name)
        for child in value if isinstance(value, tuple) else (value,):
            if isinstance(child, Node):
                yield child
