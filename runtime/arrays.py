"""Arrays at the border: what users give and get, and the bytes of registers.

NumPy has no bf16: its registers hold the upper halves of f32 numbers as u16, rounded to nearest
even, and users see f32. Arrays of other libraries are taken through DLPack or `__array__`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.runtime.errors import FeedError

Array = NDArray[Any]
Bytes = NDArray[np.uint8]

STORAGE: dict[str, type[np.generic]] = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.uint16, "bool": np.bool_,
    "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8,
    "u64": np.uint64, "u32": np.uint32, "u16": np.uint16, "u8": np.uint8,
}  # fmt: skip


def typed(buffer: Bytes, dtype: str, shape: tuple[int, ...]) -> Array:
    """The beginning of a byte buffer as a dense array, without copying."""
    storage = np.dtype(STORAGE[dtype])
    count = int(np.prod(shape, dtype=np.int64))
    return buffer[: count * storage.itemsize].view(storage).reshape(shape)


def narrow(array: Array) -> NDArray[np.uint16]:
    """f32 to bf16, ties to even, nan kept."""
    bits = np.asarray(array, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    quiet = (bits >> 16) | 0x40
    return np.where(np.isnan(array), quiet, rounded).astype(np.uint16)


def widen(array: NDArray[np.uint16]) -> NDArray[np.float32]:
    return np.asarray(array.astype(np.uint32) << 16).view(np.float32)  # 0-d stays an array


def from_storage(array: Array, dtype: str) -> Array:
    return widen(array) if dtype == "bf16" else array


def to_storage(given: Any, dtype: str, shape: tuple[int, ...], name: str) -> Array:
    """What the user gave for `name`, as its registers hold it; refused if it does not fit."""
    array = _as_numpy(given, name)
    if array.shape != shape:
        raise FeedError(f"{name} is {list(array.shape)} here; the program wants {list(shape)}")
    if dtype == "bf16" and array.dtype.kind in "fiub":
        return narrow(array.astype(np.float32))
    wanted = np.dtype(STORAGE[dtype])
    if array.dtype == wanted:
        return array
    if not np.can_cast(array.dtype, wanted, "same_kind") and not _holds(array, wanted):
        raise FeedError(
            f"{name} is {array.dtype} here; the program wants {dtype}",
            f"convert it, as in {name}.astype(numpy.{wanted})" if array.dtype.kind in "fiub" else
            "it holds no numbers: number what it has")
    return _cast(array, wanted, name)


def _cast(array: Array, wanted: np.dtype[Any], name: str) -> Array:
    """Only integers can lose their meaning in a cast of one kind."""
    if wanted.kind in "iu" and not _holds(array, wanted):
        raise FeedError(f"{name} has integers that {wanted} cannot hold")
    return array.astype(wanted)


def _holds(array: Array, wanted: np.dtype[Any]) -> bool:
    if array.dtype.kind == "b" or (array.dtype.kind in "iu" and wanted.kind == "f"):
        return True
    if array.dtype.kind not in "iu" or wanted.kind not in "iu":
        return False
    limits = np.iinfo(wanted)
    return array.size == 0 or (int(array.min()) >= limits.min and int(array.max()) <= limits.max)


def _as_numpy(given: Any, name: str) -> Array:
    if isinstance(given, np.ndarray):
        return given
    try:
        return np.from_dlpack(given) if hasattr(given, "__dlpack__") else np.asarray(given)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        try:
            return np.asarray(given)
        except Exception:
            kind = type(given).__name__
            raise FeedError(f"{name}: NumPy cannot read this {kind}: {error}") from error
