"""Where things are while a kernel is built: axes, tensors, places, and the statements so far.

What does not depend on a loop is put before it, whatever asked for it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.codegen.analysis import accesses_of, merged_axes, read_once, worth_keeping
from anabranch.codegen.kernel import (
    Check,
    Kernel,
    Let,
    Load,
    Ref,
    Statement,
    Tensor,
    dtype_of,
    names,
)
from anabranch.codegen.names import Names, Numbers
from anabranch.ir.core import Value
from anabranch.ir.expr import Const, Expr, add, mul
from anabranch.ir.launch import IntArg
from anabranch.ir.linear import Linear, strides
from anabranch.ir.space import Clause, Space
from anabranch.ir.types import accumulator, itemsize


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a space is walked: `grid` axes, then `loops`, outer ones first.

    `lanes` says whether the last axis of the grid, or of the loops, is one of lanes. With `chunk`
    the first loop is cut: the grid begins with an axis of tiles, each of which takes so many
    steps, and reductions leave partial results there. `keep`: rows may be kept in local memory.
    `dots`: sums of products of two reads become `Dot`. `spare`: loads are masked where a condition
    on indices makes them needless, harmless as they may be.
    """

    grid: tuple[str, ...]
    loops: tuple[str, ...] = ()
    lanes: str = ""  # grid | loops | ""
    chunk: int = 0
    keep: bool = True
    dots: bool = False
    spare: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """A kernel with what its arguments are; scratch tensors are values of their own."""

    kernel: Kernel
    pointers: tuple[Value, ...]
    ints: tuple[IntArg, ...]
    extents: dict[str, int]  # of the grid's axes
    work: int  # operations and accesses per point of the grid
    local_bytes: int = 0

    def numbers(self) -> dict[str, int]:
        """The integer arguments of micro-batch 0 by name."""
        return {n: a.base for n, a in zip(self.kernel.ints, self.ints, strict=True)}


