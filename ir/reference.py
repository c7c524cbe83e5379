"""The reference evaluator: any program in NumPy, slow and obviously right. It judges the rest.

A compute is a broadcast over its iteration space: every index variable is an axis, the result's
first, then the reduced ones. An expression evaluates to an array over that space, whose axes have
extent 1 where it does not depend on the variable.

What it promises:

- `where`, `pad` and guards are lazy. Every expression is evaluated together with `active`, the
  elements that are chosen. Reading outside a tensor at a chosen element is a `CompilerBug`, a
  failing `check` there a `UserError`; anywhere else both are harmless.
- Arithmetic on f16 and bf16 is carried out in f32 and rounded where it is cast or stored. NumPy has
  no bf16, so such arrays are held as float32 rounded to the nearest even bf16. With `double` every
  float is f64 and nothing is rounded.
- Sums are held in f64 and rounded once, except that the sum of a product of two factors is a matrix
  multiplication in the dtype itself. A guard `e == v` on a variable of the result scatters, with
  work proportional to what is read. Large spaces are cut into pieces that fit the memory.
- Sharding is invisible here: `Pin` and `Box` are the identity. A `Transfer` needs all ranks and a
  `Gradient` must have been expanded; both are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from anabranch.ir.core import Block, Function, Op, Value
from anabranch.ir.diagnostics import CompilerBug, Loc, Span, fail
from anabranch.ir.expr import (
    Call,
    Cast,
    Const,
    Expr,
    Origin,
    Rand,
    Read,
    Var,
    substitute,
    variables,
)
from anabranch.ir.index import Affine, affine, scatter_places
from anabranch.ir.ops import Box, Compute, Fused, Order, Pin, Return, Scan, identity
from anabranch.ir.philox import normal, uniform
from anabranch.ir.recurrence import scan_axis, statements
from anabranch.ir.scalar import PRIMITIVES, dtype_of
from anabranch.ir.types import is_float

Array = np.ndarray[Any, Any]
Active = Array | None  # None: every element is chosen

PIECE = 1 << 25  # elements of one broadcast, 256 MB in f64

NUMPY = {
    "bool": np.bool_, "u8": np.uint8, "i8": np.int8, "u16": np.uint16, "i16": np.int16,
    "u32": np.uint32, "i32": np.int32, "u64": np.uint64, "i64": np.int64,
    "f16": np.float16, "bf16": np.float32, "f32": np.float32, "f64": np.float64,
}


def held(dtype: str, double: bool = False) -> type[np.generic]:
    """The NumPy type that stores a dtype."""
    return np.float64 if double and is_float(dtype) else NUMPY[dtype]


def carried(dtype: str, double: bool = False) -> type[np.generic]:
    """The NumPy type in which a dtype is computed."""
    return np.float32 if dtype == "f16" and not double else held(dtype, double)


def round_bf16(x: Array) -> Array:
    """float32 rounded to the nearest bf16, ties to even; NaN stays NaN."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    carry = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = ((bits + carry) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), rounded)


def convert(x: Array, dtype: str, double: bool = False) -> Array:
    """`x` rounded to a dtype and held in it; anything to bool is != 0."""
    if dtype == "bool":
        return np.asarray(x != 0)
    if is_float(dtype) and not double and dtype == "bf16":
        return round_bf16(np.asarray(x, np.float32))
    return np.asarray(x).astype(held(dtype, double), copy=False)


def evaluate(
    function: Function, args: Sequence[Any], *, double: bool = False, micro: int = 0
) -> list[Array]:
    """All operands of the function's `Return`, in order."""
    given = [
        _argument(x, argument.value, double)
        for x, argument in zip(args, function.arguments, strict=True)
    ]
    return run_block(function.body, given, double=double, micro=micro)


