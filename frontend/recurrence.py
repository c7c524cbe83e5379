"""Statements that read one another at earlier places of one index become one scan.

They are elaborated as often as it takes. The first time tells what reads what, and where; from that
follows the index along which they run, and the direction. Then each time gives the dtypes of the
results, which were guessed before: the first guess is that of what a recurrence starts from. When
the guess is right, what was emitted is the region of the scan. What reads no earlier place stands
before it, so a product of the inputs with a weight is one product over all places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from anabranch.frontend import syntax as s
from anabranch.frontend.arrange import Recurrence
from anabranch.frontend.bounds import judge
from anabranch.frontend.evaluate import NOTHING, Frame, Index, evaluate, executes
from anabranch.frontend.expressions import as_element
from anabranch.frontend.indexing import computed, element_at, indexed, pads_of, subscripts_of
from anabranch.frontend.ranges import Size
from anabranch.frontend.values import Element, Recurrent, Tensor
from anabranch.ir.core import Block, Value
from anabranch.ir.diagnostics import Note, UserError, fail
from anabranch.ir.expr import Expr
from anabranch.ir.index import affine
from anabranch.ir.recurrence import closed, discard
from anabranch.ir.types import tensor as type_of

MOST_GUESSES = 10  # dtypes only grow: there are not more of them

Dtypes = Mapping[str, str]


@dataclass(slots=True)
class _Member:
    """One statement: the frame of its right side, and the shape of what it defines."""

    node: s.Equation
    frame: Frame
    index: Index
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A read of `name` by `reader`."""

    reader: str
    name: str
    places: tuple[Expr, ...]
    node: s.Index
    has_pad: bool


@dataclass(frozen=True, slots=True)
class _Course:
    """The index along which a recurrence runs, and whether from its end."""

    variable: str
    reverse: bool


@executes(Recurrence)
def _recurrence(node: Recurrence, frame: Frame) -> object:
    names = frame.scope.names
    for target in (equation.target for equation in node.equations):
        if isinstance(names.get(target.id), Tensor):
            raise fail(f"'{target.id}' is defined already", target.span,
                       help="each tensor of an index statement is defined once; take another name")
    elaboration = _Elaboration(frame)
    names.update({equation.target.id: Recurrent(equation.target.id, elaboration.read)
                  for equation in node.equations})
    elaboration.members = _members(node.equations, frame)
    try:
        names.update(_defined(elaboration))
    finally:
        frame.builder.scanned = None
    return NOTHING


def _members(equations: Sequence[s.Equation], frame: Frame) -> dict[str, _Member]:
    """The statements with their ranges. One may follow from that of another, in any order; an index
    of which nothing else speaks has the range of its namesake in another statement."""
    found: dict[str, _Member] = {}
    waiting, lent = list(equations), False
    while waiting:
        errors: dict[s.Equation, UserError] = {}
        for node in waiting:
            try:
                found[node.target.id] = _member(node, frame, _lent(found) if lent else {})
            except UserError as error:
                errors[node] = error
        if len(errors) == len(waiting) and lent:
            raise errors[waiting[0]]
        lent, waiting = len(errors) == len(waiting), list(errors)
    return {node.target.id: found[node.target.id] for node in equations}


def _lent(found: Mapping[str, _Member]) -> dict[str, Size]:
    return {v: size for m in found.values() for v, size in m.index.extents.items()}


def _member(node: s.Equation, frame: Frame, lent: Mapping[str, Size]) -> _Member:
    inner = indexed(node, frame, lent)
    index, named = inner.index, frame.scope.names[node.target.id]
    assert index is not None
    assert isinstance(named, Recurrent)
    named.shape = tuple(math.prod(index.extents[v] for v in dim) for dim in index.dims)
    return _Member(node, inner, index, named.shape)


def _defined(elaboration: _Elaboration) -> dict[str, Tensor]:
    """What the statements define."""
    declared = elaboration.frame.activation.declared
    guess = {name: declared.get(name, (None, None))[0] or "" for name in elaboration.members}
    made = elaboration.run(guess, None)
    if not elaboration.seen:
        return made
    course = _course(elaboration.members, elaboration.seen)
    for _ in range(MOST_GUESSES):
        guess = {name: tensor.dtype for name, tensor in made.items()}
        elaboration.give_up()
        made = elaboration.run(guess, course)
        if all(made[name].dtype == guess[name] for name in made):
            return elaboration.scanned()
    first = next(iter(elaboration.members.values()))
    raise fail("the dtype of this recurrence does not settle", first.node.span,
               help="cast what is read to the dtype of the result")


