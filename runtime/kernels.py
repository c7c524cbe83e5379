"""From a plan's kernels to something a chain can call.

A `c` kernel is compiled text, a `library` kernel one of our own over the machine's BLAS. Both are
called by address inside a chain. Where there is no compiler (or no BLAS to call by pointer), and
for `reference` kernels, the kernel is a Python function over the same arguments instead, made from
its body: a chain is cut around it. The values agree to rounding; the speed does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anabranch.ir.plan import Kernel, Plan
from anabranch.runtime.arrays import Bytes
from anabranch.runtime.build import Toolchain, build
from anabranch.runtime.errors import BuildError
from anabranch.runtime.library import LIBRARY
from anabranch.runtime.native import HEADER, NativeLibrary, address, load, load_pool

PythonFunction = Callable[[Sequence[int], Sequence[float], Sequence[Bytes]], None]
Interpret = Callable[[str], PythonFunction]
"""From the JSON body of a kernel to a function of ints, floats and byte buffers, each buffer
beginning where a pointer would point."""


@dataclass(frozen=True, slots=True)
class NativeKernel:
    """A function of the kernel signature; a library kernel also says how it is cut."""

    address: int
    pool: NativeLibrary
    cut_by: str = ""

    def tiles(self, ints: NDArray[np.int64]) -> int:
        return self.pool.tiles(self.cut_by, ints)


@dataclass(frozen=True, slots=True)
class PythonKernel:
    """A function that is called once for the whole grid."""

    function: PythonFunction


Loaded = NativeKernel | PythonKernel


def load_kernels(
    plan: Plan, toolchain: Toolchain | None, interpret: Interpret
) -> list[Loaded]:
    """Every kernel of the plan, compiled if the cache lacks it, by id."""
    if toolchain is None:
        return [_in_python(plan, kernel, interpret) for kernel in plan.kernels]
    pool = load_pool(toolchain)
    addresses = _compile(plan, toolchain)
    return [_load(plan, kernel, pool, addresses, interpret) for kernel in plan.kernels]


def _load(
    plan: Plan,
    kernel: Kernel,
    pool: NativeLibrary,
    addresses: dict[int, int],
    interpret: Interpret,
) -> Loaded:
    if kernel.kind == "c":
        return NativeKernel(addresses[kernel.id], pool)
    if kernel.kind == "library" and kernel.symbol in LIBRARY and pool.blas:
        return NativeKernel(address(pool.library, kernel.symbol), pool, kernel.symbol)
    return _in_python(plan, kernel, interpret)


def _compile(plan: Plan, toolchain: Toolchain) -> dict[int, int]:
    """The address of every C kernel. A source may hold several; each is compiled once."""
    kernels = [kernel for kernel in plan.kernels if kernel.kind == "c"]
    sources = sorted({kernel.source for kernel in kernels})
    before = f"{HEADER}\n{plan.prelude}"
    paths = build(toolchain, before, [plan.sources[source].text for source in sources])
    libraries = dict(zip(sources, map(load, paths), strict=True))
    return {k.id: address(libraries[k.source], k.symbol) for k in kernels}


def _in_python(plan: Plan, kernel: Kernel, interpret: Interpret) -> PythonKernel:
    if kernel.kind == "library" and kernel.symbol in LIBRARY:
        return PythonKernel(LIBRARY[kernel.symbol])
    body = kernel.source if kernel.kind == "reference" else kernel.body
    if kernel.kind not in ("c", "reference") or body < 0:
        need = "it needs a C compiler" if kernel.kind == "c" else f"it is of kind {kernel.kind}"
        raise BuildError(f"nothing here can run kernel {kernel.symbol}: {need}")
    return PythonKernel(interpret(plan.sources[body].text))