def run_block(block: Block, args: Sequence[Array], *, double: bool, micro: int) -> list[Array]:
    """Evaluate a block that ends in `Return`; values are dropped after their last use."""
    env: dict[Value, Array] = dict(zip(block.args, args, strict=True))
    waiting = {v: len(v.uses) for op in block for v in op.results}
    for op in block:
        operands = [env[v] for v in op.operands]
        if isinstance(op, Return):
            return operands
        env.update(zip(op.results, evaluate_op(op, operands, double=double, micro=micro),
                       strict=True))
        for v in dict.fromkeys(op.operands):
            if v in waiting:
                waiting[v] -= 1
                if not waiting[v]:
                    del env[v]
    raise CompilerBug("a block without return")


def evaluate_op(
    op: Op, operands: Sequence[Array], *, double: bool = False, micro: int = 0
) -> list[Array]:
    """The results of one op."""
    with np.errstate(all="ignore"):
        match op:
            case Compute():
                return [_compute(op, operands, double, micro)]
            case Order():
                return [ordered(operands[0], op.axis, op.count, op.descending)]
            case Pin() | Box():
                return [operands[0]]
            case Fused():
                return run_block(op.region, operands, double=double, micro=micro)
            case Scan():
                return _scan(op, operands, double, micro)
    raise CompilerBug(f"the reference evaluator cannot run '{op.kind}': gradients must have been "
                      "expanded, and a transfer needs all ranks", op.loc)


def ordered(x: Array, axis: int, count: int, descending: bool) -> Array:
    """The places of the first elements along an axis; ties in the order that they have."""
    rows = np.flip(x, axis) if descending else x
    places = np.argsort(rows, axis=axis, kind="stable")
    if descending:
        places = x.shape[axis] - 1 - np.flip(places, axis)
    return np.take(places, range(count), axis=axis).astype(np.int64)


def _argument(x: Any, value: Value, double: bool) -> Array:
    array = convert(np.asarray(x), value.type.dtype, double)
    if array.shape != value.type.shape:
        raise fail(f"argument '{value.name}' has shape {list(array.shape)}",
                   help=f"the function takes {value.type}")
    return array


# --- one compute -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Space:
    """A box of the iteration space and what expressions over it refer to. What is asked of it for
    every node of an expression is kept."""

    bounds: dict[str, tuple[int, int]]  # in the order of the axes
    operands: Sequence[Array]
    dtypes: tuple[str, ...]
    double: bool
    micro: int
    loc: Loc
    seen: dict[int, Array] = field(default_factory=dict)  # by identity, where all is active

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.bounds.values())

    @cached_property
    def places(self) -> dict[str, Array]:
        """The values of each variable, along its axis."""
        ones = [1] * len(self.bounds)
        return {name: np.arange(start, stop, dtype=np.int64).reshape(
                    *ones[:axis], -1, *ones[axis + 1:])
                for axis, (name, (start, stop)) in enumerate(self.bounds.items())}

    def axes(self, names: Iterable[str]) -> tuple[int, ...]:
        order = list(self.bounds)
        return tuple(order.index(name) for name in names)

    def cut(self, name: str, start: int, stop: int) -> Space:
        return replace(self, bounds={**self.bounds, name: (start, stop)}, seen={})


def _space(op: Compute, operands: Sequence[Array], double: bool, micro: int) -> Space:
    extents = op.extents
    order = (*op.result_vars, *op.reduced)
    return Space({v: (0, extents[v]) for v in order}, operands,
                 tuple(v.type.dtype for v in op.operands), double, micro, op.loc)


def _compute(op: Compute, operands: Sequence[Array], double: bool, micro: int) -> Array:
    space = _space(op, operands, double, micro)
    places, rest = scatter_places(op) if op.reduce in COMBINE else ({}, [])
    values = _scatter(op, places, rest, space) if places else _over(op, space)
    return convert(values, op.result.type.dtype, double).reshape(op.result.type.shape)


def _over(op: Compute, space: Space) -> Array:
    """The result over a box, in the order of the result variables; cut in two if it is large."""
    if not op.reduce:
        if (longest := _to_cut(space, list(space.bounds))) is not None:
            return _halves(op, space, longest)
        return np.broadcast_to(_value(op.body, space, None), space.shape)
    if op.reduce == "sum" and (product := _contraction(op, space)) is not None:
        return product
    candidates = op.result_vars if op.reduce in ("argmax", "argmin") else tuple(space.bounds)
    if (longest := _to_cut(space, candidates)) is not None:
        return _halves(op, space, longest)
    return _reduce(op, space)