class Scope(ABC):
    """The statements of one kernel. `row` stands before the loops, `inner` in them."""

    def __init__(self, space: Space, outputs: Sequence[Value], scheme: Scheme,
                 scratch: Sequence[Value] = (), parts: int = 0,
                 also: Sequence[Linear] = ()) -> None:
        self.space, self.scheme, self.outputs = space, scheme, tuple(outputs)
        self.scratch = tuple(scratch)
        self.homes = {c.result: i for i, c in enumerate(space.clauses)}
        self.names = Names()
        self.numbers = Numbers(self.names)
        self.tensors: dict[str, Tensor] = {}
        self.bindings: dict[str, Value] = {}
        self.by_value: dict[tuple[Value, str], str] = {}
        self.size: dict[str, int] = {}
        self.extent: dict[str, Ref] = {}
        self.row: list[Statement] = []
        self.inner: list[Statement] | None = None
        self.inner_names: set[str] = set()
        self.row_env: dict[object, Expr] = {}
        self.inner_env: dict[object, Expr] = {}
        self.facts: dict[Expr, bool] = {}
        self.wave = 0
        self.kept = self._kept()
        self.once = read_once(space.clauses) if scheme.spare else set()
        self.local_bytes = 0
        self._chunk: tuple[Expr, Expr] | None = None
        self.tile = self._tile_axis(parts)
        self._make_axes(also)

    def _kept(self) -> dict[int, int]:
        """What the first pass keeps, and which pass that is. Lanes of the grid share local memory,
        so that there only results can be kept."""
        if not (self.scheme.keep and self.scheme.loops):
            return {}
        worth = worth_keeping(self.space, set(self.outputs))
        shared = self.scheme.lanes == "grid"
        results = {i for i, c in enumerate(self.space.clauses) if c.result in self.outputs}
        return {i: first for i, first in worth.items() if i in results or not shared}

    # axes

    def _tile_axis(self, parts: int) -> Ref:
        """The axis of the tiles of a split reduction, in front of the grid's others."""
        if not parts:
            return Ref("")
        ref = Ref(self.names.fresh("part"))
        self.size = {ref.name: parts}
        self.extent = {ref.name: self.numbers.extent(ref.name, parts)}
        return ref

    def _make_axes(self, also: Sequence[Linear]) -> None:
        fixed, accesses = accesses_of(self.space, self.outputs, also)
        self.steps: list[tuple[Ref, str]] = []  # kernel axis, and the axis whose stride it has
        self.axis: dict[str, Ref] = {}
        chunked = self.scheme.loops[:1] if self.scheme.chunk else ()
        apart = fixed | set(chunked)
        self.grid, self.loops = (
            [self._axis(group) for group in merged_axes(axes, self.space, apart, accesses)]
            for axes in (self.scheme.grid, self.scheme.loops))

    def _axis(self, group: tuple[str, ...], hint: str = "") -> Ref:
        ref = Ref(self.names.fresh(hint or "_".join(group)))
        self.size[ref.name] = math.prod(self.space.extents[a] for a in group)
        self.extent[ref.name] = self.numbers.extent(ref.name, self.size[ref.name])
        self.steps.append((ref, group[-1]))
        if len(group) == 1:
            self.axis[group[0]] = ref
        return ref

    @abstractmethod
    def lower(self, expr: Expr, at: int, mask: Expr | None) -> Expr:
        """An expression of clause `at`, evaluated where `mask` holds."""

    # tensors and places

    def pointer(self, value: Value, role: str) -> str:
        """The tensor parameter of a value."""
        if (value, role) not in self.by_value:
            name = self.names.fresh(f"{value.name or 'v'}_ptr")
            self.tensors[name] = Tensor(name, value.type.dtype, role)
            self.bindings[name] = value
            self.by_value[value, role] = name
        return self.by_value[value, role]

    def target(self, value: Value) -> str:
        """The tensor that a result is stored to."""
        return self.pointer(value, "scratch" if value in self.scratch else "out")

    def local(self, value: Value) -> str:
        key = (value, "local")
        if key not in self.by_value:
            name = self.names.fresh(f"{value.name or 'v'}_row")
            size = math.prod(self.space.extents[a] for a in self.scheme.loops)
            self.tensors[name] = Tensor(name, accumulator(value.type.dtype), "local",
                                        self.numbers.number(size))
            self.by_value[key] = name
            self.local_bytes += (size * itemsize(accumulator(value.type.dtype)) + 63) // 64 * 64
        return self.by_value[key]

    def index(self, form: Linear, at: int, mask: Expr | None) -> Expr:
        """A linear form over axes as an expression over kernel axes."""
        parts: list[Expr] = []
        for ref, axis in self.steps:
            stride = form.terms.get(axis, 0)
            if stride:
                parts.append(ref if stride == 1 else mul(ref, self.numbers.number(stride)))
        for factor, atom in form.atoms:
            value = self.lower(atom, at, mask)
            parts.append(value if factor == 1 else mul(value, self.numbers.number(factor)))
        if form.constant or not parts:
            parts.append(self.numbers.number(form.constant))
        total = parts[0]
        for part in parts[1:]:
            total = add(total, part)
        return total

    def home_place(self, c: Clause) -> Linear:
        """Where the element of a clause lies in its result."""
        steps = strides([self.space.extents[v] for v in c.result_vars])
        return Linear(dict(zip(c.result_vars, steps, strict=True)))

    # statements go as far out as they can

    def emit(self, statement: Statement, *defined: str) -> None:
        if self.inner is None or not self._is_inner(statement):
            self.row.append(statement)
            return
        self.inner.append(statement)
        self.inner_names.update(defined)

    def _is_inner(self, statement: Statement) -> bool:
        match statement:
            case Load(_, _, index, mask, other):
                return bool(names(index, mask, other) & self.inner_names)
            case Let(_, value):
                return bool(names(value) & self.inner_names)
            case Check(_, value, bound, mask):
                return bool(names(value, bound, mask) & self.inner_names)
        return True

    def _known(self, key: object) -> Expr | None:
        return self.inner_env.get(key, self.row_env.get(key))

    def _remember(self, key: object, value: Expr) -> Expr:
        inner = self.inner is not None and bool(names(value) & self.inner_names)
        (self.inner_env if inner else self.row_env)[key] = value
        return value

    def load(
        self, hint: str, tensor: str, index: Expr, mask: Expr | None, other: Expr | None
    ) -> Expr:
        key = ("load", tensor, index, mask, other)
        known = self._known(key)
        if known is not None:
            return known
        name = self.names.fresh(hint)
        self.emit(Load(name, tensor, index, mask, other), name)
        return self._remember(key, Ref(name, accumulator(self.tensors[tensor].dtype)))

    def let(self, hint: str, value: Expr) -> Expr:
        if isinstance(value, (Ref, Const)):
            return value
        name = self.names.fresh(hint)
        self.emit(Let(name, value), name)
        return Ref(name, dtype_of(value))
