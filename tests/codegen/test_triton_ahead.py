"""Every kernel of W1's training step, and of that of a GPT with dropout, compiled without a GPU.

At the sizes of W1, where most extents are multiples of 16 and accesses can be of 128 bits.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from anabranch.codegen.emit import Launches, launches
from anabranch.codegen.triton_compile import aligned, census, compile_kernel, load
from anabranch.ir.core import Op, Value
from anabranch.ir.launch import LaunchSpec
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Compute, Fused, Order
from anabranch.ir.types import DTYPES, tensor
from tests.codegen.cases import CASES, PLAIN_PRODUCTS, PRODUCTS, as_one, parsed
from tests.codegen.scans import SCANS, scan_of
from tests.codegen.triton_cases import steps

SHARED = {80: 163 * 1024, 90: 227 * 1024}  # bytes that a program may have
STEPS = [(0.0, {}), (0.1, {}), (0.1, {"data": 2}), (0.1, {"model": 2})]
HALVES = 2


@functools.cache
def kernels() -> tuple[LaunchSpec, ...]:
    """Each kernel once, in the order of the steps: what differs by more than unaligned numbers."""
    found: dict[object, LaunchSpec] = {}
    for drop, axes in STEPS:
        for module in steps(Mesh.of(**axes), {"drop": drop, "depth": 2}, batch=8):
            of_the_step = Launches("triton")
            for op in module.functions["train"].body:
                if isinstance(op, (Compute, Fused)):
                    for spec in of_the_step(op):
                        sizes = spec.ints[-spec.kernel.source.count(": tl.constexpr"):]
                        key = spec.kernel.digest, tuple(aligned(spec)), sizes
                        found.setdefault(key, spec)
    return tuple(found.values())


@pytest.mark.parametrize("half", range(HALVES))
@pytest.mark.parametrize("architecture", SHARED)
def test_every_kernel_compiles_without_spilling(
    architecture: int, half: int, tmp_path: Path
) -> None:
    compiler = pytest.importorskip("triton.backends.compiler")
    target = compiler.GPUTarget("cuda", architecture, 32)
    vectors = 0
    for spec in kernels()[half::HALVES]:
        module = load(spec.kernel, tmp_path)
        found = census(compile_kernel(spec, module, target), tmp_path)
        counts = dict(found.instructions)
        assert found.stack == 0, f"{spec.kernel.symbol}: {found}"
        assert found.shared <= SHARED[architecture], f"{spec.kernel.symbol}: {found}"
        assert counts["atomic"] == 0, "the order of every sum is fixed"
        if "tl.dot" in spec.kernel.source:
            assert counts["fma"] > 0, f"{spec.kernel.symbol}: {found}"
            assert counts["tensor"] == 0, "products of f32 are those of IEEE"
        vectors += counts["ld128"] > 0
    assert vectors > len(kernels()) / HALVES / 3


def test_every_kind_of_kernel_compiles(tmp_path: Path) -> None:
    """Of every dtype; and with integers of 1 as constants, as triton's own launcher has them."""
    compiler = pytest.importorskip("triton.backends.compiler")
    target = compiler.GPUTarget("cuda", 90, 32)
    ops: list[Op] = [as_one(parsed(text)) for text in CASES.values()]
    ops += [next(iter(parsed(text).body)) for text in (PRODUCTS | PLAIN_PRODUCTS).values()]
    ops += [Order(Value(tensor(dtype, (5, 70, 3)), "x"), 1, 7, descending=dtype == "bool")
            for dtype in DTYPES]
    ops += map(scan_of, SCANS.values())
    for op in ops:
        for spec in launches(op, "triton"):
            if spec.tiles:
                module = load(spec.kernel, tmp_path)
                assert compile_kernel(spec, module, target).asm["cubin"]
                pointers = len(spec.pointers)
                for name, number in zip(list(module.SIGNATURE)[pointers:], spec.ints, strict=True):
                    if number.base == 1:
                        module.SIGNATURE[name] = "constexpr"
                assert compile_kernel(spec, module, target).asm["cubin"]