def _to_cut(space: Space, candidates: Iterable[str]) -> str | None:
    if math.prod(space.shape) <= PIECE:
        return None
    lengths = {name: space.bounds[name][1] - space.bounds[name][0] for name in candidates}
    longest = max(lengths, key=lambda name: lengths[name], default=None)
    return longest if longest is not None and lengths[longest] > 1 else None


def _halves(op: Compute, space: Space, name: str) -> Array:
    start, stop = space.bounds[name]
    middle = (start + stop) // 2
    low = _over(op, space.cut(name, start, middle))
    high = _over(op, space.cut(name, middle, stop))
    if name in op.result_vars:
        return np.concatenate((low, high), axis=op.result_vars.index(name))
    return np.asarray(COMBINE[op.reduce](low, high))


# --- recurrences -----------------------------------------------------------------------------


def _scan(scan: Scan, operands: Sequence[Array], double: bool, micro: int) -> list[Array]:
    """Place after place, every statement for its elements there; a history is its result."""
    made = {op.result: np.zeros(op.result.type.shape, held(op.result.type.dtype, double))
            for op in statements(scan)}
    results = [made[value] for value in scan.news]
    env = {**made, **dict(zip(scan.region.args, (*operands, *results), strict=True))}
    places = range(scan.extent)
    for place in reversed(places) if scan.reverse else places:
        for op in statements(scan):
            space = _space(op, [env[v] for v in op.operands], double, micro)
            values = _over(op, space.cut(scan.variable, place, place + 1))
            at = np.moveaxis(made[op.result], scan_axis(op, scan.variable), 0)[place, ...]
            at[...] = convert(values, op.result.type.dtype, double).reshape(at.shape)
    return results


# --- reductions ------------------------------------------------------------------------------

COMBINE: dict[str, Any] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "any": np.logical_or, "all": np.logical_and,
}


def accumulating(reduce: str, dtype: str, double: bool) -> type[np.generic]:
    """The NumPy type in which a reduction is held: sums and products of floats in f64."""
    return carried(dtype, double or (is_float(dtype) and reduce in ("sum", "prod")))


def _reduce(op: Compute, space: Space) -> Array:
    chosen = None if op.guard is None else _value(op.guard, space, None)
    body = np.broadcast_to(_value(op.body, space, chosen), space.shape)
    axes = space.axes(op.reduced)
    if op.reduce in ("argmax", "argmin"):
        return _first_place(op, body, chosen, axes[0], space)
    dtype = op.result.type.dtype
    start = identity(op.reduce, dtype)
    kind = accumulating(op.reduce, dtype, space.double)
    body = body.astype(kind, copy=False)
    if chosen is not None:
        body = np.where(chosen, body, np.asarray(start, kind))
    return np.asarray(COMBINE[op.reduce].reduce(body, axis=axes, initial=start))


def _first_place(op: Compute, body: Array, chosen: Active, axis: int, space: Space) -> Array:
    """The first place of the extremum among the chosen; NaN wins; 0 if there is none."""
    if body.shape[axis] == 0:
        return np.zeros([n for i, n in enumerate(body.shape) if i != axis], np.int64)
    start = identity(op.reduce, dtype_of(op.body, space.dtypes))
    masked = body if chosen is None else np.where(chosen, body, np.asarray(start, body.dtype))
    extreme = (np.max if op.reduce == "argmax" else np.min)(masked, axis=axis, keepdims=True)
    hit = (masked == extreme) | ((masked != masked) & (extreme != extreme))
    return np.asarray(np.argmax(hit if chosen is None else hit & chosen, axis=axis))


# --- sums of products as matrix multiplications --------------------------------------------------


def factors(body: Expr) -> list[Expr]:
    """The factors of a product, flattened."""
    match body:
        case Call("mul", (a, b)):
            return [*factors(a), *factors(b)]
    return [body]


