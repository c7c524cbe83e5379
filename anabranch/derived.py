"""What is derived of an op, in short: which layouts it may have as a whole, what it costs as a
formula, and the statements of its gradient.

    found = derive(function)          # None where no sizes can be made up for it
    found.layouts[1].text(...)        # x S(0) -> S(0)

Sizes stand for the names in the op's signature: a formula has `N` where the op has `N`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from anabranch.frontend.builder import Builder
from anabranch.frontend.check import sample
from anabranch.frontend.entries import Sizes, build_entry
from anabranch.frontend.values import Function
from anabranch.gradient_check import float_inputs, gradient_of, weighted
from anabranch.ir.core import Function as IrFunction
from anabranch.ir.core import Module, Op, Value
from anabranch.ir.diagnostics import UserError
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Compute, Order, Return, Scan
from anabranch.ir.printer import Names, print_expr, print_op
from anabranch.ir.recurrence import statements
from anabranch.ir.rewrite import clone_module
from anabranch.ir.sbp import B, Layout, Sbp
from anabranch.ir.types import tensor
from anabranch.lowering.cost import Work, symbolic
from anabranch.lowering.scan_signatures import scan_forms
from anabranch.lowering.signatures import signatures
from anabranch.lowering.simplify import simplify
from anabranch.trials import Trial, elementwise

SIZES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43)  # so that an extent says whose it is
FITTING = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
LENGTHS = (1, 2, 3)  # of packs
DRAWN, ENOUGH = 400, 4  # sets of sizes that are tried, and how many with a meaning are compared
PARTS = 2
AXIS = Mesh.of(axis=PARTS)
UNNAMED = "temp"
UNTYPED = ("matrix", "indices", "number", "places", "vector", "mask", "matrices", "numbers")
MOST_UNTYPED, MOST_CHOICES = 4, 120  # parameters for which kinds are looked for, and how many
MOST = 4000  # combinations of layouts that are followed through an op


@dataclass(frozen=True, slots=True)
class Whole:
    """Layouts of an op's tensors on one axis. Nothing on the way changes its layout, but that
    partial values are reduced between the parts: those of the statements called `reduced`."""

    arguments: tuple[Sbp, ...]
    results: tuple[Sbp, ...]
    reduced: tuple[str, ...]
    reductions: int

    @property
    def is_split(self) -> bool:
        return any(entry != B for entry in (*self.arguments, *self.results))


@dataclass(frozen=True)
class Derived:
    """Everything about an op with some sizes and these settings; made when it is asked for."""

    trial: Trial
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def function(self) -> IrFunction:
        return self.trial.function

    @property
    def arguments(self) -> list[Value]:
        """The tensors that are given to the op."""
        return [a.value for a in self.function.arguments if a.role == "input"]

    @cached_property
    def plain(self) -> IrFunction:
        """The op as it runs where no gradient is wanted."""
        module = clone_module(Module({self.function.name: self.function}))
        return simplify(module).functions[self.function.name]

    @property
    def statements(self) -> list[Op]:
        return [op for op in self.plain.body if not isinstance(op, Return)]

    @cached_property
    def layouts(self) -> list[Whole]:
        return _whole_layouts(self.function)

    @cached_property
    def cost(self) -> Work:
        """Operations and bytes of all statements; of a recurrence, of all its places."""
        counted = [each for op in self.statements
                   for each in (statements(op) if isinstance(op, Scan) else [op])]
        return _total([op for op in counted if isinstance(op, Compute | Order)],
                      _owners(self.trial.sizes))

    @cached_property
    def gradient(self) -> list[str]:
        """The statements beyond those of the op itself; `d.x` is the gradient by x, and `d.x.1`
        are parts of it. Empty where nothing has one."""
        backward = _backward(self.function)
        if backward is None:
            return []
        forward = {line for line in written(self.plain) if not line.startswith(UNNAMED)}
        names = Plain(Names())
        _name_gradients(backward, names)
        lines = [line for line in written(backward, names) if line not in forward]
        return lines + list(_renamings(backward, names))


def derive(function: Function) -> Derived | None:
    """With sizes that tell the dimensions apart as far as the op allows; None where none can be
    made up."""
    for length in LENGTHS:
        made = (elaborated(function, sizes, length) for sizes in _sizes(function))
        if found := list(islice(filter(None, made), ENOUGH)):
            return max(found, key=_told_apart)
    return None


def sizes_of(function: Function) -> tuple[list[int], int] | None:
    """The first sizes, and length of packs, with which an op has a meaning."""
    for length in LENGTHS:
        for sizes in _sizes(function):
            if elaborated(function, sizes, length) is not None:
                return list(sizes), length
    return None


def _sizes(function: Function) -> Iterator[Sequence[int]]:
    """Distinct ones; then such as fit together in many ways, if there are any to choose."""
    for first in range(0, 2 * ENOUGH, 2):  # one of these may be a number in the op itself
        yield (*SIZES[first:], *SIZES[:first])
    if not sample(function, SIZES, 1):
        return
    random = np.random.default_rng(0)
    for _ in range(DRAWN):
        yield [int(size) for size in random.choice(FITTING, len(SIZES))]


def elaborated(
    function: Function, sizes: Sequence[int], length: int, *, training: bool = True
) -> Derived | None:
    """A function with these sizes and length of packs, in order. Nothing is computed, so they may
    be large. Parameters without a type are of the first kinds that the function can do with."""
    given = sample(function, sizes, length)
    if given is None:
        return _untyped(function, sizes, training=training)
    known = {**given, **elementwise(function, [sizes[0]])}
    made = _built(function, known, Builder(function.definition.name, training=training))
    settings = {p.name: given[p.name] for p in function.definition.params if p.name in given}
    return None if made is None else Derived(Trial(made, (), given), settings)


def _built(
    function: Function, known: Mapping[str, object], builder: Builder
) -> IrFunction | None:
    try:
        return build_entry(function, Sizes(known), builder)
    except UserError:
        return None


def _untyped(function: Function, sizes: Sequence[int], *, training: bool) -> Derived | None:
    """A function of tensors; one that reads the step is a schedule, which is none."""
    params = [p.name for p in function.definition.params if p.default is None]
    if any(p.type is not None for p in function.definition.params if p.default is None):
        return None
    shapes = ((sizes[0], sizes[len(sizes) > 1]), (sizes[0], sizes[0]))
    for kinds, shape in itertools.product(_choices(len(params)), shapes):
        builder = Builder(function.definition.name, training=training)
        known = {name: _argument(kind, name, shape, builder)
                 for name, kind in zip(params, kinds, strict=True)}
        made = _built(function, known, builder)
        roles = [] if made is None else [a.role for a in made.arguments]
        if "step" in roles:
            return None
        if made is not None and "input" in roles:
            plain = {name: known[name] for name, kind in zip(params, kinds, strict=True)
                     if kind in ("number", "numbers")}
            return Derived(Trial(made, (), plain), plain)
    return None


def _choices(count: int) -> list[tuple[str, ...]]:
    """Kinds for so many parameters, the plainest first."""
    if count > MOST_UNTYPED:
        return []
    each = itertools.product(range(len(UNTYPED)), repeat=count)
    return [tuple(UNTYPED[k] for k in kinds) for kinds in sorted(each, key=sum)][:MOST_CHOICES]


def _argument(kind: str, name: str, shape: tuple[int, int], builder: Builder) -> object:
    match kind:
        case "matrix":
            return builder.input(name, tensor("f32", shape))
        case "indices":
            return builder.input(name, tensor("i64", shape))
        case "mask":
            return builder.input(name, tensor("bool", shape))
        case "vector":
            return builder.input(name, tensor("f32", shape[:1]))
        case "places":
            return builder.input(name, tensor("i64", shape[:1]))
        case "matrices":
            return [builder.input(f"{name}{n}", tensor("f32", shape)) for n in range(2)]
    return 1 if kind == "number" else [1, 0]


def _told_apart(found: Derived) -> tuple[int, int]:
    """How well sizes say whose an extent is. Fewer extents are better where names are as distinct:
    one that is a size by chance is one more."""
    owners = _owners(found.trial.sizes)
    ranges = [n for op in found.function.body if isinstance(op, Compute) for _, n in op.ranges]
    return _distinct(found), -sum(n in owners for n in ranges)


def _distinct(found: Derived) -> int:
    """How many sizes are those of one name alone; a result of length 1 hides what it is of."""
    shapes = [v.type.shape for op in found.function.body for v in op.results]
    return len(_owners(found.trial.sizes)) - 100 * any(1 in shape for shape in shapes)


# ---- statements


def _gradients(backward: IrFunction) -> list[tuple[str, Value]]:
    """The gradients by the arguments, with the names that they should have."""
    assert backward.body.last is not None
    return [(f"d.{argument.value.name}", value) for argument, value in zip(
        float_inputs(backward), backward.body.last.operands, strict=False)]


def _name_gradients(backward: IrFunction, names: Plain) -> None:
    """Names are given out in order, and a gradient is often a sum of what has its name: it comes
    before its parts."""
    for value in backward.body.args:
        names.of(value)
    named: set[Value] = {*backward.body.args}
    for wanted, value in _gradients(backward):
        if value not in named:
            value.name = wanted
            names.of(value)
            named.add(value)


def _renamings(backward: IrFunction, names: Plain) -> Iterator[str]:
    """What is the gradient of an argument and has the name of something else."""
    for wanted, value in _gradients(backward):
        if names.of(value) != wanted:
            yield f"{wanted} = {names.of(value)}"


def written(function: IrFunction, names: Plain | None = None) -> list[str]:
    """A function's statements in index notation."""
    names = names or Plain(Names())
    for value in function.body.args:
        names.of(value)  # they come first
    return [line for op in function.body for line in _lines(op, names)]


