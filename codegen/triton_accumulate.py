"""Accumulators in Triton: how values are combined into them, and their lanes at the end."""

from __future__ import annotations

from anabranch.codegen.kernel import Start
from anabranch.codegen.triton_expr import literal, typed, value_type
from anabranch.ir.expr import Const
from anabranch.ir.types import is_float

SIGNS = {"sum": "+", "prod": "*", "any": "|", "all": "&"}


def extremum(reduce: str, dtype: str, old: str, new: str) -> str:
    """The larger or the smaller of two; nan if either is."""
    nan = ", propagate_nan=tl.PropagateNan.ALL" if is_float(dtype) else ""
    return f"tl.{reduce}imum({old}, {new}{nan})"


def across(start: Start, name: str, axis: str) -> str:
    """The lanes of a block as one; `axis` is the argument text that names them."""
    extreme = "largest" if start.reduce in ("max", "argmax") else "smallest"
    match start.reduce:
        case "sum":
            return f"tl.sum({name}, {axis})"
        case "prod":
            along, keep = axis.split(", ")
            return f"tl.reduce({name}, {along}, ab_multiply, {keep})"
        case "any" | "all":
            fold = "max" if start.reduce == "any" else "min"
            return f"tl.{fold}({name}.to(tl.int32), {axis}) > 0"
        case "argmax" | "argmin":
            best = f"{name}_best"
            return f"ab_first({name}, {best}, ab_{extreme}({best}, {axis}), {axis})"
    if is_float(start.dtype):
        return f"ab_{extreme}({name}, {axis})"
    return f"tl.{start.reduce}({name}, {axis})"


def beside(value: Const, other: Const) -> str:
    """A constant beside another, of which one may need 64 bits."""
    if typed(other) == literal(other):
        return typed(value)
    return f"tl.full([], {literal(value)}, {value_type(value.dtype)})"
