"""What a name can stand for while a program is elaborated.

Numbers, strings, lists, tuples, None and layouts are Python's own values (`ir.sbp.Layout`). The
rest is here. A `Tensor` is an element expression over its axes, so that a chain of elementwise
operators becomes one statement; `Element` is one scalar of such an expression.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.frontend import syntax as s
from anabranch.ir.core import Value
from anabranch.ir.diagnostics import Span, fail
from anabranch.ir.expr import Const, Expr, Read, Var
from anabranch.ir.sbp import Layout
from anabranch.ir.types import TensorType, integers, tensor

WEAK, SCALAR, FULL = range(3)  # of literals and index values; of 0-d tensors; of the others


class Expression(str):
    """A text from outside that stands for what it says in the language: `relu`, `2 * n`. A plain
    text of Python is a text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Expression({str.__repr__(self)})"


@dataclass(frozen=True, slots=True)
class Element:
    """A scalar expression and how much its dtype weighs in a promotion (`WEAK` .. `FULL`).

    `Read.operand` is the number that the `Builder` gave to the value, until a statement is emitted.
    """

    expr: Expr
    dtype: str
    level: int


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """`element` is written over the axes (`axis`); `value` is set if it reads just that."""

    shape: tuple[int, ...]
    element: Element
    value: Value | None = None

    @property
    def dtype(self) -> str:
        return self.element.dtype

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def type(self) -> TensorType:
        return tensor(self.dtype, self.shape)

    @property
    def is_view(self) -> bool:
        """Whether the element is a read that only permutes, repeats or drops axes."""
        match self.element.expr:
            case Read(_, subscripts, None):
                return all(isinstance(i, Var) or i == Const(0, "i64") for i in subscripts)
        return False


def axis(from_last: int) -> Var:
    """The index variable of an axis, counted from the last, which is 1: broadcasting keeps it."""
    return Var(f"-{from_last}")


def axes(rank: int) -> tuple[Var, ...]:
    return tuple(axis(rank - d) for d in range(rank))


@dataclass(frozen=True, slots=True)
class Dtype:
    name: str


@dataclass(frozen=True, slots=True)
class Generic:
    """`T`, `U`, `Float`, `Int` where no call has bound them; a type in a signature otherwise."""

    name: str


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of a compile-time parameter: `int`, `float`, `bool`, `str`, `Key`, `Shape`."""

    name: str


@dataclass(frozen=True, slots=True)
class TypeValue:
    """The type of a field, with the layout that the source demands."""

    dtype: str
    shape: tuple[int, ...]
    pin: Layout | None = None

    @property
    def type(self) -> TensorType:
        return tensor(self.dtype, self.shape)


@dataclass(frozen=True, slots=True)
class PackIndex:
    """The variables of a pack of indices `*i`, and their number."""

    elements: tuple[Element, ...]


@dataclass(slots=True, eq=False)
class Recurrent:
    """A tensor whose recurrence is being built. It can be read element by element: `read` gets the
    node and the frame. `shape` is known once the ranges of its statement are."""

    name: str
    read: Callable[[s.Index, Any], Element]
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """The key of random draws: where it comes from, and a seed of its own if one was passed."""

    path: str
    seed: Tensor | None = None


@dataclass(slots=True, eq=False)
class State:
    """A parameter or buffer. Its path is known once the model it belongs to has a place."""

    type: TypeValue
    initialiser: Deferred
    is_buffer: bool
    span: Span
    path: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """An `op` or `def` with the scope it was written in, and the model instance it belongs to."""

    definition: s.OpDef | s.FuncDef
    scope: Scope
    owner: Instance | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    definition: s.ModelDef
    scope: Scope


@dataclass(slots=True, eq=False)
class Instance:
    """A model with its arguments, made at `span`. `scope` holds its fields; it has a place once it
    is a field."""

    model: Model
    scope: Scope
    span: Span
    path: str | None = None
    fields: dict[str, object] = field(default_factory=dict)
    arguments: dict[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.model.definition.name


@dataclass(frozen=True, slots=True, eq=False)
class Deferred:
    """A call that waits for its `Shape`: an initialiser, or an optimizer."""

    callee: Function | Model
    args: tuple[object, ...]
    keywords: Mapping[str, object]
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Builtin:
    """A function of the language itself. `run` gets the call and the evaluated arguments;
    `is_reduction` allows `name[k](expr)`."""

    name: str
    run: Callable[..., Any]
    is_reduction: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """`x.f`, which is `f` with `x` as its first argument."""

    function: object
    receiver: object


@dataclass(frozen=True, slots=True)
class Reader:
    """The source of a recipe's batches, by the name it is registered under. `gives` has what it
    gives by name, where that is known: a dtype, and dimensions, which are arguments."""

    name: str
    arguments: Mapping[str, object]
    gives: Mapping[str, tuple[str, tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class Region:
    """What `with` takes: a pipeline stage, or recomputation."""

    stage: int | None = None
    recompute: bool = False
    per_micro: bool = False


@dataclass(slots=True, eq=False)
class Scope:
    """Names and what they stand for; a name that is not here is looked up in `outer`.

    Where `differentiates` is set, in a file that uses `grad`, whatever has a name is a value of its
    own, so that a gradient can be taken by it.
    """

    names: dict[str, object]
    outer: Scope | None = None
    is_library: bool = False
    differentiates: bool = False

    def find(self, name: str) -> object:
        """The value of a name, or `MISSING`."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return MISSING

    def inner(self, names: dict[str, object] | None = None) -> Scope:
        return Scope(names if names is not None else {}, self, self.is_library,
                     self.differentiates)

    def visible(self) -> list[str]:
        own = list(self.names)
        return own + (self.outer.visible() if self.outer is not None else [])


