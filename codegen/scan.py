"""The kernel of a scan: one launch, the independent axes as grid, the loop over steps inside.

Each statement becomes a nest of loops inside of the loop over steps, with its reduction innermost
or, where memory is dense along its result, with lanes along that. Reductions along lanes are done
for several elements at once, so that what they share is loaded once. A statement that asks which of
few values a variable has is written out for each of them. If all axes are of the grid,
statements need no loops of their own, and values pass from one to the next in registers.

The first steps, in which a history may be asked for more than it has, are a loop of their own, so
that the other steps read without looking.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from anabranch.codegen.build import Builder
from anabranch.codegen.kernel import Loop, Start, Statement, Store
from anabranch.codegen.recurrence import Cell, Plan, plan
from anabranch.codegen.scope import Piece, Scheme
from anabranch.ir.core import Value
from anabranch.ir.expr import FALSE, TRUE, Call, Expr, Read, Var, add, integer, mul
from anabranch.ir.index import decide, interval
from anabranch.ir.linear import Linear, place
from anabranch.ir.ops import Scan
from anabranch.ir.recurrence import statements
from anabranch.ir.scalar import flops
from anabranch.ir.space import Space

Axes = Sequence[tuple[str, int]]
FEW = 8  # values of a variable for each of which a statement may be written out


def scan_piece(op: Scan, *, together: int) -> tuple[Piece, tuple[Value, ...]]:
    """The kernel, and the scratch values among what it points to. So many elements of a reduction
    along lanes are taken `together`."""
    found = plan(op)
    builder = _Steps(found, together)
    builder.walk()
    names = ", ".join(r.name or "_" for r in op.results)
    order = "downward" if op.reverse else "upward"
    piece = builder.finish("scan", tuple(builder.row), [f"{names}, {op.variable} {order}"])
    work = sum((flops(c.body) + len(c.operands) + 1) * math.prod(n for _, n in c.ranges)
               for c in statements(op))
    points = math.prod(found.grid.values())
    return replace(piece, work=max(1, work // max(1, points))), found.scratch


class _Steps(Builder):
    """Builds the statements of a scan. `row` are those of the innermost loop that is open."""

    def __init__(self, found: Plan, together: int) -> None:
        self.plan, self.together = found, together
        self.numbered = itertools.count()
        lane = _dense(found.cells(Var("step"), itertools.count()), found.grid) if (
            found.alone) else ""
        grid = (*(a for a in found.grid if a != lane), *(a for a in found.grid if a == lane))
        super().__init__(Space(dict(found.grid), (), grid, (), lane or None, ()),
                         found.scan.results, Scheme(grid, (), "grid" if lane else ""),
                         found.scratch)

    def _make_axes(self, also: Sequence[Linear]) -> None:
        self.steps, self.axis, self.loops = [], {}, []
        self.grid = [self._axis((axis,)) for axis in self.scheme.grid]

    def pointer(self, value: Value, role: str) -> str:
        """A history is read where the result is written."""
        return super().pointer(value, "out" if value in self.outputs else role)

    def lower(self, expr: Expr, at: int, mask: Expr | None) -> Expr:
        """What is decided by the step, or by a variable that is written out, is not asked."""
        known = decide(expr, self.space.extents) if isinstance(expr, Call) else None
        if known is not None:
            return TRUE if known else FALSE
        return super().lower(expr, at, mask)

    def _read(self, read: Read, at: int, mask: Expr | None) -> Expr:
        """A read that is outside at each of these steps is its pad; its indices are checked."""
        shape = self.space.clauses[at].operands[read.operand].type.shape
        if read.pad is not None and any(map(self.leaves, read.subscripts, shape)):
            self.index(place(read.subscripts, shape), at, mask)
            return self.lower(read.pad, at, mask)
        return super()._read(read, at, mask)

    def leaves(self, subscript: Expr, size: int) -> bool:
        """Whether a subscript is nowhere in [0, size)."""
        bounds = interval(subscript, self.space.extents)
        return bounds is not None and (bounds[1] < 0 or bounds[0] >= size)

    # loops

    def inside(self, run: Callable[[], None]) -> tuple[Statement, ...]:
        """The statements that are emitted meanwhile; what they remember is forgotten after."""
        row, known = self.row, self.row_env
        self.row, self.row_env = [], dict(known)
        run()
        body = tuple(self.row)
        self.row, self.row_env = row, known
        return body

    def loop(self, name: str, size: int, run: Callable[[], None], *, lanes: bool = False,
             ordered: bool = False) -> None:
        self.space = replace(self.space, extents={**self.space.extents, name: size})
        ref = self._axis((name,), name.split("#")[0])
        body = self.inside(run)
        self.steps.pop()
        if body:
            self.emit(Loop(ref.name, integer(0), self.extent[ref.name], body, lanes, ordered))

    def nest(self, axes: Axes, lane: str, run: Callable[[], None]) -> None:
        if not axes:
            return run()
        (name, size), *rest = axes
        self.loop(name, size, lambda: self.nest(rest, lane, run), lanes=name == lane)
        return None

    # steps

    def walk(self) -> None:
        """All steps: first those that may look behind the beginning."""
        extent = self.plan.scan.extent
        few = min(self.plan.reach, extent)
        for first, count in ((0, few), (few, extent - few)):
            if count:
                name = f"step#{next(self.numbered)}"
                now = add(Var(name), integer(first)) if first else Var(name)
                self.loop(name, count, lambda now=now: self.step(now),  # type: ignore[misc]
                          ordered=True)

    def step(self, now: Expr) -> None:
        for cell in self.plan.cells(now, self.numbered):
            self.cell(cell)

    def cell(self, cell: Cell) -> None:
        """One statement at a step."""
        extents = cell.clause.extents
        own, reduced = ({v: extents[v] for v in vs} for vs in (cell.own, cell.clause.reduced))
        lane = "" if self.plan.alone else _dense([cell], {**own, **reduced})
        outer = _last(own, lane)
        chosen = next((v for v, n in outer if n <= FEW and cell.decides(v)), "")
        if chosen:
            for value in range(own[chosen]):
                self.cell(cell.replaced(chosen, integer(value)))
        elif lane in reduced and outer:
            (name, _) = outer.pop()
            self.nest(outer, "", lambda: self.in_turns(
                [cell], name, lambda cells: self.elements(cells, lane)))
        else:
            self.nest(outer, lane, lambda: self.elements([cell], lane))

    def in_turns(self, cells: Sequence[Cell], name: str,
                 run: Callable[[Sequence[Cell]], None]) -> None:
        """`run` for all values of a variable: for several at once, then for those that are left."""
        size, many, stem = cells[0].clause.extents[name], self.together, name.split("#")[0]
        begin = size - size % many
        if many > 1 and begin:
            block = f"{stem}_block#{next(self.numbered)}"
            turn = mul(Var(block), integer(many))
            copies = [c.replaced(name, add(turn, integer(k))) for c in cells for k in range(many)]
            self.loop(block, size // many, lambda: run(copies))
        if many == 1 or begin < size:
            rest = f"{stem}#{next(self.numbered)}"
            place = add(Var(rest), integer(begin)) if many > 1 and begin else Var(rest)
            left = [c.replaced(name, place) for c in cells]
            self.loop(rest, size if many == 1 else size - begin, lambda: run(left))

    def elements(self, cells: Sequence[Cell], lane: str) -> None:
        """Elements of one statement, which run over the same reduced variables."""
        places = [self.known(cell) for cell in cells]
        c = cells[0].clause
        if self.plan.alone:
            self.homes[c.result] = places[0]
        starts = [self._start(i) for i in places] if c.reduce else []
        if starts:
            self.reduction(cells, starts, lane)
        values = [self._rounded(c, starts[k].ref if starts else self.lower(
            self.space.clauses[i].body, i, None)) for k, i in enumerate(places)]
        for i, cell, value in zip(places, cells, values, strict=True):
            made = self.row_env["value", i] = self.let(c.result.name, value)
            for target in cell.targets:
                index = self.index(place(cell.places, target.type.shape), i, None)
                self.emit(Store(self.target(target), index, made))

    def reduction(self, cells: Sequence[Cell], starts: Sequence[Start], lane: str) -> None:
        """The loops that update accumulators, one for each of the cells."""
        c = cells[0].clause
        axes = _last({v: c.extents[v] for v in c.reduced}, lane)
        if lane in c.reduced or c.reduce != "sum":
            self.nest(axes, lane, lambda: self.update(cells, starts))
            return
        (name, _) = axes.pop()
        self.nest(axes, "", lambda: self.in_turns(
            cells, name, lambda turns: self.update(turns, [*starts] * (len(turns) // len(cells)))))

    def update(self, cells: Sequence[Cell], starts: Sequence[Start]) -> None:
        for cell, start in zip(cells, starts, strict=True):
            self._update(self.known(cell), start)

    def known(self, cell: Cell) -> int:
        """The number of a clause, by which expressions are lowered."""
        number = len(self.space.clauses)
        self.space = replace(self.space, clauses=(*self.space.clauses, cell.clause),
                             waves=(*self.space.waves, 0))
        return number


def _last(axes: dict[str, int], lane: str) -> list[tuple[str, int]]:
    return sorted(axes.items(), key=lambda axis: axis[0] == lane)


def _dense(cells: Iterable[Cell], axes: dict[str, int]) -> str:
    """The axis along which most of what is accessed lies dense."""
    votes: Counter[str] = Counter()
    for cell in cells:
        written = [place(cell.places, target.type.shape) for target in cell.targets]
        for form in (*cell.reads, *written):
            touched = math.prod(max(1, axes[v]) for v in form.terms if v in axes)
            votes.update({v: touched for v, step in form.terms.items()
                          if step == 1 and axes.get(v, 1) > 1})
    return max(votes, key=lambda v: (votes[v], list(axes).index(v)), default="")
