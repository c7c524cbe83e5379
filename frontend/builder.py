"""The function that is being built: it appends statements and knows the current value of states.

Elements refer to values by number (`Builder.number`) until a statement is emitted; each statement
then lists the operands that its expressions read. Statements carry the place in the user's own
files and the path of definitions that led there, and the pipeline stage if the source says one.
`finish` drops what nothing needs and orders the arguments: inputs, states, step, seed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace

from anabranch.frontend.elements import convert, substituted
from anabranch.frontend.values import FULL, SCALAR, Element, State, Tensor, axes
from anabranch.ir.core import Block, Function, Op, Value
from anabranch.ir.diagnostics import NOWHERE, Loc, Span, fail
from anabranch.ir.expr import Call, Expr, Read, Var, integer, levels, reads, renumber
from anabranch.ir.ops import Compute, Gradient, Order, Pin, Return
from anabranch.ir.sbp import Layout
from anabranch.ir.types import TensorType, tensor

LETTERS = "ijklmnpqrstuvwxyzabcdefgh"
ROLES = ("input", "state", "step", "seed")

# No count of bytes, and no number of an element or of a term of a sum, exceeds an i64.
MOST_ELEMENTS, MOST_POINTS = 2**48, 2**62

MOST_LEVELS = 160  # of one expression: each takes calls of Python in whatever looks into it


class Builder:
    """One function under construction."""

    def __init__(
        self, name: str, *, training: bool = False, stages: int = 1, stepping: bool = True,
        instead: Mapping[str, State] | None = None,
    ) -> None:
        """`instead` has states that stand for others, by the path of those."""
        self.function = Function(name)
        self.training, self.stages, self.stepping = training, stages, stepping
        self.instead = instead or {}
        self.micro = 1
        self.parted = False  # are we in a body that is made for each micro-batch?
        self.has_parts = False
        self.inputs: dict[str, Tensor] = {}
        self.states: dict[str, Tensor] = {}
        self.updated: dict[str, State] = {}
        self.reports: dict[str, tuple[Tensor, Span]] = {}
        self.loc: Loc = NOWHERE
        self.stage = 0
        self.recompute = 0
        self.depth = 0
        self.origin: Span | None = None
        self.scanned: Block | None = None  # the region of the recurrence being built
        self._regions = 0
        self._values: list[Value] = []
        self._numbers: dict[Value, int] = {}
        self._runtime: dict[str, Tensor] = {}
        self._counted: Tensor | None = None
        self._calls: dict[str, int] = {}
        self._streams: dict[int, str] = {}
        self._scalars: dict[object, Tensor] = {}

    # ---- Values

    def number(self, value: Value) -> int:
        """The number by which elements read a value."""
        if value not in self._numbers:
            self._numbers[value] = len(self._values)
            self._values.append(value)
        return self._numbers[value]

    def valued(self, number: int) -> Value:
        return self._values[number]

    def tensor(self, value: Value) -> Tensor:
        """A value as a tensor."""
        type = value.type
        level = FULL if type.shape else SCALAR
        read = Read(self.number(value), axes(type.rank))
        return Tensor(type.shape, Element(read, type.dtype, level), value)

    def held(self, x: Tensor, name: str = "") -> Tensor:
        """`x` computed once: a value or a view of one."""
        return x if x.value is not None or x.is_view else self.materialise(x, name)

    def materialise(self, x: Tensor, name: str = "") -> Tensor:
        """`x` as a value."""
        if x.value is not None:
            return x
        names = letters(x.rank)
        renamed: dict[str, Expr] = {
            a.name: Var(n) for a, n in zip(axes(x.rank), names, strict=True)}
        element = replace(x.element, expr=substituted(x.element.expr, renamed))
        ranges = tuple(zip(names, x.shape, strict=True))
        return self.emit(element, ranges, tuple((n,) for n in names), name=name)

    # ---- Statements

    def emit(
        self, element: Element, ranges: Sequence[tuple[str, int]], dims: Sequence[tuple[str, ...]],
        *, reduce: str = "", reduced: Sequence[str] = (), guard: Expr | None = None,
        dtype: str | None = None, name: str = "",
    ) -> Tensor:
        """Append `result[dims] = reduce[reduced if guard](element)`."""
        numbers: dict[int, int] = {}
        body = _local(element.expr, numbers)
        guard = None if guard is None else _local(guard, numbers)
        operands = [self._values[n] for n in numbers]
        self._check_depth(body if guard is None else Call("and", (guard, body)))
        self._check_size([n for v, n in ranges if v not in reduced], self._place())
        self._check_size([n for _, n in ranges], self._place(), MOST_POINTS)
        op = Compute(
            operands, dtype or element.dtype, ranges, dims, body, reduce=reduce, reduced=reduced,
            guard=guard, name=name, loc=self.loc, stage=self.stage, recompute=self.recompute,
        )
        if ranges:
            return self.tensor(self._append(op).result)
        return self._scalar(op)

    def _scalar(self, op: Compute) -> Tensor:
        """0-d statements are shared: the optimizers of all parameters have the same ones."""
        key = (op.operands, op.body, op.result.type, op.stage, op.recompute)
        if key in self._scalars:
            op.set_operands(())
            return self._scalars[key]
        self._scalars[key] = self.tensor(self._append(op).result)
        return self._scalars[key]

    def forget(self, op: Op) -> None:
        """The op goes away: what is built later does not share it."""
        for key in [k for k, x in self._scalars.items() if x.value is op.result]:
            del self._scalars[key]

    def pin(self, x: Tensor, layout: Layout, name: str = "") -> Tensor:
        op = Pin(self.value(x), layout, name, loc=self.loc, stage=self.stage,
                 recompute=self.recompute)
        return self.tensor(self._append(op).result)

    def order(self, x: Tensor, axis: int, count: int, descending: bool) -> Tensor:
        op = Order(self.value(x), axis, count, descending=descending, loc=self.loc,
                   stage=self.stage, recompute=self.recompute)
        return self.tensor(self._append(op).result)

    def gradient(self, of: Tensor, by: Sequence[Tensor]) -> list[Tensor]:
        op = Gradient(self.value(of), [self.value(x) for x in by], loc=self.loc)
        return [self.tensor(result) for result in self._append(op).results]

    def value(self, x: Tensor) -> Value:
        value = self.materialise(x).value
        assert value is not None
        return value

    def converted(self, x: Tensor, dtype: str, span: Span | None = None) -> Tensor:
        """`x` in another dtype."""
        if x.dtype == dtype:
            return x
        level = FULL if x.shape else SCALAR
        return Tensor(x.shape, Element(convert(x.element, dtype, span), dtype, level))

    def _append(self, op: Op) -> Op:
        """In a recurrence only what reads it stands in its region: the rest is done before."""
        within = self.scanned is not None and any(map(self.is_scanned, op.operands))
        block = self.scanned if within and self.scanned is not None else self.function.body
        return block.append(op)

    def is_scanned(self, value: Value) -> bool:
        """Whether a value belongs to the region of the recurrence being built."""
        owner = value.owner
        return self.scanned in (owner, owner.block if isinstance(owner, Op) else None)

    def _place(self) -> Span | None:
        at = self.loc
        return Span(at.file, at.line, at.col, at.line, at.col + 1) if at.line else None

    def _check_depth(self, body: Expr) -> None:
        if levels(body) > MOST_LEVELS:
            raise fail(f"this is nested too deeply: in more than {MOST_LEVELS} levels",
                       self._place(), help="compute a part of it in a statement of its own")

    def _check_size(
        self, shape: Sequence[int], span: Span | None, most: int = MOST_ELEMENTS
    ) -> None:
        if math.prod(shape) > most:
            raise fail(f"the sizes {list(shape)} are too large: more than {most:.0e} in all", span)

    # ---- Regions

    @contextmanager
    def at(self, loc: Loc) -> Iterator[None]:
        before, self.loc = self.loc, loc
        try:
            yield
        finally:
            self.loc = before

    @contextmanager
    def region(self, stage: int | None, recompute: bool) -> Iterator[None]:
        before = self.stage, self.recompute
        if stage is not None:
            self.stage = stage
        if recompute and not self.recompute:
            self._regions += 1
            self.recompute = self._regions
        try:
            yield
        finally:
            self.stage, self.recompute = before

    # ---- Arguments

    def input(self, name: str, type: TensorType, pin: Layout | None = None,
              span: Span | None = None) -> Tensor:
        """What is given by this name, of which there is one, whoever takes it."""
        if name not in self.inputs:
            self._check_size(type.shape, span)
            value = self.function.add_argument(name, type, "input", pin, span=span)
            self.inputs[name] = self.tensor(value)
        if (known := self.inputs[name]).type != type:
            raise fail(f"'{name}' is {type} here, and {known.type} to another function", span)
        return known

    def state(self, state: State) -> Tensor:
        """The current value of a parameter or buffer."""
        state = self.instead.get(state.path, state)
        if state.path not in self.states:
            self._check_size(state.type.shape, state.span)
            value = self.function.add_argument(
                state.path, state.type.type, "state", state.type.pin, span=state.span)
            self.states[state.path] = self.tensor(value)
        return self.states[state.path]

    def update(self, state: State, new: Tensor) -> None:
        """`new` is the value of the state from here on."""
        self.state(state)
        self.states[state.path] = self.materialise(new, state.path)
        self.updated[state.path] = state

    def runtime(self, role: str) -> Tensor:
        """The 0-d argument that the runtime gives: `step` or `seed`."""
        if role not in self._runtime:
            value = self.function.add_argument(role, tensor("i64", ()), role)
            self._runtime[role] = self.tensor(value)
        return self._runtime[role]

    def step(self) -> Tensor:
        """The number of the current step, or what is counted instead."""
        return self.runtime("step") if self._counted is None else self._counted

    @contextmanager
    def counting(self, number: Tensor) -> Iterator[None]:
        """In here `step` is another number."""
        before, self._counted = self._counted, number
        try:
            yield
        finally:
            self._counted = before

    # ---- Random streams

    def step_of_draws(self) -> Element:
        """The step that keys a random draw: 0 before the first one (`init`)."""
        if self.stepping:
            return self.runtime("step").element
        return Element(integer(0), "i64", SCALAR)

    def call_path(self, path: str) -> str:
        """A name for this call in the unrolled program: the path, and how often it came before."""
        number = self._calls[path] = self._calls.get(path, -1) + 1
        return f"{path}#{number}"

    def stream(self, text: str) -> int:
        """A 32-bit number for an occurrence of `rand`, the same in every compilation."""
        salt = 0
        while True:
            digest = hashlib.blake2b(f"{text}/{salt}".encode(), digest_size=4).digest()
            number = int.from_bytes(digest, "little")
            if self._streams.setdefault(number, text) == text:
                return number
            salt += 1

    # ---- The end

    def finish(
        self, results: Sequence[Tensor], states: Mapping[str, Tensor], order: Sequence[str] = ()
    ) -> Function:
        """Append `Return` and tidy up; `order` is that of the states among the arguments."""
        values = [self.value(x) for x in (*results, *states.values())]
        self._append(Return(values, tuple(states), loc=self.loc))
        _drop_unused(self.function)
        _order_arguments(self.function, set(states), order)
        return self.function


def letters(count: int) -> tuple[str, ...]:
    """Names of index variables for a tensor whose author gave none."""
    if count <= len(LETTERS):
        return tuple(LETTERS[:count])
    return tuple(f"i{n}" for n in range(count))


def _local(expr: Expr, numbers: dict[int, int]) -> Expr:
    """Operands renumbered by first appearance."""
    for read in reads(expr):
        numbers.setdefault(read.operand, len(numbers))
    return renumber(expr, lambda n: numbers[n])


def _drop_unused(function: Function) -> None:
    for op in reversed(function.body):
        if not isinstance(op, Return) and not any(result.uses for result in op.results):
            op.erase()


def _order_arguments(
    function: Function, written: AbstractSet[str], order: Sequence[str]
) -> None:
    """Inputs stay; what the runtime gives and states only if they are used or written."""
    place = {path: n for n, path in enumerate(order)}
    used = [a for a in function.arguments
            if a.role == "input" or a.value.uses or a.value.name in written]
    used.sort(key=lambda a: (ROLES.index(a.role), place.get(a.value.name, 0)))
    function.arguments[:] = used
    function.body.args[:] = [a.value for a in used]
