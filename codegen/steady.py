"""Conditions in a loop over lanes that are the same for all lanes: asked once, before the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from anabranch.codegen.kernel import Combine, Let, Load, Statement, Store, Update, names
from anabranch.ir.expr import Call, Expr
from anabranch.ir.index import conjuncts


def steady_condition(body: Sequence[Statement], laned: set[str]) -> Expr | None:
    """What must hold for any of the statements to have an effect, as far as no name of `laned`
    goes into it; None where that is nothing, or where an effect is of another kind."""
    effects = [s for s in body if isinstance(s, (Update, Store, Combine))]
    if not effects or any(not isinstance(s, (Update, Store, Combine, Load, Let)) for s in body):
        return None
    masks = [conjuncts(s.mask) for s in effects]
    common = [c for c in masks[0] if not names(c) & laned and all(c in mask for mask in masks)]
    return _all(common)


def under(condition: Expr, s: Statement) -> Statement:
    """The statement where the condition is known to hold."""
    if not isinstance(s, (Update, Store, Combine, Load)) or s.mask is None:
        return s
    known = conjuncts(condition)
    return replace(s, mask=_all([c for c in conjuncts(s.mask) if c not in known]))


def _all(conditions: Sequence[Expr]) -> Expr | None:
    return reduce(lambda a, b: Call("and", (a, b)), conditions) if conditions else None