@dataclass(slots=True)
class _Elaboration:
    """One pass over the statements. One that is read at the same place is elaborated when it is
    read. `guess` has the dtypes of the results, '' where it is that of the start."""

    frame: Frame
    members: dict[str, _Member] = field(default_factory=dict)
    guess: Dtypes = field(default_factory=dict)
    course: _Course | None = None
    region: Block = field(default_factory=Block)
    histories: dict[str, Value] = field(default_factory=dict)
    made: dict[str, Tensor] = field(default_factory=dict)
    seen: list[_Seen] = field(default_factory=list)
    within: list[str] = field(default_factory=list)

    def run(self, guess: Dtypes, course: _Course | None) -> dict[str, Tensor]:
        """Elaborate all statements into a new region."""
        self.guess, self.course, self.made, self.seen = guess, course, {}, []
        self.region = self.frame.builder.scanned = Block()
        self.histories = {name: self.region.add_arg(name, type_of(guess[name], member.shape))
                          for name, member in self.members.items() if guess[name]}
        for name, member in self.members.items():
            self.current(name, member.node)
        return self.made

    def give_up(self) -> None:
        discard(self.region)

    def current(self, name: str, reader: s.Node) -> Tensor:
        """What a statement defines, as read at the same place."""
        if name in self.within:
            raise fail(f"'{name}' is read before it is known", reader.span,
                       help=f"an earlier place is read with what stands before the first, as in "
                       f"{name}[t - 1, pad=0]; at one place no statement may read itself, and "
                       "what a loop adds up elsewhere is a reduction here: sum[k](...)")
        if name not in self.made:
            builder, node = self.frame.builder, self.members[name].node
            self.within.append(name)
            with builder.at(builder.loc):
                self.frame.stand_at(node.span)
                self.made[name] = computed(node, self.members[name].frame)
            self.within.pop()
        return self.made[name]

    def read(self, node: s.Index, frame: Frame) -> Element:
        """An element of a result: of its history, or of the current place."""
        assert isinstance(node.value, s.Name)
        name, index = node.value.id, frame.index
        if index is None:
            raise fail(f"'{name}' is read while it is being defined", node.span,
                       help="in a recurrence, index statements read elements of one another")
        subscripts = subscripts_of(node.items, frame, index)
        node = _started(node, subscripts[0], self.members[name], index)
        pads = pads_of(node)
        seen = _Seen(self.within[-1], name, tuple(subscripts[0]), node, bool(pads))
        self.seen.append(seen)
        if not self._is_earlier(seen):
            return element_at(self.current(name, node), subscripts, node, frame, index)
        if name in self.histories:
            history = frame.builder.tensor(self.histories[name])
            return element_at(history, subscripts, node, frame, index)
        pad = as_element(evaluate(pads[0], frame), frame, pads[0].span)
        start = self.region.add_arg(name, type_of(pad.dtype, self.members[name].shape))
        element = element_at(frame.builder.tensor(start), subscripts, node, frame, index)
        return replace(element, level=min(element.level, pad.level))

    def _is_earlier(self, seen: _Seen) -> bool:
        """Whether a read looks back. Until the course is known, a pad tells."""
        if self.course is None:
            return seen.has_pad
        return _shift(seen, self.members, self.course.variable) != 0

    def scanned(self) -> dict[str, Tensor]:
        """The scan of the region that has been made."""
        builder, course = self.frame.builder, self.course
        assert course is not None
        values = {name: builder.value(tensor) for name, tensor in self.made.items()}
        inside = [name for name, value in values.items() if builder.is_scanned(value)]
        for name in values.keys() - set(inside):  # it reads none of the others after all
            self.histories[name].replace_by(values[name])
        first = next(iter(self.members.values()))
        with builder.at(builder.loc):
            self.frame.stand_at(first.node.span)
            scan = closed(
                self.region, [self.histories[n] for n in inside], [values[n] for n in inside],
                course.variable, first.index.extents[course.variable], reverse=course.reverse,
                loc=builder.loc, stage=builder.stage, recompute=builder.recompute)
        builder.function.body.append(scan)
        results = dict(zip(inside, map(builder.tensor, scan.results), strict=True))
        return {name: results.get(name, tensor) for name, tensor in self.made.items()}


