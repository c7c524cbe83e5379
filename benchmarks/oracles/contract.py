"""What an adapter is: one operator of an oracle, written as a program of ours.

    @adapter("nn.functional.layer_norm")
    def _(x, shape, weight=None, bias=None, eps=1e-5):
        return f"layer_norm({x}, {weight}, {bias}, eps={eps})"

It takes what torch's function takes. Tensors come as `Operand`s, which print as their names;
numbers, lists and None print as they are in the language. It returns an expression, or statements
with a last line `return ...`. `Unsupported` says why a sample has no meaning for the library: it
counts as refused, with that message.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from anabranch.ir.types import DTYPES

Adapter = Callable[..., str]

_adapters: dict[str, Adapter] = {}
_nodes: dict[str, Adapter] = {}

ADAPTERS: Mapping[str, Adapter] = MappingProxyType(_adapters)
"""By the name of torch's OpInfo, with its variant: "max.binary"."""

NODES: Mapping[str, Adapter] = MappingProxyType(_nodes)
"""By the type of ONNX's operator. A node adapter takes the inputs and the attributes of a node."""


class Unsupported(Exception):
    """Why a sample has no meaning for the library, in a sentence."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of a sample. It prints as its name."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    value: Any

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype in ("f64", "f32", "f16", "bf16")

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name


_drawn: dict[str, Callable[..., Any]] = {}

DRAWN: Mapping[str, Callable[..., Any]] = MappingProxyType(_drawn)
"""What judges an operator that draws random numbers, by its name or the type of its node: it takes
what our program gave, then what the operator takes, reads from the first which elements were drawn,
and gives the right results for those. It raises `Unlikely` where the draws are none of that share.
"""


class Unlikely(Exception):
    """What is wrong with random draws."""


def drawn(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register such a function."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        _drawn.update(dict.fromkeys(names, function))
        return function

    return add


def check_share(kept: Any, p: float) -> None:
    """Of these elements each was dropped with probability p: the number of those kept is within six
    standard deviations of what is to be expected."""
    count, total = int(kept.sum()), math.prod(kept.shape)
    if abs(count - total * (1 - p)) > 6 * math.sqrt(total * p * (1 - p)):
        raise Unlikely(f"{count} of {total} elements are kept, each dropped with probability {p}")


_oracles: dict[str, Callable[..., Any]] = {}

ORACLES: Mapping[str, Callable[..., Any]] = MappingProxyType(_oracles)
"""What judges instead of OpInfo's own function, which gives one of several right answers, or
something beside the answer that the library does not give."""


def oracle(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of torch that judges these operators."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        _oracles.update(dict.fromkeys(names, function))
        return function

    return add


def adapter(*names: str) -> Callable[[Adapter], Adapter]:
    """Register an adapter under names of OpInfo."""
    return _register(_adapters, names)


def node(*types: str) -> Callable[[Adapter], Adapter]:
    """Register an adapter under types of ONNX's operators."""
    return _register(_nodes, types)


def _register(table: dict[str, Adapter], names: tuple[str, ...]) -> Callable[[Adapter], Adapter]:
    def add(function: Adapter) -> Adapter:
        for name in names:
            if name in table:
                raise ValueError(f"{name} has two adapters")
            table[name] = function
        return function

    return add


# ---- words that many adapters need


def dtype_name(dtype: Any) -> str:
    """The language's name of a dtype of torch or NumPy; raises where there is none."""
    text = str(dtype).removeprefix("torch.")
    letters = text.rstrip("0123456789")
    name = {"float": "f", "int": "i", "uint": "u", "bfloat": "bf"}.get(letters, letters)
    name += text[len(letters):]
    if name not in DTYPES:
        raise Unsupported(f"there is no dtype {text}")
    return name


def axes_of(dim: Any, ndim: int) -> list[int]:
    """The axes that torch's `dim` names, none of them negative."""
    dims = list(range(ndim)) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    return [d % max(1, ndim) for d in dims]


def last(x: Operand, dim: int, function: str) -> str:
    """A function of the last axis, applied along another."""
    if x.ndim == 0 or dim % x.ndim == x.ndim - 1:
        return function.format(x)
    return f"transpose({function.format(f'transpose({x}, {dim}, -1)')}, {dim}, -1)"


def from_start(ids: Operand, length: int) -> str:
    """Places that may count from the end, which those of our language do not when they are data."""
    return f"where({ids} < 0, {ids} + {length}, {ids})"


def mentioned(name: str, text: str) -> bool:
    """Whether a text speaks of an operand: those it does not were known when compiling."""
    return name in "".join(c if c.isalnum() or c == "_" else " " for c in text).split()


def listed(call: str, count: int) -> str:
    """The items of a list of tensors as results."""
    if count == 1:
        return f"{call}[0]"
    names = ", ".join(f"y{n}" for n in range(count))
    return f"{names} = {call}\nreturn {names}" if count else f"return {call}"
