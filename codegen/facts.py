"""What is known of the numbers of a kernel, given its integer arguments.

`fits_in_i32` says whether every index, extent and number that a kernel computes from its axes fits
in 32 bits. `race` says why two points of the grid might store to one place, or nothing: the places
of a tensor must be a mixed-radix number in which every axis of the grid is a digit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from anabranch.codegen.build import Piece
from anabranch.codegen.kernel import (
    Combine,
    Kernel,
    Let,
    Loop,
    Ref,
    Store,
    dtype_of,
    expressions,
    statements,
)
from anabranch.ir.expr import Call, Const, Expr, Var, integer, transform, variables, walk
from anabranch.ir.index import conjuncts, interval
from anabranch.ir.linear import linear

MICRO = 1 << 16  # micro-batches that an argument which counts them is thought to see at most


@dataclass(slots=True)
class Facts:
    """Expressions of one kernel over numbers: `extents` are those of grid axes and loops."""

    kernel: Kernel
    numbers: Mapping[str, int]
    extents: dict[str, int]
    lets: dict[str, Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.extents = dict(self.extents)
        for s in statements(self.kernel.body):
            if isinstance(s, Let):
                self.lets[s.name] = self.resolve(s.value)
            elif isinstance(s, Loop):
                top = self.upper(self.resolve(s.stop))
                if top is not None:
                    self.extents[s.axis] = max(1, top)

    def resolve(self, expr: Expr) -> Expr:
        """The expression over axes and loaded values, which are variables here."""

        def rule(e: Expr) -> Expr | None:
            if not isinstance(e, Ref):
                return None
            if e.name in self.numbers:
                return integer(self.numbers[e.name])
            return self.lets.get(e.name, Var(e.name))

        return transform(expr, rule)

    def upper(self, expr: Expr) -> int | None:
        """The greatest value of a resolved expression, or None where nothing is known."""
        known = interval(expr, self.extents)
        if known is not None:
            return known[1]
        if isinstance(expr, Call) and expr.fn == "min":
            sides = [top for a in expr.args if (top := self.upper(a)) is not None]
            return min(sides, default=None)
        return None

    def is_small(self, expr: Expr) -> bool:
        """Whether a resolved integer expression fits in 32 bits, or has a loaded value in it,
        whose own width decides."""
        if not variables(expr) <= self.extents.keys():
            return True
        bounds = interval(expr, self.extents)
        return bounds is not None and -(2**31) <= bounds[0] <= bounds[1] < 2**31


def facts(piece: Piece, micro: int = 0) -> Facts:
    """What is known of a piece in a micro-batch."""
    numbers = {n: a.base + a.step * micro
               for n, a in zip(piece.kernel.ints, piece.ints, strict=True)}
    extents = {a: max(1, n) for a, n in piece.extents.items()}
    return Facts(piece.kernel, numbers, extents)


def fits_in_i32(piece: Piece) -> bool:
    """Whether 32 bits are enough for what is computed from axes and integer arguments."""
    steps = any(a.step for a in piece.ints)
    return all(_small(facts(piece, micro)) for micro in ((0, MICRO) if steps else (0,)))


def _small(known: Facts) -> bool:
    within = all(-(2**31) <= n < 2**31 for n in known.numbers.values())
    return within and all(
        known.is_small(node)
        for s in statements(known.kernel.body)
        for e in expressions(s)
        for node in walk(known.resolve(e))
        if isinstance(node, Call) and _is_index(node))


def _is_index(node: Call) -> bool:
    """Whether a resolved node is integer arithmetic that axes may be part of."""
    if node.fn in ("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "check"):
        return False
    leaves = [n for n in walk(node) if isinstance(n, (Const, Ref)) and not isinstance(n, Var)]
    return all(dtype_of(n) == "i64" for n in leaves) and bool(variables(node))


# --- races -----------------------------------------------------------------------------------


def race(piece: Piece) -> str:
    """Why two points of the grid might store to one place; empty if they cannot."""
    known = facts(piece)
    axes = [a.name for a in piece.kernel.grid if piece.extents[a.name] > 1]
    seen: dict[str, dict[str, int]] = {}
    for s in _stores(piece.kernel):
        if piece.kernel.tensor(s.tensor).role == "local":
            continue
        form = linear(known.resolve(s.index))
        digits = {**form.terms, **{str(atom): factor for factor, atom in form.atoms}}
        strides = {a: digits.get(a, 0) for a in axes}
        if seen.setdefault(s.tensor, strides) != strides:
            return f"two stores to {s.tensor} are laid out differently"
        why = _collision(digits, axes, {**known.extents, **_limits(known, s.mask)})
        if why:
            return f"{s.tensor}: {why}"
    return ""


def _collision(digits: Mapping[str, int], axes: list[str], extents: Mapping[str, int]) -> str:
    """Why a sum of strides times digits is not a mixed-radix number with every axis in it."""
    below = 0  # the greatest value of the digits so far
    for name, stride in sorted(digits.items(), key=lambda item: abs(item[1])):
        if extents.get(name) == 1:
            continue
        if abs(stride) <= below:
            return f"the places of {name} overlap with those of others"
        if name not in extents and abs(stride) != max(map(abs, digits.values())):
            return f"{name} has no bound"
        below += abs(stride) * (extents.get(name, 1) - 1)
    missing = [a for a in axes if not digits.get(a)]
    return f"the place does not depend on {missing[0]}" if missing else ""


def _limits(known: Facts, mask: Expr | None) -> dict[str, int]:
    """Bounds that a mask gives: `v < n`."""
    found: dict[str, int] = {}
    for term in conjuncts(None if mask is None else known.resolve(mask)):
        match term:
            case Call("lt", (Var(name), Const(value))):
                found[name] = int(value)
    return found


def _stores(kernel: Kernel) -> Iterator[Store | Combine]:
    for s in statements(kernel.body):
        if isinstance(s, (Store, Combine)):
            yield s
