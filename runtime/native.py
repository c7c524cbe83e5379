"""The C side of the runtime: the pool, chains, and functions of compiled kernels, by address.

There is one pool in a process, shared by all ranks and sessions. The library of the pool is built
from the texts beside this file, through the same cache as kernels.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anabranch.runtime.blas import Blas, find_blas
from anabranch.runtime.build import Toolchain, build
from anabranch.runtime.errors import BuildError

HERE = Path(__file__).parent
HEADER = (HERE / "kernel.h").read_text(encoding="utf-8")

# What the C struct ab_launch and ab_status hold.
LAUNCH = np.dtype([(n, "<u8") for n in ("kernel", "ints", "floats", "ptrs", "tiles", "scratch")])
STATUS = np.dtype([("code", "<i4"), ("launch", "<i4"), ("value", "<i8"), ("bound", "<i8")])


@dataclass(frozen=True, slots=True)
class NativeLibrary:
    """The loaded pool with its functions typed."""

    library: ctypes.CDLL
    blas: Blas | None

    def use_cores(self, cores: int) -> int:
        return int(self.library.ab_use_cores(cores))

    def run_chain(self, launches: int, count: int, status: int, abort_flag: int) -> int:
        """Addresses of a table of `LAUNCH`, of one `STATUS` and of the abort flag (an int32)."""
        return int(self.library.ab_run_chain(launches, count, status, abort_flag))

    def tiles(self, symbol: str, ints: NDArray[np.int64]) -> int:
        """How a library kernel cuts the work that `ints` describe."""
        family = symbol.rsplit("_", 1)[0]
        return int(getattr(self.library, f"{family}_tiles")(ints.ctypes.data))


@functools.cache
def load_pool(toolchain: Toolchain) -> NativeLibrary:
    texts = [(HERE / name).read_text(encoding="utf-8") for name in ("pool.c", "gemm.c")]
    (path,) = build(toolchain, HEADER, ["\n".join(texts)])
    library, blas = load(path), find_blas()
    word, pointer = ctypes.c_int64, ctypes.c_void_p
    library.ab_run_chain.argtypes = (pointer, word, pointer, pointer)
    library.ab_run_chain.restype = word
    library.ab_gemm_tiles.argtypes = (pointer,)
    library.ab_gemm_tiles.restype = word
    library.ab_use_blas.argtypes = (pointer, pointer, word)
    if blas:
        library.ab_use_blas(blas.sgemm, blas.dgemm, blas.index_bits)
    return NativeLibrary(library, blas)


@functools.cache
def load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"what the C compiler made cannot be loaded: {error}") from None


def address(library: ctypes.CDLL, symbol: str) -> int:
    return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
