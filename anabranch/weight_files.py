"""Files of named arrays, each told by its content: safetensors, NumPy's `.npz`, torch's, ONNX's.

No file can make anything run: pickled objects that are not tensors are refused. A file that is cut
short, damaged or of another kind is refused too, with what is wrong with it.
"""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

from anabranch.onnx_file import read_onnx
from anabranch.runtime.arrays import Array, widen
from anabranch.runtime.checkpoint import listed
from anabranch.runtime.errors import WeightError

DTYPES = {"F64": "f8", "F32": "f4", "F16": "f2", "BF16": "u2", "BOOL": "?", "I64": "i8",
          "I32": "i4", "I16": "i2", "I8": "i1", "U64": "u8", "U32": "u4", "U16": "u2", "U8": "u1"}
DEEPEST = 100  # dicts within dicts of a file of torch
KINDS = "safetensors, .npz, torch's files and .onnx can be read"

UNZIPPED = (ValueError, OSError, EOFError, RuntimeError, MemoryError, SyntaxError,
            zipfile.BadZipFile, zlib.error)
"""What reading a damaged zip file of arrays raises."""

Named = Iterator[tuple[str, Array]]


def read(path: Path) -> Named:
    """Every array with its name. Raises `WeightError`."""
    seen: dict[str, Path] = {}
    for file in _files(path):
        for name, array in _reader(file)(file):
            if name in seen:
                raise WeightError(f"'{name}' is in {seen[name]} and again in {file}")
            seen[name] = file
            yield name, array


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise WeightError(f"there is no file {path}")
    if not path.is_dir():
        return [path]
    for pattern in ("*.safetensors", "pytorch_model*.bin"):
        if found := _shards(path, pattern) or sorted(path.glob(pattern)):
            return found
    raise WeightError(f"there is no .safetensors file in {path}, nor a pytorch_model.bin")


def _shards(path: Path, pattern: str) -> list[Path]:
    """The files that an index of the folder names, all of them there."""
    names: set[str] = set()
    for index in sorted(path.glob(f"{pattern}.index.json")):
        try:
            places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            names |= {str(name) for name in places.values()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightError(f"{index} is no index of shards: {error!r}") from error
        if lacking := sorted(names - {file.name for file in path.iterdir()}):
            raise WeightError(f"{index} names shards that are not there:\n{listed(lacking)}")
    return sorted(path / name for name in names)


def _reader(path: Path) -> Callable[[Path], Named]:
    """By the first bytes of a file; ONNX's say nothing, so its name must."""
    with path.open("rb") as file:
        start = file.read(9)
    if path.suffix == ".onnx":
        return read_onnx
    if start[:4] == b"PK\x03\x04":
        return _read_torch if _holds_pickle(path) else _read_npz
    if start[:1] == b"\x80" and start[8:] != b"{":
        return _read_torch
    if start[8:] == b"{" or path.suffix == ".safetensors":
        return _read_safetensors
    what = "is empty" if not start else (
        "is one array without a name; save it with numpy.savez" if start[:6] == b"\x93NUMPY"
        else f"is no file of weights; {KINDS}")
    raise WeightError(f"{path} {what}")


def _holds_pickle(path: Path) -> bool:
    """Whether a zip file is torch's."""
    try:
        with zipfile.ZipFile(path) as file:
            return any(name.endswith("data.pkl") for name in file.namelist())
    except UNZIPPED as error:
        raise WeightError(f"{path} is truncated or damaged: {error}") from error


def _read_safetensors(path: Path) -> Named:
    try:
        entries = dict(deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise WeightError(f"{path} is no safetensors file, or it is truncated: {error}") from error
    for name in sorted(entries):
        yield name, _decoded(entries[name], f"{path}: {name}")


def _decoded(entry: Mapping[str, Any], name: str) -> Array:
    if entry["dtype"] not in DTYPES:
        raise WeightError(f"{name} is {entry['dtype']}, which cannot be read")
    flat = np.frombuffer(entry["data"], np.dtype(DTYPES[entry["dtype"]]))
    array = flat.reshape(entry["shape"])
    return widen(array) if entry["dtype"] == "BF16" else array.copy()


def _read_npz(path: Path) -> Named:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except UNZIPPED as error:
        raise WeightError(f"{path} holds more than plain arrays, or is damaged: {error}") from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
            raise WeightError(f"{path}: {name} is no array of numbers")
        yield name, array


# ---- torch's


def _read_torch(path: Path) -> Named:
    try:
        import torch
    except ImportError:
        raise WeightError(f"{path} is a file of torch, which is not installed: pip install torch, "
                          "or save the tensors as safetensors") from None
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what a damaged or hostile file raises is torch's to choose
        raise WeightError(_refused(path, error)) from error
    yield from _tensors(loaded, "", path)


def _refused(path: Path, error: Exception) -> str:
    """Why torch did not read a file, without its advice to run what is in it."""
    if found := re.search(r"GLOBAL (\S+) was not an allowed", str(error)):
        return (f"{path} holds more than tensors, which could run code: {found[1][:80]}\n"
                "help: of a module, save its state_dict(), as in "
                "torch.save(net.state_dict(), path)")
    first = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().partition("\n")[0]
    return f"{path} holds more than tensors, which could run code, or it is damaged: {first}"


def _tensors(value: Any, name: str, path: Path, within: tuple[int, ...] = ()) -> Named:
    """The tensors of nested dicts and lists by dotted path; settings and the like are left out."""
    if isinstance(value, Mapping | list | tuple):
        if id(value) in within or len(within) > DEEPEST:
            raise WeightError(f"{path}: '{name[:80]}' is nested without an end")
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in items:
            inside = f"{name}.{key}" if name else str(key)
            yield from _tensors(inner, inside, path, (*within, id(value)))
    elif type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        yield name, _as_array(value, f"{path}: {name}")


def _as_array(value: Any, name: str) -> Array:
    plain = value.detach()
    try:
        array: Array = (plain.float() if str(plain.dtype) == "torch.bfloat16" else plain).numpy()
    except (TypeError, RuntimeError) as error:
        raise WeightError(f"{name} is {plain.dtype}, which cannot be read: {error}") from error
    if array.dtype.kind not in "fiub":
        raise WeightError(f"{name} is {plain.dtype}, which cannot be read")
    return array.copy()
