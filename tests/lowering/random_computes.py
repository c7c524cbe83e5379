"""Hypothesis strategies for computes of any structure: merged and strided and reversed subscripts,
`//` and `%`, pads, guards, scatters, indirect reads, and bodies of whatever primitives."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from anabranch.ir.core import Value
from anabranch.ir.expr import (
    Call,
    Cast,
    Const,
    Expr,
    Read,
    Var,
    add,
    call,
    integer,
    mul,
    sub,
    where,
)
from anabranch.ir.index import interval
from anabranch.ir.ops import Compute
from anabranch.ir.types import tensor

LITERALS = (-2.0, -0.5, 0.0, 1.0, 3.0)


def literal(value: float) -> Const:
    return Const(value, "f32")


@dataclass
class _Drawing:
    """One compute being drawn: the variables with their extents, and the operands so far."""

    draw: st.DrawFn
    extents: dict[str, int]
    operands: list[Value] = field(default_factory=list)

    def choose(self, options: object) -> object:
        return self.draw(st.sampled_from(list(options)))

    def subscript(self) -> Expr:
        if not self.extents:
            return integer(self.draw(st.integers(0, 2)))
        name = self.choose(self.extents)
        v, extent = Var(name), self.extents[name]
        other = self.choose(self.extents)
        return self.choose([
            v, v, v, v, add(v, integer(2)), sub(v, integer(1)), mul(v, integer(2)),
            add(mul(v, integer(max(self.extents[other], 1))), Var(other)), add(v, Var(other)),
            sub(integer(max(extent - 1, 0)), v), Call("floordiv", (v, integer(2))),
            Call("mod", (v, integer(2))), Call("mod", (add(v, integer(1)), integer(3))), integer(1),
        ])

    def read(self) -> Expr:
        """An operand read at fresh subscripts; often again at others, where it is in range."""
        if self.operands and self.draw(st.integers(0, 3)) == 0:
            number = self.draw(st.integers(0, len(self.operands) - 1))
            if self.operands[number].type.dtype == "f32":
                again = tuple(self.subscript() for _ in self.operands[number].type.shape)
                return Read(number, again, literal(self.choose(LITERALS)))
        if self.draw(st.integers(0, 5)) == 0:
            return self.indirect()
        subscripts, shape, inside = [], [], True
        for _ in range(self.draw(st.integers(0, 2))):
            subscripts.append(self.subscript())
            reach = interval(subscripts[-1], self.extents) or (0, 0)
            shape.append(max(reach[1] + 1 + self.draw(st.sampled_from([0, 0, 0, 1, -1])), 0))
            inside = inside and reach[0] >= 0 and reach[1] < shape[-1]
        pad = None if inside and self.draw(st.booleans()) else literal(self.choose(LITERALS))
        return Read(self.operand("x", "f32", shape), tuple(subscripts), pad)

    def indirect(self) -> Expr:
        """An element of a table by its number."""
        subscript = self.subscript()
        low, high = interval(subscript, self.extents) or (0, 0)
        ids = self.operand("ids5", "i64", [max(high + 1, 0)])
        place = Read(ids, (subscript,), integer(0) if low < 0 else None)
        table = self.operand("t", "f32", [5])
        return Read(table, (Call("check", (place, integer(5))),))

    def operand(self, name: str, dtype: str, shape: list[int]) -> int:
        self.operands.append(Value(tensor(dtype, tuple(shape)), name))
        return len(self.operands) - 1

    def body(self, depth: int) -> Expr:
        kind = self.draw(st.integers(0, 9)) if depth else 0
        if kind <= 3:
            return self.read()
        if kind == 4:
            return literal(self.choose(LITERALS))
        if kind == 5 and self.extents:
            return Cast("f32", Var(self.choose(self.extents)))
        if kind == 6:
            return where(self.condition(), self.body(depth - 1), self.body(depth - 1))
        if kind == 7:
            fn = self.choose(("neg", "abs", "tanh", "floor", "sign"))
            return call(fn, self.body(depth - 1))
        fn = self.choose(("add", "sub", "mul", "max", "min", "add", "mul"))
        return call(fn, self.body(depth - 1), self.body(depth - 1))

    def condition(self) -> Expr:
        if not self.extents or self.draw(st.booleans()):
            return call("gt", self.read(), literal(0.0))
        a, b = Var(self.choose(self.extents)), Var(self.choose(self.extents))
        return call(self.choose(("le", "ne", "lt")), a, b)


@st.composite
def computes(draw: st.DrawFn) -> Compute:
    """A compute over up to three result and two reduced variables."""
    extent = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 0])
    result = [f"r{i}" for i in range(draw(st.integers(0, 3)))]
    reduce = draw(st.sampled_from(["", "sum", "sum", "max", "min", "prod", "argmax"]))
    most = 1 if reduce == "argmax" else 2
    reduced = [f"k{i}" for i in range(draw(st.integers(1, most)) if reduce else 0)]
    extents = {name: draw(extent) for name in (*result, *reduced)}
    drawing = _Drawing(draw, extents)
    body = drawing.body(2)
    guard = None
    if reduce and draw(st.integers(0, 2)) == 0:
        guard = drawing.condition()
        if result and draw(st.booleans()):
            place = Read(drawing.operand("ids5", "i64", [extents[reduced[0]]]), (Var(reduced[0]),))
            guard = call("and", call("eq", place, Var(draw(st.sampled_from(result)))), guard)
    dtype = "i64" if reduce == "argmax" else "f32"
    return Compute(drawing.operands, dtype, list(extents.items()), draw(_merged(result)), body,
                   reduce=reduce, reduced=reduced, guard=guard, name="r")


@st.composite
def _merged(draw: st.DrawFn, names: list[str]) -> list[tuple[str, ...]]:
    """The variables in order as dimensions, some of them merged."""
    dims: list[tuple[str, ...]] = []
    for name in names:
        if dims and draw(st.integers(0, 2)) == 0:
            dims[-1] = (*dims[-1], name)
        else:
            dims.append((name,))
    return dims
