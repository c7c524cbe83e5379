"""Adapters of operators that read and write at places: gather, scatter, sort, diagonals, copies."""

from __future__ import annotations

import math
from typing import Any

import torch

from benchmarks.oracles.contract import Operand, Unsupported, adapter, from_start, oracle


def _in_places(text: str, x: Operand, *others: Any) -> str:
    """A call over tensors that have an axis: in torch those without dimensions have axis 0."""
    if x.ndim:
        return text.format(x, *others)
    given = [f"reshape({o}, [1])" if isinstance(o, Operand) and o.ndim == 0 else o for o in others]
    return f"reshape({text.format(f'{x}[None]', *given)}, [])"


@adapter("gather")
def _gather(x: Operand, dim: int, index: Operand) -> str:
    if x.ndim == 0 and index.ndim:
        return f"gather({x}[None], {index}, 0)"
    return _in_places("gather({}, {}, {})", x, index, dim)


@adapter("take_along_dim")
def _take_along(x: Operand, index: Operand, dim: Any = None) -> str:
    length = math.prod(x.shape) if dim is None else x.shape[dim]
    return f"take_along_axis({x}, {from_start(index, length)}, {dim})"


@adapter("scatter")
def _scatter(x: Operand, dim: int, index: Operand, source: Any, *, reduce: Any = None) -> str:
    if reduce is None:
        return _in_places("scatter({}, {}, {}, {})", x, index, source, dim)
    if not isinstance(source, Operand):
        source = f"full({list(index.shape)}, {source}, {x.dtype})"
    how = {"add": "sum", "multiply": "prod"}[reduce]
    return _in_places("scatter_reduce({}, {}, {}, {}, {})", x, index, source, dim, f'"{how}"')


for _name, _how in {"sum": "sum", "prod": "prod", "amax": "max", "amin": "min"}.items():
    def _scatter_reduce(x: Operand, dim: int, index: Operand, source: Operand, reduce: str, *,
                        include_self: bool = True, how: str = _how) -> str:
        return _in_places("scatter_reduce({}, {}, {}, {}, {}, {})", x, index, source, dim,
                          f'"{how}"', include_self)

    adapter(f"scatter_reduce.{_name}")(_scatter_reduce)


@adapter("scatter_add")
def _scatter_add(x: Operand, dim: int, index: Operand, source: Operand) -> str:
    return _in_places("scatter_add({}, {}, {}, {})", x, index, source, dim)


@adapter("index_select")
def _index_select(x: Operand, dim: int, index: Operand) -> str:
    return _in_places("index_select({}, {}, {})", x, index, dim)


@adapter("index_add")
def _index_add(x: Operand, dim: int, index: Operand, source: Operand, *, alpha: Any = 1) -> str:
    return _in_places("index_add({}, {}, {}, {}, {})", x, index, source, dim, alpha)


@adapter("masked_fill")
def _masked_fill(x: Operand, mask: Operand, value: Any) -> str:
    return f"masked_fill({x}, {mask}, {value})"


@adapter("nn.functional.one_hot")
def _one_hot(ids: Operand, num_classes: int = -1) -> str:
    if num_classes == -1:  # known when compiling
        num_classes = int(ids.value.max()) + 1
    return f"one_hot({ids}, {num_classes})"


@adapter("nn.functional.embedding")
def _embedding(table_or_ids: Operand, other: Operand, padding_idx: Any = None,
               max_norm: Any = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
               sparse: bool = False) -> str:
    ids, table = (other, table_or_ids) if table_or_ids.is_float else (table_or_ids, other)
    if max_norm is not None:
        raise Unsupported("embedding renormalises no rows: its table is not changed")
    if scale_grad_by_freq:
        raise Unsupported("a gradient is that of the value: nothing scales it by frequency")
    if padding_idx is None:
        return f"embedding({ids}, {table})"
    return f"embedding({ids}, {table}, {padding_idx % table.shape[0]})"


@adapter("tril")
def _tril(x: Operand, diagonal: int = 0) -> str:
    return f"tril({x}, {diagonal})"


@adapter("triu")
def _triu(x: Operand, diagonal: int = 0) -> str:
    return f"triu({x}, {diagonal})"


@adapter("diag")
def _diag(x: Operand, diagonal: int = 0) -> str:
    return f"diag({x}, {diagonal})"


@adapter("diagonal")
def _diagonal(x: Operand, offset: int = 0, dim1: int = 0, dim2: int = 1) -> str:
    return f"diagonal({x}, {offset}, {dim1}, {dim2})"


@adapter("trace")
def _trace(x: Operand) -> str:
    return f"trace({x})"


# Where elements are equal, torch may give any of their places, and the library the first.

oracle("sort")(lambda x, dim=-1, descending=False, *, stable=None: torch.sort(
    x, dim=dim, descending=descending, stable=True))
