"""The scalar primitives: what a `Call` may name, with arity, dtype rule, cost and derivative.

One table. NumPy evaluation is here too, because it is what the other back ends are judged by.
Derivatives are given as expressions: `derivative(args, result)` returns d result / d arg for every
argument (None: no gradient flows there). Each expression may use the arguments and the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from anabranch.ir.expr import Call, Cast, Const, Expr, Origin, Rand, Read, Var, mul, sub, where
from anabranch.ir.types import is_float

Partials = tuple[Expr | None, ...]
Derivative = Callable[[tuple[Expr, ...], Expr, str], Partials]


@dataclass(frozen=True, slots=True)
class Primitive:
    """`kind` is the dtype rule: same (result as arguments), bool (a comparison), where (as the
    branches), float (as same, arguments must be floats)."""

    arity: int
    kind: str
    flops: int
    evaluate: Callable[..., Any]
    derivative: Derivative | None = None


def _const(value: float, dtype: str) -> Expr:
    return Const(value, dtype)


def _neg(x: Expr) -> Expr:
    return Call("neg", (x,))


def _div(a: Expr, b: Expr) -> Expr:
    return Call("div", (a, b))


def _fn(name: str, *args: Expr) -> Expr:
    return Call(name, args)


TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)
ERF_STEP = 64  # nodes per unit; erf is +-1 to the last bit from 6 on
ERF_NODES = np.array([math.erf(n / ERF_STEP) for n in range(-6 * ERF_STEP, 6 * ERF_STEP + 1)])


def _erf(x: Any) -> Any:
    """By its Taylor series about the nearest node. The terms are those of f = erf', for which
    f' = -2 x f, so that (n + 1) f[n + 1] = -2 (x f[n] + f[n - 1])."""
    array = np.asarray(x)
    bounded = np.clip(array.astype(np.float64), -6.0, 6.0)
    node = np.rint(np.nan_to_num(bounded) * ERF_STEP)
    near = node / ERF_STEP
    total = ERF_NODES[node.astype(np.int64) + 6 * ERF_STEP]
    term: Any = TWO_OVER_SQRT_PI * np.exp(-near * near)
    before: Any = 0.0
    step = bounded - near
    power = step
    for n in range(1, 8):
        total = total + term * power / n
        before, term = term, -2.0 * (near * term + before) / n
        power = power * step
    return total.astype(array.dtype)


def _sign(x: Any) -> Any:
    """Of nan it is 0, as in PyTorch."""
    return np.where(np.isnan(x), np.zeros_like(x), np.sign(x))


def _floordiv(a: Any, b: Any) -> Any:
    """Floor division; by the integer 0 it gives 0 (the surrounding guard discards it)."""
    if np.issubdtype(np.asarray(b).dtype, np.integer):
        zero = np.asarray(b) == 0
        return np.where(zero, 0, np.floor_divide(a, np.where(zero, 1, b)))
    return np.floor_divide(a, b)


def _mod(a: Any, b: Any) -> Any:
    if np.issubdtype(np.asarray(b).dtype, np.integer):
        return np.mod(a, np.where(np.asarray(b) == 0, 1, b))
    return np.mod(a, b)


def _pow(a: Any, b: Any) -> Any:
    """Negative powers of integers are rounded towards 0: those of 1 and -1 are whole."""
    if np.issubdtype(np.asarray(b).dtype, np.integer):
        whole = np.power(a, np.where(np.asarray(b) < 0, np.bitwise_and(b, 1), b))
        return np.where((np.asarray(b) < 0) & (np.abs(a) != 1), 0, whole)
    return np.power(a, b)


def _pow_partials(args: tuple[Expr, ...], y: Expr, d: str) -> Partials:
    """d/da = b a^(b-1), and 0 at b = 0; d/db = y log a, and 0 where a = 0 and b >= 0."""
    a, b = args
    zero = _const(0.0, d)
    if isinstance(b, Const):
        if b.value == 2:
            return mul(_const(2.0, d), a), None
        if b.value == 0:
            return zero, None
        return mul(b, _fn("pow", a, _const(float(b.value) - 1.0, d))), None
    da = where(_fn("eq", b, zero), zero, mul(b, _fn("pow", a, sub(b, _const(1.0, d)))))
    flat = _fn("and", _fn("eq", a, zero), _fn("ge", b, zero))
    return da, where(flat, zero, mul(y, _fn("log", a)))


def _atan2_partials(args: tuple[Expr, ...], _y: Expr, d: str) -> Partials:
    """0 at the origin, which has no angle."""
    a, b = args
    size = _fn("add", _square(a), _square(b))
    nowhere = _fn("eq", size, _const(0.0, d))
    return tuple(where(nowhere, _const(0.0, d), _div(x, size)) for x in (b, _neg(a)))


