"""Adapters of ONNX's nodes on quantized numbers: integers that stand for multiples of a scale."""

from __future__ import annotations

import math
from typing import Any

from anabranch.ir.types import integers
from benchmarks.oracles.contract import Operand, Unsupported, node
from benchmarks.oracles.nodes_math import DTYPES
from benchmarks.oracles.nodes_windows import convolution


def _along(given: Operand, x: Operand, axis: int, block: int) -> str:
    """A scale or a zero point beside x: one for all, one for each place of an axis, or blocks."""
    if given.ndim == 0 or math.prod(given.shape) == 1:
        return f"reshape({given}, [])"
    if block:
        return f"repeat_interleave({given}, {block}, {axis % x.ndim})"
    return f"reshape({given}, {[-1 if d == axis % x.ndim else 1 for d in range(x.ndim)]})"


def _quantized(value: str, dtype: str) -> str:
    """The nearest numbers of an integer dtype, halves to even."""
    low, high = integers(dtype)[0], integers(dtype)[-1]
    return f"{dtype}(clamp({value}, {low}, {high}))"


@node("QuantizeLinear")
def _quantize(x: Operand, scale: Operand, zero: Operand | None = None, *, axis: int = 1,
              block_size: int = 0, output_dtype: int = 0, saturate: int = 1, precision: int = 0
              ) -> str:
    dtype = zero.dtype if zero is not None else DTYPES.get(output_dtype, "u8")
    if precision or dtype[0] not in "iu":
        raise Unsupported("numbers are quantized to integers, in their own precision")
    start = "0" if zero is None else f"f32({_along(zero, x, axis, block_size)})"
    return _quantized(f"round({x} / {_along(scale, x, axis, block_size)}) + {start}", dtype)


@node("DequantizeLinear")
def _dequantize(x: Operand, scale: Operand, zero: Operand | None = None, *, axis: int = 1,
                block_size: int = 0, output_dtype: int = 0) -> str:
    whole = f"f32({x})" if zero is None else (
        f"(f32({x}) - f32({_along(zero, x, axis, block_size)}))")
    dtype = DTYPES[output_dtype] if output_dtype else scale.dtype
    return f"{dtype}({whole} * {_along(scale, x, axis, block_size)})"


@node("DynamicQuantizeLinear")
def _dynamic(x: Operand) -> str:
    return (f"low = min(min({x}), 0)\nhigh = max(max({x}), 0)\nscale = (high - low) / 255\n"
            f"zero = {_quantized('round(0 - low / scale)', 'u8')}\n"
            f"return {_quantized(f'round({x} / scale) + f32(zero)', 'u8')}, scale, zero")


def _shifted(x: Operand, zero: Operand | None, *, rows: bool = False) -> str:
    """i32 numbers from their zero point, of which there may be one for each row of a matrix."""
    if zero is None:
        return f"i32({x})"
    place = f"{zero}[:, None]" if rows and zero.ndim == 1 and zero.shape[0] > 1 else (
        f"reshape({zero}, [])" if math.prod(zero.shape) == 1 else f"{zero}")
    return f"(i32({x}) - i32({place}))"


@node("MatMulInteger")
def _matmul(a: Operand, b: Operand, from_a: Operand | None = None, from_b: Operand | None = None
            ) -> str:
    return f"{_shifted(a, from_a, rows=True)} @ {_shifted(b, from_b)}"


@node("QLinearMatMul")
def _scaled_matmul(a: Operand, a_scale: Operand, a_zero: Operand, b: Operand, b_scale: Operand,
                   b_zero: Operand, y_scale: Operand, y_zero: Operand) -> str:
    scales = [f"f32(reshape({s}, []))" if math.prod(s.shape) == 1 else f"f32({s})"
              for s in (a_scale, b_scale, y_scale)]
    product = f"f32({_shifted(a, a_zero, rows=True)} @ {_shifted(b, b_zero)})"
    value = f"round({product} * ({scales[0]} * {scales[1]} / {scales[2]})) + f32({y_zero})"
    return _quantized(value, y_zero.dtype)


def _from_channels(w: Operand, zero: Operand | None) -> str:
    """i32 weights from their zero point, of which there may be one for each channel made."""
    if zero is None:
        return f"i32({w})"
    return f"i32({w}) - i32(reshape({zero}, {[-1, *[1] * (w.ndim - 1)]}))"


@node("ConvInteger")
def _conv(x: Operand, w: Operand, x_zero: Operand | None = None, w_zero: Operand | None = None,
          **attributes: Any) -> str:
    numbers = [f"x = {_shifted(x, x_zero)}", f"w = {_from_channels(w, w_zero)}"]
    return "\n".join([*numbers, convolution(x, w, ("x", "w", "None"), **attributes)])


@node("QLinearConv")
def _scaled_conv(x: Operand, x_scale: Operand, x_zero: Operand, w: Operand, w_scale: Operand,
                 w_zero: Operand, y_scale: Operand, y_zero: Operand, b: Operand | None = None,
                 **attributes: Any) -> str:
    channels = f"[-1, {', '.join('1' * (x.ndim - 2))}]"
    lines = [f"x = {_shifted(x, x_zero)}",
             f"w = {_from_channels(w, w_zero)}",
             convolution(x, w, ("x", "w", str(b)), **attributes).replace("return ", "y = ")]
    scale = f"{x_scale} * reshape({w_scale}, {channels}) / {y_scale}"
    return "\n".join([
        *lines, f"return {_quantized(f'round(f32(y) * ({scale})) + f32({y_zero})', y_zero.dtype)}"])
