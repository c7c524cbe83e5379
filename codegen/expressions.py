"""Expressions of a clause as expressions of a kernel, with the loads and checks they need.

Loads are masked where a `where`, a guard or a pad decides whether they happen and bounds alone do
not prove them harmless, or where the target would spare them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import reduce

from anabranch.codegen.analysis import may_leave, provable
from anabranch.codegen.kernel import Check, Ref, dtype_of, names
from anabranch.codegen.names import both, negated
from anabranch.codegen.scope import Scope
from anabranch.ir.core import Value
from anabranch.ir.diagnostics import CompilerBug
from anabranch.ir.expr import (
    FALSE,
    TRUE,
    Call,
    Cast,
    Const,
    Expr,
    Origin,
    Rand,
    Read,
    Var,
    integer,
    where,
)
from anabranch.ir.index import conjuncts
from anabranch.ir.launch import IntArg
from anabranch.ir.linear import linear, place
from anabranch.ir.ops import identity
from anabranch.ir.scalar import PRIMITIVES
from anabranch.ir.types import TensorType, accumulator

SOME_WORK = 4  # operations of a call that is worth a name of its own outside of a loop


class Expressions(Scope):
    @abstractmethod
    def value(self, i: int) -> Expr:
        """The value of clause i at the current element, or of the current row."""

    def lower(self, expr: Expr, at: int, mask: Expr | None) -> Expr:
        if expr in self.facts:
            return TRUE if self.facts[expr] else FALSE
        match expr:
            case Const(value, dtype):
                return self.numbers.number(int(value)) if dtype == "i64" else expr
            case Var(name):
                return self.axis[name]
            case Origin(base, step):
                return self.numbers.argument(IntArg(base, step), "origin")
            case Cast(dtype, arg):
                return Cast(dtype, self.lower(arg, at, mask))
            case Rand(kind, stream, seed, step, counter):
                place = self.index(linear(counter), at, mask)
                return Rand(kind, stream, self.lower(seed, at, mask), self.lower(step, at, mask),
                            place)
            case Read():
                return self._read(expr, at, mask)
            case Call():
                return self._call(expr, at, mask)
        raise CompilerBug(f"not an expression: {expr!r}")

    def _call(self, call: Call, at: int, mask: Expr | None) -> Expr:
        match call:
            case Call("where", (condition, yes, no)):
                return self._where(condition, yes, no, at, mask)
            case Call("and" | "or" as fn, (a, b)):
                return self._logic(fn, a, b, at, mask)
            case Call("check", (value, bound)):
                return self._check(value, bound, at, mask)
            case Call("not", (arg,)):
                return negated(self.lower(arg, at, mask))
            case Call("stop" | "stop_grad", args):
                return self.lower(args[0], at, mask)
        return self._hoisted(Call(call.fn, tuple(self.lower(a, at, mask) for a in call.args)))

    def _hoisted(self, value: Call) -> Expr:
        """What does not depend on a loop and is some work is done before it. A division stays one:
        the reciprocal of a very small number is infinite, and 0 times that is nan."""
        if self.inner is None or dtype_of(value) not in ("f32", "f64"):
            return value
        steady = not names(value) & self.inner_names
        return self._once(value) if steady and PRIMITIVES[value.fn].flops >= SOME_WORK else value

    def _once(self, value: Expr) -> Expr:
        known = self._known(value)
        return self._remember(value, self.let("t", value)) if known is None else known

    def _where(self, condition: Expr, yes: Expr, no: Expr, at: int, mask: Expr | None) -> Expr:
        chosen = self.lower(condition, at, mask)
        if isinstance(chosen, Const):
            return self.lower(yes if chosen.value else no, at, mask)
        return where(chosen, self.lower(yes, at, both(mask, chosen)),
                     self.lower(no, at, both(mask, negated(chosen))))

    def _logic(self, fn: str, a: Expr, b: Expr, at: int, mask: Expr | None) -> Expr:
        first = self.lower(a, at, mask)
        if isinstance(first, Const):
            settled = bool(first.value) == (fn == "or")
            return first if settled else self.lower(b, at, mask)
        second = self.lower(b, at, both(mask, first if fn == "and" else negated(first)))
        if isinstance(second, Const):
            return second if bool(second.value) == (fn == "or") else first
        return Call(fn, (first, second))

    def _check(self, value: Expr, bound: Expr, at: int, mask: Expr | None) -> Expr:
        place, size = self.lower(value, at, mask), self.lower(bound, at, mask)
        key = ("check", place, size, mask)
        known = self._known(key)
        if known is not None:
            return known
        name = self.names.fresh("at")
        self.emit(Check(name, place, size, mask), name)
        return self._remember(key, Ref(name))

    def _read(self, read: Read, at: int, mask: Expr | None) -> Expr:
        c = self.space.clauses[at]
        operand = c.operands[read.operand]
        home = self.homes.get(operand)
        if home is not None:
            return self.value(home)
        shape = operand.type.shape
        if 0 in shape:
            return self._of_nothing(read, operand.type, at, mask)
        inside = self._inside(read, shape, at, mask)
        needed, other = both(mask, inside) if inside is not None else None, None
        if inside is not None and read.pad is not None:
            other = self.lower(read.pad, at, both(mask, negated(inside)))
        index = self.index(place(read.subscripts, shape), at, mask)
        if read.pad is None:
            harmless = provable(read, shape, self.space.extents)
            needed = self._sparing(read, operand, index, mask) if harmless else mask
        tensor = self.pointer(operand, "scratch" if operand in self.scratch else "in")
        return self.load(operand.name or "v", tensor, index, needed, other)

    def _sparing(self, read: Read, operand: Value, index: Expr, mask: Expr | None) -> Expr | None:
        """What of a mask spares a harmless load work. Conditions on values would break vectors, and
        those on lanes or loops that the index is not made of would have it done more often."""
        if not self.scheme.spare or (operand, read.subscripts) not in self.once:
            return None
        lanes = self.grid[-1:] if self.scheme.lanes == "grid" else []
        spread = {ref.name for ref in (*lanes, *self.loops)} - names(index)
        plain = {*self.numbers.args, *(ref.name for ref in self.axis.values())} - spread
        return reduce(both, (c for c in conjuncts(mask) if names(c) <= plain), None)

    def _of_nothing(self, read: Read, type: TensorType, at: int, mask: Expr | None) -> Expr:
        """A read of an empty tensor: its pad, or 0 where no index is right, which a check tells."""
        self.index(place(read.subscripts, type.shape), at, mask)
        kept = accumulator(type.dtype)
        return Const(identity("sum", kept), kept) if read.pad is None else \
            self.lower(read.pad, at, mask)

    def _inside(self, read: Read, shape: Sequence[int], at: int, mask: Expr | None) -> Expr | None:
        """The condition that a read with a pad stays inside; None if it always does."""
        if read.pad is None:
            return None
        condition: Expr | None = None
        for subscript, size in zip(read.subscripts, shape, strict=True):
            condition = both(condition, self.within(subscript, size, at, mask))
        return condition

    def within(self, subscript: Expr, size: int, at: int, mask: Expr | None) -> Expr:
        """The condition that a subscript is in [0, size), as far as bounds do not prove it."""
        low, high = may_leave(subscript, size, self.space.extents)
        condition: Expr = TRUE
        if low or high:
            place = self.lower(subscript, at, mask)
            parts = [Call("ge", (place, integer(0)))] if low else []
            parts += [Call("lt", (place, self.numbers.number(size)))] if high else []
            condition = parts[0] if len(parts) == 1 else Call("and", tuple(parts))
        return condition
