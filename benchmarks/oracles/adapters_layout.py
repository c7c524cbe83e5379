"""Adapters of operators that change the layout of tensors: parts, joins, shapes, orders of axes."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from benchmarks.oracles.contract import Operand, Unsupported, adapter, axes_of, dtype_name, listed


def reshaped(x: Operand, shape: Any) -> str:
    return f"reshape({x}, {list(shape)})"


@adapter("reshape", "view")
def _reshape(x: Operand, *shape: Any) -> str:
    return reshaped(x, shape[0] if isinstance(shape[0], list | tuple) else shape)


@adapter("flatten")
def _flatten(x: Operand, start_dim: int = 0, end_dim: int = -1) -> str:
    first, end = (d % max(1, x.ndim) for d in (start_dim, end_dim))
    return reshaped(x, [*x.shape[:first], math.prod(x.shape[first:end + 1]), *x.shape[end + 1:]])


@adapter("unflatten")
def _unflatten(x: Operand, dim: int, sizes: Any) -> str:
    at = dim % x.ndim
    rest = math.prod(n for n in sizes if n != -1)
    full = [x.shape[at] // max(1, rest) if n == -1 else n for n in sizes]
    return reshaped(x, [*x.shape[:at], *full, *x.shape[at + 1:]])


@adapter("squeeze", "squeeze.multiple")
def _squeeze(x: Operand, dim: Any = None) -> str:
    among = axes_of(dim, x.ndim)
    return reshaped(x, [n for d, n in enumerate(x.shape) if n != 1 or d not in among])


@adapter("unsqueeze")
def _unsqueeze(x: Operand, dim: int) -> str:
    at = dim % (x.ndim + 1)
    return f"{x}[{', '.join([':'] * at + ['None'] + [':'] * (x.ndim - at))}]"


@adapter("expand", "broadcast_to")
def _expand(x: Operand, *shape: Any) -> str:
    return f"expand({x}, {list(shape[0] if isinstance(shape[0], list | tuple) else shape)})"


@adapter("expand_as")
def _expand_as(x: Operand, other: Operand) -> str:
    return f"expand({x}, {other}.shape)"


@adapter("transpose")
def _transpose(x: Operand, a: int, b: int) -> str:
    return f"transpose({x}, {a}, {b})" if x.ndim else f"{x}"


@adapter("t")
def _t(x: Operand) -> str:
    return f"{x}.T" if x.ndim == 2 else f"{x}"


@adapter("permute")
def _permute(x: Operand, *axes: Any) -> str:
    return f"transpose({x}, {list(axes[0] if isinstance(axes[0], list | tuple) else axes)})"


@adapter("movedim")
def _movedim(x: Operand, source: Any, target: Any) -> str:
    sources, targets = axes_of(source, x.ndim), axes_of(target, x.ndim)
    order = [d for d in range(x.ndim) if d not in sources]
    for to, back in sorted(zip(targets, sources, strict=True)):
        order.insert(to, back)
    return f"transpose({x}, {order})" if x.ndim else f"{x}"


@adapter("cat")
def _cat(tensors: list[Operand], dim: int = 0) -> str:
    if any(t.ndim != tensors[0].ndim for t in tensors):
        raise Unsupported("concat takes tensors of one number of dimensions")
    return f"concat({list(tensors)}, axis={dim})"


@adapter("stack")
def _stack(tensors: list[Operand], dim: int = 0) -> str:
    return f"stack({list(tensors)}, axis={dim})"


def _pieces(x: Operand, lengths: list[int], dim: int) -> str:
    return listed(f"split({x}, {lengths}, axis={dim})", len(lengths))


@adapter("split_with_sizes", "split.list_args")
def _split(x: Operand, sizes: list[int], dim: int = 0) -> str:
    return _pieces(x, list(sizes), dim)


@adapter("split")
def _split_equal(x: Operand, size: int, dim: int = 0) -> str:
    length = x.shape[dim]
    lengths = [min(size, length - n) for n in range(0, length, size)]
    return _pieces(x, lengths or [0], dim)


@adapter("chunk")
def _chunk(x: Operand, chunks: int, dim: int = 0) -> str:
    return _split_equal(x, max(1, -(-x.shape[dim] // chunks)), dim)


@adapter("tensor_split")
def _tensor_split(x: Operand, parts: Any, dim: int = 0) -> str:
    length = x.shape[dim]
    if isinstance(parts, int):
        places = [n * (length // parts) + min(n, length % parts) for n in range(1, parts)]
    else:
        parts = parts.value.tolist() if isinstance(parts, Operand) else parts
        if isinstance(parts, int):
            return _tensor_split(x, parts, dim)
        places = [min(length, p if p >= 0 else p + length) for p in parts]
    ends = [0, *places, length]
    return _pieces(x, [max(0, b - a) for a, b in pairwise(ends)], dim)


@adapter("unbind")
def _unbind(x: Operand, dim: int = 0) -> str:
    return listed(f"unbind({x}, axis={dim})", x.shape[dim])


@adapter("select")
def _select(x: Operand, dim: int, index: int) -> str:
    at = dim % x.ndim
    return f"{x}[{', '.join([*[':'] * at, str(index)])}]"


@adapter("narrow")
def _narrow(x: Operand, dim: int, start: Any, length: int) -> str:
    start = int(start.value) if isinstance(start, Operand) else start  # known when compiling
    at, first = dim % x.ndim, start % max(1, x.shape[dim]) if start < 0 else start
    return f"{x}[{', '.join([*[':'] * at, f'{first}:{first + length}'])}]"


@adapter("slice")
def _slice(x: Operand, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> str:
    at = dim % x.ndim
    cut = f"{'' if start is None else start}:{'' if end is None else end}:{step}"
    return f"{x}[{', '.join([*[':'] * at, cut])}]"


@adapter("__getitem__")
def _getitem(x: Operand, index: Any) -> str:
    parts = index if isinstance(index, tuple) else (index,)
    return f"{x}[{', '.join(map(_subscript, parts))}]"


def _subscript(part: Any) -> str:
    match part:
        case slice():
            step = "" if part.step is None else f":{part.step}"
            first, end = ("" if e is None else str(e) for e in (part.start, part.stop))
            return f"{first}:{end}{step}"
        case bool():
            raise Unsupported("a truth value as a subscript adds an axis, which None says")
        case Operand() if part.dtype == "bool":
            raise Unsupported("how many elements a mask takes is not known when compiling")
    return "..." if part is Ellipsis else str(part)


@adapter("flip")
def _flip(x: Operand, dims: Any) -> str:
    return f"flip({x}, axis={list(dims)})" if list(dims) else f"{x}"


@adapter("fliplr")
def _fliplr(x: Operand) -> str:
    return f"flip({x}, axis=1)"


@adapter("flipud")
def _flipud(x: Operand) -> str:
    return f"flip({x}, axis=0)"


@adapter("arange")
def _arange(*numbers: Any, dtype: Any = None, end: Any = None, **_: Any) -> str:
    given = [int(n) if isinstance(n, bool) else n for n in (*numbers, end) if n is not None]
    made = f"arange({', '.join(map(str, given))})"
    return made if dtype is None else f"{dtype_name(dtype)}({made})"