@dataclass(frozen=True, slots=True)
class Plain:
    """The printer's names without their sign; what has only a number is a `temp`."""

    names: Names

    def of(self, value: Value) -> str:
        name = self.names[value].removeprefix("%")
        return UNNAMED + name if name[0].isdigit() else name

    def same(self, value: Value, other: Value) -> None:
        """Two values that are one to the reader."""
        self.names[value] = self.names[other]


def _lines(op: Op, names: Plain) -> Iterator[str]:
    """A statement on a line, those of a recurrence on one each."""
    match op:
        case Return():
            return
        case Scan():
            for inner, outer in zip(op.inputs, op.operands, strict=True):
                names.same(inner, outer)
            for new, history, result in zip(op.news, op.histories, op.results, strict=True):
                names.of(new)
                names.same(history, new)
                names.same(result, new)
            yield from (_statement(each, names) for each in statements(op))
        case Compute():
            yield _statement(op, names)
        case _:
            yield print_op(op, locations=False)  # with `%` before names, and its types


def _statement(op: Compute, names: Plain) -> str:
    operands = [names.of(v) for v in op.operands]
    text = print_expr(op.body, operands)
    if op.reduce:
        guard = "" if op.guard is None else f" if {print_expr(op.guard, operands)}"
        text = f"{op.reduce}[{', '.join(op.reduced)}{guard}]({text})"
    dims = ", ".join(d[0] if len(d) == 1 else f"({', '.join(d)})" for d in op.dims)
    return f"{names.of(op.result)}[{dims}] = {text}"


