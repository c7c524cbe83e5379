"""What the statements of a kernel's body update, store and need: what decides their order."""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.codegen.kernel import Dot, Statement, Store, Update, names, statements, uses
from anabranch.ir.expr import Expr


def updated(s: Statement) -> set[str]:
    """The accumulators that a statement, or one inside of it, updates."""
    return {u.name for u in statements((s,)) if isinstance(u, (Update, Dot))}


def stores(s: Statement) -> bool:
    """Whether a statement, or one inside of it, stores to memory."""
    return any(isinstance(inner, Store) for inner in statements((s,)))


def cone(body: Iterable[Statement], factor: Expr) -> list[Statement]:
    """The statements of a body that an expression needs, in order."""
    wanted, found = names(factor), []
    for s in reversed(list(body)):
        if getattr(s, "name", "") in wanted and not isinstance(s, (Dot, Update)):
            wanted |= uses(s)
            found.append(s)
    return found[::-1]
