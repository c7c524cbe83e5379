"""Weights of other programs: files of named arrays, renamed to this program's paths.

Reads safetensors (a file, or a folder of several), `.npz`, and torch's own files where torch is
installed. bf16 comes as f32, since NumPy has none; half precision stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

from anabranch.runtime.arrays import Array, widen
from anabranch.runtime.errors import RunError

DTYPES = {"F64": "f8", "F32": "f4", "F16": "f2", "BF16": "u2", "BOOL": "?", "I64": "i8",
          "I32": "i4", "I16": "i2", "I8": "i1", "U64": "u8", "U32": "u4", "U16": "u2", "U8": "u1"}
TORCH = (".pt", ".pth", ".bin")

Rename = Mapping[str, str | None] | Callable[[str], str | None]


def load_weights(path: str | PathLike[str], rename: Rename | None = None) -> dict[str, Array]:
    """The arrays of a file by name. `rename` gives new names, None to leave an array out; a
    mapping keeps the names that it does not mention."""
    found: dict[str, Array] = {}
    for file in _files(Path(path)):
        for old, array in _read(file):
            new = _renamed(old, rename)
            if new in found:
                raise RunError(f"{file}: '{old}' would be '{new}', which another array is already")
            if new is not None:
                found[new] = array
    return found


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.safetensors"))
    if not found:
        raise RunError(f"there is no .safetensors file in {path}")
    return found


def _renamed(name: str, rename: Rename | None) -> str | None:
    match rename:
        case None:
            return name
        case Mapping():
            return rename.get(name, name)
        case _:
            return rename(name)


def _read(path: Path) -> Iterator[tuple[str, Array]]:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            yield from file.items()
    elif path.suffix in TORCH:
        yield from _read_torch(path)
    else:
        try:
            entries = dict(deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
        except SafetensorError as error:
            raise RunError(f"{path} is no safetensors file, or it is truncated: {error}") from error
        for name in sorted(entries):
            yield name, _decoded(entries[name], f"{path}: {name}")


def _decoded(entry: Mapping[str, Any], name: str) -> Array:
    if entry["dtype"] not in DTYPES:
        raise RunError(f"{name} is {entry['dtype']}, which cannot be read")
    flat = np.frombuffer(entry["data"], np.dtype(DTYPES[entry["dtype"]]))
    array = flat.reshape(entry["shape"])
    return widen(array) if entry["dtype"] == "BF16" else array.copy()


def _read_torch(path: Path) -> Iterator[tuple[str, Array]]:
    import torch

    for name, value in torch.load(path, map_location="cpu", weights_only=True).items():
        half = value.dtype == torch.bfloat16
        yield name, (value.float() if half else value).detach().numpy()
