"""The builder of one kernel: clauses over a space become statements, a pass at a time.

A value of the group is computed once per pass in which it is needed; where that is much work, the
first pass keeps it (in the result it is stored to anyway, or in a local row), and later ones load
it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from anabranch.codegen.analysis import (
    comparisons,
    expression_dtype,
    is_product_of_values,
    needed_elements,
)
from anabranch.codegen.expressions import Expressions
from anabranch.codegen.kernel import (
    Axis,
    Dot,
    Kernel,
    Loop,
    Ref,
    Start,
    Statement,
    Store,
    Update,
    dtype_of,
)
from anabranch.codegen.scope import Piece
from anabranch.ir.core import Value
from anabranch.ir.diagnostics import CompilerBug
from anabranch.ir.expr import FALSE, TRUE, Call, Cast, Const, Expr, add, integer, mul
from anabranch.ir.launch import IntArg
from anabranch.ir.linear import Linear, strides
from anabranch.ir.scalar import flops
from anabranch.ir.space import Clause
from anabranch.ir.types import accumulator

OF_BOOLS = {"sum": "any", "max": "any", "prod": "all", "min": "all"}


class Builder(Expressions):
    # values of the group

    def value(self, i: int) -> Expr:
        """The value of clause i at the current element, or of the current row."""
        known = self._known(("value", i))
        if known is not None:
            return known
        if not self.space.full(i):
            return self._row_value(i)
        c = self.space.clauses[i]
        first = self.kept.get(i)
        if first is not None and first < self.wave:
            return self._remember(("value", i), self._load_kept(c))
        value = self._rounded(c, self.lower(c.body, i, None))
        result = self.let(c.result.name, value)
        if first == self.wave and c.result not in self.outputs:
            assert self.inner is not None
            self.inner.append(Store(self.local(c.result), self._row_place(i), result))
        return self._remember_value(i, result)

    def _remember_value(self, i: int, value: Expr) -> Expr:
        """Of this pass only, even where it does not depend on the element: facts differ."""
        (self.row_env if self.inner is None else self.inner_env)["value", i] = value
        return value

    def _row_value(self, i: int) -> Expr:
        """A value per row stands before the loops, whatever asks for it."""
        c = self.space.clauses[i]
        if c.reduce:
            raise CompilerBug(f"%{c.result.name} is asked for before it is reduced")
        inner, self.inner, facts, self.facts = self.inner, None, self.facts, {}
        result = self.let(c.result.name, self._rounded(c, self.lower(c.body, i, None)))
        self.inner, self.facts = inner, facts
        self.row_env["value", i] = result
        return result

    def _rounded(self, c: Clause, value: Expr) -> Expr:
        """A value of a narrow float is what memory would hold."""
        dtype = c.result.type.dtype
        return Cast(dtype, value) if dtype in ("f16", "bf16") or dtype_of(value) != dtype else value

    def _load_kept(self, c: Clause) -> Expr:
        i = self.homes[c.result]
        if c.result in self.outputs:
            tensor = self.target(c.result)
            index = self.index(self.home_place(c), i, None)
        else:
            tensor, index = self.local(c.result), self._row_place(i)
        return self.load(c.result.name or "v", tensor, index, None, None)

    def _row_place(self, at: int) -> Expr:
        sizes = strides([self.space.extents[a] for a in self.scheme.loops])
        return self.index(Linear(dict(zip(self.scheme.loops, sizes, strict=True))), at, None)

    # passes

    def run(self, partials: Mapping[int, Value] | None = None) -> tuple[Statement, ...]:
        """The body. With `partials`, reductions are stored there and nothing follows them."""
        last = max((self.space.waves[i] for i in range(len(self.space.clauses))), default=0)
        for self.wave in range(last + 1):
            self._pass()
        if partials is not None:
            self._store_partials(partials)
            return tuple(self.row)
        ends = [i for i, c in enumerate(self.space.clauses)
                if c.result in self.outputs and self._after_loops(i)]
        self._store_all({i: self.value(i) for i in ends}, self.row)
        return tuple(self.row)

    def _store_all(self, values: Mapping[int, Expr], into: list[Statement]) -> None:
        """Stores come after every load: a result may lie on what is read at the same place."""
        for i, value in values.items():
            c = self.space.clauses[i]
            index = self.index(self.home_place(c), i, None)
            into.append(Store(self.target(c.result), index, value))

    def _store_partials(self, partials: Mapping[int, Value]) -> None:
        for i, value in partials.items():
            place = self._partial_place(self.space.clauses[i])
            self.row.append(Store(self.pointer(value, "scratch"), place, self.row_env["raw", i]))

    def _after_loops(self, i: int) -> bool:
        return not (self.loops and self.space.full(i))

    def _partial_place(self, c: Clause) -> Expr:
        place = self.index(self.home_place(c), self.homes[c.result], None)
        count = math.prod(self.space.extents[v] for v in c.result_vars)
        return add(mul(self.tile, self.numbers.number(count)), place)

    def _pass(self) -> None:
        here = [i for i, w in enumerate(self.space.waves) if w == self.wave]
        reductions = [i for i in here if self.space.clauses[i].reduce]
        stored = [i for i in here if self.space.full(i) and self.loops
                  and self.space.clauses[i].result in self.outputs]
        if not reductions and not stored:
            return
        accumulators = {i: self._start(i) for i in reductions}
        for start, stop, facts in self._segments([*reductions, *stored]):
            self._segment(start, stop, facts, accumulators, stored)
        for i, total in accumulators.items():
            self.row_env["raw", i] = total.ref
            c = self.space.clauses[i]
            self.row_env["value", i] = self.let(c.result.name, self._rounded(c, total.ref))

    def _start(self, i: int) -> Start:
        c = self.space.clauses[i]
        dtype = c.result.type.dtype
        if c.reduce in ("argmax", "argmin"):
            dtype = self.body_dtype(c)
        reduce = OF_BOOLS.get(c.reduce, c.reduce) if dtype == "bool" else c.reduce
        start = Start(self.names.fresh(c.result.name), reduce, accumulator(dtype))
        self.row.append(start)
        return start

    def body_dtype(self, c: Clause) -> str:
        from_reads = {r.operand: c.operands[r.operand].type.dtype for r in c.reads}
        return expression_dtype(c.body, from_reads)

    def _segment(self, start: Expr, stop: Expr, facts: dict[Expr, bool],
                 accumulators: dict[int, Start], stored: list[int]) -> None:
        inner = self.open_loops(facts)
        values = {i: self.value(i) for i in stored}
        for i, accumulator_ in accumulators.items():
            self._update(i, accumulator_)
        self._store_all(values, inner)
        self.close_loops(start, stop)

    def open_loops(self, facts: dict[Expr, bool]) -> list[Statement]:
        """What is emitted from here on, and depends on a loop, stands inside of the loops."""
        self.inner, self.inner_env, self.facts = [], {}, facts
        self.inner_names = {ref.name for ref in self.loops}
        return self.inner

    def close_loops(self, start: Expr, stop: Expr) -> None:
        assert self.inner is not None
        body, self.inner, self.facts = tuple(self.inner), None, {}
        if body:
            self.row.append(self._nest(start, stop, body))

    def _update(self, i: int, start: Start) -> None:
        c = self.space.clauses[i]
        mask = None if c.guard is None else self.lower(c.guard, i, None)
        mask = None if mask == TRUE else mask
        if mask == FALSE:
            return
        value = self.lower(c.body, i, mask)
        if dtype_of(value) != start.dtype:
            value = Cast(start.dtype, value)
        if c.reduce == "sum" and isinstance(value, Const) and value.value == 0:
            return
        if self.scheme.dots and c.reduce == "sum" and mask is None and is_product_of_values(value):
            assert isinstance(value, Call)
            self.emit(Dot(start.name, *value.args))
            return
        at = self.axis[c.reduced[0]] if c.reduce in ("argmax", "argmin") else None
        self.emit(Update(start.name, value, mask, at))

    def _nest(self, start: Expr, stop: Expr, body: tuple[Statement, ...]) -> Statement:
        last = self.loops[-1]
        loop = Loop(last.name, start, stop, body, self.scheme.lanes == "loops")
        for ref in reversed(self.loops[:-1]):
            low, high = self._range(ref)
            loop = Loop(ref.name, low, high, (loop,))
        return loop

    def _range(self, ref: Ref) -> tuple[Expr, Expr]:
        """The bounds of a loop; the first is cut into tiles where the scheme says so."""
        extent = self.extent[ref.name]
        if not self.scheme.chunk or ref != self.loops[0]:
            return integer(0), extent
        return self.chunk_range(extent)

    def chunk_range(self, extent: Ref) -> tuple[Expr, Expr]:
        if self._chunk is None:
            chunk = self.numbers.argument(IntArg(self.scheme.chunk), "chunk")
            low = self.let("begin", mul(self.tile, chunk))
            self._chunk = low, self.let("end", Call("min", (add(low, chunk), extent)))
        return self._chunk

    def _segments(self, roots: list[int]) -> Iterator[tuple[Expr, Expr, dict[Expr, bool]]]:
        low, high = self._range(self.loops[-1])
        lane = self.scheme.loops[-1]
        if self.scheme.lanes != "loops" or self.scheme.chunk or lane not in self.axis:
            yield low, high, {}
            return
        clauses = [self.space.clauses[i] for i in sorted(needed_elements(self.space, roots))]
        found = comparisons(clauses, lane, set(self.scheme.loops))
        limits = {limit for _, limit, _ in found}
        if len(limits) != 1:
            yield low, high, {}
            return
        (limit,) = limits
        at = self.lower(limit, 0, None)
        cut = self.let("cut", Call("min", (Call("max", (at, integer(0))), high)))
        yield low, cut, {condition: below for condition, _, below in found}
        yield cut, high, {condition: not below for condition, _, below in found}

    # the kernel

    def finish(self, name: str, body: tuple[Statement, ...], about: Sequence[str]) -> Piece:
        grid = [Axis(ref.name, self.extent[ref.name], self.scheme.lanes == "grid" and
                     ref == self.grid[-1]) for ref in self.grid]
        if self.scheme.chunk:
            grid.insert(0, Axis(self.tile.name, self.extent[self.tile.name]))
        kernel = Kernel(name, tuple(self.tensors.values()), tuple(self.numbers.args), tuple(grid),
                        body, tuple(about))
        per_point = sum(flops(c.body) + len(c.reads) + 1 for c in self.space.clauses)
        lengths = [self.space.extents[a] for a in self.scheme.loops]
        if self.scheme.chunk:
            lengths[0] = min(lengths[0], self.scheme.chunk)
        return Piece(
            kernel, tuple(self.bindings[t.name] for t in kernel.pointers),
            tuple(self.numbers.args.values()), {a.name: self.size[a.name] for a in grid},
            per_point * max(1, math.prod(lengths)), self.local_bytes)
