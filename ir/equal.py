"""When two modules are the same: equal in everything but the names of values.

Names of states count, because `Return` speaks of them; so do locations.
"""

from __future__ import annotations

from itertools import zip_longest

from anabranch.ir.core import Argument, Block, Function, Module, Op, Value
from anabranch.ir.expr import Expr
from anabranch.ir.ops import region_of
from anabranch.ir.printer import print_expr, print_op


def same(a: Module, b: Module) -> bool:
    return not difference(a, b)


def difference(a: Module, b: Module) -> str:
    """The first thing that differs, in words; empty when the modules are the same."""
    for what in ("phase", "mesh"):
        if getattr(a, what) != getattr(b, what):
            return f"{what}: {getattr(a, what)} and {getattr(b, what)}"
    if list(a.functions) != list(b.functions):
        return f"functions: {list(a.functions)} and {list(b.functions)}"
    pairs = zip(a.functions.values(), b.functions.values(), strict=True)
    return next(filter(None, (_function(f, g) for f, g in pairs)), "")


def _function(f: Function, g: Function) -> str:
    ours, theirs = ([_facts(x) for x in h.arguments] for h in (f, g))
    if f.name != g.name or ours != theirs:
        return f"signature of @{f.name}: {ours} and {theirs}"
    return _block(f.body, g.body, {})


def _facts(argument: Argument) -> tuple[object, ...]:
    name = argument.value.name if argument.role == "state" else ""
    return (name, argument.value.type, argument.role, argument.pin, argument.stage, argument.span)


def _block(a: Block, b: Block, twins: dict[Value, Value]) -> str:
    """Compare blocks, where `twins` maps the values of one to those of the other."""
    if [v.type for v in a.args] != [v.type for v in b.args]:
        return f"arguments: {a.args} and {b.args}"
    twins.update(zip(a.args, b.args, strict=True))
    for op, twin in zip_longest(a, b):
        if op is None or twin is None:
            return f"only one has: {print_op(op or twin)}"
        found = _op(op, twin, twins)
        if found:
            return f"{found}:\n  {print_op(op)}\n  {print_op(twin)}"
        twins.update(zip(op.results, twin.results, strict=True))
    return ""


def _op(op: Op, twin: Op, twins: dict[Value, Value]) -> str:
    """What differs between two ops, or nothing."""
    if type(op) is not type(twin):
        return "kind"
    if [twins.get(v) for v in op.operands] != list(twin.operands):
        return "operands"
    if [r.type for r in op.results] != [r.type for r in twin.results]:
        return "types"
    region, other = region_of(op), region_of(twin)
    if region is not None and other is not None:
        inside = _block(region, other, dict(twins))
        if inside:
            return f"region: {inside}"
    common = (a for a in ("loc", "stage", "recompute", *op.attributes) if a != "region")
    return next((a for a in common if not _equal(getattr(op, a), getattr(twin, a))), "")


def _equal(a: object, b: object) -> bool:
    """Equality under which a not-a-number in an expression equals itself."""
    if a == b:
        return True
    if isinstance(a, Expr) and isinstance(b, Expr):
        return print_expr(a, ()) == print_expr(b, ())
    return False
