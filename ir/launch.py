"""What code generation hands to the schedule: how to launch the kernels of one local op.

Nothing here knows a rank's memory: pointers name the op's operands, results and scratch, and the
schedule turns them into arena addresses.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelText:
    """A kernel as text. `kind` is c, triton, library or reference; `digest` names its content.
    `body`, where there is one, is the same kernel as JSON, which can be interpreted."""

    kind: str
    symbol: str
    source: str
    digest: str
    body: str = ""


@dataclass(frozen=True, slots=True)
class IntArg:
    """An integer argument: `base + step * micro-batch`."""

    base: int
    step: int = 0


@dataclass(frozen=True, slots=True)
class Pointer:
    """`kind` is operand or result (with its number), scratch (with a byte offset), or status (where
    a kernel of a device reports an index out of range). `offset` is in bytes, from where the
    operand or result begins."""

    kind: str
    index: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One kernel call. `tiles` is the grid, a function of shapes only; `scratch` is in bytes,
    shared by all launches of the op, `tile_scratch` what a thread needs for itself while it runs
    one tile; flops and bytes are what the cost model counted."""

    kernel: KernelText
    pointers: tuple[Pointer, ...]
    ints: tuple[IntArg, ...]
    floats: tuple[float, ...]
    tiles: int
    scratch: int = 0
    flops: int = 0
    bytes: int = 0
    tile_scratch: int = 0
