"""One rank's part of a compute, as an ordinary compute over the rank's shards.

A split variable runs over the rank's part, from 0. Where its value matters it is `v + origin`; in
the subscript of a split dimension the origins of variables and shard meet, and cancel where both
are the same cut. A dimension read indirectly gives 0 outside the rank's rows: `t[ids[i] - origin,
d, pad=0]`, behind the check against the logical extent. What it is multiplied with, or divided by,
is left out there too: 0 times infinity is not 0. A scatter guard `e == v` becomes
`e - origin == v`, and keeps its form.

Origins, and numbers of rows, are `Origin` leaves, affine in the micro-batch. Whether one stands
there depends on the layouts only, never on the rank: all ranks have the same text, with other
extents and origins.

Partial sums and products of f16 and bf16 are held in f32 until they are reduced: such a compute is
carried out in f32 on the rank.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.ir.core import Block, Value
from anabranch.ir.diagnostics import CompilerBug
from anabranch.ir.expr import (
    Call,
    Cast,
    Const,
    Expr,
    Origin,
    Read,
    Var,
    add,
    children,
    integer,
    reads,
    sub,
    variables,
    walk,
    where,
    with_children,
)
from anabranch.ir.index import Affine, affine
from anabranch.ir.mesh import MICRO, Mesh
from anabranch.ir.ops import Compute, Order, Return, Scan
from anabranch.ir.recurrence import statements
from anabranch.ir.sbp import Layout, Sbp, local_box
from anabranch.ir.scalar import PRIMITIVES, dtype_of
from anabranch.ir.types import TensorType, accumulator, is_float, tensor
from anabranch.lowering.adjoints import conjunction
from anabranch.lowering.intervals import Cut, at, places
from anabranch.lowering.signatures import Structure, legal_structure, structure
from anabranch.lowering.sums import zero

Place = tuple[int, ...]  # a position on the mesh of a stage; along `micro` it is 0


def held(dtype: str, layout: Layout | None) -> str:
    """The dtype in which a rank holds a value: terms of a sum or product are kept in f32."""
    terms = layout is not None and layout.partial in ("sum", "prod")
    return accumulator(dtype) if terms else dtype


@functools.cache
def local_type(type: TensorType, mesh: Mesh, place: Place) -> TensorType:
    """What a rank holds of a value with a layout."""
    layout = type.layout or Layout()
    shape, _ = local_box(type.shape, layout, mesh, place)
    return tensor(held(type.dtype, layout), shape)


def local_compute(
    op: Compute | Order, operands: Sequence[Value], mesh: Mesh, place: Place
) -> Compute | Order:
    """The part of `op` at a place of the mesh, over the local values of its operands."""
    layouts = tuple(v.type.layout or Layout() for v in op.operands)
    form = _local_form(structure(op), layouts, op.result.type.layout or Layout(), mesh, place)
    if form is None:
        raise CompilerBug(
            f"no signature of {op.result} takes {', '.join(map(str, layouts))}", op.loc)
    if isinstance(op, Order):  # of the rows that the rank has, which are whole
        return Order(operands[0], op.axis, op.count, descending=op.descending,
                     name=op.result.name, loc=op.loc, stage=op.stage, recompute=op.recompute)
    return Compute(
        operands, form.dtype, form.ranges, op.dims, form.body, reduce=op.reduce,
        reduced=op.reduced, guard=form.guard, name=op.result.name, loc=op.loc, stage=op.stage,
        recompute=op.recompute)


def local_scan(scan: Scan, operands: Sequence[Value], mesh: Mesh, place: Place) -> Scan:
    """The part of a scan at a place: that of each of its statements. All places of its index are
    everywhere."""
    region = Block([(inside.name, value.type)
                    for inside, value in zip(scan.inputs, operands, strict=True)])
    values = dict(zip(scan.inputs, region.args, strict=True))
    for history in scan.histories:
        values[history] = region.add_arg(history.name, local_type(history.type, mesh, place))
    for op in statements(scan):
        part = local_compute(op, [values[v] for v in op.operands], mesh, place)
        values[op.result] = region.append(part).result
    region.append(Return([values[v] for v in scan.news], stage=scan.stage))
    return Scan(operands, region, scan.variable, scan.extent, reverse=scan.reverse,
                names=[v.name for v in scan.results], loc=scan.loc, stage=scan.stage,
                recompute=scan.recompute)


@dataclass(frozen=True, slots=True)
class _Form:
    """What of a compute changes on a rank."""

    ranges: tuple[tuple[str, int], ...]
    dtype: str
    body: Expr
    guard: Expr | None


@functools.cache
def _local_form(
    of: Structure, operands: tuple[Layout, ...], result: Layout, mesh: Mesh, place: Place
) -> _Form | None:
    chosen = legal_structure(of, operands, result, mesh)
    if chosen is None:
        return None
    cuts: dict[str, Cut] = {}
    for axis, signature in enumerate(chosen):
        if signature.split:
            cuts[signature.split] = (*cuts.get(signature.split, ()), axis)
    local = _Localiser(of, operands, cuts, mesh, place)
    dtype = held(of.dtype, result)
    kept = tuple(held(d, layout) for d, layout in zip(of.dtypes, operands, strict=True))
    body = local.expr(of.body)
    if dtype != of.dtype or kept != of.dtypes:
        wide = _Widener(of.dtypes, kept).expr(body)
        body = wide if dtype_of(wide, kept) == dtype else Cast(dtype, wide)
    ranges = tuple(
        (name, at(extent, cuts.get(name, ()), mesh.sizes, place)[1]) for name, extent in of.ranges)
    return _Form(ranges, dtype, body, None if of.guard is None else local.guard(of.guard))


@dataclass(frozen=True, slots=True)
class _Localiser:
    """Rewrites logical expressions to local ones."""

    of: Structure
    operands: tuple[Layout, ...]
    cuts: dict[str, Cut]
    mesh: Mesh
    place: Place

    def expr(self, e: Expr) -> Expr:
        match e:
            case Var(name):
                return add(e, self._start(name)) if name in self.cuts else e
            case Read():
                return self._read(e)
            case Call("mul" | "div") if (own := self._own_rows(e)) is not None:
                dtype = dtype_of(e, self.of.dtypes)
                return where(own, self._parts(e), zero(dtype))
        return self._parts(e)

    def _parts(self, e: Expr) -> Expr:
        old = children(e)
        new = tuple(map(self.expr, old))
        return e if all(a is b for a, b in zip(old, new, strict=True)) else with_children(e, new)

    def _own_rows(self, product: Expr) -> Expr | None:
        """The condition that the row which a product reads indirectly is there. None if it reads
        none, or several, or one perhaps: where it is may be asked where it is read only."""
        rows = {conjunction(tests) for read in reads(product) if (tests := self._tests(read))}
        return rows.pop() if len(rows) == 1 and not any(map(_is_lazy, walk(product))) else None

    def _tests(self, read: Read) -> list[Expr]:
        """Whether the rank has what is read indirectly."""
        tests: list[Expr] = []
        for d in self._foreign(read):
            place = self._subscript(read.operand, d, read.subscripts[d])
            rows = self._rows(read.operand, d)
            tests += Call("ge", (place, integer(0))), Call("lt", (place, rows))
        return tests

    def _foreign(self, e: Read) -> list[int]:
        """The dimensions that are read indirectly and split."""
        return [d for d, s in enumerate(e.subscripts) if reads(s) and self._cut(e.operand, d)]

    def _rows(self, operand: int, dim: int) -> Origin:
        length = self.of.shapes[operand][dim]
        return Origin(at(length, self._cut(operand, dim), self.mesh.sizes, self.place)[1])

    def guard(self, e: Expr) -> Expr:
        match e:
            case Call("and", (a, b)):
                return Call("and", (self.guard(a), self.guard(b)))
            case Call("eq", (a, Var(name) as v)) | Call("eq", (Var(name) as v, a)) if (
                name in self.cuts and name not in variables(a)
            ):
                return Call("eq", (sub(self.expr(a), self._start(name)), v))
        return self.expr(e)

    def _read(self, e: Read) -> Expr:
        subscripts = tuple(
            self._subscript(e.operand, d, s) for d, s in enumerate(e.subscripts))
        pad = None if e.pad is None else self.expr(e.pad)
        if pad is None and self._foreign(e):
            pad = zero(self.of.dtypes[e.operand])
        same = pad is e.pad and all(
            a is b for a, b in zip(subscripts, e.subscripts, strict=True))
        return e if same else Read(e.operand, subscripts, pad)

    def _subscript(self, operand: int, dim: int, e: Expr) -> Expr:
        cut, length = self._cut(operand, dim), self.of.shapes[operand][dim]
        form = None if reads(e) else affine(e)
        if form is None:
            inner = self.expr(e)
            return sub(inner, self._origin(length, cut)) if cut else inner
        extents = self.of.extents
        parts = tuple((c, extents[name], self.cuts.get(name, ())) for name, c in form.terms)
        if _cancels(parts, length, cut, self.mesh.sizes):
            return e
        starts = self._sum(form)
        shard = self._origin(length, cut)
        return add(e, Origin(starts.base - shard.base, starts.step - shard.step))

    def _sum(self, form: Affine) -> Origin:
        """Where the terms of an affine subscript start, all together."""
        starts = [(c, self._start(name)) for name, c in form.terms]
        return Origin(sum(c * s.base for c, s in starts), sum(c * s.step for c, s in starts))

    def _start(self, name: str) -> Origin:
        return self._origin(self.of.extents[name], self.cuts.get(name, ()))

    def _cut(self, operand: int, dim: int) -> Cut:
        return cut_of(self.operands[operand], dim, self.mesh)

    def _origin(self, extent: int, cut: Cut) -> Origin:
        return origin(extent, cut, self.mesh, self.place)


def _is_lazy(e: Expr) -> bool:
    """Whether an expression evaluates some of its parts only now and then."""
    match e:
        case Read(_, _, pad):
            return pad is not None and bool(reads(pad))
        case Call(fn, _):
            return fn in ("where", "and", "or")
    return False


def cut_of(layout: Layout, dim: int, mesh: Mesh) -> Cut:
    """The axes, of more than one member, that split a dimension."""
    return tuple(
        axis for axis, (name, size) in enumerate(mesh.axes)
        if size > 1 and _splits(layout[name], dim))


def _splits(entry: Sbp, dim: int) -> bool:
    return entry.kind == "S" and entry.dim == dim


def origin(extent: int, cut: Cut, mesh: Mesh, place: Place) -> Origin:
    """Where the part of something of `extent` starts, for all micro-batches."""
    start, _ = at(extent, cut, mesh.sizes, place)
    if MICRO not in mesh.names:
        return Origin(start)
    axis = mesh.names.index(MICRO)
    following = (*place[:axis], 1, *place[axis + 1 :])
    return Origin(start, at(extent, cut, mesh.sizes, following)[0] - start)


@functools.cache
def _cancels(
    parts: tuple[tuple[int, int, Cut], ...], length: int, cut: Cut, sizes: tuple[int, ...]
) -> bool:
    """Whether the terms (coefficient, extent, cut) start where the shard does, on all ranks that
    have work."""
    moving = {*cut, *(axis for _, _, c in parts for axis in c)}
    for place in places(moving, sizes):
        intervals = [at(extent, c, sizes, place) for _, extent, c in parts]
        start = sum(k * s for (k, _, _), (s, _) in zip(parts, intervals, strict=True))
        if all(size for _, size in intervals) and start != at(length, cut, sizes, place)[0]:
            return False
    return True


@dataclass(frozen=True, slots=True)
class _Widener:
    """Carries an expression out in f32 where it would be f16 or bf16. Conditions, comparisons and
    conversions to integers read whole values only, and stay as they are."""

    logical: tuple[str, ...]
    kept: tuple[str, ...]

    def expr(self, e: Expr) -> Expr:
        dtype = dtype_of(e, self.logical)
        match e:
            case Const(value, _):
                return Const(value, accumulator(dtype))
            case Read(operand, subscripts, pad):
                pad = None if pad is None else self._as(pad, self.kept[operand])
                read = Read(operand, subscripts, pad)
                return _cast(read, self.kept[operand], accumulator(dtype))
            case Cast(_, arg) if is_float(dtype) and is_float(dtype_of(arg, self.logical)):
                wide = self.expr(arg)
                return _cast(wide, dtype_of(wide, self.kept), accumulator(dtype))
            case Cast(_, _):
                return Cast(accumulator(dtype), e.arg)
            case Call("where", (condition, yes, no)):
                return Call("where", (condition, self.expr(yes), self.expr(no)))
            case Call(fn, args) if PRIMITIVES[fn].kind != "bool":
                return Call(fn, tuple(map(self.expr, args)))
        return e

    def _as(self, e: Expr, dtype: str) -> Expr:
        """The expression, wide or as it is, for an operand kept in `dtype`."""
        return e if dtype_of(e, self.kept) == dtype else _cast(
            self.expr(e), dtype_of(self.expr(e), self.kept), dtype)


def _cast(e: Expr, source: str, target: str) -> Expr:
    return e if source == target else Cast(target, e)
