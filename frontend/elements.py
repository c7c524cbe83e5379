"""Arithmetic on elements: promotion as PyTorch has it, with weak literals and index values.

Every function gives an `Element` whose expression has explicit dtypes. A literal takes the dtype
it is promoted to; an expression of literals and index values does so as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from anabranch.frontend.values import FULL, SCALAR, WEAK, Element, weak
from anabranch.ir.diagnostics import Span, fail
from anabranch.ir.expr import Call, Cast, Const, Expr, children, transform, with_children
from anabranch.ir.index import affine, expression
from anabranch.ir.scalar import OF_INTEGERS, PRIMITIVES
from anabranch.ir.types import category, integers, is_float, promote

ARITHMETIC = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floordiv", "%": "mod", "**": "pow",
}
COMPARISONS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
LOGIC = ("and", "or", "not")
OF_BOOLS = {"add": "or", "mul": "and", "bitand": "and", "bitor": "or", "bitxor": "ne"}
LARGE, LARGE_ARGUMENT, DEEP = 800, 72, 50  # parts of an expression, and levels: few write so many
_ORDER = ("bool", "int", "float")


def promoted(elements: Sequence[Element], span: Span | None = None) -> tuple[str, int]:
    """The common dtype, and the level of the result."""
    by_level = ["", "", ""]
    for element in elements:
        held = by_level[element.level]
        by_level[element.level] = _common(held, element.dtype, span) if held else element.dtype
    dtype = _outweighs(by_level[FULL], _outweighs(by_level[SCALAR], by_level[WEAK]))
    return dtype, max(element.level for element in elements)


def _common(a: str, b: str, span: Span | None) -> str:
    found = promote(a, b)
    if found is None:
        raise fail(f"no integer dtype has the numbers of {a} and of {b}", span,
                   help=f"cast one of them: {a}(...) or {b}(...)")
    return found


def _outweighs(higher: str, lower: str) -> str:
    """The dtype of a pair in which `lower` only matters if its category is higher."""
    if not higher or not lower:
        return higher or lower
    return lower if _ORDER.index(category(lower)) > _ORDER.index(category(higher)) else higher


def is_large(element: Element, most: int = LARGE) -> bool:
    """Whether an expression is so large or deep that a statement of its own is worth its while."""
    parts, row = 0, [element.expr]
    for _ in range(DEEP):
        row = [child for node in row for child in children(node)]
        parts += len(row)
        if not row or parts >= most:
            break
    return bool(row)


def gives_way(element: Element, dtype: str) -> bool:
    """A literal or index value may be declared to be of its own category or a higher one."""
    own, wanted = category(element.dtype), category(dtype)
    return element.level == WEAK and _ORDER.index(own) <= _ORDER.index(wanted)


def convert(element: Element, dtype: str, span: Span | None = None) -> Expr:
    """The expression of an element in another dtype."""
    if element.dtype == dtype:
        return element.expr
    if element.level == WEAK:
        return _retyped(element.expr, element.dtype, dtype, span)
    return Cast(dtype, element.expr)


def _retyped(expr: Expr, old: str, new: str, span: Span | None) -> Expr:
    match expr:
        case Const(value, dtype) if dtype == old:
            return Const(_number(value, new, span), new)
        case Call("where", (condition, yes, no)):
            chosen = (_retyped(yes, old, new, span), _retyped(no, old, new, span))
            return Call("where", (condition, *chosen))
    if old == "f32" and new == "f64":  # literals are exact: compute with them in f64
        return transform(expr, _widened)
    return Cast(new, expr)


def _number(value: float, dtype: str, span: Span | None) -> float | bool:
    """A number written in the program, as one of a dtype."""
    if is_float(dtype):
        return float(value)
    return bool(value) if dtype == "bool" else _within(value, dtype, span)


def _within(value: float, dtype: str, span: Span | None) -> float:
    legal = integers(dtype)
    if not isinstance(value, int) or value not in legal:
        raise fail(f"{value} is no number of {dtype}", span,
                   help=f"those are the integers from {legal[0]} to {legal[-1]}")
    return int(value)


def _widened(node: Expr) -> Expr | None:
    match node:
        case Const(value, "f32"):
            return Const(value, "f64")
        case Cast("f32", arg):
            return Cast("f64", arg)
    return None


def cast(dtype: str, element: Element, span: Span | None = None) -> Element:
    """An explicit conversion: the result is as strong as a tensor."""
    level = max(element.level, SCALAR)
    if isinstance(element.expr, Const) and category(dtype) == "int" and is_float(element.dtype):
        if not math.isfinite(element.expr.value):
            raise fail(f"{dtype} has no {element.expr.value}", span)
        element = weak(int(element.expr.value), span)
    if dtype == "bool" and element.level == WEAK:
        return Element(Cast(dtype, element.expr), dtype, level)
    return Element(convert(element, dtype, span), dtype, level)


NEUTRAL = {"add": 0, "mul": 1}  # what stands for a bias or a weight that is left out


def apply(fn: str, elements: Sequence[Element], span: Span) -> Element:
    """A primitive on elements, promoted to one dtype."""
    if fn == "where":
        return _where(elements, span)
    if fn in LOGIC:
        return _logic(fn, elements, span)
    dtype, level = promoted(elements, span)
    if fn in OF_INTEGERS and is_float(dtype):
        raise fail(f"the bits of integers are meant here, and this has dtype {dtype}", span)
    if dtype == "bool" and PRIMITIVES[fn].kind != "bool" and fn not in ("min", "max"):
        return _on_bools(fn, elements, level, span)
    if PRIMITIVES[fn].kind == "float" and not is_float(dtype):
        if fn in ("floor", "ceil", "round", "trunc"):
            return elements[0]
        dtype = "f32"
    dtype = "f32" if fn in ("isnan", "isinf") and not is_float(dtype) else dtype
    if _is_neutral(fn, elements):
        return elements[0]
    args = tuple(convert(element, dtype, span) for element in elements)
    if fn in ("floordiv", "mod") and args[1] == Const(0, dtype) and not is_float(dtype):
        raise fail("division by zero", span)
    if fn == "pow" and not is_float(dtype) and isinstance(args[1], Const) and args[1].value < 0:
        raise fail(f"the power {args[1].value} of integers", span,
                   help="make floats of them first: f32(x)")
    result = "bool" if PRIMITIVES[fn].kind == "bool" else dtype
    return Element(_simplified(fn, args, dtype), result, level)


def _is_neutral(fn: str, elements: Sequence[Element]) -> bool:
    """Whether the second of the elements is a literal that leaves the first, a float, as it is."""
    return fn in NEUTRAL and is_float(elements[0].dtype) and (
        elements[1].level == WEAK and elements[1].expr == Const(NEUTRAL[fn], "i64"))


def _on_bools(fn: str, elements: Sequence[Element], level: int, span: Span) -> Element:
    """As in PyTorch: the sum of bools is `or`, the product `and`, the sign the bool itself; a
    quotient is f32."""
    if fn == "sign":
        return elements[0]
    if fn in OF_BOOLS:
        args = tuple(element.expr for element in elements)
        return Element(Call(OF_BOOLS[fn], args), "bool", level)
    if PRIMITIVES[fn].kind == "float":
        args = tuple(convert(element, "f32") for element in elements)
        return Element(Call(fn, args), "f32", level)
    raise fail("this is not defined for bools", span, help="cast first: i64(x) or f32(x)")


def _logic(fn: str, elements: Sequence[Element], span: Span) -> Element:
    for element in elements:
        if element.dtype != "bool":
            raise fail(f"'{fn}' takes bools, and this has dtype {element.dtype}", span,
                       help="compare it, as in x != 0")
    level = max(element.level for element in elements)
    return Element(Call(fn, tuple(element.expr for element in elements)), "bool", level)


def _where(elements: Sequence[Element], span: Span) -> Element:
    condition, yes, no = elements
    if condition.dtype != "bool":
        raise fail(f"the condition of 'where' has dtype {condition.dtype}, not bool", span,
                   help="compare it, as in x != 0")
    dtype, level = promoted((yes, no), span)
    args = (condition.expr, convert(yes, dtype, span), convert(no, dtype, span))
    return Element(Call("where", args), dtype, max(level, condition.level))


def _simplified(fn: str, args: tuple[Expr, ...], dtype: str) -> Expr:
    """Index arithmetic in its canonical form; anything else as it is."""
    node = Call(fn, args)
    if dtype != "i64":
        return node
    if fn in COMPARISONS.values():
        return Call(fn, tuple(canonical(arg) for arg in args))
    return canonical(node) if fn in ("add", "sub", "mul", "neg") else node


def canonical(expr: Expr) -> Expr:
    """An affine index expression without noise; others unchanged."""
    form = affine(expr)
    return expr if form is None else expression(form)


def substituted(expr: Expr, values: dict[str, Expr]) -> Expr:
    """`expr` with index variables replaced, shared where nothing changes."""
    from_name = values.get
    old = children(expr)
    if not old:
        name = getattr(expr, "name", None)
        return from_name(name, expr) if name is not None else expr
    new = tuple(substituted(child, values) for child in old)
    if all(a is b for a, b in zip(old, new, strict=True)):
        return expr
    return with_children(expr, new)
