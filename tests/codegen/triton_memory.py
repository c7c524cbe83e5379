"""Runs the Triton kernels of an op over torch memory: in the interpreter, or on a GPU.

What a kernel writes outside of its buffers shows at their borders; an index out of range is in the
status. Triton is imported with the first kernel, and decides then whether it interprets.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anabranch.codegen.emit import launches
from anabranch.codegen.triton_compile import load
from anabranch.codegen.triton_expr import SIGNATURES
from anabranch.ir.core import Op
from anabranch.ir.launch import LaunchSpec, Pointer
from anabranch.ir.printer import print_op

Array = np.ndarray[Any, Any]
Module = Any
Tensor = Any  # of torch, which is imported when there is something to run
Launch = Callable[[Module, LaunchSpec, Sequence[Any]], None]

TORCH = {
    "bool": "bool", "u8": "uint8", "i8": "int8", "u16": "uint16", "i16": "int16",
    "u32": "uint32", "i32": "int32", "u64": "uint64", "i64": "int64",
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
}  # fmt: skip
TOLERANCE = {"f16": 2e-3, "bf16": 2e-2, "f32": 3e-5, "f64": 1e-10}
BORDER = 64  # elements on both sides of a buffer
FILL = 7  # and what is there


@dataclass
class Outcome:
    """The results, and the three words of the status."""

    results: list[Array]
    status: tuple[int, int, int]


class Buffer:
    """A tensor with borders."""

    def __init__(self, shape: Sequence[int], dtype: str, device: str) -> None:
        import torch

        self.elements = int(np.prod(shape))
        kind = getattr(torch, TORCH[dtype])
        self.whole = torch.full((self.elements + 2 * BORDER,), FILL, dtype=kind, device=device)
        self.inside = self.whole[BORDER : BORDER + self.elements]

    def untouched(self) -> bool:
        first, last = self.whole[:BORDER], self.whole[BORDER + self.elements :]
        fill = first.new_full((1,), FILL)
        return bool((first == fill).all() and (last == fill).all())


def call(module: Module, spec: LaunchSpec, arguments: Sequence[Any]) -> None:
    """One launch by triton's own means, with the options of the kernel."""
    getattr(module, spec.kernel.symbol)[(spec.tiles,)](*arguments, **module.OPTIONS)


def run(op: Op, operands: Sequence[Array], specs: Sequence[LaunchSpec] | None = None, *,
        micro: int = 0, device: str = "cpu", launch: Launch = call) -> Outcome:
    """The results of an op; fails if anything outside of its buffers is written."""
    import torch

    specs = launches(op, "triton") if specs is None else specs
    inputs = [_filled(x, v.type.dtype, device)
              for x, v in zip(operands, op.operands, strict=True)]
    outputs = [Buffer(v.type.shape, v.type.dtype, device) for v in op.results]
    for b in outputs:  # whatever was there before must not matter
        b.inside.fill_(1)
    scratch = torch.full((max((s.scratch for s in specs), default=0) + 64,), 0xA5,
                         dtype=torch.uint8, device=device)
    status = torch.zeros(3, dtype=torch.int64, device=device)
    with tempfile.TemporaryDirectory() as folder:
        for spec in specs:
            if spec.tiles:
                module = load(spec.kernel, Path(folder))
                pointers = _pointers(module, spec, inputs, outputs, scratch, status)
                ints = [i.base + i.step * micro for i in spec.ints]
                launch(module, spec, [*pointers, *ints])
    assert all(b.untouched() for b in (*inputs, *outputs)), "something outside was written"
    results = [_array(b.inside, v.type.shape) for b, v in zip(outputs, op.results, strict=True)]
    return Outcome(results, tuple(int(x) for x in status.cpu()))


def _filled(array: Array, dtype: str, device: str) -> Buffer:
    import torch

    buffer = Buffer(np.shape(array), dtype, device)
    values = torch.from_numpy(np.array(array)).to(getattr(torch, TORCH[dtype]))
    buffer.inside[...] = values.flatten()
    return buffer


def _array(tensor: Tensor, shape: Sequence[int]) -> Array:
    narrow = tensor.element_size() == 2 and tensor.is_floating_point()
    found: Array = (tensor.float() if narrow else tensor).cpu().numpy()
    return found.reshape(shape)


def _pointers(module: Module, spec: LaunchSpec, inputs: Sequence[Buffer],
              outputs: Sequence[Buffer], scratch: Tensor,
              status: Tensor) -> list[Tensor]:
    kinds = [t for t in module.SIGNATURE.values() if t.startswith("*")]
    found = []
    for pointer, kind in zip(spec.pointers, kinds, strict=True):
        match pointer:
            case Pointer("operand", index):
                found.append(inputs[index].inside)
            case Pointer("result", index):
                found.append(outputs[index].inside)
            case Pointer("status"):
                found.append(status)
            case Pointer(_, index):
                found.append(_at(scratch, index, kind))
    return found


def _at(scratch: Tensor, offset: int, kind: str) -> Tensor:
    import torch

    names = {f"*{signature}": dtype for dtype, signature in SIGNATURES.items()}
    dtype = getattr(torch, TORCH[names[kind]])
    size = torch.empty((), dtype=dtype).element_size()
    whole = scratch[offset : len(scratch) - (len(scratch) - offset) % size]
    return whole.view(dtype)


def assert_agrees(op: Op, got: Sequence[Array], want: Sequence[Array]) -> None:
    """Within rounding of the largest number: a sum may have any order."""
    for value, g, w in zip(op.results, got, want, strict=True):
        if value.type.dtype not in TOLERANCE:
            np.testing.assert_array_equal(g, w, err_msg=print_op(op))
            continue
        finite = np.abs(w[np.isfinite(w)], dtype=np.float64)
        tolerance = TOLERANCE[value.type.dtype]
        np.testing.assert_allclose(
            g.astype(np.float64), np.asarray(w, np.float64), rtol=tolerance,
            atol=0.1 * tolerance * finite.max(initial=0.0), err_msg=print_op(op))
