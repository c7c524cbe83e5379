"""The memory of a session: one arena per rank, and where every register, state and scratch lies.

Arenas are allocated once, with exactly the bytes the plan predicts; a step allocates nothing.
With `canaries`, every range gets its own block between guard bytes instead, filled with a pattern
that reads as nan: `check_guards` then names the range whose neighbour was overrun. (Whether ranges
that share bytes may do so is proved beforehand by `check`, not found here.)
"""

from __future__ import annotations

import mmap

import numpy as np

from anabranch.ir.plan import Arena, Plan, Program, Register, Shard, Stream
from anabranch.runtime.arrays import Bytes
from anabranch.runtime.errors import RunError

GUARD = 64
GUARD_BYTE = 0xA5
FRESH_BYTE = 0xFF


def allocate(nbytes: int) -> Bytes:
    """Zeroed pages of our own, so aligned for every instruction and device."""
    block = mmap.mmap(-1, max(1, nbytes))
    if hasattr(mmap, "MADV_HUGEPAGE") and nbytes >= 1 << 21:
        block.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(block, np.uint8, nbytes)


def _of_arena(arena: Arena) -> Bytes:
    try:
        return allocate(arena.nbytes)
    except (OSError, OverflowError, ValueError):
        raise RunError(f"rank {arena.rank} needs {arena.nbytes / 1e9:,.1f} GB of memory, more "
                       "than this machine gives") from None


class Memory:
    """The arenas of the ranks that live in this process."""

    def __init__(self, plan: Plan, ranks: tuple[int, ...], canaries: bool) -> None:
        self._blocks: dict[int, Bytes] = {}
        self._guarded: dict[tuple[str, int, int], Bytes] = {}
        self._canaries = canaries
        if not canaries:
            local = [arena for arena in plan.arenas if arena.rank in ranks]
            self._blocks = {arena.id: _of_arena(arena) for arena in local}

    def allocated_bytes(self) -> int:
        return sum(block.nbytes for block in self._blocks.values())

    def shard(self, shard: Shard) -> Bytes:
        return self._range("a state", shard.arena, shard.offset, shard.nbytes)

    def slots(self, program: Program, register: Register, name: str) -> list[Bytes]:
        own = f"{program.name} %{name} (register {register.id})"
        owner = "a state" if register.kind == "state" else own
        sizes = [register.nbytes] * len(register.offsets)
        places = zip(register.offsets, sizes, strict=True)
        return [self._range(owner, register.arena, at, nbytes) for at, nbytes in places]

    def scratch(self, program: Program, stream: Stream) -> Bytes:
        owner = f"{program.name} scratch of stream {stream.id}"
        return self._range(owner, stream.arena, stream.offset, stream.nbytes)

    def _range(self, owner: str, arena: int, offset: int, nbytes: int) -> Bytes:
        if not self._canaries:
            return self._blocks[arena][offset : offset + nbytes]
        key = (owner, arena, offset)
        if key not in self._guarded:
            block = allocate(nbytes + 2 * GUARD)
            block[:] = GUARD_BYTE
            block[GUARD : GUARD + nbytes] = FRESH_BYTE
            self._guarded[key] = block
        return self._guarded[key][GUARD : GUARD + nbytes]

    def check_guards(self) -> None:
        """Raises if anything wrote just before or just behind a range of its own."""
        for (owner, arena, _), block in self._guarded.items():
            for side, guard in (("before", block[:GUARD]), ("behind", block[-GUARD:])):
                if (guard != GUARD_BYTE).any():
                    raise RunError(f"something wrote {side} {owner} in arena {arena}")
