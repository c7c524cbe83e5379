"""Adapters of functions that few programs need: gamma and its kin, bits, turns, sorted numbers."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.oracles.contract import Operand, Unsupported, adapter, from_start

for _name in ("erfinv", "lgamma", "digamma", "signbit", "isposinf", "isneginf",
              "bitwise_left_shift", "bitwise_right_shift"):
    adapter(_name)(lambda *given, name=_name: f"{name}({', '.join(map(str, given))})")


@adapter("nansum")
def _nansum(x: Operand, dim: Any = None, keepdim: bool = False) -> str:
    axis = None if x.ndim == 0 or dim in ((), []) else dim
    return f"nansum({x}, axis={list(axis) if isinstance(axis, tuple) else axis}, " \
           f"keepdims={keepdim})"


@adapter("take")
def _take(x: Operand, ids: Operand) -> str:
    return f"take({x}, {from_start(ids, math.prod(x.shape))})"


@adapter("index_fill")
def _index_fill(x: Operand, dim: int, ids: Operand, value: Any) -> str:
    places = f"{ids}" if ids.ndim == 1 else f"reshape({ids}, [-1])"
    return f"index_fill({x}, {places}, {value}, axis={dim})"


@adapter("searchsorted")
def _searchsorted(
    ordered: Operand, values: Any, right: bool = False, side: str | None = None,
    sorter: Operand | None = None, out_int32: bool = False,
) -> str:
    row = ordered if sorter is None else f"gather({ordered}, {sorter}, axis=-1)"
    text = f"searchsorted({row}, {values}, right={right or side == 'right'})"
    return f"i32({text})" if out_int32 else text


@adapter("bucketize")
def _bucketize(x: Any, bounds: Operand, out_int32: bool = False, right: bool = False) -> str:
    text = f"bucketize({x}, {bounds}, right={right})"
    return f"i32({text})" if out_int32 else text


@adapter("cross", "linalg.cross")
def _cross(x: Operand, y: Operand, dim: int | None = -1) -> str:
    if dim is None:
        raise Unsupported("the axis of a vector product is stated")
    return f"cross({x}, {y}, axis={dim})"


@adapter("rot90")
def _rot90(x: Operand, k: int = 1, dims: Any = (0, 1)) -> str:
    return f"rot90({x}, {k}, {list(dims)})"


@adapter("unfold")
def _unfold(x: Operand, dim: int, size: int, step: int) -> str:
    return f"unfold({x}, {dim}, {size}, {step})"


@adapter("column_stack")
def _column_stack(tensors: list[Operand]) -> str:
    return f"column_stack({list(tensors)})"


@adapter("diag_embed")
def _diag_embed(x: Operand, offset: int = 0, dim1: int = -2, dim2: int = -1) -> str:
    return f"diag_embed({x}, {offset}, {dim1}, {dim2})"