def _two_groups(body: Expr) -> tuple[list[Expr], list[Expr]] | None:
    """The factors in two groups whose variables differ both ways, or None."""
    groups: list[tuple[set[str], list[Expr]]] = []
    for factor in sorted(factors(body), key=lambda f: -len(variables(f))):
        names = variables(factor)
        home = next((members for known, members in groups if names <= known), None)
        if home is None:
            groups.append((names, [factor]))
        else:
            home.append(factor)
    return (groups[0][1], groups[1][1]) if len(groups) == 2 else None


def _contraction(op: Compute, space: Space) -> Array | None:
    """The sum of a product of two groups of factors by `matmul`, or None if it is not one."""
    groups = _two_groups(op.body)
    if groups is None or not is_float(op.result.type.dtype) or not all(space.shape):
        return None  # a sum of nothing is 0, not 0 times what does not depend on what is summed
    left, right = (sorted(set().union(*map(variables, g)), key=list(space.bounds).index)
                   for g in groups)
    largest = max(_volume(space, left), _volume(space, right), _volume(space, op.result_vars))
    if largest > PIECE:
        return None
    kept: Active = None
    if op.guard is not None:
        if not variables(op.guard) <= set(left):
            groups, left, right = (groups[1], groups[0]), right, left
        if not variables(op.guard) <= set(left):
            return None
        kept = _value(op.guard, space, None)
    a = _product(groups[0], space, kept)
    b = _product(groups[1], space, None if kept is None else _anywhere(kept, right, space))
    if kept is not None:
        if not np.isfinite(b).all():
            return None  # what the guard leaves out would come back as 0 * inf
        a = np.where(kept, a, np.zeros((), a.dtype))
    return _matmul(a, b, len(op.result_vars), space)


def _volume(space: Space, names: Iterable[str]) -> int:
    return math.prod(stop - start for start, stop in (space.bounds[n] for n in names))


def _product(group: list[Expr], space: Space, active: Active) -> Array:
    total = _value(group[0], space, active)
    for factor in group[1:]:
        total = np.multiply(total, _value(factor, space, active))
    return total


def _anywhere(chosen: Array, names: Iterable[str], space: Space) -> Array:
    """Whether an element over `names` is chosen at any place of the other axes."""
    others = tuple(set(range(chosen.ndim)) - set(space.axes(names)))
    return np.asarray(chosen.any(axis=others, keepdims=True))


def _matmul(a: Array, b: Array, results: int, space: Space) -> Array:
    """sum over the axes from `results` on of a * b, both of full rank with extents 1 or full."""
    shape, rank = space.shape, len(space.shape)
    for axis in range(results, rank):
        if a.shape[axis] == b.shape[axis] == 1:
            a = a * np.asarray(shape[axis], a.dtype)  # the body does not depend on it
        elif a.shape[axis] != b.shape[axis]:
            a, b = (x.sum(axis=axis, keepdims=True) if x.shape[axis] != 1 else x for x in (a, b))
    both = [i for i in range(results) if a.shape[i] == b.shape[i]]
    rows = [i for i in range(results) if i not in both and a.shape[i] != 1]
    columns = [i for i in range(results) if i not in both and a.shape[i] == 1]
    summed = list(range(results, rank))
    batch = [a.shape[i] for i in both]
    sides = [a.shape[i] for i in rows], [b.shape[i] for i in columns]
    inner = math.prod(a.shape[i] for i in summed)
    left = a.transpose(both + rows + columns + summed).reshape(*batch, math.prod(sides[0]), inner)
    right = b.transpose(both + rows + summed + columns).reshape(*batch, inner, math.prod(sides[1]))
    product: Array = np.matmul(left, right).reshape((*batch, *sides[0], *sides[1]))
    in_order = product.transpose(np.argsort(both + rows + columns))
    return np.broadcast_to(in_order, shape[:results])


# --- guarded scatters ------------------------------------------------------------------------


