"""Makes a program smaller and says the same.

Elaboration and differentiation write statements without looking at their neighbours: every reshape
is a copy, every gradient of a slice a select, every constant a tensor. This pass removes all of
that, in index notation, so that the planner and the code generator see what is left to be done.

One sweep over a function, in order, so that operands are simplified before their users; and sweeps
until nothing changes:

1. A read of a value that only says where another value's elements are (a slice, a transpose, a
   split or merged index, a broadcast), or that is a formula of its indices, is replaced by what it
   stands for, where its subscripts compose exactly, that is, without new divisions. A sum of a
   product stays a strided matrix product: nothing that repeats elements is moved into one.
2. Expressions are rewritten by `equations`.
3. Summed variables of extent 1, or that nothing depends on, go away.
4. A statement that copies a value is that value; equal statements are one.
5. What is then copied into a shape with merged dimensions is computed in that shape in the first
   place, because everyone can read it split, but not the other way round. So is what is given back
   in another shape only.

Last, what nothing reads is erased. `stop` and `stop_grad` go away as soon as the function has no
gradient to be expanded; until then, values by which is differentiated are left alone. States keep
values of their own: what is the next value of two is computed twice.

Results are equal up to the sign of zeros and the rounding of literals. It is idempotent, and linear
in the size of the program but for the number of sweeps, which is small. It does not fuse: an
expression that is used once stays a statement, which the planner may lay out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from anabranch.ir.core import Function, Module, Value
from anabranch.ir.expr import (
    TRUE,
    Call,
    Cast,
    Const,
    Expr,
    Rand,
    Read,
    Var,
    call,
    children,
    integer,
    mul,
    reads,
    renumber,
    substitute,
    transform,
    variables,
    walk,
    where,
)
from anabranch.ir.index import affine, digits, expression, mixed_radix
from anabranch.ir.ops import Compute, Gradient, Return, Scan, identity
from anabranch.ir.recurrence import statements
from anabranch.ir.rewrite import dce
from anabranch.ir.scalar import dtype_of
from anabranch.ir.types import is_float
from anabranch.lowering.equations import Scope, simplified, split
from anabranch.lowering.tidy_scan import tidy

MAX_SWEEPS = 20
FORMULA_SIZE = 12  # nodes of an expression of indices that is computed again at every use


def simplify(module: Module) -> Module:
    """Simplify every function, in place."""
    for function in module.functions.values():
        simplify_function(function)
    return module


def simplify_function(function: Function) -> None:
    gradients = [op for op in function.body if isinstance(op, Gradient)]
    kept = {value for op in gradients for value in op.operands[1:]}
    stages = {a.value: a.stage for a in function.arguments}
    for _ in range(MAX_SWEEPS):
        sweep = Sweep(kept, stages, state_updates(function), stops=bool(gradients))
        for op in function.body:
            if isinstance(op, Compute) and op.result.type.layout is None:
                sweep.visit(op)
            elif isinstance(op, Scan) and op.results[0].type.layout is None:
                sweep.visit_region(op)
        dce(function)
        if not sweep.changed:
            return


def state_updates(function: Function) -> set[Value]:
    end = function.body.last
    return set(end.updates.values()) if isinstance(end, Return) else set()


@dataclass(slots=True)
class Sweep:
    """One pass over a function: the statements seen so far, by what they compute."""

    kept: set[Value]  # what must stay a value of its own
    stages: dict[Value, int]
    updates: set[Value]  # the next values of states
    stops: bool
    variable: str = ""  # of the scan whose region this is
    numbers: dict[Value, int] = field(default_factory=dict)
    known: dict[Any, Value] = field(default_factory=dict)
    changed: bool = False

    def visit(self, op: Compute) -> None:
        before = (op.ranges, op.dims, op.reduced, op.guard, op.body, op.operands)
        self.rewrite(op)
        if before != (op.ranges, op.dims, op.reduced, op.guard, op.body, op.operands):
            self.changed = True
        same = self.copied(op) or self.known.setdefault(
            key_of(op, self.numbers, self.variable), op.result)
        if same is not op.result and self.may_be(op.result, same):
            op.result.replace_by(same)
            self.changed = True
        elif not self.variable and (source := self.source_of_a_new_shape(op)) is not None:
            self.changed |= reshape_source(source, op)

    def visit_region(self, scan: Scan) -> None:
        """The statements of a scan, which see each other only, and the frame around them."""
        fixed = {v for v in scan.results if v in self.kept or v in self.updates}
        kept = {new for new, v in zip(scan.news, scan.results, strict=True) if v in fixed}
        inside = Sweep(kept, dict.fromkeys(scan.region.args, scan.stage), set(), self.stops,
                       scan.variable)
        for op in statements(scan):
            inside.visit(op)
        self.changed |= tidy(scan, fixed) or inside.changed

    def may_be(self, value: Value, same: Value) -> bool:
        """Whether `value` needs no tensor of its own, given an equal one."""
        if value in self.kept:
            return False
        if value not in self.updates:
            return True
        free = same.op is not None and same not in self.updates
        if free:
            self.updates.add(same)
        return free

    def rewrite(self, op: Compute) -> None:
        """Rules 1 to 3, on one statement."""
        if not self.stops:
            op.body = without_stops(op.body)
        inline_operands(op, self.kept)
        scope = Scope(op.extents, tuple(v.type.dtype for v in op.operands),
                      [v.type.shape for v in op.operands])
        op.body = simplified(op.body, scope)
        if op.guard is not None:
            guard = simplified(op.guard, scope)
            op.guard = None if guard == TRUE else guard
        shorten(op, scope)
        compact(op)

    def copied(self, op: Compute) -> Value | None:
        """The operand that this statement copies as it is."""
        if not is_layout(op) or len(op.operands) != 1:
            return None
        source, read = op.operands[0], op.body
        assert isinstance(read, Read)
        places = [mixed_radix(dim, op.extents) for dim in op.dims]
        same = source.type is op.result.type and [affine(s) for s in read.subscripts] == places
        return source if same and self.stage(source) == op.stage else None

    def stage(self, value: Value) -> int:
        return value.op.stage if value.op is not None else self.stages.get(value, 0)

    def source_of_a_new_shape(self, op: Compute) -> Compute | None:
        """The compute that may as well give its result in the shape that `op` copies it into."""
        if not is_layout(op) or not isinstance(op.body, Read) or op.body.pad is not None:
            return None
        source = op.operands[0]
        makes = source.op
        if not isinstance(makes, Compute) or is_layout(makes) or {source, op.result} & self.kept:
            return None
        merges = op.result.type.rank < source.type.rank
        returned = any(isinstance(user, Return) for user in op.result.uses)
        given_back = returned and list(source.uses) == [op]
        same_place = (makes.stage, makes.recompute) == (op.stage, op.recompute)
        wanted = same_place and (merges or given_back)
        return makes if wanted and is_bijection(op) else None


def without_stops(expr: Expr) -> Expr:
    def rule(node: Expr) -> Expr | None:
        stops = isinstance(node, Call) and node.fn in ("stop", "stop_grad")
        return children(node)[0] if stops else None

    return transform(expr, rule)


# --- reads through layouts -------------------------------------------------------------------


def is_layout(op: Compute) -> bool:
    """Whether a statement only says where the elements of another value are."""
    return not op.reduce and isinstance(op.body, Read) and all(
        affine(place) is not None for place in op.body.subscripts)


def is_formula(op: Compute) -> bool:
    """Whether a statement is a small expression of its indices and literals."""
    nodes = [] if op.reduce else list(walk(op.body))
    return 0 < len(nodes) <= FORMULA_SIZE and not any(isinstance(n, Read | Rand) for n in nodes)


def is_view(op: Compute) -> bool:
    """Whether a layout reads every element at most once, but for broadcasts."""
    assert isinstance(op.body, Read)
    forms = [affine(place) for place in op.body.subscripts]
    seen = [name for form in forms if form is not None for name, _ in form.terms]
    forward = all(c > 0 for form in forms if form is not None for _, c in form.terms)
    merged = all(form is None or len(form.terms) < 2 or digits(form, op.extents) for form in forms)
    return len(seen) == len(set(seen)) and forward and merged


def is_bijection(op: Compute) -> bool:
    """Whether a layout has every element of its operand exactly once, split or merged."""
    assert isinstance(op.body, Read)
    shape = op.operands[0].type.shape
    extents = op.extents
    if op.operands[0].type.elements != op.result.type.elements or 0 in shape or not is_view(op):
        return False
    used = variables(op.body)
    if any(n > 1 and v not in used for v, n in op.ranges):
        return False
    for place, size in zip(op.body.subscripts, shape, strict=True):
        form = affine(place)
        if form is None or form.bounds(extents) != (0, size - 1):
            return False
    return True


def inline_operands(op: Compute, kept: set[Value]) -> None:
    """Replace reads of layouts and formulas by what they stand for."""
    values = list(op.operands)
    extents = op.extents

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Read) or values[node.operand] in kept:
            return None
        source = values[node.operand].op
        if not isinstance(source, Compute) or not may_inline(source, op, node):
            return None
        places = places_of(source, node.subscripts, extents)
        if places is None:
            return None
        body = renumber(source.body, lambda n: _number(values, source.operands[n]))
        moved = substitute(body, places)
        if node.pad is not None and isinstance(moved, Read):
            return Read(moved.operand, moved.subscripts, node.pad)
        return moved

    body = transform(op.body, rule)
    guard = None if op.guard is None else transform(op.guard, rule)
    if body is not op.body or guard is not op.guard:
        op.set_operands(values)
        op.body, op.guard = body, guard


def _number(values: list[Value], value: Value) -> int:
    if value not in values:
        values.append(value)
    return values.index(value)


def may_inline(source: Compute, user: Compute, read: Read) -> bool:
    """Whether reading through `source` keeps the meaning and the cost of `user`."""
    if source.stage != user.stage or source.result.type.layout is not None:
        return False
    if is_formula(source):
        return read.pad is None
    if not is_layout(source):
        return False
    assert isinstance(source.body, Read)
    if read.pad is not None and not is_permutation(source):
        return False
    if not user.reduce:
        return True
    if source.body.pad is not None or not is_view(source):
        return False
    product = isinstance(user.body, Call) and user.body.fn == "mul"
    return not product or {v for v, n in source.ranges if n > 1} <= variables(source.body)


def is_permutation(op: Compute) -> bool:
    """Whether outside of the result is outside of the operand, and the other way round."""
    assert isinstance(op.body, Read)
    plain = [(s.name,) for s in op.body.subscripts if isinstance(s, Var)]
    extents = tuple(op.extents[name] for (name,) in plain)
    whole = extents == op.operands[0].type.shape  # and of every subscript, by its rank
    return op.body.pad is None and whole and sorted(plain) == sorted(op.dims)


def places_of(
    source: Compute, subscripts: Sequence[Expr], extents: dict[str, int]
) -> dict[str, Expr] | None:
    """The variables of `source` at an element of its result, if that takes no division."""
    places: dict[str, Expr] = {}
    for dim, place in zip(source.dims, subscripts, strict=True):
        rest = place
        for name in reversed(dim[1:]):
            halves = split(rest, source.extents[name], extents) if source.extents[name] else None
            if halves is None:
                return None
            rest, places[name] = halves
        if dim:
            places[dim[0]] = rest
    return places


def reshape_source(source: Compute, op: Compute) -> bool:
    """Compute what `op` copies in the shape of `op`; `source` becomes a layout of that."""
    split_like(source, op)
    assert isinstance(op.body, Read)
    places = places_of(source, op.body.subscripts, op.extents)
    back = inverse_places(op)
    if places is None or back is None:
        return False
    taken = {v for v, _ in op.ranges}
    rename = {v: _fresh(v, taken) for v in source.reduced}
    places.update({old: Var(new) for old, new in rename.items()})
    block = source.block
    assert block is not None
    made = block.insert_before(Compute(
        source.operands, op.result.type.dtype,
        (*op.ranges, *((rename[v], source.extents[v]) for v in source.reduced)),
        op.dims, substitute(source.body, places), reduce=source.reduce,
        reduced=tuple(rename.values()),
        guard=None if source.guard is None else substitute(source.guard, places),
        name=source.result.name, loc=source.loc, stage=source.stage, recompute=source.recompute,
    ), source)
    op.result.replace_by(made.result)
    _become_layout(source, made.result, back)
    return True


def inverse_places(op: Compute) -> list[Expr] | None:
    """Subscripts of the result of a bijective layout by variables `d0, d1, ...` of its operand."""
    assert isinstance(op.body, Read)
    shape = op.operands[0].type.shape
    extents = {f"d{d}": n for d, n in enumerate(shape)}
    values: dict[str, Expr] = {v: integer(0) for v, n in op.ranges if n == 1}
    for d, place in enumerate(op.body.subscripts):
        form = affine(place)
        names = digits(form, op.extents) if form is not None else None
        rest: Expr = Var(f"d{d}")
        for name in reversed((names or ())[1:]):
            extent = integer(op.extents[name])
            rest, values[name] = call("floordiv", rest, extent), call("mod", rest, extent)
        if names:
            values[names[0]] = rest
    back = [substitute(expression(mixed_radix(dim, op.extents)), values) for dim in op.dims]
    scope = Scope(extents, (), ())
    result = [simplified(place, scope) for place in back]
    return result if all(affine(place) is not None for place in result) else None


def _become_layout(op: Compute, value: Value, places: Sequence[Expr]) -> None:
    """Turn a compute into a copy of another value, with one variable for each dimension."""
    shape = op.result.type.shape
    op.ranges = tuple((f"d{d}", n) for d, n in enumerate(shape))
    op.dims = tuple((name,) for name, _ in op.ranges)
    op.reduce, op.reduced, op.guard = "", (), None
    op.body = Read(0, tuple(places))
    op.set_operands([value])


def split_like(source: Compute, op: Compute) -> None:
    """Write a variable of `op` that goes through a merged dimension of `source` as its factors."""
    assert isinstance(op.body, Read)
    for dim, place in zip(source.dims, op.body.subscripts, strict=True):
        if len(dim) < 2 or not isinstance(place, Var):
            continue
        taken = {v for v, _ in op.ranges}
        extents = {_fresh(v, taken): source.extents[v] for v in dim}
        names = tuple(extents)
        whole = expression(mixed_radix(names, extents))
        op.body = substitute(op.body, {place.name: whole})
        op.dims = tuple(tuple(_spread(d, place.name, names)) for d in op.dims)
        op.ranges = tuple(
            pair for v, n in op.ranges
            for pair in (extents.items() if v == place.name else ((v, n),)))


def _spread(dim: tuple[str, ...], name: str, factors: tuple[str, ...]) -> Iterator[str]:
    for v in dim:
        yield from factors if v == name else (v,)


def _fresh(name: str, taken: set[str]) -> str:
    number, fresh = 0, name
    while fresh in taken:
        fresh, number = f"{name}{number}", number + 1
    taken.add(fresh)
    return fresh


# --- reductions and operands -----------------------------------------------------------------


def shorten(op: Compute, scope: Scope) -> None:
    """Drop factors of extent 1 of merged dimensions, and reduced variables of extent 1 or that
    nothing depends on."""
    extents = op.extents
    single = {v for dim in op.dims for v in merged_ones(dim, extents)}
    idle: list[str] = []
    if op.reduce not in ("argmax", "argmin"):
        single |= {v for v in op.reduced if extents[v] == 1}
        used = variables(op.body) | (variables(op.guard) if op.guard is not None else set())
        idle = [v for v in op.reduced if v not in used and v not in single and extents[v] > 0]
    if op.reduce == "prod" or (op.reduce == "sum" and not is_float(op.result.type.dtype)):
        idle = []
    times = math.prod(extents[v] for v in idle) if op.reduce == "sum" else 1
    if times > 1:
        op.body = mul(op.body, Const(float(times), op.result.type.dtype))
    if single or idle:
        _without(op, single, set(idle), scope)


def merged_ones(dim: tuple[str, ...], extents: dict[str, int]) -> list[str]:
    ones = [v for v in dim if extents[v] == 1]
    return ones if len(ones) < len(dim) else ones[1:]


def _without(op: Compute, single: set[str], idle: set[str], scope: Scope) -> None:
    gone, first = single | idle, dict.fromkeys(single, integer(0))
    op.body = substitute(op.body, first)
    op.guard = None if op.guard is None else substitute(op.guard, first)
    op.dims = tuple(tuple(v for v in dim if v not in gone) for dim in op.dims)
    op.reduced = tuple(v for v in op.reduced if v not in gone)
    op.ranges = tuple((v, n) for v, n in op.ranges if v not in gone)
    op.body = simplified(op.body, scope)
    if op.reduce and not op.reduced:
        _pointwise(op)


def _pointwise(op: Compute) -> None:
    """A reduction over one element: that element, or the identity."""
    dtype = op.result.type.dtype
    if dtype_of(op.body, tuple(v.type.dtype for v in op.operands)) != dtype:
        op.body = Cast(dtype, op.body)  # a sum of small integers is wider
    if op.guard is not None:
        op.body = where(op.guard, op.body, Const(identity(op.reduce, dtype), dtype))
    op.reduce, op.guard = "", None


def compact(op: Compute) -> None:
    """Operands are those that are read, each once, in the order of reading."""
    every = [*(reads(op.guard) if op.guard is not None else ()), *reads(op.body)]
    used = list(dict.fromkeys(op.operands[read.operand] for read in every))
    if tuple(used) == op.operands:
        return
    order = {n: used.index(v) for n, v in enumerate(op.operands) if v in used}
    op.body = renumber(op.body, order.__getitem__)
    op.guard = None if op.guard is None else renumber(op.guard, order.__getitem__)
    op.set_operands(used)


# --- equality --------------------------------------------------------------------------------


def key_of(op: Compute, numbers: dict[Value, int], variable: str = "") -> Any:
    """Equal for statements that compute the same at the same place. `numbers` tells operands apart
    and grows; `variable` is of the scan that they are in."""
    order = {name: n for n, name in enumerate((*op.result_vars, *op.reduced))}
    operands = [numbers.setdefault(v, len(numbers)) for v in op.operands]
    extents = op.extents
    return (
        order.get(variable), op.result.type.text, op.stage, op.recompute, op.reduce,
        tuple(tuple(order[v] for v in dim) for dim in op.dims),
        tuple(extents[name] for name in order),
        canonical(op.body, order, operands),
        None if op.guard is None else canonical(op.guard, order, operands),
    )


def canonical(expr: Expr, order: dict[str, int], operands: Sequence[int]) -> tuple[Any, ...]:
    """A key that is equal for expressions equal up to names and commutation."""
    match expr:
        case Const(value, dtype):
            return "const", dtype, repr(value)
        case Var(name):
            return "var", order[name]
        case Read(operand, subscripts, pad):
            places = tuple(canonical(s, order, operands) for s in subscripts)
            return "read", operands[operand], places, (
                () if pad is None else canonical(pad, order, operands))
        case Call(fn, args):
            keys = [canonical(a, order, operands) for a in args]
            return "call", fn, tuple(sorted(keys) if fn in ("add", "mul") else keys)
        case Cast(dtype, arg):
            return "cast", dtype, canonical(arg, order, operands)
        case Rand(kind, stream, seed, step, counter):
            rest = tuple(canonical(e, order, operands) for e in (seed, step, counter))
            return "rand", kind, stream, rest
    return "other", repr(expr)
