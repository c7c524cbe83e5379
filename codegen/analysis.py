"""What the builder must know of clauses: bounds, what may be merged, kept or cut in two."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.codegen.kernel import Ref
from anabranch.ir.core import Value
from anabranch.ir.expr import (
    Call,
    Cast,
    Const,
    Expr,
    Rand,
    Read,
    Var,
    add,
    children,
    integer,
    variables,
    walk,
)
from anabranch.ir.index import conjuncts, interval
from anabranch.ir.linear import Linear, linear, place, strides
from anabranch.ir.scalar import flops
from anabranch.ir.space import Clause, Space

Place = tuple[Value, tuple[Expr, ...]]  # a value, and the subscripts it is read at
EXPENSIVE = 12  # operations from which on keeping a value beats computing it again


def is_product_of_values(value: Expr) -> bool:
    return (isinstance(value, Call) and value.fn == "mul" and value.args[0] != value.args[1]
            and all(isinstance(a, Ref) for a in value.args))


def expression_dtype(expr: Expr, operands: dict[int, str]) -> str:
    match expr:
        case Read(operand):
            return operands[operand]
        case Const(_, dtype) | Cast(dtype, _):
            return dtype
        case Rand():
            return "f32"
        case Call("where", (_, yes, _)):
            return expression_dtype(yes, operands)
        case Call(fn, args):
            boolean = fn in ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf")
            return "bool" if boolean else expression_dtype(args[0], operands)
    return "i64"


def provable(read: Read, shape: Sequence[int], extents: dict[str, int]) -> bool:
    """Whether bounds alone show that a read stays inside (checked subscripts do)."""
    return not any(
        any(may_leave(s, n, extents)) for s, n in zip(read.subscripts, shape, strict=True))


def may_leave(subscript: Expr, size: int, extents: dict[str, int]) -> tuple[bool, bool]:
    """Whether a subscript might be below 0, and whether it might reach the size."""
    if isinstance(subscript, Call) and subscript.fn == "check":
        bound = subscript.args[1]
        return False, not (isinstance(bound, Const) and bound.value <= size)
    bounds = interval(subscript, extents)
    if bounds is None:
        return True, True
    return bounds[0] < 0, bounds[1] >= size


def comparisons(
    clauses: Sequence[Clause], lane: str, loops: set[str]
) -> list[tuple[Expr, Expr, bool]]:
    """(condition, limit, below): `condition` is `below` for lanes under `limit`, else its opposite.

    Found in bodies and guards, where the lane itself is compared with something known per row.
    """
    found: dict[Expr, tuple[Expr, bool]] = {}
    for c in clauses:
        for root in (c.body, *(() if c.guard is None else (c.guard,))):
            for node in walk(root):
                limit = _limit(node, lane, loops)
                if limit is not None:
                    found[node] = limit
    return [(condition, limit, below) for condition, (limit, below) in found.items()]


def read_once(clauses: Sequence[Clause]) -> set[Place]:
    """What is read under the same conditions wherever it is read."""
    found: dict[Place, set[tuple[Expr, ...]]] = {}
    for c in clauses:
        guard = tuple(conjuncts(c.guard))
        waiting = [(c.body, guard), *((condition, ()) for condition in guard)]
        while waiting:
            expr, held = waiting.pop()
            if isinstance(expr, Read):
                found.setdefault((c.operands[expr.operand], expr.subscripts), set()).add(held)
            below = [held] * len(children(expr))
            if isinstance(expr, Call) and expr.fn == "where":
                below[1:] = (*held, expr.args[0]), (*held, Call("not", expr.args[:1]))
            waiting += zip(children(expr), below, strict=True)
    return {place for place, conditions in found.items() if len(conditions) == 1}


FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def _limit(node: Expr, lane: str, loops: set[str]) -> tuple[Expr, bool] | None:
    if not isinstance(node, Call) or node.fn not in FLIPPED:
        return None
    fn, (a, b) = node.fn, node.args
    if b == Var(lane):
        fn, a, b = FLIPPED[fn], b, a
    steady = not variables(b) & loops and not any(isinstance(e, (Read, Rand)) for e in walk(b))
    if a != Var(lane) or not steady:
        return None
    limit = add(b, integer(1)) if fn in ("le", "gt") else b
    return limit, fn in ("lt", "le")


def needed_elements(space: Space, roots: Sequence[int]) -> set[int]:
    """The clauses over elements that the roots need, with the roots."""
    homes = {c.result: i for i, c in enumerate(space.clauses)}
    found, stack = set(roots), list(roots)
    while stack:
        for operand in space.clauses[stack.pop()].operands:
            j = homes.get(operand)
            if j is not None and j not in found and space.full(j):
                found.add(j)
                stack.append(j)
    return found


def worth_keeping(space: Space, outputs: set[Value]) -> dict[int, int]:
    """The clauses worth keeping for a later pass, with the pass that computes them."""
    homes = {c.result: i for i, c in enumerate(space.clauses)}
    cost: dict[int, int] = {}
    for i, c in enumerate(space.clauses):
        inner = [homes[v] for v in c.operands if v in homes and space.full(homes[v])]
        cost[i] = flops(c.body) + sum(cost[j] for j in inner)
    wanted: dict[int, set[int]] = {i: set() for i in range(len(space.clauses))}
    kept: dict[int, int] = {}
    for i in reversed(range(len(space.clauses))):
        c = space.clauses[i]
        if c.reduce or c.result in outputs:
            wanted[i].add(space.waves[i])
        if not (space.full(i) or c.reduce):
            continue
        if not c.reduce and len(wanted[i]) > 1 and cost[i] >= EXPENSIVE:
            kept[i] = min(wanted[i])
        for v in c.operands:
            if v in homes:
                wanted[homes[v]] |= {kept[i]} if i in kept else wanted[i]
    return kept


def accesses_of(
    space: Space, outputs: Sequence[Value], also: Sequence[Linear]
) -> tuple[set[str], list[dict[str, int]]]:
    """Axes whose own value matters, and the strides of every access, those of `also` included."""
    scan = _Scan(space)
    for form in also:
        scan.form(form, space.clauses[0])
    for c in space.clauses:
        for root in (c.body, *(() if c.guard is None else (c.guard,))):
            scan.expression(root, c)
        if c.reduce in ("argmax", "argmin"):
            scan.fixed |= set(c.reduced)
        if c.result in outputs or c.reduce:
            steps = strides([space.extents[v] for v in c.result_vars])
            scan.accesses.append(dict(zip(c.result_vars, steps, strict=True)))
    return scan.fixed, scan.accesses


class _Scan:
    """Collects, over the expressions of a kernel, its accesses and the axes that must stay apart
    because their own value matters."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.homes = {c.result for c in space.clauses}
        self.fixed: set[str] = set()
        self.accesses: list[dict[str, int]] = []

    def form(self, form: Linear, c: Clause) -> None:
        self.accesses.append(dict(form.terms))
        for _, atom in form.atoms:
            self.expression(atom, c)

    def expression(self, expr: Expr, c: Clause) -> None:
        match expr:
            case Var(name):
                self.fixed.add(name)
            case Read():
                self.read(expr, c)
            case Rand(_, _, seed, step, counter):
                self.form(linear(counter), c)
                self.expression(seed, c)
                self.expression(step, c)
            case _:
                for child in children(expr):
                    self.expression(child, c)

    def read(self, read: Read, c: Clause) -> None:
        value = c.operands[read.operand]
        if read.pad is not None:
            self.expression(read.pad, c)
            for subscript, size in zip(read.subscripts, value.type.shape, strict=True):
                if any(may_leave(subscript, size, self.space.extents)):
                    self.fixed |= variables(subscript)
        if value not in self.homes:
            self.form(place(read.subscripts, value.type.shape), c)


def merged_axes(axes: Sequence[str], space: Space, fixed: set[str],
           accesses: list[dict[str, int]]) -> list[tuple[str, ...]]:
    """Neighbouring axes that every access walks as one become one."""
    groups: list[tuple[str, ...]] = []
    for axis in axes:
        outer = groups[-1][-1] if groups else None
        size = space.extents[axis]
        if outer is not None and not {outer, axis} & fixed and all(
            a.get(outer, 0) == a.get(axis, 0) * size for a in accesses
        ):
            groups[-1] += (axis,)
        else:
            groups.append((axis,))
    return groups