def _shifted(shift: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A shift of integers; by what is negative or no less than their width, it goes on to the end:
    0, or the sign."""

    def evaluate(a: Any, b: Any) -> Any:
        width = 8 * np.asarray(a).dtype.itemsize
        far = (np.asarray(b) < 0) | (np.asarray(b) >= width)
        return np.where(far, shift(shift(a, width - 1), 1), shift(a, np.where(far, 0, b)))

    return evaluate


def _extremum_partials(order: str) -> Derivative:
    """Ties share the gradient evenly, as in PyTorch's `maximum` and `minimum`."""

    def partials(args: tuple[Expr, ...], _y: Expr, d: str) -> Partials:
        a, b = args
        half, one, zero = _const(0.5, d), _const(1.0, d), _const(0.0, d)
        tie = _fn("eq", a, b)
        return (
            where(tie, half, where(_fn(order, a, b), one, zero)),
            where(tie, half, where(_fn(order, b, a), one, zero)),
        )

    return partials


def _unary(build: Callable[[Expr, Expr, str], Expr]) -> Derivative:
    return lambda args, y, d: (build(args[0], y, d),)


def _square(x: Expr) -> Expr:
    return mul(x, x)


def _one_minus_square(x: Expr, d: str) -> Expr:
    return sub(_const(1.0, d), _square(x))


PRIMITIVES: dict[str, Primitive] = {
    # arithmetic
    "add": Primitive(2, "same", 1, np.add, lambda a, y, d: (_const(1.0, d), _const(1.0, d))),
    "sub": Primitive(2, "same", 1, np.subtract, lambda a, y, d: (_const(1.0, d), _const(-1.0, d))),
    "mul": Primitive(2, "same", 1, np.multiply, lambda a, y, d: (a[1], a[0])),
    "div": Primitive(
        2, "float", 4, np.divide,
        lambda a, y, d: (_div(_const(1.0, d), a[1]), _neg(_div(y, a[1]))),
    ),
    "floordiv": Primitive(2, "same", 4, _floordiv, lambda a, y, d: (None, None)),
    "mod": Primitive(
        2, "same", 4, _mod,
        lambda a, y, d: (_const(1.0, d), _neg(_fn("floordiv", a[0], a[1]))),
    ),
    "pow": Primitive(2, "same", 20, _pow, _pow_partials),
    "neg": Primitive(1, "same", 1, np.negative, _unary(lambda x, y, d: _const(-1.0, d))),
    "abs": Primitive(1, "same", 1, np.abs, _unary(lambda x, y, d: _fn("sign", x))),
    "sign": Primitive(1, "same", 1, _sign, lambda a, y, d: (None,)),
    "min": Primitive(2, "same", 1, np.minimum, _extremum_partials("lt")),
    "max": Primitive(2, "same", 1, np.maximum, _extremum_partials("gt")),
    # transcendental
    "exp": Primitive(1, "float", 16, np.exp, _unary(lambda x, y, d: y)),
    "expm1": Primitive(
        1, "float", 18, np.expm1, _unary(lambda x, y, d: _fn("add", y, _const(1.0, d)))
    ),
    "log": Primitive(1, "float", 16, np.log, _unary(lambda x, y, d: _div(_const(1.0, d), x))),
    "log1p": Primitive(
        1, "float", 18, np.log1p,
        _unary(lambda x, y, d: _div(_const(1.0, d), _fn("add", _const(1.0, d), x))),
    ),
    "sqrt": Primitive(1, "float", 4, np.sqrt, _unary(lambda x, y, d: _div(_const(0.5, d), y))),
    "rsqrt": Primitive(
        1, "float", 4, lambda x: 1 / np.sqrt(x),
        _unary(lambda x, y, d: mul(_const(-0.5, d), _div(y, x))),
    ),
    "sin": Primitive(1, "float", 16, np.sin, _unary(lambda x, y, d: _fn("cos", x))),
    "cos": Primitive(1, "float", 16, np.cos, _unary(lambda x, y, d: _neg(_fn("sin", x)))),
    "tan": Primitive(
        1, "float", 20, np.tan, _unary(lambda x, y, d: _fn("add", _const(1.0, d), _square(y)))
    ),
    "asin": Primitive(
        1, "float", 20, np.arcsin, _unary(lambda x, y, d: _fn("rsqrt", _one_minus_square(x, d)))
    ),
    "acos": Primitive(
        1, "float", 20, np.arccos,
        _unary(lambda x, y, d: _neg(_fn("rsqrt", _one_minus_square(x, d)))),
    ),
    "atan": Primitive(
        1, "float", 20, np.arctan,
        _unary(lambda x, y, d: _div(_const(1.0, d), _fn("add", _const(1.0, d), _square(x)))),
    ),
    "atan2": Primitive(2, "float", 24, np.arctan2, _atan2_partials),
    "sinh": Primitive(1, "float", 20, np.sinh, _unary(lambda x, y, d: _fn("cosh", x))),
    "cosh": Primitive(1, "float", 20, np.cosh, _unary(lambda x, y, d: _fn("sinh", x))),
    "tanh": Primitive(1, "float", 20, np.tanh, _unary(lambda x, y, d: _one_minus_square(y, d))),
    "erf": Primitive(
        1, "float", 20, _erf,
        _unary(lambda x, y, d: mul(_const(TWO_OVER_SQRT_PI, d), _fn("exp", _neg(_square(x))))),
    ),
    # rounding
    "floor": Primitive(1, "float", 1, np.floor, lambda a, y, d: (None,)),
    "ceil": Primitive(1, "float", 1, np.ceil, lambda a, y, d: (None,)),
    "round": Primitive(1, "float", 1, np.rint, lambda a, y, d: (None,)),
    "trunc": Primitive(1, "float", 1, np.trunc, lambda a, y, d: (None,)),
    # the bits of integers
    "bitand": Primitive(2, "same", 1, np.bitwise_and, lambda a, y, d: (None, None)),
    "bitor": Primitive(2, "same", 1, np.bitwise_or, lambda a, y, d: (None, None)),
    "bitxor": Primitive(2, "same", 1, np.bitwise_xor, lambda a, y, d: (None, None)),
    "shl": Primitive(2, "same", 1, _shifted(np.left_shift), lambda a, y, d: (None, None)),
    "shr": Primitive(2, "same", 1, _shifted(np.right_shift), lambda a, y, d: (None, None)),
    # comparisons and logic
    "eq": Primitive(2, "bool", 1, np.equal),
    "ne": Primitive(2, "bool", 1, np.not_equal),
    "lt": Primitive(2, "bool", 1, np.less),
    "le": Primitive(2, "bool", 1, np.less_equal),
    "gt": Primitive(2, "bool", 1, np.greater),
    "ge": Primitive(2, "bool", 1, np.greater_equal),
    "and": Primitive(2, "same", 1, np.logical_and),
    "or": Primitive(2, "same", 1, np.logical_or),
    "not": Primitive(1, "same", 1, np.logical_not),
    "isnan": Primitive(1, "bool", 1, np.isnan),
    "isinf": Primitive(1, "bool", 1, np.isinf),
    # choice: lazy, and its gradient goes to the chosen branch only
    "where": Primitive(3, "where", 1, np.where),
    # value of the first argument; gradient none, or that of the second where there is one
    "stop": Primitive(1, "same", 0, lambda x: x, lambda a, y, d: (None,)),
    "stop_grad": Primitive(2, "same", 0, lambda x, g: x, lambda a, y, d: (None, _const(1.0, d))),
    # an integer subscript that must lie in [0, n): check(i, n) is i, or an error naming the place
    "check": Primitive(2, "same", 1, lambda i, n: i, lambda a, y, d: (None, None)),
}


def dtype_of(expr: Expr, operands: tuple[str, ...]) -> str:
    """The dtype of an expression whose reads go to operands of the given dtypes."""
    match expr:
        case Const(_, dtype) | Cast(dtype, _):
            return dtype
        case Var() | Origin():
            return "i64"
        case Read(operand, _, _):
            return operands[operand]
        case Rand():
            return "f32"
        case Call(fn, args):
            kind = PRIMITIVES[fn].kind
            if kind == "bool":
                return "bool"
            return dtype_of(args[1 if kind == "where" else 0], operands)
    raise TypeError(f"not an expression: {expr!r}")


# What powers by constants become: products, roots.
POWERS = {0.0: 0, 1.0: 0, 2.0: 1, 3.0: 2, 0.5: 4, -0.5: 4}
RANDOM_DRAW = 40


def flops(expr: Expr) -> int:
    """Operations per element, by the tables above. What is written twice counts once, subscripts
    are free."""
    return sum(map(_own_flops, _computed(expr, set())))


def _computed(expr: Expr, found: set[Expr]) -> set[Expr]:
    """The distinct parts of an expression that are worked out, added to `found`."""
    if expr in found:
        return found
    match expr:
        case Call("pow", (base, Const(power))) if power in POWERS:
            found.add(expr)
            _computed(base, found)
        case Call(_, args):
            found.add(expr)
            for arg in args:
                _computed(arg, found)
        case Cast(_, arg):
            _computed(arg, found)
        case Read(_, _, Expr() as pad):
            _computed(pad, found)
        case Rand():
            found.add(expr)
    return found


def _own_flops(expr: Expr) -> int:
    match expr:
        case Call("pow", (_, Const(power))) if power in POWERS:
            return POWERS[power]
        case Call(fn, _):
            return PRIMITIVES[fn].flops
    return RANDOM_DRAW


OF_INTEGERS = frozenset({"bitand", "bitor", "bitxor", "shl", "shr"})


def differentiable(dtype: str) -> bool:
    return is_float(dtype)
