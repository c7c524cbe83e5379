"""Expressions of the kernel language as Triton, with no more parentheses than Python needs to keep
the order of operations: `a + (b - c)` of floats is not `a + b - c`.

Division and square roots of f32 are those of IEEE, where Triton's own are approximate. Values of
f16 and bf16 are float32. What Triton's language lacks is a function of `triton_helpers.py`.
Constants are folded before, so that no operation is left to Triton's compile-time arithmetic; a
literal takes the dtype of the tensor it meets, and is spelled out where it meets none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from anabranch.codegen.kernel import Ref, dtype_of
from anabranch.ir.expr import Call, Cast, Const, Expr, Rand, transform
from anabranch.ir.reference import NUMPY, convert
from anabranch.ir.scalar import PRIMITIVES
from anabranch.ir.types import category, is_float

TYPES = {
    "bool": "int1", "u8": "uint8", "i8": "int8", "u16": "uint16", "i16": "int16",
    "u32": "uint32", "i32": "int32", "u64": "uint64", "i64": "int64",
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
}  # fmt: skip
SIGNATURES = {
    "bool": "i1", "u8": "u8", "i8": "i8", "u16": "u16", "i16": "i16",
    "u32": "u32", "i32": "i32", "u64": "u64", "i64": "i64",
    "f16": "fp16", "bf16": "bf16", "f32": "fp32", "f64": "fp64",
}  # fmt: skip

COMPARE, OR, XOR, AND, SUM, PRODUCT, UNARY, ATOM = 5, 6, 7, 8, 10, 11, 12, 15
INFIX = {
    "eq": ("==", COMPARE), "ne": ("!=", COMPARE), "lt": ("<", COMPARE), "le": ("<=", COMPARE),
    "gt": (">", COMPARE), "ge": (">=", COMPARE), "or": ("|", OR), "and": ("&", AND),
    "bitor": ("|", OR), "bitxor": ("^", XOR), "bitand": ("&", AND),
    "add": ("+", SUM), "sub": ("-", SUM), "mul": ("*", PRODUCT),
}  # fmt: skip
BUILTIN = {"exp", "log", "sin", "cos", "erf", "floor", "ceil"}
EXTREMA = {"max": "maximum", "min": "minimum"}


def computed(dtype: str) -> str:
    """The dtype in which values of `dtype` are computed."""
    return "f32" if dtype in ("f16", "bf16") else dtype


def value_type(dtype: str) -> str:
    """The Triton dtype of a value."""
    return f"tl.{TYPES[computed(dtype)]}"


def literal(c: Const) -> str:
    """A constant as Python text."""
    match category(c.dtype):
        case "bool":
            return str(bool(c.value))
        case "int":
            return str(int(c.value))
    value = float(c.value)
    if math.isnan(value) or math.isinf(value):
        return f'float("{value}")'
    return repr(value)


def typed(c: Const) -> str:
    """A constant that no tensor gives its dtype."""
    small = c.dtype == "i64" and abs(int(c.value)) < 2**31
    plain = small or computed(c.dtype) in ("f32", "i32")
    return literal(c) if plain else f"tl.full([], {literal(c)}, {value_type(c.dtype)})"


def fold(expr: Expr, values: Mapping[str, Const]) -> Expr:
    """The expression with known values put in and operations on constants carried out."""

    def rule(e: Expr) -> Expr | None:
        match e:
            case Ref(name) if name in values:
                return values[name]
            case Call("where", (Const(condition), yes, no)):
                return yes if condition else no
            case Call("and" | "or" as fn, (Const(known), other) | (other, Const(known))):
                return Const(bool(known), "bool") if bool(known) == (fn == "or") else other
            case Call(fn, args) if all(isinstance(a, Const) for a in args):
                return _evaluated(fn, args, dtype_of(e))
            case Cast(dtype, Const(value, source)):
                held: Any = np.asarray(value, NUMPY[computed(source)])
                return Const(convert(held, dtype).item(), dtype)
        return None

    return transform(expr, rule)


def _evaluated(fn: str, args: tuple[Expr, ...], dtype: str) -> Expr:
    values = [NUMPY[computed(a.dtype)](a.value) for a in args if isinstance(a, Const)]
    with np.errstate(all="ignore"):
        result: Any = np.asarray(PRIMITIVES[fn].evaluate(*values)).astype(NUMPY[computed(dtype)])
    return Const(result.item(), dtype)


def write(expr: Expr, place: Mapping[str, str], level: int = 0) -> str:
    """The expression, in parentheses if it binds no tighter than `level`."""
    text, own = _write(expr, place)
    return text if own > level else f"({text})"


def _write(expr: Expr, place: Mapping[str, str]) -> tuple[str, int]:
    match expr:
        case Ref(name):
            return place.get(name, name), ATOM
        case Const():
            text = literal(expr) if abs(expr.value) < 2**31 or is_float(expr.dtype) else typed(expr)
            return text, UNARY if text.startswith("-") else ATOM
        case Cast(dtype, arg):
            return _cast(dtype, arg, place)
        case Rand(kind, stream, seed, step, counter):
            inner = ", ".join(write(e, place) for e in (seed, step, counter))
            return f"ab_{kind}({inner}, {stream})", ATOM
        case Call("where", (condition, yes, no)):
            return _where(condition, yes, no, place), ATOM
        case Call(fn, args):
            return _call(fn, args, place)
    raise TypeError(f"not an expression of a kernel: {expr!r}")


def argument(expr: Expr, place: Mapping[str, str]) -> str:
    """An argument of a function that gives it no dtype."""
    return typed(expr) if isinstance(expr, Const) else write(expr, place)


def _where(condition: Expr, yes: Expr, no: Expr, place: Mapping[str, str]) -> str:
    first, second = argument(yes, place), argument(no, place)
    return f"tl.where({write(condition, place)}, {first}, {second})"


def _cast(dtype: str, arg: Expr, place: Mapping[str, str]) -> tuple[str, int]:
    source = dtype_of(arg)
    if dtype == "bool":
        return f"{write(arg, place, COMPARE)} != 0", COMPARE
    if dtype in ("f16", "bf16"):
        exact = computed(source) == "f32" or (source == "f64" and dtype == "f16")
        held = arg if exact else Cast("f32", arg)
        narrow = f"tl.cast({write(held, place)}, tl.{TYPES[dtype]})"
        return f"{narrow}.to(tl.float32)", ATOM
    if computed(source) == computed(dtype) != "i64":
        return _write(arg, place)
    return f"tl.cast({argument(arg, place)}, {value_type(dtype)})", ATOM


def _call(fn: str, args: tuple[Expr, ...], place: Mapping[str, str]) -> tuple[str, int]:
    dtype = computed(dtype_of(args[0]))
    if fn in INFIX:
        return _infix(fn, args, place)
    if fn == "pow" and isinstance(args[1], Const):
        short = _power(args[0], float(args[1].value), place)
        if short is not None:
            return short
    if fn == "neg":
        return f"-{write(args[0], place, UNARY)}", UNARY
    if fn == "not":  # `~` of a scalar is not a condition in Triton's interpreter
        return f"{write(args[0], place, COMPARE)} == 0", COMPARE
    inner = ", ".join(argument(a, place) for a in args)
    if is_float(dtype):
        return _float_call(fn, args, dtype, inner, place)
    if fn in ("floor", "ceil", "round", "trunc"):
        return _write(args[0], place)
    if fn in EXTREMA:
        return f"tl.{EXTREMA[fn]}({inner})", ATOM
    return (f"tl.abs({inner})" if fn == "abs" else f"ab_int_{fn}({inner})"), ATOM


def _float_call(fn: str, args: tuple[Expr, ...], dtype: str, inner: str,
                place: Mapping[str, str]) -> tuple[str, int]:
    if fn in EXTREMA:
        return f"tl.{EXTREMA[fn]}({inner}, propagate_nan=tl.PropagateNan.ALL)", ATOM
    if fn == "div" and dtype == "f64":
        left, right = write(args[0], place, PRODUCT - 1), write(args[1], place, PRODUCT)
        return f"{left} / {right}", PRODUCT
    if fn == "div":
        return f"tl.div_rn({inner})", ATOM
    if fn == "sqrt":
        return f"tl.sqrt{'' if dtype == 'f64' else '_rn'}({inner})", ATOM
    if fn == "abs" or fn in BUILTIN:
        return f"tl.{fn}({inner})", ATOM
    return f"ab_{fn}({inner})", ATOM


def _infix(fn: str, args: tuple[Expr, ...], place: Mapping[str, str]) -> tuple[str, int]:
    sign, level = INFIX[fn]
    left = write(args[0], place, level if level == COMPARE else level - 1)
    apart = fn == "sub" or level == COMPARE or is_float(dtype_of(args[0]))  # floats: a + (b + c)
    right = write(args[1], place, level if apart else level - 1)
    return f"{left} {sign} {right}", level


def _power(base: Expr, exponent: float, place: Mapping[str, str]) -> tuple[str, int] | None:
    """Small integer powers of a plain name, and square roots."""
    if exponent in (0.5, -0.5) and is_float(dtype_of(base)):
        root = Call("sqrt", (base,))
        return _write(root if exponent > 0 else Call("rsqrt", (base,)), place)
    if exponent in (1.0, 2.0, 3.0) and isinstance(base, Ref):
        return " * ".join([write(base, place)] * int(exponent)), PRODUCT
    return None
