"""Random functions whose statements share axes, so that fusion has something to decide."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from anabranch.ir.core import Function, Value
from anabranch.ir.expr import Call, Const, Expr, Read, Var, add, call, integer, mul, sub, where
from anabranch.ir.ops import Compute, Return
from anabranch.ir.types import tensor

SIZES = st.sampled_from((1, 2, 3, 5, 17, 40, 0))


@st.composite
def groups(draw: Any) -> Function:
    """Statements over the axes (a, b) and (c, d): elementwise, per row, or reducing to a row."""
    return _Group(draw).function()


class _Group:
    def __init__(self, draw: Any) -> None:
        self.draw = draw
        rows = draw(st.integers(0, 2))
        columns = draw(st.integers(0, 2)) if rows else draw(st.integers(1, 2))
        self.sizes = {v: draw(SIZES) for v in ("a", "b")[:rows] + ("c", "d")[:columns]}
        self.rows = tuple(v for v in self.sizes if v in "ab")
        self.columns = tuple(v for v in self.sizes if v in "cd")
        self.made = Function("f")
        self.known: list[tuple[Value, tuple[str, ...]]] = []

    def function(self) -> Function:
        everything = self.rows + self.columns
        for n in range(self.draw(st.integers(1, 3))):
            axes = everything if n == 0 else self.draw(
                st.sampled_from((everything, self.rows, self.columns, everything[::-1])))
            shape = tuple(self.sizes[v] for v in axes)
            self.known.append((self.made.add_argument(f"x{n}", tensor("f32", shape)), axes))
        results = [self.statement() for _ in range(self.draw(st.integers(2, 7)))]
        kept = [r for r in results if not r.uses or self.draw(st.booleans())]
        self.made.body.append(Return(kept))
        return self.made

    def statement(self) -> Value:
        kind = self.draw(st.sampled_from(("each", "each", "row", "sum", "max", "min", "sum")))
        reads: list[Value] = []
        everything = self.rows + self.columns
        axes = self.rows if kind == "row" else everything
        body = self.expression(reads, axes, 2)
        guarded = kind in ("sum", "max") and self.draw(st.booleans())
        guard = self.condition(axes) if guarded else None
        reduced = self.columns if kind in ("sum", "max", "min") else ()
        result = tuple(v for v in axes if v not in reduced)
        if kind == "each" and self.draw(st.integers(0, 5)) == 0:
            result = result[::-1]
        op = Compute(reads, "f32", [(v, self.sizes[v]) for v in result + reduced],
                     [(v,) for v in result], body, reduce=kind if reduced else "",
                     reduced=reduced, guard=guard, name=f"y{len(self.known)}")
        self.made.body.append(op)
        self.known.append((op.result, result))
        return op.result

    def expression(self, reads: list[Value], axes: tuple[str, ...], depth: int) -> Expr:
        shape = self.draw(st.sampled_from(("read", "read", "unary", "binary", "where", "const")))
        if depth == 0 or shape == "read":
            return self.read(reads, axes)
        inner = [self.expression(reads, axes, depth - 1) for _ in range(2)]
        match shape:
            case "unary":
                return call(self.draw(st.sampled_from(("tanh", "neg", "abs", "erf"))), inner[0])
            case "where":
                return where(self.condition(axes), *inner)
            case "const":
                return mul(inner[0], Const(self.draw(st.sampled_from((0.5, -2.0, 3.0))), "f32"))
        return self.draw(st.sampled_from((add, sub, mul)))(*inner)

    def read(self, reads: list[Value], axes: tuple[str, ...]) -> Expr:
        possible = [(v, a) for v, a in self.known if set(a) <= set(axes)]
        if not possible:
            return Const(1.5, "f32")
        value, names = self.draw(st.sampled_from(possible))
        if value not in reads:
            reads.append(value)
        return Read(reads.index(value), tuple(map(Var, names)))

    def condition(self, axes: tuple[str, ...]) -> Expr:
        if not axes:
            return Const(True, "bool")
        a, b = (self.draw(st.sampled_from(axes)) for _ in range(2))
        offset = self.draw(st.integers(-2, 2))
        fn = self.draw(st.sampled_from(("le", "lt", "ge", "gt")))
        return Call(fn, (Var(a), add(Var(b), integer(offset))))
