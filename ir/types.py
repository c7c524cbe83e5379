"""Dtypes and the tensor type, interned and printed with its distribution."""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import dataclass

from anabranch.ir.sbp import Layout

# name -> (category, bytes). Category order is that of promotion: bool < int < float.
DTYPES: dict[str, tuple[str, int]] = {
    "bool": ("bool", 1),
    "u8": ("int", 1),
    "i8": ("int", 1),
    "u16": ("int", 2),
    "i16": ("int", 2),
    "u32": ("int", 4),
    "i32": ("int", 4),
    "u64": ("int", 8),
    "i64": ("int", 8),
    "f16": ("float", 2),
    "bf16": ("float", 2),
    "f32": ("float", 4),
    "f64": ("float", 8),
}


# The largest finite number of each float dtype.
LARGEST = {"f16": 65504.0, "bf16": (2 - 2**-7) * 2.0**127, "f32": (2 - 2**-23) * 2.0**127,
           "f64": sys.float_info.max}


def category(dtype: str) -> str:
    """bool, int or float."""
    return DTYPES[dtype][0]


def itemsize(dtype: str) -> int:
    return DTYPES[dtype][1]


def is_float(dtype: str) -> bool:
    return category(dtype) == "float"


def integers(dtype: str) -> range:
    """The numbers of an integer dtype."""
    bits = 8 * itemsize(dtype)
    return range(2**bits) if dtype[0] == "u" else range(-(2 ** (bits - 1)), 2 ** (bits - 1))


@functools.cache
def includes(wide: str, narrow: str) -> bool:
    """Whether an integer dtype has all the numbers of another."""
    here, there = integers(wide), integers(narrow)
    return here[0] <= there[0] and there[-1] <= here[-1]


@functools.cache
def promote(a: str, b: str) -> str | None:
    """The common dtype of two tensors, as PyTorch has it: of two integers, the narrowest with the
    numbers of both. u64 has none with integers below 0; a float would lose their last digits."""
    if a == b:
        return a
    order = ("bool", "int", "float")
    if category(a) != category(b):
        return max(a, b, key=lambda d: order.index(category(d)))
    if {a, b} == {"f16", "bf16"}:
        return "f32"
    if category(a) == "int":
        return next((d for d in DTYPES if category(d) == "int"
                     and includes(d, a) and includes(d, b)), None)
    return max(a, b, key=itemsize)


def accumulator(dtype: str) -> str:
    """The dtype in which a sum over `dtype` is held: f16 and bf16 accumulate in f32."""
    return "f32" if dtype in ("f16", "bf16") else dtype


@dataclass(frozen=True, slots=True, eq=False)
class TensorType:
    """Interned by `tensor`, so that equality is identity. `layout` is None before planning."""

    dtype: str
    shape: tuple[int, ...]
    layout: Layout | None
    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * itemsize(self.dtype)

    def with_layout(self, layout: Layout | None) -> TensorType:
        return tensor(self.dtype, self.shape, layout)

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        return tensor(self.dtype, shape, self.layout)


def tensor(dtype: str, shape: tuple[int, ...], layout: Layout | None = None) -> TensorType:
    """The type of a tensor: `f32[8, 256] @ {data: S(0)}`."""
    return _interned(dtype, shape, layout)  # the cache tells an omitted argument from None


@functools.cache
def _interned(dtype: str, shape: tuple[int, ...], layout: Layout | None) -> TensorType:
    text = f"{dtype}[{', '.join(map(str, shape))}]"
    if layout is not None:
        text += f" @ {layout}"
    return TensorType(dtype, shape, layout, text)