def _backward(function: IrFunction) -> IrFunction | None:
    """The gradients of a function's results by its arguments, simplified as they run; what they
    are multiplied by has the name of a gradient of the result."""
    by = [a.value.name for a in float_inputs(function)]
    found = weighted(function, None, np.random.default_rng(0))
    if not by or found is None:
        return None
    scalar, weights = found
    for number, value in enumerate(scalar.body.args[-len(weights):]):
        value.name = "d.result" + (str(number) if len(weights) > 1 else "")
    module = simplify(Module({function.name: gradient_of(scalar, by)}))
    return module.functions[function.name]


# ---- cost


def _owners(sizes: Mapping[str, object]) -> dict[int, str]:
    """The name in the signature that alone has this size."""
    named: dict[int, list[str]] = {}
    for name, size in sizes.items():
        sole = size[0] if isinstance(size, list) and len(size) == 1 else size
        if isinstance(sole, int) and sole > 1:
            named.setdefault(sole, []).append(name)
    return {size: names[0] for size, names in named.items() if len(names) == 1}


def _total(computes: Sequence[Compute | Order], owners: Mapping[int, str]) -> Work:
    import sympy

    flops, moved = sympy.Integer(0), sympy.Integer(0)
    for op in computes:
        work = symbolic(op)
        called = {sympy.Symbol(v, positive=True, integer=True):
                  sympy.Symbol(owners.get(extent, v), positive=True, integer=True)
                  for v, extent in op.ranges}
        flops += sympy.sympify(work.flops).subs(called, simultaneous=True)
        moved += sympy.sympify(work.bytes).subs(called, simultaneous=True)
    return Work(_readable(flops), _readable(moved))


