"""What a target of code generation is: how it prints a kernel, and what kernels it wants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anabranch.codegen.scope import Piece
from anabranch.codegen.tile import Options
from anabranch.ir.launch import KernelText
from anabranch.ir.space import Clause


@dataclass(frozen=True, slots=True)
class Printed:
    """A kernel as text. `sizes` are its blocks, which follow its integer arguments; `tiles` is how
    many run. With `status` it takes a pointer to three i64 words behind its other pointers, where
    it puts 1, the index and the bound if an index is out of range."""

    text: KernelText
    sizes: tuple[int, ...]
    tiles: int
    tile_scratch: int = 0
    status: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """`library`: matrix products are calls of the library where their strides allow it."""

    print: Callable[[Piece], Printed]
    options: Callable[[Sequence[Clause]], Options]
    library: bool
