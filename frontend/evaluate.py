"""The evaluator's core: a frame, and the tables of rules for expressions and statements.

`evaluate` and `run` look up the rule of a node; `expressions.py`, `calls.py`, `subscripts.py`,
`indexing.py` and `control.py` fill the tables. A rule gets the node and the frame and nothing
else, so that evaluation has no state but the scope and the `Builder`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from anabranch.frontend import syntax as s
from anabranch.frontend.arrange import arranged
from anabranch.frontend.builder import Builder
from anabranch.frontend.mistakes import UNKNOWN_VALUE, advice
from anabranch.frontend.values import (
    MISSING,
    Element,
    Instance,
    Recurrent,
    Scope,
    State,
    Tensor,
    describe,
)
from anabranch.ir.diagnostics import Diagnostic, Loc, Note, Span, UserError, fail, nearest
from anabranch.ir.expr import Expr

_Rule = TypeVar("_Rule", bound=Callable[..., Any])
EXPRESSIONS: dict[type, Callable[[Any, Frame], object]] = {}
STATEMENTS: dict[type, Callable[[Any, Frame], object]] = {}
LIBRARY = str(Path(__file__).with_name("std"))  # its definitions are not the user's to mend


@dataclass(slots=True)
class Activation:
    """One call of an op or def: its path, how its keys are named, the types it declared.
    `building` is set while a model is made: its parameters have no value yet."""

    path: str = ""
    building: bool = False
    draws: Iterator[int] = field(default_factory=count)
    declared: dict[str, tuple[str | None, tuple[int, ...]]] = field(default_factory=dict)
    equations: frozenset[str] = frozenset()


@dataclass(slots=True)
class Index:
    """The index notation around an expression: variables in scope, outermost first, their extents,
    the conditions under which the element is chosen, and the dimensions of the left side."""

    order: tuple[str, ...]
    extents: dict[str, int]
    dims: tuple[tuple[str, ...], ...]
    sizes: dict[int, int | tuple[int, ...]]  # of the variables bound by a node, by its identity
    bases: Mapping[int, object]  # whole tensors that are subscripted, computed once, by their node
    name: str = ""
    conditions: tuple[Expr, ...] = ()
    leaned: list[bool] = field(default_factory=lambda: [False])  # did a proof need a condition?


@dataclass(slots=True)
class Frame:
    """Where an expression stands. `waits` is set where calls wait for their `Shape`; `shape` is
    that of the tensor whose element a scalar op gives."""

    scope: Scope
    builder: Builder
    activation: Activation = field(default_factory=Activation)
    index: Index | None = None
    waits: bool = False
    shape: tuple[int, ...] | None = None

    def within(self, names: dict[str, object]) -> Frame:
        return replace(self, scope=self.scope.inner(names))

    def whole(self) -> Frame:
        """The same place, for an expression on whole tensors."""
        return self if self.index is None else replace(self, index=None)

    def called(self) -> Frame:
        """The same place, for the arguments of a call."""
        return replace(self, waits=False) if self.waits else self

    def stand_at(self, span: Span) -> None:
        """What is emitted from here on comes from this place, if it is one of the user's."""
        if not self.scope.is_library:
            self.builder.loc = self.loc(span)

    def loc(self, span: Span) -> Loc:
        return Loc(span.file, span.line, span.col, self.activation.path)


class Ambient:
    """A name whose value depends on the function being built: `step`, `training`, `stages`."""

    __slots__ = ("read",)

    def __init__(self, read: Callable[[Frame], object]) -> None:
        self.read = read


class Unsupported(UserError):
    """Sound, but of a part of the language that is not there yet."""


def unsupported(message: str, span: Span, help: str = "") -> Unsupported:
    return Unsupported(Diagnostic(message, span, help=help))


class Certain(UserError):
    """A mistake whatever the sizes are: it is reported before the definition is used."""


def certain(message: str, span: Span, *notes: Note, help: str = "") -> Certain:
    return Certain(Diagnostic(message, span, notes, help))


def blamed(error: UserError, name: str, span: Span) -> UserError:
    """A mistake that shows only inside a definition of the library is that of who used it."""
    first, *rest = error.diagnostics
    if first.span is None or not first.span.file.startswith(LIBRARY):
        return error
    note = Note(f"in '{name}' of the library", first.span)
    told = Diagnostic(first.message, span, (note, *first.notes), first.help)
    return type(error)(told, *rest, sources=error.sources)


class Nothing:
    """What a statement gives that does not return."""


NOTHING = Nothing()


def evaluates(kind: type) -> Callable[[_Rule], _Rule]:
    """Register the rule for a kind of expression."""

    def register(rule: _Rule) -> _Rule:
        EXPRESSIONS[kind] = rule
        return rule

    return register


def executes(kind: type) -> Callable[[_Rule], _Rule]:
    """Register the rule for a kind of statement."""

    def register(rule: _Rule) -> _Rule:
        STATEMENTS[kind] = rule
        return rule

    return register


def evaluate(node: s.Expr, frame: Frame) -> object:
    """The value of an expression."""
    rule = EXPRESSIONS.get(type(node))
    if rule is None:
        raise fail("this cannot stand here", node.span)
    return rule(node, frame)


def run(body: tuple[s.Statement, ...], frame: Frame) -> object:
    """Execute statements; the returned value, or `NOTHING`."""
    for statement in arranged(body):
        rule = STATEMENTS.get(type(statement))
        if rule is None:
            raise fail("this statement cannot stand here", statement.span)
        frame.stand_at(statement.span)
        result = rule(statement, frame)
        if result is not NOTHING:
            return result
    return NOTHING


def looked_up(name: str, span: Span, frame: Frame) -> object:
    """The value of a name, or an error with the nearest one."""
    value = frame.scope.find(name)
    if value is MISSING:
        raise unknown_name(name, span, frame)
    return resolved(value, span, frame)


def resolved(value: object, span: Span, frame: Frame) -> object:
    """The value of a name or field: states and ambient names have one of the moment."""
    if isinstance(value, State) and not frame.activation.building:
        if not value.path:
            raise fail("this model is no field of another, so its parameters have no place", span,
                       help="make it a field, with ':' for '=', as in head: Linear(dim, 10)")
        return frame.builder.state(value)
    if isinstance(value, Ambient):
        return value.read(frame)
    if isinstance(value, Recurrent):
        raise fail(f"'{value.name}' is read whole, and only what came before is known", span,
                   help=f"read an element of it, as in {value.name}[t - 1, pad=0]")
    if isinstance(value, Tensor) and frame.index is not None and value.rank == 0:
        return frame.builder.held(value).element
    return value


def unknown_name(name: str, span: Span, frame: Frame) -> Exception:
    if frame.index is not None and len(name) <= 2:
        return fail(f"'{name}' is neither on the left nor reduced", span,
                    help=nearest(name, frame.scope.visible())
                    or f"nothing is summed unsaid: sum over it with sum[{name}](...)")
    return fail(f"'{name}' is not defined", span, help=advice(name, frame.scope.visible()))


def truth(value: object, span: Span) -> bool:
    """The value of a condition, which must be known when compiling."""
    if isinstance(value, Tensor | Element):
        raise certain(f"{describe(value)} cannot steer control flow: its value is not known when "
                      "the program is compiled", span,
                      help="choose per element with where(condition, a, b)")
    if isinstance(value, Instance):
        return True
    return bool(value)


def integer(value: object, span: Span, what: str) -> int:
    """A compile-time integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise fail(f"{what} must be an integer known when compiling, not {describe(value)}", span,
                   help=UNKNOWN_VALUE if isinstance(value, Tensor | Element) else "")
    return value
