"""Runs the launches of an op as the runtime would: one chain on the pool, over NumPy memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anabranch.codegen import PRELUDE, LaunchSpec, launches
from anabranch.ir.core import Op
from anabranch.ir.launch import Pointer
from anabranch.runtime.build import build, find_toolchain
from anabranch.runtime.native import HEADER, LAUNCH, STATUS, address, load, load_pool

Array = np.ndarray[Any, Any]

MEMORY = {
    "bool": np.uint8, "u8": np.uint8, "i8": np.int8, "u16": np.uint16, "i16": np.int16,
    "u32": np.uint32, "i32": np.int32, "u64": np.uint64,
    "i64": np.int64, "f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
CANARY = 64  # bytes around every buffer


@dataclass
class Status:
    """What the chain said: 0 or the launch at fault, and its index."""

    code: int
    value: int
    bound: int


def to_memory(array: Array, dtype: str) -> Array:
    if dtype == "bf16":
        return (np.asarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.asarray(array).astype(MEMORY[dtype], copy=False)


def from_memory(array: Array, dtype: str) -> Array:
    if dtype == "bf16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.bool_) if dtype == "bool" else array


class Guarded:
    """A buffer with canaries on both sides."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.store = np.full(nbytes + 2 * CANARY + 64, 0xA5, np.uint8)
        self.start = CANARY + (-(self.store.ctypes.data + CANARY)) % 64

    @property
    def address(self) -> int:
        return self.store.ctypes.data + self.start

    def view(self, dtype: Any, shape: Sequence[int]) -> Array:
        return self.store[self.start : self.start + self.nbytes].view(dtype).reshape(shape)

    def whole(self) -> bool:
        before, after = self.store[: self.start], self.store[self.start + self.nbytes :]
        return bool((before == 0xA5).all() and (after == 0xA5).all())


def compiled(specs: Sequence[LaunchSpec]) -> list[int]:
    """The addresses of the functions."""
    toolchain = find_toolchain()
    assert toolchain is not None, "these tests need a C compiler"
    pool = load_pool(toolchain)
    texts = list(dict.fromkeys(s.kernel.source for s in specs if s.kernel.kind == "c"))
    paths = dict(zip(texts, build(toolchain, f"{HEADER}\n{PRELUDE}", texts), strict=True))
    return [
        address(pool.library if s.kernel.kind == "library" else load(paths[s.kernel.source]),
                s.kernel.symbol)
        for s in specs
    ]


def run(
    op: Op, operands: Sequence[Array], micro: int = 0, on: dict[int, int] | None = None
) -> list[Array]:
    """The results of an op; fails if anything outside of its buffers is written. `on` puts
    results on the memory of operands."""
    results, status = attempt(op, operands, micro, on)
    assert status.code == 0, f"index {status.value} of {status.bound}"
    return results


def attempt(
    op: Op, operands: Sequence[Array], micro: int = 0, on: dict[int, int] | None = None
) -> tuple[list[Array], Status]:
    specs = launches(op)
    buffers = {("operand", i): _filled(a, v.type.dtype)
               for i, (a, v) in enumerate(zip(operands, op.operands, strict=True))}
    for i, value in enumerate(op.results):
        here = (on or {}).get(i)
        buffers["result", i] = (
            Guarded(value.type.nbytes) if here is None else buffers["operand", here])
    scratch = Guarded(max((s.scratch for s in specs), default=0))
    calls = [Call(s, a, buffers, scratch, micro)
             for s, a in zip(specs, compiled(specs), strict=True)]
    status = run_calls(calls)
    assert all(b.whole() for b in (*buffers.values(), scratch)), "a kernel wrote outside"
    results = []
    for i, value in enumerate(op.results):
        held = buffers["result", i].view(MEMORY[value.type.dtype], value.type.shape)
        results.append(from_memory(held, value.type.dtype))
    return results, status


def _filled(array: Array, dtype: str) -> Guarded:
    memory = np.ascontiguousarray(to_memory(array, dtype))
    buffer = Guarded(memory.nbytes)
    buffer.view(memory.dtype, memory.shape)[...] = memory
    return buffer


class Call:
    """One row of the launch table, with what it points to."""

    def __init__(self, spec: LaunchSpec, function: int, buffers: dict[Any, Guarded],
                 scratch: Guarded, micro: int) -> None:
        self.ints = np.array([i.base + i.step * micro for i in spec.ints] or [0], np.int64)
        self.floats = np.array(spec.floats or [0.0])
        self.ptrs = np.array([_address(p, buffers, scratch) for p in spec.pointers] or [0],
                             np.uint64)
        tiles = spec.tiles
        if tiles < 0:
            toolchain = find_toolchain()
            assert toolchain is not None
            tiles = load_pool(toolchain).tiles(spec.kernel.symbol, self.ints)
        self.row = (function, self.ints.ctypes.data, self.floats.ctypes.data,
                    self.ptrs.ctypes.data, tiles, spec.tile_scratch)


def _address(pointer: Pointer, buffers: dict[Any, Guarded], scratch: Guarded) -> int:
    if pointer.kind == "scratch":
        return scratch.address + pointer.index
    return buffers[pointer.kind, pointer.index].address + pointer.offset


def use_cores(cores: int) -> None:
    toolchain = find_toolchain()
    assert toolchain is not None
    load_pool(toolchain).use_cores(cores)


def run_calls(calls: Sequence[Call]) -> Status:
    toolchain = find_toolchain()
    assert toolchain is not None
    table = np.array([c.row for c in calls], LAUNCH)
    status, abort = np.zeros(1, STATUS), np.zeros(1, np.int32)
    pool = load_pool(toolchain)
    pool.run_chain(table.ctypes.data, len(calls), status.ctypes.data, abort.ctypes.data)
    return Status(*(int(status[0][n]) for n in ("code", "value", "bound")))


