"""The constant tensors of ONNX files: initialisers, and the values of Constant nodes.

Read here, from the few fields of its Protocol Buffers that are needed, because the package that
reads all of them is large and its format never changes the meaning of a field. A tensor's name is
its initialiser's, or that of the Constant node's output; inside a branch or a loop it follows the
node's name and that of its attribute. Data in other files are read if those lie beside this one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anabranch.runtime.arrays import Array, widen
from anabranch.runtime.errors import WeightError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # how a field is written
DEEPEST = 32  # graphs within graphs

BFLOAT16 = 16
DTYPES = {1: "f4", 2: "u1", 3: "i1", 4: "u2", 5: "i2", 6: "i4", 7: "i8", 9: "?", 10: "f2",
          11: "f8", 12: "u4", 13: "u8", BFLOAT16: "u2"}
"""By number of `TensorProto.DataType`."""

LISTS = {4: "f4", 5: "i4", 7: "i8", 10: "f8", 11: "u8"}
"""Fields of a tensor that hold its elements one by one, and how they are written: a small integer
or the bits of a short float stand in field 5."""

Content = int | bytes
Field = tuple[int, Content]


class _Damaged(Exception):
    """Bytes that are no message."""


@dataclass(frozen=True, slots=True)
class _Message:
    """The fields of a message in order, each as a number or as bytes."""

    fields: tuple[Field, ...]

    @staticmethod
    def of(data: Content) -> _Message:
        if isinstance(data, int):
            raise _Damaged("a number stands where a message should")
        return _Message(tuple(_fields(data)))

    def all(self, number: int) -> list[Content]:
        return [content for field, content in self.fields if field == number]

    def text(self, number: int) -> str:
        return _bytes((self.all(number) or [b""])[-1]).decode("utf-8", errors="replace")

    def number(self, number: int) -> int:
        content = (self.all(number) or [0])[-1]
        if not isinstance(content, int):
            raise _Damaged("bytes stand where a number should")
        return content

    def numbers(self, number: int) -> list[int]:
        """A repeated integer, written one by one or packed."""
        found: list[int] = []
        for content in self.all(number):
            found += [content] if isinstance(content, int) else _packed(content)
        return found


def _fields(data: bytes) -> Iterator[Field]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        length, form = 0, key & 7
        if form == VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if form == BYTES:
            length, at = _varint(data, at)
        elif form in (FIXED32, FIXED64):
            length = 4 if form == FIXED32 else 8
        else:
            raise _Damaged(f"no field is written as {form}")
        if at + length > len(data):
            raise _Damaged("it ends in the middle of a field")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise _Damaged("it ends in the middle of a number")
        value |= (data[at] & 0x7F) << shift
        at += 1
        if not data[at - 1] & 0x80:
            return _signed(value), at
    raise _Damaged("a number does not end")


def _signed(value: int) -> int:
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def _packed(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        found.append(value)
    return found


def _bytes(content: Content) -> bytes:
    if isinstance(content, int):
        raise _Damaged("a number stands where bytes should")
    return content


# ---- the messages of ONNX


def read_onnx(path: Path) -> Iterator[tuple[str, Array]]:
    """The constant tensors of a file. Raises `WeightError`."""
    try:
        graphs = _Message.of(path.read_bytes()).all(7)
        if not graphs:
            raise _Damaged("it has no graph")
        for graph in graphs:
            yield from _of_graph(_Message.of(graph), "", path, 0)
    except (_Damaged, ValueError, OverflowError) as error:  # the last two from NumPy
        raise WeightError(f"{path} is no ONNX file, or it is damaged: {error}") from error


def _of_graph(
    graph: _Message, prefix: str, path: Path, depth: int
) -> Iterator[tuple[str, Array]]:
    if depth > DEEPEST:
        raise _Damaged(f"it has more than {DEEPEST} graphs inside each other")
    if graph.all(15):
        raise WeightError(f"{path} has sparse initialisers, which cannot be read")
    for content in graph.all(5):
        tensor = _Message.of(content)
        yield prefix + tensor.text(8), _array(tensor, path)
    for content in graph.all(1):
        yield from _of_node(_Message.of(content), prefix, path, depth)


def _of_node(node: _Message, prefix: str, path: Path, depth: int) -> Iterator[tuple[str, Array]]:
    output = node.text(2)
    for content in node.all(5):
        attribute = _Message.of(content)
        if node.text(4) == "Constant":
            yield from ((prefix + output, array) for array in _constant(attribute, path))
        inner = f"{prefix}{node.text(3) or output}.{attribute.text(1)}."
        for graph in (*attribute.all(6), *attribute.all(11)):
            yield from _of_graph(_Message.of(graph), inner, path, depth + 1)


def _constant(attribute: _Message, path: Path) -> Iterator[Array]:
    """The value of a Constant node, if this attribute holds it. Texts are none."""
    match attribute.text(1):
        case "value":
            yield from (_array(_Message.of(tensor), path) for tensor in attribute.all(5))
        case "value_float":
            yield _floats(attribute.all(2)).reshape(())
        case "value_floats":
            yield _floats(attribute.all(7))
        case "value_int":
            yield np.array(attribute.number(3), np.int64)
        case "value_ints":
            yield np.array(attribute.numbers(8), np.int64)


def _floats(contents: list[Content]) -> Array:
    return np.frombuffer(b"".join(map(_bytes, contents)), "<f4").copy()


def _array(tensor: _Message, path: Path) -> Array:
    name, kind = tensor.text(8), tensor.number(2)
    if kind not in DTYPES:
        raise WeightError(f"{path}: {name} is of ONNX's data type {kind}, which cannot be read")
    shape = tuple(tensor.numbers(1))
    try:
        flat = _elements(tensor, np.dtype(DTYPES[kind]).newbyteorder("<"), path)
        array = flat.reshape(shape)
    except (ValueError, OverflowError) as error:
        raise _Damaged(f"{name} {list(shape)}: {error}") from error
    if any(size < 0 for size in shape):
        raise _Damaged(f"{name} has the sizes {list(shape)}")
    return widen(array) if kind == BFLOAT16 else array


def _elements(tensor: _Message, dtype: np.dtype[np.generic], path: Path) -> Array:
    """From the raw bytes, another file, or one of the lists of elements."""
    native = dtype.newbyteorder("=")
    if tensor.number(14):
        return np.frombuffer(_external(tensor, path), dtype).astype(native)
    if raw := tensor.all(9):
        return np.frombuffer(_bytes(raw[-1]), dtype).astype(native)
    for number, form in LISTS.items():
        if not tensor.all(number):
            continue
        if form[0] == "f":
            whole = b"".join(map(_bytes, tensor.all(number)))
            return np.frombuffer(whole, f"<{form}").astype(native)
        if native.kind == "f":  # the bits of a short float
            return np.array(tensor.numbers(number), np.uint16).view(native)
        return np.array(tensor.numbers(number), np.int64).astype(native)
    return np.zeros(0, native)


def _external(tensor: _Message, path: Path) -> bytes:
    """Data in a file beside this one, and nowhere else."""
    entries = [_Message.of(entry) for entry in tensor.all(13)]
    facts = {entry.text(1): entry.text(2) for entry in entries}
    folder = path.parent.resolve()
    place = (folder / facts.get("location", "")).resolve()
    if folder not in place.parents:
        raise WeightError(f"{path} has data in {place}, which is not beside it")
    if not place.is_file():
        raise WeightError(f"{path} has data in {place}, which is not there")
    offset, length = int(facts.get("offset", "0")), int(facts.get("length", "-1"))
    with place.open("rb") as file:
        file.seek(offset)
        data = file.read(length)
    if length >= 0 and len(data) != length:
        raise _Damaged(f"{place} ends in the middle of a tensor")
    return data
