"""The BLAS that NumPy computes with, found by symbol and called by pointer.

NumPy's own extension module links it, so asking the dynamic linker through that module finds the
very library, wherever the wheel or the system put it. While kernels run it uses one thread per
call: the runtime's pool cuts a product into tiles and is the only one to start threads.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from dataclasses import dataclass

# (prefix, suffix, bits of an integer): what builds of NumPy are known to export.
SPELLINGS = (
    ("scipy_", "64_", 64),
    ("", "64_", 64),
    ("scipy_", "", 32),
    ("", "", 32),
)


@dataclass(frozen=True, slots=True)
class Blas:
    """Addresses of the two products, and how to set the number of threads."""

    sgemm: int
    dgemm: int
    index_bits: int
    prefix: str
    suffix: str

    def threads(self) -> int | None:
        get = self._function("get_num_threads")
        return int(get()) if get else None

    def use_threads(self, count: int) -> None:
        put = self._function("set_num_threads")
        if put:
            put(ctypes.c_int(count))

    def _function(self, name: str) -> ctypes._NamedFuncPointer | None:
        return getattr(_library(), f"{self.prefix}openblas_{name}{self.suffix}", None)


@functools.cache
def find_blas() -> Blas | None:
    """None where NumPy was built without one we can call."""
    library = _library()
    for prefix, suffix, bits in SPELLINGS:
        names = [f"{prefix}cblas_{kind}gemm{suffix}" for kind in "sd"]
        found = [getattr(library, name, None) for name in names]
        if all(found):
            sgemm, dgemm = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in found if f)
            return Blas(sgemm, dgemm, bits, prefix, suffix)
    return None


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(importlib.import_module("numpy._core._multiarray_umath").__file__)
