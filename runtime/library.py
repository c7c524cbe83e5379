"""The library kernels in NumPy: what they mean, and what runs where C cannot.

The arguments are those of gemm.c.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from anabranch.runtime.arrays import Array, Bytes


def _operand(
    buffer: Bytes, dtype: type[np.generic], shape: tuple[int, int], leading: int,
    extents: Sequence[int], strides: Sequence[int],
) -> Array:  # fmt: skip
    """A batch of row-major matrices as a strided view: four batch dimensions, then two."""
    size = np.dtype(dtype).itemsize
    items = buffer[: len(buffer) // size * size].view(dtype)
    steps = [size * stride for stride in (*strides, leading, 1)]
    return np.lib.stride_tricks.as_strided(items, (*extents, *shape), steps)


def gemm(
    dtype: type[np.generic], ints: Sequence[int], floats: Sequence[float],
    buffers: Sequence[Bytes],
) -> None:  # fmt: skip
    """C = alpha * op(A) op(B) + beta * C for every item of the batch; beta 0 ignores C."""
    m, n, k, lda, ldb, ldc, trans_a, trans_b = ints[:8]
    extents, strides = ints[8:12], (ints[12:16], ints[16:20], ints[20:24])
    if 0 in (m, n, *extents):
        return
    shapes = ((k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n), (m, n))
    a, b, c = (
        _operand(buffer, dtype, shape, leading, extents, stride)
        for buffer, shape, leading, stride in zip(
            buffers, shapes, (lda, ldb, ldc), strides, strict=True
        )
    )
    alpha, beta = (np.dtype(dtype).type(x) for x in floats)
    left = a.swapaxes(-1, -2) if trans_a else a
    right = b.swapaxes(-1, -2) if trans_b else b
    result = alpha * np.matmul(left, right)
    c[...] = result + beta * c if beta else result


LIBRARY: dict[str, Callable[[Sequence[int], Sequence[float], Sequence[Bytes]], None]] = {
    "ab_gemm_f32": partial(gemm, np.float32),
    "ab_gemm_f64": partial(gemm, np.float64),
}
