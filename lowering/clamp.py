"""Indices clamped instead of checked, where the user asked for it.

`check(i, n)` becomes `min(max(i, 0), n - 1)`. It runs on local modules: before that, the checks
are what tells an index into a table from arithmetic.
"""

from __future__ import annotations

from anabranch.ir.core import Module
from anabranch.ir.expr import Call, Const, Expr, integer, transform
from anabranch.ir.ops import Compute, nested


def clamp_indices(module: Module) -> Module:
    """The module, changed in place."""
    for function in module.functions.values():
        for op in nested(function.body):
            if isinstance(op, Compute):
                op.body = transform(op.body, _clamped)
                if op.guard is not None:
                    op.guard = transform(op.guard, _clamped)
    return module


def _clamped(expr: Expr) -> Expr | None:
    match expr:
        case Call("check", (place, Const(int(extent)))):
            return Call("min", (Call("max", (place, integer(0))), integer(extent - 1)))
    return None