def _started(node: s.Index, places: Sequence[Expr], member: _Member, index: Index) -> s.Index:
    """A read that stands where a condition proves the earlier element to be there. What it would
    start from is never seen."""
    if node.keywords or not index.conditions or len(places) != len(member.shape):
        return node
    moved = any(form is not None and form.constant and form.terms == ((dim[0], 1),)
                for dim, form in zip(member.index.dims, map(affine, places), strict=True)
                if len(dim) == 1)
    if not moved or any(judge(place, size, index.extents, index.conditions).verdict != "inside"
                        for place, size in zip(places, member.shape, strict=True)):
        return node
    return replace(node, keywords=(
        s.Keyword("pad", s.Constant(False, span=node.span), span=node.span),))


# ---- The index of a recurrence


def _course(members: Mapping[str, _Member], seen: Sequence[_Seen]) -> _Course:
    """The index along which all reads look back, or all ahead, at a fixed distance."""
    first, *others = members.values()
    own = [v for dim in first.index.dims for v in dim if len(dim) == 1]
    candidates = [v for v in own if all((v,) in m.index.dims for m in others)]
    if not candidates:
        raise fail("no index is on the left of all statements of this recurrence",
                   first.node.span, *(Note("and of this one", m.node.span) for m in others),
                   help="they run along one index, which has the same name in all of them and a "
                   "dimension of its own")
    errors: list[tuple[int, UserError]] = []
    for variable in candidates:
        try:
            return _along(variable, members, seen)
        except UserError as error:
            shifts = sum(bool(_shift(each, members, variable)) for each in seen)
            errors.append((shifts, error))
    raise max(errors, key=lambda each: each[0])[1]


def _along(variable: str, members: Mapping[str, _Member], seen: Sequence[_Seen]) -> _Course:
    """The course along a variable, or what is wrong with it."""
    ranges = {m.index.extents[variable]: m.node for m in members.values()}
    if len(ranges) > 1:
        sizes = " and ".join(map(str, ranges))
        raise fail(f"the index '{variable}' of this recurrence has two ranges: {sizes}",
                   next(iter(ranges.values())).span)
    signs: dict[bool, s.Index] = {}
    for each in seen:
        shift = _shift(each, members, variable)
        if shift is None:
            raise fail(f"'{each.name}' is read at a place of '{variable}' that is not a fixed "
                       "number of places earlier", each.node.span,
                       help=f"a recurrence runs along one index, as in "
                       f"{each.name}[{variable} - 1, pad=0]")
        if shift and not each.has_pad:
            raise fail(f"'{each.name}' is read at {variable} {shift:+d}, and nothing says what "
                       "stands there at first", each.node.span, help="add pad=value")
        if shift:
            signs[shift > 0] = each.node
    if len(signs) == 2:
        raise fail(f"a recurrence looks back or ahead along '{variable}', and this does both",
                   signs[True].span, Note("the other direction", signs[False].span))
    _check_circle(variable, members, seen)
    return _Course(variable, True in signs)


def _check_circle(
    variable: str, members: Mapping[str, _Member], seen: Sequence[_Seen]
) -> None:
    """No statement may need itself at the same place."""
    now = [each for each in seen if _shift(each, members, variable) == 0]
    known: set[str] = set()
    while ready := [name for name in members if name not in known and all(
            each.name in known for each in now if each.reader == name)]:
        known.update(ready)
    stuck = [each for each in now if each.reader not in known and each.name not in known]
    if stuck:
        raise fail(f"'{stuck[0].name}' is read before it is known", stuck[0].node.span,
                   help=f"at one place of '{variable}' no statement may read itself, "
                   "directly or through others")


def _shift(seen: _Seen, members: Mapping[str, _Member], variable: str) -> int | None:
    """How far from the current place of the variable an element is, if that is a fixed number."""
    dims = members[seen.name].index.dims
    form = affine(seen.places[dims.index((variable,))]) if len(seen.places) == len(dims) else None
    if form is None or form.terms != ((variable, 1),):
        return None
    return form.constant
