"""Adapters of ONNX's nodes that change the layout of tensors."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.oracles.contract import Operand, from_start, listed, node


def numbers(operand: Operand | None) -> list[int]:
    """The integers of an input that is known when compiling."""
    return [] if operand is None else [int(n) for n in operand.value.reshape(-1)]


@node("Reshape")
def _reshape(x: Operand, shape: Operand, *, allowzero: int = 0) -> str:
    wanted = [x.shape[d] if n == 0 and not allowzero else n for d, n in enumerate(numbers(shape))]
    return f"reshape({x}, {wanted})"


@node("Flatten")
def _flatten(x: Operand, *, axis: int = 1) -> str:
    at = axis if axis >= 0 else axis + x.ndim
    return f"reshape({x}, {[math.prod(x.shape[:at]), math.prod(x.shape[at:])]})"


@node("Squeeze")
def _squeeze(x: Operand, axes: Operand | None = None) -> str:
    gone = [a % x.ndim for a in numbers(axes)] or [d for d, n in enumerate(x.shape) if n == 1]
    return f"reshape({x}, {[n for d, n in enumerate(x.shape) if d not in gone]})"


@node("Unsqueeze")
def _unsqueeze(x: Operand, axes: Operand) -> str:
    rank = x.ndim + len(numbers(axes))
    new, own = {a % rank for a in numbers(axes)}, iter(x.shape)
    return f"reshape({x}, {[1 if d in new else next(own) for d in range(rank)]})"


@node("Expand")
def _expand(x: Operand, shape: Operand) -> str:
    wanted = numbers(shape)
    lead = [1] * (len(wanted) - x.ndim) + list(x.shape)
    wanted = [1] * (x.ndim - len(wanted)) + wanted
    return f"expand({x}, {[max(a, b) for a, b in zip(lead, wanted, strict=True)]})"


@node("Transpose")
def _transpose(x: Operand, *, perm: Any = None) -> str:
    return f"transpose({x}, {list(perm)})" if perm is not None else f"transpose({x})"


@node("Concat")
def _concat(*xs: Operand, axis: int) -> str:
    return f"concat({list(xs)}, axis={axis})"


@node("Split")
def _split(x: Operand, sizes: Operand | None = None, *, axis: int = 0, num_outputs: int = 0,
           outputs: Any = ()) -> str:
    count = num_outputs or len(outputs)
    step = -(-x.shape[axis] // count)
    equal = [min(step, x.shape[axis] - n * step) for n in range(count)]
    return listed(f"split({x}, {numbers(sizes) or equal}, axis={axis})", count)


@node("Slice")
def _slice(x: Operand, starts: Operand, ends: Operand, axes: Operand | None = None,
           steps: Operand | None = None) -> str:
    begin, end = numbers(starts), numbers(ends)
    along = numbers(axes) or list(range(len(begin)))
    cuts = [":"] * x.ndim
    for a, b, axis, step in zip(
            begin, end, along, numbers(steps) or [1] * len(begin), strict=True):
        at, length = axis % x.ndim, x.shape[axis]
        taken = range(length)[slice(a, b, step)]
        stop = "" if taken.stop < 0 else taken.stop
        cuts[at] = f"{taken.start}:{stop}:{step}" if len(taken) else ":0"
    return f"{x}[{', '.join(cuts)}]"


@node("Gather")
def _gather(x: Operand, ids: Operand, *, axis: int = 0) -> str:
    return f"{x}[{', '.join([':'] * (axis % x.ndim) + [from_start(ids, x.shape[axis])])}]"


@node("Range")
def _range(start: Operand, end: Operand, step: Operand) -> str:
    made = f"arange({', '.join(str(o.value.item()) for o in (start, end, step))})"
    return f"{start.dtype}({made})"


@node("OneHot")
def _one_hot(ids: Operand, depth: Operand, values: Operand, *, axis: int = -1) -> str:
    count, at = int(depth.value.reshape(-1)[0]), axis % (ids.ndim + 1)
    order = [d for d in range(ids.ndim)]
    order.insert(at, ids.ndim)
    hot = f"({from_start(ids, count)})[..., None] == arange({count})"  # none where ids are outside
    return f"return where(transpose({hot}, {order}), {values}[1], {values}[0])"