def _scatter(op: Compute, places: dict[str, Expr], rest: list[Expr], space: Space) -> Array:
    """Reduce every element of the rest of the space into the place that the guard names."""
    extents, dtype = op.extents, op.result.type.dtype
    start = identity(op.reduce, dtype)
    kind = accumulating(op.reduce, dtype, space.double)
    out = np.full([extents[v] for v in op.result_vars], start, kind)
    body = substitute(op.body, places)
    guards = [substitute(term, places) for term in rest]
    inner = replace(space, bounds={v: b for v, b in space.bounds.items() if v not in places})
    for piece in _pieces(inner):
        _scatter_piece(op, places, guards, body, piece, out)
    return out


def _pieces(space: Space) -> Iterator[Space]:
    longest = _to_cut(space, list(space.bounds))
    if longest is None:
        yield space
        return
    start, stop = space.bounds[longest]
    middle = (start + stop) // 2
    yield from _pieces(space.cut(longest, start, middle))
    yield from _pieces(space.cut(longest, middle, stop))


def _scatter_piece(op: Compute, places: dict[str, Expr], guards: list[Expr], body: Expr,
                   space: Space, out: Array) -> None:
    active: Array = np.ones(space.shape, np.bool_)
    index: dict[str, Array] = {}
    for name, place in places.items():
        index[name] = _value(place, space, active)
        active = active & (index[name] >= 0) & (index[name] < op.extents[name])
    for guard in guards:
        active = active & _value(guard, space, active)
    values = np.broadcast_to(_value(body, space, active), space.shape)
    where = tuple(
        np.broadcast_to(index[v] if v in index else space.places[v], space.shape)[active]
        for v in op.result_vars
    )
    COMBINE[op.reduce].at(out, where, values[active].astype(out.dtype, copy=False))


# --- expressions -----------------------------------------------------------------------------


def _value(expr: Expr, space: Space, active: Active) -> Array:
    """The expression over the space; outside `active` the elements are arbitrary."""
    if active is None and id(expr) in space.seen:
        return space.seen[id(expr)]
    result = _fresh(expr, space, active)
    if active is None:
        space.seen[id(expr)] = result
    return result


def _fresh(expr: Expr, space: Space, active: Active) -> Array:
    match expr:
        case Const(value, dtype):
            kind = carried(dtype, space.double)
            return np.full((1,) * len(space.shape), value, kind)
        case Var(name):
            return space.places[name]
        case Origin(base, step):
            return np.full((1,) * len(space.shape), base + step * space.micro, np.int64)
        case Cast(dtype, arg):
            x = convert(_value(arg, space, active), dtype, space.double)
            return x.astype(carried(dtype, space.double), copy=False)
        case Rand():
            return _random(expr, space, active)
        case Read():
            return _read(expr, space, active)
        case Call():
            return _call(expr, space, active)
    raise CompilerBug(f"not an expression: {expr!r}", space.loc)


def _both(active: Active, more: Array) -> Array:
    return more if active is None else active & more


def _happens(condition: Array, space: Space) -> bool:
    """Whether a condition holds at any element; what reads an empty tensor may have none."""
    return bool(condition.any()) and all(space.shape)


def _call(expr: Call, space: Space, active: Active) -> Array:
    match expr:
        case Call("where", (condition, yes, no)):
            chosen = _value(condition, space, active)
            return np.where(chosen, _value(yes, space, _both(active, chosen)),
                            _value(no, space, _both(active, ~chosen)))
        case Call("and" | "or" as fn, (a, b)):
            first = _value(a, space, active)
            second = _value(b, space, _both(active, first if fn == "and" else ~first))
            return np.asarray(first & second if fn == "and" else first | second)
        case Call("check", (place, extent)):
            return _checked(place, extent, space, active)
    args = [_value(arg, space, active) for arg in expr.args]
    result = np.asarray(PRIMITIVES[expr.fn].evaluate(*args))
    kind = carried(dtype_of(expr, space.dtypes), space.double)
    return result.astype(kind, copy=False)


