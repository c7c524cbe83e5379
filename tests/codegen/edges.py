"""Kernels over memory with nothing beside it: `python -m tests.codegen.edges` reads tensors of a
few elements that begin or end where a page does, next to pages that cannot be read. A kernel that
reads there ends the process."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

from anabranch.ir import reference
from tests.codegen import harness
from tests.codegen.cases import as_one, parsed

DTYPES = ("f64", "f32", "bf16", "i64", "i32", "u8")
LONGEST = 20
NOTHING = 0  # what may be done with a page: PROT_NONE
PLACES = {
    "one back": "n - 1", "one on": "n + 1", "two back": "n - 2", "every other": "2 * n - 1",
    "backwards": "2 - n",
}
TEXT = """(%x: DTYPE[LENGTH], %w: DTYPE[]) {
    %y: DTYPE[LENGTH] = [n] %w[] * %x[PLACE, pad=ZERO]"""

_protect = ctypes.CDLL(None, use_errno=True).mprotect
_protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Edged(harness.Guarded):
    """A buffer at the start, or at the end, of pages between two that cannot be read."""

    at_end = False

    def __init__(self, nbytes: int) -> None:
        pages = max(1, -(-nbytes // mmap.PAGESIZE)) + 2
        self.nbytes, size = nbytes, pages * mmap.PAGESIZE
        self.memory = mmap.mmap(-1, size)
        self.store = np.frombuffer(self.memory, np.uint8)
        self.start = size - mmap.PAGESIZE - nbytes if self.at_end else mmap.PAGESIZE
        for edge in (0, size - mmap.PAGESIZE):
            if _protect(self.store.ctypes.data + edge, mmap.PAGESIZE, NOTHING):
                raise OSError(ctypes.get_errno(), "mprotect")

    def whole(self) -> bool:
        return True


class AtEnd(Edged):
    at_end = True


def text(dtype: str, length: int, place: str) -> str:
    zero = "0.0" if dtype[0] in "fb" else "0"
    return (TEXT.replace("DTYPE", dtype).replace("LENGTH", str(length))
            .replace("PLACE", place).replace("ZERO", zero))


def main() -> None:
    for buffer in (Edged, AtEnd):
        harness.Guarded = buffer  # type: ignore[misc]
        for dtype in DTYPES:
            for place in PLACES.values():
                for length in range(1, LONGEST):
                    _try(text(dtype, length, place), dtype, length)


def _try(case: str, dtype: str, length: int) -> None:
    op = as_one(parsed(case))
    operands: list[Any] = [np.arange(1, length + 1).astype(reference.held(dtype)),
                           np.asarray(2).astype(reference.held(dtype))]
    print(case.replace("\n", " "), flush=True)
    (found,), (wanted,) = harness.run(op, operands), reference.evaluate_op(op, operands)
    np.testing.assert_array_equal(found, wanted)


if __name__ == "__main__":
    main()
