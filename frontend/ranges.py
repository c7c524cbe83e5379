"""The range of every index variable of a statement.

`infer` walks the left side and the right side, notes where each variable is bound and what is
subscripted by it, and solves: the range is what is written with the variable (`j < k`), else the
size of the dimensions that it subscripts plainly (reads with `pad=` do not count), else what the
declared result type says. One size of a merged index `(g, c)` follows by exact division. Whatever
speaks about a variable must agree; otherwise the error shows all that was seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.frontend import syntax as s
from anabranch.frontend.evaluate import certain
from anabranch.frontend.unparse import format_expression
from anabranch.frontend.values import (
    MISSING,
    Builtin,
    Recurrent,
    Scope,
    State,
    Tensor,
    describe,
)
from anabranch.ir.diagnostics import Note, Span, UserError, fail

Size = int | tuple[int, ...]
Evaluate = Callable[[s.Expr], object]


@dataclass(slots=True, eq=False)
class Binder:
    """A variable, or a pack of them, and what speaks about its range."""

    name: str
    is_pack: bool
    span: Span
    size: Size | None = None
    reason: Note | None = None
    mentions: list[Span] = field(default_factory=list)

    def settle(self, size: Size, reason: Note) -> bool:
        """Take a size, or check it against the one it has; True if this is new."""
        if self.size is None:
            self.size, self.reason = size, reason
            return True
        if self.size != size:
            assert self.reason is not None
            raise fail(f"the index '{self.name}' has two ranges: {_text(self.size)} and "
                       f"{_text(size)}", reason.span, self.reason, reason,
                       help="a range is what is written with the index, or the size of the "
                       "dimensions that it subscripts plainly; all must agree")
        return False


@dataclass(frozen=True, slots=True)
class Merged:
    """A subscript `(g, c)`."""

    factors: tuple[Binder, ...]
    span: Span


Item = Binder | Merged | None  # None: any other expression


@dataclass(frozen=True, slots=True)
class Constraint:
    """Subscripts against the sizes of the dimensions they stand in."""

    items: tuple[Item, ...]
    spans: tuple[Span, ...]
    sizes: tuple[int, ...]
    what: str
    span: Span


Environment = dict[str, Binder]


@dataclass(slots=True)
class Inference:
    """What a walk over one statement collects. `evaluate` gives values that hold no index."""

    scope: Scope
    evaluate: Evaluate
    equations: frozenset[str]
    lent: Mapping[str, Size] = field(default_factory=dict)  # for names that nothing else speaks of
    binders: dict[int, Binder] = field(default_factory=dict)
    constraints: list[Constraint] = field(default_factory=list)
    bases: dict[int, object] = field(default_factory=dict)  # what is subscripted, by its node

    # ---- Binding

    def bind(self, item: s.Expr, environment: Environment) -> list[Binder]:
        """The variables that an item on the left or of a reduction introduces."""
        match item:
            case s.Guard(inner, _):
                return self.bind(inner, environment)
            case s.Name(name):
                return [self._new(item, name, False, environment)]
            case s.Star(s.Name(name)):
                return [self._new(item, name, True, environment)]
            case s.Compare((s.Name(name), bound), ("<",)):
                binder = self._new(item, name, False, environment)
                self._explicit(binder, bound, environment)
                return [binder]
            case s.Tuple(items):
                return [b for each in items for b in self.bind(each, environment)]
        raise fail("an index variable is needed here", item.span,
                   help="write i, j < size, a pack *i, or a merged index (g, c)")

    def left(self, items: Sequence[s.Expr], environment: Environment) -> list[Item]:
        """The items on the left of a statement."""
        bound = self._distinct(items, environment)
        return [Merged(tuple(each), item.span) if isinstance(item, s.Tuple) else each[0]
                for item, each in zip(items, bound, strict=True)]

    def _distinct(
        self, items: Sequence[s.Expr], environment: Environment
    ) -> list[list[Binder]]:
        """The variables of each item, none of which may be there twice."""
        bound = [self.bind(item, environment) for item in items]
        seen: dict[str, Binder] = {}
        for binder in (b for each in bound for b in each):
            if binder.name in seen:
                raise fail(f"the index '{binder.name}' is there twice", binder.span,
                           Note("first here", seen[binder.name].span),
                           help="each dimension has an index of its own")
            seen[binder.name] = binder
        return bound

    def _new(
        self, node: s.Expr, name: str, is_pack: bool, environment: Environment
    ) -> Binder:
        if isinstance(self.scope.find(name), Tensor | State):
            raise fail(f"the index '{name}' has the name of a tensor", node.span,
                       help="rename the index")
        binder = Binder(name, is_pack, node.span)
        self.binders[id(node)] = binder
        environment[name] = binder
        return binder

    def _explicit(self, binder: Binder, bound: s.Expr, environment: Environment) -> None:
        for each in s.walk(bound):
            if isinstance(each, s.Name) and each.id in environment:
                name, limit = binder.name, format_expression(bound)
                raise fail(f"the range of '{name}' is known when compiling, and '{each.id}' is an "
                           "index", each.span, help="a condition takes some of the elements: "
                           f"sum[{name} if {name} < {limit}](...)")
        size = self.evaluate(bound)
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise fail(f"the range of '{binder.name}' must be an integer known when compiling, "
                       f"not {describe(size)}", bound.span)
        binder.settle(size, Note(f"'{binder.name} < {size}' is written here", bound.span))

    # ---- Walking

    def walk(self, node: s.Node, environment: Environment) -> None:
        match node:
            case s.Call(s.Index(s.Name(name), items), args) if self._is_reduction(name):
                self._reduction(items, args, environment)
            case s.Index():
                self._read(node, environment)
            case s.Conditional(condition, then, otherwise):
                self._conditional(condition, then, otherwise, environment)
            case s.Comprehension():
                self._comprehension(node, environment)
            case s.Name(name):
                if name in environment:
                    environment[name].mentions.append(node.span)
            case _:
                for child in s.children(node):
                    self.walk(child, environment)

    def _comprehension(self, node: s.Comprehension, environment: Environment) -> None:
        """What is in it has another value each time, so that nothing of it is kept."""
        inner = dict(environment)
        for clause in node.clauses:
            for name in _names(clause.target):
                inner.pop(name, None)
            self.walk(clause.iterable, environment)
        self.walk(node.element, inner)
        for each in s.walk(node):
            self.bases.pop(id(each), None)

    def _is_reduction(self, name: str) -> bool:
        value = self.scope.find(name)
        return isinstance(value, Builtin) and value.is_reduction

    def _reduction(
        self, items: Sequence[s.Expr], args: Sequence[s.Expr], environment: Environment
    ) -> None:
        inner = dict(environment)
        self._distinct(items, inner)
        for part in (*(i.condition for i in items if isinstance(i, s.Guard)), *args):
            self.walk(part, inner)

    def _conditional(
        self, condition: s.Expr, then: s.Expr, otherwise: s.Expr, environment: Environment
    ) -> None:
        """Only the branch that is taken counts: the other may speak of tensors that are None."""
        if any(name in environment for name in _names(condition)):
            raise certain("an element cannot steer control flow: its value is not known when the "
                          "program is compiled", condition.span,
                          help="choose per element with where(condition, a, b)")
        self.walk(then if self.evaluate(condition) else otherwise, environment)

    def _read(self, node: s.Index, environment: Environment) -> None:
        shape = self._shape(node.value, environment)
        if shape is None:
            self.walk(node.value, environment)
        items, spans = [], []
        for item in node.items:
            for each in self._items(item, environment):
                items.append(each)
                spans.append(item.span)
        for keyword in node.keywords:
            self.walk(keyword.value, environment)
        if shape is not None and not any(k.name == "pad" for k in node.keywords):
            sizes, what = shape
            self.constraints.append(
                Constraint(tuple(items), tuple(spans), sizes, what, node.span))

    def _shape(
        self, base: s.Expr, environment: Environment
    ) -> tuple[tuple[int, ...], str] | None:
        """The shape of what is subscripted, and how to speak of it."""
        if isinstance(base, s.Name) and base.id not in environment:
            named = self.scope.find(base.id)
            if isinstance(named, Recurrent):
                return None if named.shape is None else (named.shape, f"'{base.id}'")
            if named is MISSING:
                self._refuse_early(base)
                return None
        if any(name in environment for name in _names(base)):
            return None
        value = self.evaluate(base)
        if not isinstance(base, s.Name):
            self.bases[id(base)] = value
        label = base.id if isinstance(base, s.Name) else ""
        if isinstance(value, Tensor):
            return value.shape, f"{label or 'this tensor'}: {value.type}"
        numbers = list_shape(value)
        what = f"the list '{label}'" if label else "this list"
        return None if numbers is None else (numbers, what)

    def _refuse_early(self, base: s.Name) -> None:
        if base.id in self.equations:
            raise fail(f"'{base.id}' is read before it is defined", base.span,
                       help="statements that read one another, as in a recurrence, stand next to "
                       "each other; any other is written before it is read")

    def _items(self, item: s.Expr, environment: Environment) -> list[Item]:
        match item:
            case s.Name(name) if name in environment:
                return [environment[name]]
            case s.Star(s.Name(name)) if name in environment:
                return [environment[name]]
            case s.Compare((s.Name(name), bound), ("<",)) if name in environment:
                self._explicit(environment[name], bound, environment)
                return [environment[name]]
            case s.Tuple(parts):
                return [self._merged(item, parts, environment)]
            case s.Star(value):
                return [None] * self._spread_length(value)
        self.walk(item, environment)
        return [None]

    def _merged(
        self, item: s.Tuple, parts: Sequence[s.Expr], environment: Environment
    ) -> Merged | None:
        factors: list[Binder] = []
        for part in parts:
            found = self._items(part, environment)
            if len(found) != 1 or not isinstance(found[0], Binder):
                raise fail("a merged index is made of index variables", part.span)
            factors.append(found[0])
        return Merged(tuple(factors), item.span)

    def _spread_length(self, value: s.Expr) -> int:
        given = self.evaluate(value)
        if not isinstance(given, list | tuple):
            raise fail(f"only a pack of indices or a list is spread with '*', not "
                       f"{describe(given)}", value.span)
        return len(given)

    # ---- Solving

    def solve(self, declared: Constraint | None) -> dict[int, Size]:
        """The size of every binder, by the identity of the node that binds it."""
        self._settle(self.constraints)
        if declared is not None:
            self._settle([*self.constraints, declared])
        for binder in self.binders.values():
            if binder.size is None:
                binder.size = self.lent.get(binder.name)
            if binder.size is None:
                raise self._unknown(binder)
        return {node: b.size for node, b in self.binders.items() if b.size is not None}

    def _settle(self, constraints: Sequence[Constraint]) -> None:
        while any([_apply(constraint) for constraint in constraints]):
            pass

    def _unknown(self, binder: Binder) -> UserError:
        uses = [Note(f"'{binder.name}' is used here, but not as a plain subscript", span)
                for span in binder.mentions[:2]]
        what = "pack of indices" if binder.is_pack else "index"
        bound = "" if binder.is_pack else f"; write its range: {binder.name} < size"
        return fail(f"the range of the {what} '{binder.name}' is not known", binder.span, *uses,
                    help="nothing is subscripted plainly by it (reads with pad= do not count) and "
                    f"no declared type gives it{bound}")


def _apply(constraint: Constraint) -> bool:
    """Compare subscripts with dimensions; True if a size became known."""
    aligned = _aligned(constraint)
    changed = False
    for item, span, start, sizes in aligned:
        reason = Note(_reason(start, sizes, constraint.what), span)
        if isinstance(item, Binder):
            size: Size = sizes if item.is_pack else sizes[0]
            changed |= item.settle(size, reason)
        elif isinstance(item, Merged):
            changed |= _divide(item, sizes[0], reason)
    return changed


def _aligned(constraint: Constraint) -> Iterator[tuple[Item, Span, int, tuple[int, ...]]]:
    """Each subscript with its first dimension and the sizes it stands for, as far as the lengths
    of packs are known."""
    items, sizes = constraint.items, constraint.sizes
    lengths = [_length(item) for item in items]
    unknown = lengths.count(None)
    free = len(sizes) - sum(n for n in lengths if n is not None)
    if free < 0 or (unknown == 0 and free):
        raise fail(f"{counted(len(items), 'subscript')} for {constraint.what}",
                   constraint.spans[0].to(constraint.spans[-1]) if items else constraint.span,
                   help=f"it has {counted(len(sizes), 'dimension')}")
    if unknown > 1:
        return
    start = 0
    for item, span, length in zip(items, constraint.spans, lengths, strict=True):
        stop = start + (free if length is None else length)
        yield item, span, start, sizes[start:stop]
        start = stop


def _length(item: Item) -> int | None:
    """How many dimensions a subscript stands for."""
    if isinstance(item, Binder) and item.is_pack:
        return len(item.size) if isinstance(item.size, tuple) else None
    return 1


def _divide(item: Merged, size: int, reason: Note) -> bool:
    """One unknown factor of a merged index follows from the size of the whole."""
    free = [b for b in item.factors if b.size is None]
    known = math.prod(_product(b.size) for b in item.factors if b.size is not None)
    if not free and known != size:
        names = ", ".join(b.name for b in item.factors)
        notes = [b.reason for b in item.factors if b.reason is not None]
        raise fail(f"the merged index ({names}) counts to {known}, but the dimension has size "
                   f"{size}", item.span, *notes)
    if len(free) != 1 or free[0].is_pack:
        return False
    if known == 0 or size % known:
        raise fail(f"the size {size} cannot be divided by {known} to give the range of "
                   f"'{free[0].name}'", item.span)
    return free[0].settle(size // known, reason)


def list_shape(value: object) -> tuple[int, ...] | None:
    """The shape of a list of numbers, or of equal lists of them; None for anything else."""
    if not isinstance(value, list):
        return None
    if all(isinstance(v, bool | int | float) for v in value):
        return (len(value),)
    inner = {list_shape(v) for v in value}
    shape = inner.pop() if len(inner) == 1 else None
    return None if shape is None else (len(value), *shape)


def _product(size: Size) -> int:
    return size if isinstance(size, int) else math.prod(size)


def _text(size: Size) -> str:
    return str(size) if isinstance(size, int) else str(list(size))


def _reason(start: int, sizes: tuple[int, ...], what: str) -> str:
    if len(sizes) == 1:
        return f"dimension {start} of {what} has size {sizes[0]}"
    return f"the dimensions from {start} of {what} have sizes {list(sizes)}"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _names(node: s.Node) -> Iterator[str]:
    return (each.id for each in s.walk(node) if isinstance(each, s.Name))