def _checked(place: Expr, extent: Expr, space: Space, active: Active) -> Array:
    index, size = _value(place, space, active), _value(extent, space, active)
    wrong = (index < 0) | (index >= size)
    if not all(space.shape):  # no element is computed, though what is read of empty tensors is 0
        return index
    if active is not None:
        wrong = wrong & active
    if _happens(wrong, space):
        at = np.unravel_index(np.argmax(wrong), wrong.shape)
        bad = np.broadcast_to(index, wrong.shape)[at]
        limit = np.broadcast_to(size, wrong.shape)[at]
        raise fail(f"index {bad} is outside a dimension of {limit} elements ({space.loc})",
                   span_of(space.loc), help="indices count from 0 and negative ones do not wrap")
    return index


def span_of(loc: Loc) -> Span | None:
    return Span(loc.file, loc.line, loc.col, loc.line, loc.col + 1) if loc.line else None


def _random(expr: Rand, space: Space, active: Active) -> Array:
    draw = uniform if expr.kind == "uniform" else normal
    seed, step, counter = (_value(e, space, active) for e in (expr.seed, expr.step, expr.counter))
    return draw(counter, seed, step, expr.stream).astype(carried("f32", space.double))


# --- reads -----------------------------------------------------------------------------------


def _read(expr: Read, space: Space, active: Active) -> Array:
    """The elements read, and the pad where that is outside."""
    source = space.operands[expr.operand]
    places = [_value(s, space, active) for s in expr.subscripts]
    inside: Active = None
    for place, size in zip(places, source.shape, strict=True):
        within = (place >= 0) & (place < size)
        if not within.all():
            inside = _both(inside, within)
    values = _elements(expr, source, places, space)
    values = values.astype(carried(space.dtypes[expr.operand], space.double), copy=False)
    if inside is None or not all(space.shape):
        return values
    if expr.pad is not None:
        pad = _value(expr.pad, space, _both(active, ~inside))
        return np.where(inside, values, pad).astype(values.dtype, copy=False)
    if _happens(_both(active, ~inside), space):
        raise CompilerBug("a read that is chosen lies outside its tensor", space.loc)
    return values


def _elements(expr: Read, source: Array, places: list[Array], space: Space) -> Array:
    """The elements at `places`; outside the tensor, any element of it (0 if it has none)."""
    rank = len(space.shape)
    if not source.size:
        return np.zeros((1,) * rank, source.dtype)
    forms = [affine(s, space.micro) for s in expr.subscripts]
    if all(form is not None for form in forms) and all(space.shape):
        view = _view(source, [form for form in forms if form is not None], space)
        if view is not None:
            return view
    clipped = [np.clip(p, 0, n - 1) for p, n in zip(places, source.shape, strict=True)]
    return source[tuple(clipped)] if clipped else source.reshape((1,) * rank)


def _view(source: Array, forms: list[Affine], space: Space) -> Array | None:
    """An affine read as a strided view of the tensor, widened by zeros where it reaches outside.

    None if widening would cost much more than the tensor.
    """
    reach = [_reach(form, space) for form in forms]
    margins = [(max(0, -low), max(0, high + 1 - n))
               for (low, high), n in zip(reach, source.shape, strict=True)]
    if any(map(any, margins)):
        wide = math.prod(n + sum(m) for n, m in zip(source.shape, margins, strict=True))
        if wide > 2 * source.size + 4096:
            return None
        source = np.pad(source, margins)
    strides, start = dict.fromkeys(space.bounds, 0), []
    for form, stride, (before, _) in zip(forms, source.strides, margins, strict=True):
        first = form.constant + before
        for name, coefficient in form.terms:
            strides[name] += coefficient * stride
            first += coefficient * space.bounds[name][0]
        start.append(slice(first, None))
    shape = tuple(n if strides[name] else 1
                  for name, n in zip(space.bounds, space.shape, strict=True))
    return np.lib.stride_tricks.as_strided(
        source[tuple(start)], shape, tuple(strides.values()), writeable=False)


def _reach(form: Affine, space: Space) -> tuple[int, int]:
    low = high = form.constant
    for name, coefficient in form.terms:
        start, stop = space.bounds[name]
        ends = coefficient * start, coefficient * (stop - 1)
        low, high = low + min(ends), high + max(ends)
    return low, high
