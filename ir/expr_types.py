"""Whether an expression makes sense over given operands and index variables, and its dtype.

Beyond dtypes and counts it checks places: a read that is evaluated for every element, has no pad
and has affine subscripts must stay inside its operand. (Reads under a guard or a `where` may point
outside where they are not chosen; other subscripts are checked when the program runs.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.ir.expr import Call, Cast, Const, Expr, Origin, Rand, Read, Var
from anabranch.ir.index import affine
from anabranch.ir.printer import RANDOM_CALLS, print_expr
from anabranch.ir.scalar import OF_INTEGERS, PRIMITIVES
from anabranch.ir.types import DTYPES, TensorType, category, integers, is_float

LOGICAL = ("and", "or", "not")  # of bool only; everything that computes is of numbers only
ANY_DTYPE = ("eq", "ne", "lt", "le", "gt", "ge", "stop", "stop_grad", "min", "max")


class ExprFault(Exception):
    """What is wrong with an expression."""


@dataclass(slots=True)
class ExprTypes:
    """The surroundings of an expression. `micros` are the first and the last micro-batch where
    origins are allowed, and empty elsewhere. `lazy` is set where a guard chooses elements."""

    operands: Sequence[TensorType]
    extents: Mapping[str, int]
    micros: tuple[int, ...] = ()
    lazy: bool = False

    def dtype(self, expr: Expr) -> str:
        """The dtype of a correct expression."""
        return _RULES[type(expr)](self, expr)

    def _const(self, expr: Const) -> str:
        value, dtype = expr.value, expr.dtype
        if dtype not in DTYPES:
            raise ExprFault(f"'{dtype}' is not a dtype")
        if isinstance(value, bool) != (dtype == "bool") or not _fits(value, dtype):
            raise ExprFault(f"{value!r} is no value of {dtype}")
        return dtype

    def _var(self, expr: Var) -> str:
        if expr.name not in self.extents:
            raise ExprFault(f"variable '{expr.name}' is not bound")
        return "i64"

    def _origin(self, _expr: Origin) -> str:
        if not self.micros:
            raise ExprFault("an origin stands in a program for all ranks")
        return "i64"

    def _cast(self, expr: Cast) -> str:
        if expr.dtype not in DTYPES:
            raise ExprFault(f"'{expr.dtype}' is not a dtype")
        self.dtype(expr.arg)
        return expr.dtype

    def _rand(self, expr: Rand) -> str:
        if expr.kind not in RANDOM_CALLS or expr.stream < 0:
            raise ExprFault(f"there is no random stream '{expr.kind}' {expr.stream}")
        for part in (expr.seed, expr.step, expr.counter):
            if self.dtype(part) != "i64":
                raise ExprFault("seed, step and counter of a random draw are i64")
        return "f32"

    def _read(self, expr: Read) -> str:
        if not 0 <= expr.operand < len(self.operands):
            raise ExprFault(f"operand {expr.operand} is read, there are {len(self.operands)}")
        type = self.operands[expr.operand]
        if len(expr.subscripts) != len(type.shape):
            raise ExprFault(f"{len(expr.subscripts)} subscripts for {type}")
        if expr.pad is not None and self.dtype(expr.pad) != type.dtype:
            raise ExprFault(f"the pad of a read of {type} is {self.dtype(expr.pad)}")
        free = self.lazy or expr.pad is not None
        for subscript, size in zip(expr.subscripts, type.shape, strict=True):
            if category(self.dtype(subscript)) != "int":
                raise ExprFault(f"a subscript is {self.dtype(subscript)}, not an integer")
            if not free and not self._inside(subscript, size):
                raise ExprFault(f"subscript {print_expr(subscript, ())} leaves [0, {size})")
        return type.dtype

    def _inside(self, subscript: Expr, size: int) -> bool:
        """Whether the subscript stays in [0, size), as far as that can be told."""
        if isinstance(subscript, Var):
            return self.extents[subscript.name] <= size
        if not all(self.extents.values()):
            return True  # nothing is evaluated
        forms = (affine(subscript, micro) for micro in self.micros or (None,))
        reach = [form.bounds(self.extents) for form in forms if form is not None]
        return all(low >= 0 and high < size for low, high in reach)

    def _call(self, expr: Call) -> str:
        fn, args = expr.fn, expr.args
        primitive = PRIMITIVES.get(fn)
        if primitive is None:
            raise ExprFault(f"there is no primitive '{fn}'")
        if len(args) != primitive.arity:
            raise ExprFault(f"'{fn}' has {len(args)} arguments")
        if primitive.kind == "where":
            return self._choice(args)
        dtypes = [self.dtype(arg) for arg in args]
        dtype = dtypes[0]
        if dtypes[-1] != dtype:
            raise ExprFault(f"the arguments of '{fn}' are {' and '.join(dtypes)}")
        if not _accepts(fn, primitive.kind, dtype):
            raise ExprFault(f"'{fn}' does not take {dtype}")
        return "bool" if primitive.kind == "bool" else dtype

    def _choice(self, args: tuple[Expr, ...]) -> str:
        condition, yes, no = args
        if self.dtype(condition) != "bool":
            raise ExprFault(f"the condition of 'where' is {self.dtype(condition)}")
        branch = ExprTypes(self.operands, self.extents, self.micros, lazy=True)
        dtype, other = branch.dtype(yes), branch.dtype(no)
        if dtype != other:
            raise ExprFault(f"the branches of 'where' are {dtype} and {other}")
        return dtype


def _accepts(fn: str, kind: str, dtype: str) -> bool:
    if kind == "float" or fn in ("isnan", "isinf"):
        return is_float(dtype)
    if fn in LOGICAL:
        return dtype == "bool"
    if fn == "check" or fn in OF_INTEGERS:
        return category(dtype) == "int"
    return dtype != "bool" or fn in ANY_DTYPE


def _fits(value: float | int | bool, dtype: str) -> bool:
    if category(dtype) != "int":
        return True
    return isinstance(value, int) and value in integers(dtype)


_RULES: dict[type[Expr], Callable[[ExprTypes, Any], str]] = {
    Const: ExprTypes._const, Var: ExprTypes._var, Origin: ExprTypes._origin,
    Cast: ExprTypes._cast, Rand: ExprTypes._rand, Read: ExprTypes._read, Call: ExprTypes._call,
}
