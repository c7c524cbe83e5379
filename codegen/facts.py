"""What is known of the numbers of a kernel, given its integer arguments.

`fits_in_i32` says whether every index, extent and number that a kernel computes from its axes fits
in 32 bits; `all_extents` adds the extents of loops to those of the grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from anabranch.codegen.kernel import (
    Kernel,
    Let,
    Loop,
    Ref,
    Sort,
    Statement,
    dtype_of,
    expressions,
    statements,
)
from anabranch.codegen.scope import Piece
from anabranch.ir.expr import (
    Call,
    Const,
    Expr,
    Var,
    add,
    children,
    integer,
    mul,
    transform,
    variables,
    walk,
)
from anabranch.ir.index import interval

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
                if top is not None:  # of several loops over an axis the longest counts
                    self.extents[s.axis] = max(top, self.extents.get(s.axis, 1))

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
        """Whether a resolved integer expression fits in 32 bits, or is computed of a loaded value,
        whose own width decides."""
        used = {node.name for node in _computed_of(expr) if isinstance(node, Var)}
        if not used <= self.extents.keys():
            return True
        bounds = interval(expr, self.extents)
        return bounds is not None and -(2**31) <= bounds[0] <= bounds[1] < 2**31


def facts(piece: Piece, micro: int = 0) -> Facts:
    """What is known of a piece in a micro-batch."""
    numbers = {n: a.base + a.step * micro
               for n, a in zip(piece.kernel.ints, piece.ints, strict=True)}
    extents = {a: max(1, n) for a, n in piece.extents.items()}
    return Facts(piece.kernel, numbers, extents)


def all_extents(piece: Piece) -> dict[str, int]:
    """The extents of grid axes and, as far as they are known, of loops."""
    return {**facts(piece).extents, **piece.extents}


def fits_in_i32(piece: Piece) -> bool:
    """Whether 32 bits are enough for what is computed from axes and integer arguments."""
    steps = any(a.step for a in piece.ints)
    return all(_small(facts(piece, micro)) for micro in ((0, MICRO) if steps else (0,)))


def _small(known: Facts) -> bool:
    within = all(-(2**31) <= n < 2**31 for n in known.numbers.values())
    return within and all(
        known.is_small(node)
        for s in statements(known.kernel.body)
        for e in (*expressions(s), *_reached(s))
        for node in walk(known.resolve(e))
        if isinstance(node, Call) and _is_index(node))


def _computed_of(expr: Expr) -> Iterator[Expr]:
    """The nodes that an expression is computed of, without those of conditions."""
    yield expr
    chooses = isinstance(expr, Call) and expr.fn == "where"
    for part in children(expr)[chooses:]:
        yield from _computed_of(part)


def _reached(s: Statement) -> tuple[Expr, ...]:
    """The places just behind those that a statement walks over."""
    walks = s.walks if isinstance(s, Sort) else ()
    return tuple(add(first, mul(count, by)) for _, first, by, count in walks)


def _is_index(node: Call) -> bool:
    """Whether a resolved node is integer arithmetic that axes may be part of."""
    if node.fn in ("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "check"):
        return False
    leaves = [n for n in _computed_of(node)
              if isinstance(n, (Const, Ref)) and not isinstance(n, Var)]
    return all(dtype_of(n) == "i64" for n in leaves) and bool(variables(node))
