"""The op kinds. Most of a program is one kind, `Compute`: a statement in index notation.

    Compute    %y: f32[8, 4] = [i, j] sum[k < 16](%a[i, k] * %b[k, j])
    Order      %y: i64[8, 4] = order(%x) {axis=1, descending=true}
    Pin        %y: f32[8, 4] = pin(%x, {model: S(1)})
    Gradient   %dw: f32[8], %db: f32[] = gradient(%loss, %w, %b)
    Box        %y: f32[8, 4] @ {data: B} = box(%x)
    Transfer   %y: f32[16] = transfer(%x) {kind=all_gather, axis=data, ...}
    Scan       %h: f32[8, 4] = scan[t < 8](%a = %x; %h.1) { ... return %h.2 }
    Fused      %y: f32[8] = fused(%a = %x) { ... return %y }
    Return     return %loss; state %w.new -> "w"
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

from anabranch.ir.core import Block, Op, Value
from anabranch.ir.diagnostics import NOWHERE, Loc
from anabranch.ir.expr import Expr, Read, Var
from anabranch.ir.sbp import Layout
from anabranch.ir.types import TensorType, category, integers, tensor

REDUCTIONS = ("sum", "max", "min", "prod", "any", "all", "argmax", "argmin")


def identity(reduce: str, dtype: str) -> float | int | bool:
    """What a reduction over nothing gives, as a value of `dtype` (argmax: what it starts from)."""
    if reduce in ("sum", "any"):
        return {"bool": False, "int": 0, "float": 0.0}[category(dtype)]
    if reduce in ("prod", "all"):
        return {"bool": True, "int": 1, "float": 1.0}[category(dtype)]
    lowest = reduce in ("max", "argmax")
    match category(dtype):
        case "bool":
            return not lowest
        case "int":
            return integers(dtype)[0 if lowest else -1]
    return -math.inf if lowest else math.inf


class Compute(Op):
    """result[dims] = reduce[reduced if guard](body).

    `ranges` maps every index variable to its extent: first those of the result, in order, then the
    reduced ones. `dims` gives each dimension of the result as a tuple of variables: one, or several
    for a merged index `(g, c)` (its place is g*size(c) + c), or none for a dimension of extent 1.
    `reduce` is empty when there is no reduction. Elements whose `guard` is false are left out of
    the reduction. argmax and argmin reduce exactly one variable, give the first place, and are i64.
    """

    __slots__ = ("body", "dims", "guard", "ranges", "reduce", "reduced")
    kind = "compute"
    attributes: ClassVar[tuple[str, ...]] = ("ranges", "dims", "reduce", "reduced", "guard", "body")

    def __init__(
        self,
        operands: Sequence[Value],
        dtype: str,
        ranges: Sequence[tuple[str, int]],
        dims: Sequence[tuple[str, ...]],
        body: Expr,
        *,
        reduce: str = "",
        reduced: Sequence[str] = (),
        guard: Expr | None = None,
        layout: Layout | None = None,
        name: str = "",
        loc: Loc = NOWHERE,
        stage: int = 0,
        recompute: int = 0,
    ) -> None:
        self.ranges, self.dims = tuple(ranges), tuple(dims)
        self.body, self.guard = body, guard
        self.reduce, self.reduced = reduce, tuple(reduced)
        extent = dict(self.ranges)
        shape = tuple(math.prod(extent[v] for v in dim) for dim in self.dims)
        super().__init__(operands, [tensor(dtype, shape, layout)], [name],
                         loc=loc, stage=stage, recompute=recompute)

    @property
    def extents(self) -> dict[str, int]:
        return dict(self.ranges)

    @property
    def result_vars(self) -> tuple[str, ...]:
        return tuple(v for dim in self.dims for v in dim)

    def clone(self, operands: Sequence[Value]) -> Compute:
        return Compute(
            operands, self.result.type.dtype, self.ranges, self.dims, self.body,
            reduce=self.reduce, reduced=self.reduced, guard=self.guard,
            layout=self.result.type.layout, name=self.result.name,
            loc=self.loc, stage=self.stage, recompute=self.recompute,
        )


class Order(Op):
    """The places of the elements along an axis, in ascending or descending order; the first
    `count` of them. Ties keep their order, and nan is larger than any number.

    Index notation cannot say this, so the rules are stated instead of derived: it may be split as
    a statement that reads each row whole, `[i, (), j] order[p](%x[i, p, j])`, whose parts the
    properties give; it does n log2(n) comparisons a row; places have no gradient.
    """

    __slots__ = ("axis", "count", "descending")
    kind = "order"
    attributes: ClassVar[tuple[str, ...]] = ("axis", "count", "descending")

    def __init__(self, operand: Value, axis: int, count: int, *, descending: bool = False,
                 layout: Layout | None = None, name: str = "", loc: Loc = NOWHERE, stage: int = 0,
                 recompute: int = 0) -> None:
        self.axis, self.count, self.descending = axis, count, descending
        shape = operand.type.shape
        super().__init__([operand], [tensor("i64", (*shape[:axis], count, *shape[axis + 1:]),
                                            layout)],
                         [name], loc=loc, stage=stage, recompute=recompute)

    @property
    def ranges(self) -> tuple[tuple[str, int], ...]:
        return tuple((f"i{d}", n) for d, n in enumerate(self.operands[0].type.shape))

    @property
    def extents(self) -> dict[str, int]:
        return dict(self.ranges)

    @property
    def dims(self) -> tuple[tuple[str, ...], ...]:
        return tuple(() if d == self.axis else (v,) for d, (v, _) in enumerate(self.ranges))

    @property
    def reduced(self) -> tuple[str, ...]:
        return (f"i{self.axis}",)

    @property
    def body(self) -> Expr:
        return Read(0, tuple(Var(v) for v, _ in self.ranges))

    def clone(self, operands: Sequence[Value]) -> Order:
        return Order(operands[0], self.axis, self.count, descending=self.descending,
                     layout=self.result.type.layout, name=self.result.name, loc=self.loc,
                     stage=self.stage, recompute=self.recompute)


class Pin(Op):
    """The same value, which the source wants in this (possibly partial) layout."""

    __slots__ = ("layout",)
    kind = "pin"
    attributes: ClassVar[tuple[str, ...]] = ("layout",)

    def __init__(self, operand: Value, layout: Layout, name: str = "",
                 *, loc: Loc = NOWHERE, stage: int = 0, recompute: int = 0) -> None:
        self.layout = layout
        super().__init__([operand], [operand.type], [name or operand.name],
                         loc=loc, stage=stage, recompute=recompute)

    def clone(self, operands: Sequence[Value]) -> Pin:
        return Pin(operands[0], self.layout, self.result.name,
                   loc=self.loc, stage=self.stage, recompute=self.recompute)


class Gradient(Op):
    """The gradients of the 0-d float `operands[0]` by the values `operands[1:]`, in order, as a
    value each. `lowering.differentiate` replaces it by the derived statements."""

    __slots__ = ()
    kind = "gradient"

    def __init__(self, of: Value, by: Sequence[Value],
                 *, loc: Loc = NOWHERE, stage: int = 0, recompute: int = 0) -> None:
        super().__init__([of, *by], [v.type for v in by], [f"d.{v.name}" for v in by],
                         loc=loc, stage=stage, recompute=recompute)

    def clone(self, operands: Sequence[Value]) -> Gradient:
        return Gradient(operands[0], operands[1:], loc=self.loc, stage=self.stage,
                        recompute=self.recompute)


class Box(Op):
    """The same value in the layout of the result type, on the ranks of this op's `stage`.

    In phase `sbp` any layout to any layout, between any two stages; in phase `boxed` each box is
    one primitive step, named by `step` (slice, fill, all_gather, reduce_scatter, all_reduce,
    all_to_all along mesh axis `axis`; move between stages, layouts equal).
    """

    __slots__ = ("axis", "step")
    kind = "box"
    attributes: ClassVar[tuple[str, ...]] = ("step", "axis")

    def __init__(self, operand: Value, layout: Layout, name: str = "", *, step: str = "",
                 axis: str = "", loc: Loc = NOWHERE, stage: int = 0, recompute: int = 0) -> None:
        self.step, self.axis = step, axis
        super().__init__([operand], [operand.type.with_layout(layout)], [name or operand.name],
                         loc=loc, stage=stage, recompute=recompute)

    @property
    def source(self) -> Layout:
        layout = self.operands[0].type.layout
        assert layout is not None, "a box stands after planning"
        return layout

    @property
    def target(self) -> Layout:
        layout = self.result.type.layout
        assert layout is not None, "a box stands after planning"
        return layout

    def clone(self, operands: Sequence[Value]) -> Box:
        return Box(operands[0], self.target, self.result.name, step=self.step, axis=self.axis,
                   loc=self.loc, stage=self.stage, recompute=self.recompute)


class Transfer(Op):
    """One rank's part of a joint movement, on flat buffers, in phases `local` and `fused`.

    `step` is all_gather, reduce_scatter, all_reduce, all_to_all, send, recv or accumulate (the
    sum over micro-batches, kept in place on one rank). `ranks` are the members, `match` numbers the
    joint transition (equal on all members), `counts` are elements given to, and `counts_back`
    elements taken from, each member. A send has no result, a recv no operand.
    """

    __slots__ = ("counts", "counts_back", "match", "ranks", "reduce", "step")
    kind = "transfer"
    attributes: ClassVar[tuple[str, ...]] = (
        "step", "match", "ranks", "reduce", "counts", "counts_back")

    def __init__(self, operands: Sequence[Value], types: Sequence[TensorType], step: str,
                 match: int, ranks: Sequence[int], *, reduce: str = "",
                 counts: Sequence[int] = (), counts_back: Sequence[int] = (), name: str = "",
                 loc: Loc = NOWHERE, stage: int = 0, recompute: int = 0) -> None:
        self.step, self.match, self.ranks, self.reduce = step, match, tuple(ranks), reduce
        self.counts, self.counts_back = tuple(counts), tuple(counts_back)
        super().__init__(operands, types, [name] if types else [],
                         loc=loc, stage=stage, recompute=recompute)

    def clone(self, operands: Sequence[Value]) -> Transfer:
        return Transfer(
            operands, [r.type for r in self.results], self.step, self.match, self.ranks,
            reduce=self.reduce, counts=self.counts, counts_back=self.counts_back,
            name=self.results[0].name if self.results else "",
            loc=self.loc, stage=self.stage, recompute=self.recompute)


class Fused(Op):
    """Computes that become one kernel. The region's arguments stand for the operands, in order;
    it ends in `Return`, whose operands are the results."""

    __slots__ = ("region",)
    kind = "fused"
    attributes: ClassVar[tuple[str, ...]] = ("region",)

    def __init__(self, operands: Sequence[Value], region: Block, names: Sequence[str] = (),
                 *, loc: Loc = NOWHERE, stage: int = 0, recompute: int = 0) -> None:
        self.region = region
        last = region.last
        assert isinstance(last, Return), "a fused region ends in return"
        super().__init__(operands, [v.type for v in last.operands],
                         names or [v.name for v in last.operands],
                         loc=loc, stage=stage, recompute=recompute)

    def clone(self, operands: Sequence[Value]) -> Fused:
        return Fused(operands, clone_block(self.region), [r.name for r in self.results],
                     loc=self.loc, stage=self.stage, recompute=self.recompute)


class Scan(Op):
    """A recurrence: computes that read one another at earlier places of one index, `variable`.

    The region's arguments are the operands, in order, then a *history* for each result, which is
    that result as far as it is known. The region has computes only and ends in `Return`, whose
    operands are the results, in order. Every compute is a statement over whole tensors whose
    result has a dimension of `variable` alone, of size `extent`; it is never reduced there.

    For every place t of the variable, upward or, when `reverse`, downward: the computes in order,
    each for its elements at t. A history is read at `t - k`, k >= 1 (`t + k` when reverse), with a
    `pad` for where that is outside; a value of the region at t; an operand anywhere.
    """

    __slots__ = ("extent", "region", "reverse", "variable")
    kind = "scan"
    attributes: ClassVar[tuple[str, ...]] = ("variable", "extent", "reverse", "region")

    def __init__(self, operands: Sequence[Value], region: Block, variable: str, extent: int,
                 *, reverse: bool = False, names: Sequence[str] = (), loc: Loc = NOWHERE,
                 stage: int = 0, recompute: int = 0) -> None:
        self.region, self.variable = region, variable
        self.extent, self.reverse = extent, reverse
        last = region.last
        assert isinstance(last, Return), "the region of a scan ends in return"
        super().__init__(operands, [v.type for v in last.operands],
                         names or [v.name for v in last.operands],
                         loc=loc, stage=stage, recompute=recompute)

    @property
    def inputs(self) -> list[Value]:
        """The region's arguments that stand for the operands."""
        return self.region.args[: len(self.operands)]

    @property
    def histories(self) -> list[Value]:
        """The region's arguments that stand for the results, as far as they are known."""
        return self.region.args[len(self.operands) :]

    @property
    def news(self) -> tuple[Value, ...]:
        """The values of the region that are the results, in order."""
        assert self.region.last is not None, "the region of a scan ends in return"
        return self.region.last.operands

    def clone(self, operands: Sequence[Value]) -> Scan:
        return Scan(operands, clone_block(self.region), self.variable, self.extent,
                    reverse=self.reverse, names=[r.name for r in self.results],
                    loc=self.loc, stage=self.stage, recompute=self.recompute)