def _readable(formula: Any) -> Any:
    import sympy

    return min((sympy.factor_terms(formula), sympy.expand(formula)), key=lambda f: len(str(f)))


# ---- layouts of the whole


@dataclass(frozen=True, slots=True)
class _State:
    """The layouts of the values so far, and those values that are made whole before they are
    read: partial ones, by a reduction between the parts."""

    entries: Mapping[Value, Sbp]
    summed: frozenset[Value]


def _whole_layouts(function: IrFunction) -> list[Whole]:
    """Those that statement after statement may have, without any in which something is whole
    where a part would do, or is made whole where it need not be."""
    arguments = [a.value for a in function.arguments if a.role == "input"]
    found = [_State({}, frozenset())]
    for op in function.body:
        if isinstance(op, Return):
            return _best([_whole(state, arguments, op.operands) for state in found])
        after = [each for state in found for each in _after(op, state)]
        found = sorted(after, key=lambda state: len(state.summed))[:MOST]
    return []


def _after(op: Op, state: _State) -> Iterator[_State]:
    for operands, results in _ways(op):
        entries, summed = dict(state.entries), set(state.summed)
        for value, entry in zip(op.operands, operands, strict=True):
            if entries.setdefault(value, entry) != entry:
                if entry != B or entries[value].kind != "P" or value.owner is None:
                    break
                summed.add(value)
        else:
            entries.update(zip(op.results, results, strict=True))
            yield _State(entries, frozenset(summed))


def _ways(op: Op) -> list[tuple[tuple[Sbp, ...], tuple[Sbp, ...]]]:
    """What an op may have on one axis: of its operands, of its results."""
    match op:
        case Compute() | Order():
            return [(each.operands, (each.result,)) for each in signatures(op, PARTS)]
        case Scan():
            return [(_entries(laid.operands), _entries(laid.results))
                    for laid in scan_forms(op, AXIS, small=True)]
    return [((B,) * len(op.operands), (B,) * len(op.results))]


def _entries(layouts: Sequence[Layout]) -> tuple[Sbp, ...]:
    return tuple(layout["axis"] for layout in layouts)


def _whole(state: _State, arguments: Sequence[Value], results: Sequence[Value]) -> Whole:
    summed = tuple(dict.fromkeys(value.name for value in state.entries if value in state.summed))
    return Whole(tuple(state.entries.get(v, B) for v in arguments),
                 tuple(state.entries.get(v, B) for v in results), summed, len(state.summed))


def _best(rows: Sequence[Whole]) -> list[Whole]:
    """Each way once, fewest reductions first."""
    found: list[Whole] = []
    for row in sorted(dict.fromkeys(rows), key=lambda row: row.reductions):
        if not any(_is_worse(row, other) for other in found):
            found = [other for other in found if not _is_worse(other, row)] + [row]
    return found


def _is_worse(row: Whole, other: Whole) -> bool:
    """Whether `other` does with its arguments what `row` does, and has less whole or summed."""
    if row.reductions and not any(entry.kind == "S" for entry in row.arguments):
        return True
    if row.reductions < other.reductions or (
            row.results != other.results and not row.reductions > other.reductions):
        return False
    return all(a == b or (a == B and b.kind == "S")
               for a, b in zip(row.arguments, other.arguments, strict=True))