oracle("argsort")(lambda x, dim=-1, descending=False, *, stable=None: torch.argsort(
    x, dim=dim, descending=descending, stable=True))


@oracle("topk")
def _first_k(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if x.ndim == 0:
        return torch.topk(x, k, dim, largest, sorted)
    return [part.narrow(dim, 0, k) for part in torch.sort(
        x, dim=dim, descending=largest, stable=True)]


@oracle("kthvalue")
def _first_kth(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if x.ndim == 0:
        return torch.kthvalue(x, k, dim, keepdim)
    parts = [part.narrow(dim, k - 1, 1) for part in torch.sort(x, dim=dim, stable=True)]
    return parts if keepdim else [part.squeeze(dim) for part in parts]


@adapter("sort")
def _sort(x: Operand, dim: int = -1, descending: bool = False, *, stable: Any = None) -> str:
    if isinstance(dim, bool):
        dim, descending = -1, dim
    if x.ndim == 0:
        return f"return {x}, i64(0 * {x})"
    return f"values, places = sort({x}, axis={dim}, descending={descending})\nreturn values, places"


@adapter("argsort")
def _argsort(x: Operand, dim: int = -1, descending: bool = False, *, stable: Any = None) -> str:
    return f"argsort({x}, axis={dim}, descending={descending})"


@adapter("msort")
def _msort(x: Operand) -> str:
    return f"sort({x}, axis=0)[0]"


@adapter("topk")
def _topk(x: Operand, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> str:
    if x.ndim == 0:
        return f"return {x}, i64(0 * {x})"
    return f"values, places = topk({x}, {k}, axis={dim}, largest={largest})\nreturn values, places"


@adapter("kthvalue")
def _kth(x: Operand, k: int, dim: int = -1, keepdim: bool = False) -> str:
    if x.ndim == 0:
        return f"return {x}, i64(0 * {x})"
    return f"values, place = kthvalue({x}, {k}, {dim}, {keepdim})\nreturn values, place"


@adapter("roll")
def _roll(x: Operand, shifts: Any, dims: Any = None) -> str:
    shifts = list(shifts) if isinstance(shifts, tuple) else shifts
    return f"roll({x}, {shifts}, {list(dims) if isinstance(dims, tuple) else dims})"


@adapter("repeat")
def _repeat(x: Operand, *counts: Any) -> str:
    return f"repeat({x}, {list(counts[0] if isinstance(counts[0], list | tuple) else counts)})"


@adapter("tile")
def _tile(x: Operand, *counts: Any) -> str:
    return f"tile({x}, {list(counts[0] if isinstance(counts[0], list | tuple) else counts)})"


@adapter("repeat_interleave")
def _interleave(x: Operand, repeats: Any, dim: Any = None, **_: Any) -> str:
    if isinstance(repeats, Operand):  # known when compiling
        counts = repeats.value.reshape(-1).tolist()
        repeats = counts[0] if len(counts) == 1 else counts
    return f"repeat_interleave({x}, {repeats}, {dim})"


for _name in ("hstack", "vstack", "dstack"):
    adapter(_name)(lambda tensors, function=_name: f"{function}({list(tensors)})")


@adapter("meshgrid.list_of_tensors")
def _meshgrid(tensors: list[Operand], indexing: str = "ij") -> str:
    names = ", ".join(f"y{n}" for n in range(len(tensors)))
    call = f'meshgrid({list(tensors)}, "{indexing}")'
    return f"{names} = {call}\nreturn {names}" if len(tensors) > 1 else f"{call}[0]"


@adapter("nn.functional.embedding_bag")
def _bag(table: Operand, ids: Operand, offsets: Any = None, max_norm: Any = None,
         norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean",
         sparse: bool = False, per_sample_weights: Any = None, include_last_offset: bool = False,
         padding_idx: Any = None) -> str:
    if max_norm is not None:
        raise Unsupported("embedding_bag renormalises no rows: its table is not changed")
    rows = ids if ids.ndim == 1 else f"reshape({ids}, [-1])"
    count = ids.shape[0] if ids.ndim == 2 else offsets.shape[0] - include_last_offset
    length = ids.shape[0] if ids.ndim == 1 else ids.shape[0] * ids.shape[1]
    bags = (f"bag_ids({offsets}, {length})" if ids.ndim == 1
            else f"arange({length}) // {ids.shape[1]}")
    weights = per_sample_weights
    if isinstance(weights, Operand) and weights.ndim == 2:
        weights = f"reshape({weights}, [-1])"
    padding = None if padding_idx is None else padding_idx % table.shape[0]
    return f'embedding_bag({rows}, {table}, {bags}, {count}, "{mode}", {weights}, {padding})'