class Return(Op):
    """Ends a block. The last `len(states)` operands are the next values of the named states."""

    __slots__ = ("states",)
    kind = "return"
    attributes: ClassVar[tuple[str, ...]] = ("states",)

    def __init__(self, operands: Sequence[Value], states: Sequence[str] = (),
                 *, loc: Loc = NOWHERE, stage: int = 0, recompute: int = 0) -> None:
        self.states = tuple(states)
        super().__init__(operands, [], loc=loc, stage=stage, recompute=recompute)

    @property
    def values(self) -> tuple[Value, ...]:
        """What the function gives back, without the states."""
        return self.operands[: len(self.operands) - len(self.states)]

    @property
    def updates(self) -> dict[str, Value]:
        return dict(zip(self.states, self.operands[len(self.values):], strict=True))

    def clone(self, operands: Sequence[Value]) -> Return:
        return Return(operands, self.states, loc=self.loc, stage=self.stage,
                      recompute=self.recompute)


def region_of(op: Op) -> Block | None:
    """The block inside of an op, if its kind has one."""
    return op.region if isinstance(op, Fused | Scan) else None


def nested(block: Block) -> Iterator[Op]:
    """Every op of a block, each before those of its region."""
    for op in block:
        yield op
        if (region := region_of(op)) is not None:
            yield from nested(region)


def clone_block(block: Block) -> Block:
    """A deep copy; values outside the block stay shared."""
    copy = Block([(v.name, v.type) for v in block.args])
    seen = dict(zip(block.args, copy.args, strict=True))
    for op in block:
        new = copy.append(op.clone([seen.get(v, v) for v in op.operands]))
        seen.update(zip(op.results, new.results, strict=True))
    return copy
