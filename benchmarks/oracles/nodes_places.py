"""Adapters of ONNX's nodes that read and write at places."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.oracles.contract import Operand, Unsupported, from_start, node
from benchmarks.oracles.nodes_layout import numbers


@node("GatherElements")
def _gather(x: Operand, ids: Operand, *, axis: int = 0) -> str:
    return f"gather({x}, {from_start(ids, x.shape[axis])}, {axis})"


@node("ScatterElements", "Scatter")
def _scatter(x: Operand, ids: Operand, source: Operand, *, axis: int = 0, reduction: str = "none"
             ) -> str:
    given = f"{x}, {from_start(ids, x.shape[axis])}, {source}, {axis}"
    how = {"add": "sum", "mul": "prod"}.get(reduction, reduction)
    return f"scatter({given})" if how == "none" else f'scatter_reduce({given}, "{how}")'


@node("TopK")
def _topk(x: Operand, k: Operand, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> str:
    call = f"topk({x}, {numbers(k)[0]}, axis={axis}, largest={bool(largest)})"
    return f"values, places = {call}\nreturn values, places"


@node("Trilu")
def _trilu(x: Operand, k: Operand | None = None, *, upper: int = 1) -> str:
    return f"{'triu' if upper else 'tril'}({x}, {(numbers(k) or [0])[0]})"


@node("Tile")
def _tile(x: Operand, counts: Operand) -> str:
    return f"tile({x}, {numbers(counts)})"


@node("Pad")
def _pad(x: Operand, pads: Operand, value: Operand | None = None, axes: Operand | None = None, *,
         mode: str = "constant") -> str:
    widths, given = [[0, 0] for _ in range(x.ndim)], numbers(pads)
    along = numbers(axes) or list(range(x.ndim))
    for place, axis in enumerate(along):
        widths[axis] = [given[place], given[place + len(along)]]
    if min(map(min, widths)) < 0:
        raise Unsupported("the width of a border is not negative: a slice takes places away")
    filler = 0 if value is None else value.value.reshape(-1)[0].item()
    words = {"edge": "replicate", "wrap": "circular"}
    return f'pad({x}, {widths}, {filler}, "{words.get(mode, mode)}")'


@node("EyeLike")
def _eye(x: Operand, *, dtype: int = 0, k: int = 0) -> str:
    names = {1: "f32", 6: "i32", 7: "i64", 11: "f64"}
    rows, columns = x.shape
    kind = names[dtype] if dtype else x.dtype
    return f"i = arange({rows})\nreturn {kind}(arange({columns}) - {k} == i[:, None])"


@node("ConstantOfShape")
def _constant(shape: Operand, *, value: Any = None) -> str:
    number, dtype = (0.0, "f32") if value is None else (
        (value.float_data or value.int32_data or value.int64_data or [0])[0],
        {1: "f32", 6: "i32", 7: "i64"}[value.data_type])
    return f"full({numbers(shape)}, {number}, {dtype})"


@node("Einsum")
def _einsum(*xs: Operand, equation: str) -> str:
    return f'einsum("{equation}", {", ".join(map(str, xs))})'


@node("DepthToSpace")
def _depth_to_space(x: Operand, *, blocksize: int, mode: str = "DCR") -> str:
    n, c, h, w = x.shape
    d = c // blocksize ** 2
    if mode == "CRD":
        return f"pixel_shuffle({x}, {blocksize})"
    return (f"y = transpose(reshape({x}, {[n, blocksize, blocksize, d, h, w]}), "
            f"[0, 3, 4, 1, 5, 2])\n"
            f"return reshape(y, {[n, d, h * blocksize, w * blocksize]})")


@node("BitwiseAnd")
def _and(x: Operand, y: Operand) -> str:
    return f"bitwise_and({x}, {y})"


@node("BitwiseOr")
def _or(x: Operand, y: Operand) -> str:
    return f"bitwise_or({x}, {y})"


@node("BitwiseXor")
def _xor(x: Operand, y: Operand) -> str:
    return f"bitwise_xor({x}, {y})"


@node("BitwiseNot")
def _not(x: Operand) -> str:
    return f"bitwise_not({x})"


@node("BitShift")
def _shift(x: Operand, by: Operand, *, direction: str) -> str:
    return f"bitwise_{direction.lower()}_shift({x}, {by})"


@node("ReverseSequence")
def _reverse_sequence(x: Operand, lengths: Operand, *, batch_axis: int = 1, time_axis: int = 0
                      ) -> str:
    """The places of each sequence in the opposite order, what is past its end as it is."""
    time, batch = ([-1 if d == axis else 1 for d in range(x.ndim)]
                   for axis in (time_axis, batch_axis))
    return (f"t = reshape(arange({x.shape[time_axis]}), {time})\n"
            f"last = reshape({lengths}, {batch})\n"
            f"k = expand(where(t < last, last - 1 - t, t), {list(x.shape)})\n"
            f"return gather({x}, k, {time_axis})")


@node("TensorScatter")
def _tensor_scatter(past: Operand, update: Operand, start: Operand | None = None, *,
                    axis: int = -2, mode: str = "linear") -> str:
    """Later places of a cache, from one on that differs from batch to batch."""
    at, size = axis % past.ndim, past.shape[axis]
    row = [-1 if d == at else 1 for d in range(past.ndim)]
    first = f"reshape({start}, {[-1] + [1] * (past.ndim - 1)})" if start else "0"
    place = f"reshape(arange({update.shape[at]}), {row}) + {first}"
    wrapped = f"({place}) % {size}" if mode == "circular" else place
    return f"scatter({past}, expand({wrapped}, {list(update.shape)}), {update}, {at})"


for _kind, _ours in {"Acosh": "acosh", "Asinh": "asinh", "Atanh": "atanh"}.items():
    node(_kind)(lambda x, function=_ours: f"{function}({x})")


# ---- places named by the last axis of a tensor


@node("GatherND")
def _gather_nd(x: Operand, ids: Operand, *, batch_dims: int = 0) -> str:
    batch = [f"b{n}" for n in range(batch_dims)]
    free = [f"n{n}" for n in range(ids.ndim - 1 - batch_dims)]
    named = ids.shape[-1]
    rest = [f"r{n}" for n in range(x.ndim - batch_dims - named)]
    places = [f"{ids}[{', '.join([*batch, *free, str(n)])}]" for n in range(named)]
    return (f"y[{', '.join(batch + free + rest)}] = {x}[{', '.join(batch + places + rest)}]\n"
            f"return y")


@node("ScatterND")
def _scatter_nd(x: Operand, ids: Operand, source: Operand, *, reduction: str = "none") -> str:
    named = ids.shape[-1]
    rows, rest = math.prod(x.shape[:named]), list(x.shape[named:])
    strides = [math.prod(x.shape[n + 1 : named]) for n in range(named)]
    count = math.prod(ids.shape[:-1])
    places = " + ".join(f"k[:, {n}] * {stride}" for n, stride in enumerate(strides))
    along = f"expand(reshape(p, {[count] + [1] * len(rest)}), {[count, *rest]})"
    ends = {"none": "index_copy(a, p, s, 0)", "add": "index_add(a, p, s, 0)",
            "max": f"max(a, segment_max(s, p, {rows}))",
            "min": f"min(a, segment_min(s, p, {rows}))",
            "mul": f'scatter_reduce(a, {along}, s, 0, "prod")'}
    return (f"k = reshape({ids}, {[count, named]})\np = {places}\n"
            f"a = reshape({x}, {[rows, *rest]})\ns = reshape({source}, {[count, *rest]})\n"
            f"return reshape({ends[reduction]}, {list(x.shape)})")
