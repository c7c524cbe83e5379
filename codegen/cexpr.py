"""Expressions of the kernel language as C, with no more parentheses than C needs to keep the order
of operations: `a + (b - c)` of floats is not `a + b - c`.

Values of f16 and bf16 are floats; memory holds their bits. Booleans are 0 or 1. Integers narrower
than C's `int` are brought back to their width after every operation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from anabranch.codegen.kernel import Ref, dtype_of
from anabranch.ir.expr import Call, Cast, Const, Expr, Rand
from anabranch.ir.types import category, integers, is_float, itemsize

MEMORY = {
    "bool": "uint8_t", "u8": "uint8_t", "i8": "int8_t", "u16": "uint16_t", "i16": "int16_t",
    "u32": "uint32_t", "i32": "int32_t", "u64": "uint64_t", "i64": "int64_t",
    "f16": "uint16_t", "bf16": "uint16_t", "f32": "float", "f64": "double",
}  # fmt: skip
VALUE = {**MEMORY, "bool": "int32_t", "f16": "float", "bf16": "float"}

# fn -> (sign, level); a higher level binds tighter
INFIX = {
    "or": ("|", 5), "and": ("&", 7), "bitor": ("|", 5), "bitxor": ("^", 6), "bitand": ("&", 7),
    "eq": ("==", 8), "ne": ("!=", 8), "lt": ("<", 9),
    "le": ("<=", 9), "gt": (">", 9), "ge": (">=", 9), "add": ("+", 11), "sub": ("-", 11),
    "mul": ("*", 12), "div": ("/", 12),
}  # fmt: skip
TERNARY, UNARY, ATOM = 3, 13, 15
BUILTIN = {
    "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "rint", "trunc": "trunc",
    "abs": "fabs",
}  # fmt: skip


def computed(dtype: str) -> str:
    """The dtype whose C arithmetic carries out that of `dtype`."""
    return "f32" if dtype in ("f16", "bf16") else dtype


def convert_in(text: str, dtype: str) -> str:
    """A value from what is in memory."""
    return f"ab_from_{dtype}({text})" if dtype in ("f16", "bf16") else text


def convert_out(text: str, source: str, target: str) -> str:
    """What memory holds, from a value."""
    if target in ("f16", "bf16"):
        return f"ab_to_{target}({text})"
    return text if category(source) == category(target) else f"({MEMORY[target]})({text})"


def literal(c: Const) -> str:
    """A constant. Floats are written so that they round to themselves."""
    match category(c.dtype):
        case "bool":
            return str(int(c.value))
        case "int":
            whole = int(c.value)
            suffix = {"u32": "u", "u64": "ull"}.get(c.dtype, "")  # C's int has the narrower ones
            return f"(-{-(whole + 1)} - 1)" if whole == -(2**63) else f"{whole}{suffix}"
    value = float(c.value)
    suffix = "" if c.dtype == "f64" else "f"
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
    return (repr(value) if c.dtype == "f64" else _shortest(value)) + suffix


def _shortest(value: float) -> str:
    """The shortest decimal that rounds to the same f32."""
    with np.errstate(over="ignore"):
        text = str(np.float32(value))
    return text.replace("inf", "1e999")


def write(expr: Expr, place: Mapping[str, str], level: int = 0) -> str:
    """The expression, in parentheses if it binds no tighter than `level`."""
    text, own = _write(expr, place)
    return text if own > level else f"({text})"


def _write(expr: Expr, place: Mapping[str, str]) -> tuple[str, int]:
    match expr:
        case Ref(name):
            return place.get(name, name), ATOM
        case Const():
            text = literal(expr)
            return text, UNARY if text.startswith("-") else ATOM
        case Cast(dtype, arg):
            return _cast(dtype, arg, place)
        case Rand(kind, stream, seed, step, counter):
            inner = ", ".join(write(e, place) for e in (seed, step, counter))
            return f"ab_{kind}({inner}, {stream}u)", ATOM
        case Call("where", (condition, yes, no)):
            parts = [write(e, place, TERNARY) for e in (condition, yes, no)]
            return f"{parts[0]} ? {parts[1]} : {parts[2]}", TERNARY
        case Call(fn, args):
            return _call(fn, args, place)
    raise TypeError(f"not an expression of a kernel: {expr!r}")


def _cast(dtype: str, arg: Expr, place: Mapping[str, str]) -> tuple[str, int]:
    source = dtype_of(arg)
    if dtype == "bool":
        return f"{write(arg, place, 8)} != 0", 8
    if dtype in ("f16", "bf16"):
        return f"ab_round_{dtype}({write(arg, place)})", ATOM
    if computed(source) == computed(dtype):
        return _write(arg, place)
    if isinstance(arg, Const) and is_float(source) and category(dtype) == "int":
        return _write(Const(_truncated(_held(arg), dtype), dtype), place)
    if dtype == "u64" and is_float(source):
        return f"ab_u64_of({write(arg, place)})", ATOM
    wraps = is_float(source) and category(dtype) == "int"  # as NumPy does
    by_int = f"({VALUE[_register(dtype)]})" if wraps and _register(dtype) != dtype else ""
    return f"({VALUE[dtype]}){by_int}{write(arg, place, UNARY)}", UNARY


def _register(dtype: str) -> str:
    """The signed integers by way of which a processor makes those of a dtype from floats."""
    return "i64" if dtype in ("u32", "i64") else "i32"


def _held(c: Const) -> float:
    """The number that a float literal is, after rounding."""
    if c.dtype == "f64" or not math.isfinite(c.value):
        return float(c.value)
    return float(np.float32(c.value))


def _truncated(value: float, dtype: str) -> int:
    """A literal as an integer, by way of the register that a processor would use: what does not
    fit is its least number."""
    legal, span = integers(_register(dtype)), 1 << 8 * itemsize(dtype)
    if dtype == "u64":
        legal = range(legal[0], span)
    whole = int(value) if legal[0] <= value <= legal[-1] else legal[0]
    low = whole % span
    return low if low in integers(dtype) else low - span


def _call(fn: str, args: tuple[Expr, ...], place: Mapping[str, str]) -> tuple[str, int]:
    dtype = dtype_of(args[0])
    if fn == "pow" and isinstance(args[1], Const) and is_float(dtype):
        short = _power(args[0], float(args[1].value), place)
        if short is not None:
            return short
    if fn in INFIX:
        return _infix(fn, args, dtype, place)
    if fn in ("neg", "not"):
        text = f"{'-' if fn == 'neg' else '!'}{write(args[0], place, UNARY)}"
        return (_narrow(text, dtype), ATOM) if fn == "neg" and _is_narrow(dtype) else (text, UNARY)
    inner = ", ".join(write(a, place) for a in args)
    if category(dtype) != "float" and fn in ("floor", "ceil", "round", "trunc"):
        return _write(args[0], place)
    if fn in BUILTIN and is_float(dtype):
        return f"__builtin_{BUILTIN[fn]}{'' if dtype == 'f64' else 'f'}({inner})", ATOM
    return f"ab_{fn}_{computed(dtype)}({inner})", ATOM


def _infix(
    fn: str, args: tuple[Expr, ...], dtype: str, place: Mapping[str, str]
) -> tuple[str, int]:
    sign, level = INFIX[fn]
    left = write(args[0], place, level - 1)
    apart = fn in ("sub", "div") or level in (8, 9) or is_float(dtype)  # floats: a + (b + c)
    right = write(args[1], place, level if apart else level - 1)
    if level == 8:
        left = write(args[0], place, level)
    if right.startswith("-"):
        right = f"({right})"
    text = f"{left} {sign} {right}"
    if level > 9 and _is_narrow(dtype):
        return f"({VALUE[dtype]})({text})", UNARY
    return text, level


def _power(base: Expr, exponent: float, place: Mapping[str, str]) -> tuple[str, int] | None:
    """Small integer powers of a plain name, and square roots."""
    dtype = computed(dtype_of(base))
    root = f"__builtin_sqrt{'' if dtype == 'f64' else 'f'}({write(base, place)})"
    if exponent == 0.5:
        return root, ATOM
    if exponent == -0.5:
        return f"{literal(Const(1.0, dtype))} / {root}", 12
    if exponent in (1.0, 2.0, 3.0):
        if isinstance(base, Ref):
            return " * ".join([write(base, place)] * int(exponent)), 12
        names = {2.0: "square", 3.0: "cube"}
        if exponent in names:
            return f"ab_{names[exponent]}_{dtype}({write(base, place)})", ATOM
    return None


def _is_narrow(dtype: str) -> bool:
    return category(dtype) == "int" and itemsize(dtype) < 4


def _narrow(text: str, dtype: str) -> str:
    return f"({VALUE[dtype]})({text})"


def step(reduce: str, dtype: str, place: str, value: str) -> str:
    """The statement that combines a value into a place."""
    signs = {"sum": "+", "prod": "*", "any": "|", "all": "&"}
    if reduce in signs:
        return f"{place} {signs[reduce]}= {value};"
    return f"{place} = ab_{reduce}_{computed(dtype)}({place}, {value});"