class Missing:
    """The value of a name that is not defined."""


MISSING = Missing()


def weak(value: bool | int | float, span: Span | None = None) -> Element:
    """A literal: its dtype gives way to that of any tensor."""
    if isinstance(value, bool):
        return Element(Const(value, "bool"), "bool", WEAK)
    if isinstance(value, float):
        return Element(Const(value, "f32"), "f32", WEAK)
    dtype = next((d for d in ("i64", "u64") if value in integers(d)), None)
    if dtype is None:
        raise fail("this integer is too large: no dtype holds it", span)
    return Element(Const(value, dtype), dtype, WEAK)


def describe(value: object) -> str:
    """A value as a message names it."""
    kind = next((k for k in type(value).__mro__ if k in DESCRIPTIONS), None)
    return DESCRIPTIONS[kind](value) if kind is not None else f"a {type(value).__name__.lower()}"


DESCRIPTIONS: dict[type | None, Callable[[Any], str]] = {
    type(None): repr,
    bool: repr,
    str: repr,
    int: lambda x: f"the number {x}",
    float: lambda x: f"the number {x}",
    list: lambda x: f"a list of {len(x)}",
    tuple: lambda x: f"{len(x)} values",
    Tensor: lambda x: f"a tensor {x.type}",
    State: lambda x: f"a tensor {x.type.type}",
    Element: lambda x: f"an element of dtype {x.dtype}",
    Function: lambda x: f"'{x.definition.name}'",
    Model: lambda x: f"'{x.definition.name}'",
    Instance: lambda x: f"a model {x.name}",
    Builtin: lambda x: f"'{x.name}'",
    Generic: lambda x: f"'{x.name}'",
    Kind: lambda x: f"'{x.name}'",
    Dtype: lambda x: f"'{x.name}'",
    TypeValue: lambda x: f"the type {x.type}",
    Deferred: lambda x: f"'{x.callee.definition.name}' without its shape",
    Layout: lambda x: f"the layout {x}",
    PackIndex: lambda x: "a pack of indices",
    Recurrent: lambda x: f"'{x.name}', which is being defined",
}
