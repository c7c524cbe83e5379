"""Compiles kernels in Triton ahead of time, which needs no GPU, and counts what came out.

The census of a kernel is what can be known of its speed without running it: registers, bytes of
stack (spilled registers), of shared memory, and how many instructions there are of the kinds that
matter. Triton is imported when something is compiled, not before.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anabranch.ir.launch import KernelText, LaunchSpec

ALIGNED = 16  # bytes, or elements: what lets accesses be of 128 bits
COUNTED = {
    "ld128": r"ld\.global[^\n]*\.v4\.(b32|f32)|ld\.global[^\n]*\.v2\.b64",
    "st128": r"st\.global[^\n]*\.v4\.(b32|f32)|st\.global[^\n]*\.v2\.b64",
    "fma": r"fma\.rn\.f32",
    "tensor": r"wgmma\.mma_async|mma\.sync|tcgen05\.mma",
    "async": r"cp\.async\.c[ag]|cp\.async\.bulk",
    "atomic": r"\b(?:atom|red)\.",
}


@dataclass(frozen=True, slots=True)
class Census:
    """Of one kernel on one architecture; `instructions` are counts by kind, in PTX."""

    registers: int
    stack: int
    shared: int
    instructions: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        counts = " ".join(f"{name}={n}" for name, n in self.instructions if n)
        return f"reg={self.registers} stack={self.stack} shared={self.shared} {counts}".rstrip()


def load(text: KernelText, folder: Path) -> Any:
    """The file of a kernel as a module; the kernel is its attribute `text.symbol`."""
    path = folder / f"{text.symbol}.py"
    path.write_text(text.source, encoding="utf-8")
    found = importlib.util.spec_from_file_location(text.symbol, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def aligned(spec: LaunchSpec) -> list[bool]:
    """For each argument: whether it is known to be a multiple of 16."""
    pointers = [p.offset % ALIGNED == 0 and p.index % ALIGNED == 0 if p.kind == "scratch"
                else p.offset % ALIGNED == 0 for p in spec.pointers]
    ints = [i.base % ALIGNED == 0 and i.step % ALIGNED == 0 for i in spec.ints]
    return [*pointers, *ints]


def compile_kernel(spec: LaunchSpec, module: Any, target: Any) -> Any:
    """A kernel for a `triton.backends.compiler.GPUTarget`, with all options stated."""
    import triton
    from triton.compiler import ASTSource

    function = getattr(module, spec.kernel.symbol)
    numbers = [None] * len(spec.pointers) + [i.base for i in spec.ints]
    types = dict(zip(module.SIGNATURE, zip(module.SIGNATURE.values(), numbers, strict=True),
                     strict=True))
    constants = {n: number for n, (type, number) in types.items() if type == "constexpr"}
    attributes = {(k,): [["tt.divisibility", ALIGNED]]
                  for k, (name, yes) in enumerate(zip(types, aligned(spec), strict=True))
                  if yes and name not in constants}
    source = ASTSource(function, dict(module.SIGNATURE), constexprs=constants, attrs=attributes)
    return triton.compile(source, target=target, options=dict(module.OPTIONS))


def census(compiled: Any, folder: Path) -> Census:
    """What a kernel compiled for CUDA needs and does."""
    registers, stack = _usage(compiled.asm["cubin"], folder)
    counts = tuple((name, len(re.findall(pattern, compiled.asm["ptx"])))
                   for name, pattern in COUNTED.items())
    return Census(registers, stack, int(compiled.metadata.shared), counts)


def _usage(cubin: bytes, folder: Path) -> tuple[int, int]:
    """Registers and bytes of stack, from the tool that triton brings along."""
    from triton import knobs

    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    command: Sequence[str] = [knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found is not None, f"unexpected answer of cuobjdump: {text}"
    return int(found[1]), int(found[2])
