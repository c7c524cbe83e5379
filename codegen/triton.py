"""Kernels as Triton that a person could have written: one file each, nothing left to defaults.

    NAME(pointers..., [status_ptr,] integers..., block sizes...)

The file is a fixed header, the kernel, the helpers it calls, and two constants: SIGNATURE has the
type of each argument (`constexpr` for block sizes), OPTIONS what to compile it with. A program
computes a block of points, whose sizes are powers of two; `triton_grid.py` says of which axes, and
every access is masked at the edges of the block. Sums of f32 are of f32, products of matrices
too (`ieee`); the order of a sum follows from the text and the block sizes. Indices and numbers
made of axes are of 32 bits where those provably suffice, else of 64.

`status_ptr` is there where indices are checked: three i64 words, set to 1, the index and the bound
if one is out of range. A result may lie on an operand that is read at the same place only.
"""

from __future__ import annotations

import hashlib
import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from anabranch.codegen.facts import all_extents, fits_in_i32
from anabranch.codegen.kernel import (
    Check,
    Combine,
    Dot,
    Kernel,
    Let,
    Load,
    Loop,
    Sort,
    Start,
    Statement,
    Store,
    Update,
    dtype_of,
    identity,
    names,
    statements,
)
from anabranch.codegen.scope import Piece
from anabranch.codegen.target import Printed
from anabranch.codegen.tile import Options
from anabranch.codegen.triton_accumulate import SIGNS, across, beside, extremum
from anabranch.codegen.triton_bodies import cone, stores, updated
from anabranch.codegen.triton_expr import (
    AND,
    SIGNATURES,
    argument,
    computed,
    fold,
    literal,
    value_type,
    write,
)
from anabranch.codegen.triton_grid import (
    SIDE,
    Dimension,
    block_sizes,
    grid_of,
    programs,
    walks_once,
)
from anabranch.codegen.triton_helpers import HELPERS, used
from anabranch.ir.contraction import is_contraction
from anabranch.ir.diagnostics import CompilerBug
from anabranch.ir.expr import Cast, Const, Expr, integer, mul
from anabranch.ir.launch import KernelText
from anabranch.ir.space import Clause
from anabranch.ir.types import is_float

HEADER = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
STATUS = "status_ptr"
TAKEN = {"range", "float", "program", STATUS, "triton", "tl", "SIGNATURE", "OPTIONS"}
OPTIONS = {"num_warps": 4, "num_stages": 3, "enable_fp_fusion": True}
PRODUCT = {**OPTIONS, "num_warps": 8}  # keeps the registers of f32 products from spilling


def wishes(clauses: Sequence[Clause]) -> Options:
    """Products of matrices by blocks; rows are not kept in memory, but computed again, or once
    where a block has whole rows. Its masked loads cost no vectors."""
    return Options(keep=False, spare=True, together=1, dots=len(clauses) == 1
                   and is_contraction(clauses[0]) and clauses[0].result.type.dtype == "f32")


def print_piece(piece: Piece, most: int = 0) -> Printed:
    """The kernel of a piece; with `most`, in blocks so large that so many programs do."""
    grid, extents = grid_of(piece.kernel), all_extents(piece)
    sizes = block_sizes(piece.kernel, grid, extents, most)
    whole = walks_once(piece.kernel, grid, sizes, extents)
    draft = print_kernel(replace(piece.kernel, name="NAME"), wide=not fits_in_i32(piece),
                         whole=whole)
    digest = hashlib.sha256(draft.encode()).hexdigest()
    symbol = f"{re.sub(r'[^A-Za-z0-9_]', '_', piece.kernel.name)}_{digest[:10]}"
    source = draft.replace("def NAME(", f"def {symbol}(", 1)
    count = programs(grid, sizes, piece.extents)
    kernel_text = KernelText("triton", symbol, source, digest)
    return Printed(kernel_text, sizes, count, status=has_checks(piece.kernel))


def has_checks(kernel: Kernel) -> bool:
    """Whether the kernel takes a pointer to a status."""
    return any(isinstance(s, Check) for s in statements(kernel.body))


def print_kernel(kernel: Kernel, *, wide: bool = False, whole: bool = False) -> str:
    """The file of a kernel. `wide`: indices of 64 bits. `whole`: one block of lanes covers every
    loop, so that there are no loops, and a row is loaded once for all passes over it."""
    return _Printer(kernel, wide, whole).print()


@dataclass(frozen=True, slots=True)
class Inside:
    """A condition, and the dimensions of the block along which it has many values."""

    text: str
    spans: frozenset[str]


class _Printer:
    """Writes lines. `spans` says along which dimensions of the block a name has many values,
    `place` how it is written, `inside` the conditions that points of a dimension exist."""

    def __init__(self, kernel: Kernel, wide: bool, whole: bool) -> None:
        self.kernel, self.wide, self.whole = kernel, wide, whole
        self.grid = grid_of(kernel)
        self.lines: list[str] = []
        self.depth = 1
        self.place: dict[str, str] = {}
        self.spans: dict[str, frozenset[str]] = {}
        self.known: dict[str, Const] = {}
        self.inside: dict[str, Inside] = {}
        self.values: dict[str, str] = {}  # what is written on the right of `=`, and its name
        self.loops = 0
        self.per_lane: set[str] = set()  # accumulators that lanes of a loop have one each of
        self.waiting: dict[str, Start] = {}  # accumulators whose first value is not written yet
        self.order = [d.name for d in self.grid.dimensions]
        self.starts = {s.name: s for s in statements(kernel.body) if isinstance(s, Start)}
        self.dtypes = {t.name: t.dtype for t in kernel.tensors}
        self.taken = {*TAKEN, *self.grid.sizes, *HELPERS}
        self._rename()

    def _rename(self) -> None:
        """Names that Python or this printer needs get another spelling."""
        own = [t.name for t in self.kernel.tensors] + list(self.kernel.ints)
        own += [a.name for a in self.kernel.grid]
        own += [n for s in statements(self.kernel.body)
                if (n := s.axis if isinstance(s, Loop) else getattr(s, "name", ""))]
        self.taken |= set(own)
        for name in own:
            if name in (*TAKEN, *self.grid.sizes) or keyword.iskeyword(name):
                self.place[name] = self._fresh(f"{name}_")

    def _fresh(self, hint: str) -> str:
        name, number = hint, 2
        while name in self.taken:
            name, number = f"{hint}_{number}", number + 1
        self.taken.add(name)
        return name

    def print(self) -> str:
        for line in self.kernel.about:
            self._add(f"# {line}")
        self._programs()
        self._block(self.kernel.body)
        if not self.kernel.body:  # a scan of no steps
            self._add("pass")
        body = "\n".join(self.lines)
        head = HEADER + self._head()
        helpers = "".join(f"\n\n@triton.jit\n{HELPERS[n].strip()}\n" for n in used(body))
        return f"{head}{body}\n{helpers}\n\n{self._constants()}"

    # arguments

    def _arguments(self) -> list[tuple[str, str]]:
        """Names and types, in order."""
        integer = "i64" if self.wide else "i32"
        found = [(t.name, f"*{SIGNATURES[t.dtype]}") for t in self.kernel.pointers]
        if has_checks(self.kernel):
            found.append((STATUS, "*i64"))
        found += [(n, integer) for n in self.kernel.ints]
        return [(self.place.get(n, n), t) for n, t in found] + [
            (n, "constexpr") for n in self.grid.sizes]

    def _head(self) -> str:
        parts = [f"{n}: tl.constexpr" if t == "constexpr" else n for n, t in self._arguments()]
        return f"def {self.kernel.name}(\n{_wrapped(parts)}\n):\n"

    def _constants(self) -> str:
        types = [f'"{n}": "{t}"' for n, t in self._arguments()]
        chosen = PRODUCT if self.grid.product else OPTIONS
        options = ", ".join(f'"{k}": {v}' for k, v in chosen.items())
        return f"SIGNATURE = {{\n{_wrapped(types)}\n}}\nOPTIONS = {{{options}}}\n"

    # lines

    def _add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def _write(self, expr: Expr, level: int = 0) -> str:
        return write(fold(expr, self.known), self.place, level)

    def _argument(self, expr: Expr) -> str:
        return argument(fold(expr, self.known), self.place)

    def _spans(self, *exprs: Expr | None) -> frozenset[str]:
        found = [self.spans.get(n, frozenset[str]()) for n in names(*exprs)]
        return frozenset[str]().union(*found)

    # which program this is

    def _programs(self) -> None:
        """From the number of the program to its points, the last axis fastest."""
        cut = [d for d in self.grid.dimensions if d.axes]
        if not (cut or self.grid.points):
            return
        self._add(f"program = tl.program_id(0){'.to(tl.int64)' if self.wide else ''}")
        for d in reversed(cut):
            last = d is cut[0] and not self.grid.points
            self._cut(d, last)
        for i, name in reversed(list(enumerate(self.grid.points))):
            turn = "program" if i == 0 else f"program % {self._extent(name)}"
            self._add(f"{self.place.get(name, name)} = {turn}")
            if i:
                self._add(f"program //= {self._extent(name)}")

    def _extent(self, axis: str) -> str:
        return self._write(next(a.extent for a in self.kernel.grid if a.name == axis), AND)

    def _cut(self, d: Dimension, last: bool) -> None:
        """The points of a dimension of the block, and the condition that they exist."""
        length = " * ".join(self._extent(a) for a in d.axes)
        turn = "program" if last else f"program % tl.cdiv({length}, {d.name})"
        turn = turn if last else f"({turn})"
        single = d.axes[0] if len(d.axes) == 1 else self._fresh(f"{d.name.lower()}")
        name = self.place.get(single, single)
        self._add(f"{name} = {turn} * {d.name} + {self._arange(d.name)}")
        if not last:
            self._add(f"program //= tl.cdiv({length}, {d.name})")
        inside = self._fresh(f"{name}_inside")
        self.inside[d.name] = Inside(inside, frozenset({d.name}))
        self._add(f"{inside} = {name} < {length}")
        if len(d.axes) > 1:
            self._unravel(name, d.axes)
        self.spans.update({a: frozenset({d.name}) for a in d.axes})

    def _unravel(self, flat: str, axes: Sequence[str]) -> None:
        inner = ""
        for i, axis in reversed(list(enumerate(axes))):
            here = f"{flat} // ({inner})" if " " in inner else f"{flat} // {inner}"
            here = here if inner else flat
            turn = f" % {self._extent(axis)}" if i else ""
            self._add(f"{self.place.get(axis, axis)} = {here}{turn}")
            inner = f"{self._extent(axis)} * {inner}" if inner else self._extent(axis)

    def _arange(self, name: str, order: Sequence[str] = ()) -> str:
        """Steps along a dimension of the block."""
        order = order or self.order
        if len(order) < 2:
            return f"tl.arange(0, {name})"
        return f"tl.arange(0, {name})[{':, None' if order[0] == name else 'None, :'}]"

    def _shape(self, spans: frozenset[str]) -> str:
        return f"[{', '.join(n if n in spans else '1' for n in self.order)}]" if spans else "[]"

    # statements

    def _block(self, body: Sequence[Statement], *, ordered: bool = False) -> None:
        """Statements; an accumulator that starts here is settled after its last update. What other
        threads store in an ordered loop is waited for."""
        own = {s.name for s in body if isinstance(s, Start)}
        for i, s in enumerate(body):
            self._statement(s)
            later = set[str]().union(*(updated(x) for x in body[i + 1 :]))
            touched = {s.name} if isinstance(s, Start) else updated(s)
            for name in sorted(own & touched - later):
                self._settle(name)
            if ordered and stores(s):
                self._add("tl.debug_barrier()")

    def _statement(self, s: Statement) -> None:
        match s:
            case Let():
                self._let(s)
            case Load():
                self._load(s)
            case Store():
                self._store(s)
            case Check():
                self._check(s)
            case Combine():
                self._combine(s)
            case Sort():
                self._sort(s)
            case Loop():
                self._loop(s)
            case _:
                self._accumulate(s)

    def _accumulate(self, s: Statement) -> None:
        match s:
            case Start():
                self._start(s)
            case Update(name, value, mask, at):
                self._update(name, value, mask, at)
            case Dot(name, left, right):
                self._update(name, mul(left, right), None, None)

    def _let(self, s: Let) -> None:
        value = fold(s.value, self.known)
        if isinstance(value, Const):
            self.known[s.name] = value
            return
        self._define(s.name, write(value, self.place), self._spans(value))

    def _define(self, name: str, text: str, spans: frozenset[str]) -> None:
        """`name = text`, but for what has a name already where nothing is a loop."""
        self.spans[name] = spans
        if self.whole and not self.loops and text in self.values:
            self.place[name] = self.values[text]
            return
        self._add(f"{self.place.get(name, name)} = {text}")
        if self.whole and not self.loops:
            self.values[text] = self.place.get(name, name)

    def _pointer(self, tensor: str, index: Expr, spans: frozenset[str]) -> str:
        """Where accesses go, as a block of the shape that they span."""
        tensor = self.place.get(tensor, tensor)
        index = fold(index, self.known)
        if not spans:
            return tensor if index == Const(0, "i64") else f"{tensor} + {write(index, self.place)}"
        text, own = write(index, self.place), self._spans(index)
        if not own:
            text += f" + tl.zeros({self._shape(spans)}, tl.int32)"
        elif own != spans:
            text = f"tl.broadcast_to({text}, {self._shape(spans)})"
        return f"{tensor} + {text}"

    def _domain(self, *exprs: Expr | None) -> frozenset[str]:
        """What an access spans, with what its conditions span."""
        spans = self._spans(*exprs)
        return spans.union(*(self.inside[n].spans for n in spans if n in self.inside))

    def _mask(self, spans: frozenset[str], mask: Expr | None) -> str:
        parts = [self.inside[n].text for n in self.order if n in spans and n in self.inside]
        asked = None if mask is None else fold(mask, self.known)
        if isinstance(asked, Const):
            parts += [] if asked.value else ["tl.full([], False, tl.int1)"]
        elif asked is not None:
            parts.append(write(asked, self.place, AND - 1 if parts else 0))
        return " & ".join(parts)

    def _load(self, s: Load) -> None:
        spans = self._domain(s.index, s.mask, s.other)
        mask = self._mask(spans, s.mask)
        text = self._pointer(s.tensor, s.index, spans)
        if mask:
            zero = "0.0" if is_float(self.dtypes[s.tensor]) else "0"
            other = zero if s.other is None else self._argument(s.other)
            text += f", mask={mask}, other={other}"
        dtype = self.dtypes[s.tensor]
        wider = f".to({value_type(dtype)})" if computed(dtype) != dtype else ""
        self._define(s.name, f"tl.load({text}){wider}", spans)

    def _store(self, s: Store) -> None:
        spans = self._domain(s.index, s.value, s.mask)
        mask = self._mask(spans, s.mask)
        where = f", mask={mask}" if mask else ""
        pointer = self._pointer(s.tensor, s.index, spans)
        self._add(f"tl.store({pointer}, {self._argument(s.value)}{where})")

    def _check(self, s: Check) -> None:
        spans = self._domain(s.value, s.bound, s.mask)
        mask = self._mask(spans, s.mask) or "tl.full([], True, tl.int1)"
        value, bound = self._write(s.value), self._write(s.bound)
        self._define(s.name, f"ab_checked({STATUS}, {value}, {bound}, {mask})", spans)

    def _combine(self, s: Combine) -> None:
        """In order: every step of the loop sees what the one before it stored."""
        spans = self._domain(s.index, s.value, s.mask)
        mask = self._mask(spans, s.mask)
        where = f", mask={mask}" if mask else ""
        pointer, old = self._fresh(f"{s.tensor}_here"), self._fresh("old")
        self._add(f"{pointer} = {self._pointer(s.tensor, s.index, spans)}")
        self._add(f"{old} = tl.load({pointer}{where})")
        self._add(f"tl.store({pointer}, {self._step(s.reduce, s.value, old)}{where})")
        self._add("tl.debug_barrier()")

    def _sort(self, s: Sort) -> None:
        walks = [f"{self._pointer(tensor, first, frozenset())}, {self._argument(by)}, "
                 f"{self._argument(count)}" for tensor, first, by, count in s.walks]
        dtype = self.dtypes[s.tensor]
        compared = value_type("i32" if dtype == "bool" else dtype)
        self._add(f"ab_order({', '.join(walks)}, {s.descending}, {compared}, {SIDE})")

    def _step(self, reduce: str, value: Expr, old: str) -> str:
        if reduce in SIGNS:
            return f"{old} {SIGNS[reduce]} {self._write(value, 11 if reduce == 'prod' else 10)}"
        return extremum(reduce, dtype_of(value), old, self._argument(value))

    # reductions

    def _start(self, s: Start) -> None:
        spans = frozenset(d.name for d in self.grid.dimensions if d.axes)
        if any(isinstance(loop, Loop) and loop.lanes and s.name in updated(loop)
               for loop in statements(self.kernel.body)) and not self.grid.product:
            spans |= {"LANES"}
        self.spans[s.name] = spans
        if "LANES" in self.inside:
            self.per_lane.add(s.name)
        if self.whole and not self.loops and s.reduce not in ("argmax", "argmin"):
            self.waiting[s.name] = s
        else:
            self._begin(s)

    def _begin(self, s: Start) -> None:
        spans, first = self.spans[s.name], identity(s.reduce, s.dtype)
        name = self.place.get(s.name, s.name)
        if s.reduce in ("argmax", "argmin"):
            self._full(f"{name}_best", spans, first)
            first = Const(-1, "i64")
        self._full(name, spans, first)

    def _full(self, name: str, spans: frozenset[str], value: Const) -> None:
        dtype = value_type(value.dtype)
        self._add(f"{name} = tl.full({self._shape(spans)}, {literal(value)}, {dtype})")

    def _update(self, name: str, value: Expr, mask: Expr | None, at: Expr | None) -> None:
        start, own = self.starts[name], self.place.get(name, name)
        value = fold(value, self.known)
        if start.ref.dtype == "i64" and at is None and not isinstance(value, (Cast, Const)):
            value = Cast("i64", value)
        lanes = self.spans[name] if self._walked() else frozenset[str]()
        condition = self._mask(lanes & {"LANES"}, mask)
        spans = self._spans(value, mask) | (lanes & {"LANES"})
        first = name in self.waiting and not self.loops and spans == self.spans[name] and \
            dtype_of(value) == start.dtype and bool(condition) and \
            not isinstance(value, Const)  # whose text need not be of that dtype
        if name in self.waiting and not first:
            self._begin(start)
        self.waiting.pop(name, None)
        if at is not None:
            self._update_place(start, value, condition, at)
            return
        nothing = identity(start.reduce, start.dtype)
        if condition:
            there = beside(value, nothing) if isinstance(value, Const) else \
                write(value, self.place)
            text = f"tl.where({condition}, {there}, {literal(nothing)})"
        else:
            text = write(value, self.place, 11 if start.reduce == "prod" else 10)
            text = text if start.reduce in SIGNS else argument(value, self.place)
        if first:
            self._add(f"{own} = {text}")
            return
        if start.reduce in SIGNS:
            self._add(f"{own} {SIGNS[start.reduce]}= {text}")
            return
        self._add(f"{own} = {extremum(start.reduce, start.dtype, own, text)}")

    def _walked(self) -> bool:
        """Whether the lanes are those of a loop."""
        return any(d.name == "LANES" and not d.axes for d in self.grid.dimensions)

    def _update_place(self, start: Start, value: Expr, condition: str, at: Expr) -> None:
        name = self.place.get(start.name, start.name)
        new, best, better = (self._fresh(f"{name}_{w}") for w in ("new", "best", "better"))
        best = f"{name}_best"
        sign = ">" if start.reduce == "argmax" else "<"
        self._add(f"{new} = {write(value, self.place)}")
        test = f"({name} < 0) | ({new} {sign} {best})"
        if is_float(start.dtype):
            test += f" | (({new} != {new}) & ({best} == {best}))"
        self._add(f"{better} = ({condition}) & ({test})" if condition else f"{better} = {test}")
        self._add(f"{best} = tl.where({better}, {new}, {best})")
        self._add(f"{name} = tl.where({better}, {self._write(at)}, {name})")

    def _settle(self, name: str) -> None:
        """After the last loop: lanes of loops are combined, and a place that nothing took is 0."""
        if name in self.waiting:
            self._begin(self.waiting.pop(name))
        start, own = self.starts[name], self.place.get(name, name)
        if self._walked() and "LANES" in self.spans[name] and name not in self.per_lane:
            axis = f"{len(self.order) - 1}, keep_dims={len(self.order) > 1}"
            self.spans[name] -= {"LANES"}
            self._add(f"{own} = {across(start, own, axis)}")
        elif start.reduce in ("argmax", "argmin"):
            self._add(f"{own} = tl.maximum({own}, 0)")

    # loops

    def _loop(self, s: Loop) -> None:
        if self.grid.product is not None and self.grid.product in s.body:
            self._product(s, self.grid.product)
        elif s.lanes and self._walked():
            self._lanes(s)
        else:
            self._serial(s)

    def _serial(self, s: Loop) -> None:
        if self._spans(s.start, s.stop):
            raise CompilerBug(f"the bounds of {s.axis} differ within a block")
        axis = self.place.get(s.axis, s.axis)
        for name in list(self.waiting):
            self._begin(self.waiting.pop(name))
        self._add(f"for {axis} in range({self._write(s.start)}, {self._write(s.stop)}):")
        self.depth, self.loops = self.depth + 1, self.loops + 1
        self._block(s.body, ordered=s.ordered)
        self.depth, self.loops = self.depth - 1, self.loops - 1

    def _bound(self, expr: Expr, fold_: str) -> str:
        """The bound of a loop, over all rows of the block."""
        return f"tl.{fold_}({self._write(expr)})" if self._spans(expr) else self._write(expr)

    def _lanes(self, s: Loop) -> None:
        """A loop over blocks of lanes; no loop where one block has them all."""
        axis = self.place.get(s.axis, s.axis)
        test = f"{axis} < {self._write(s.stop, 5)}"
        if self._spans(s.start) or (self.whole and fold(s.start, self.known) != integer(0)):
            test = f"({axis} >= {self._write(s.start, 5)}) & ({test})"
        lanes = frozenset({"LANES"})
        self.spans[s.axis] = lanes
        if self.whole:
            self._once(axis, self._arange("LANES"))
            inside = self._once(self._fresh(f"{axis}_inside"), test)
        else:
            block, inside = self._fresh(f"{axis}_block"), self._fresh(f"{axis}_inside")
            start, stop = self._bound(s.start, "min"), self._bound(s.stop, "max")
            self._add(f"for {block} in range({start}, {stop}, LANES):")
            self.depth, self.loops = self.depth + 1, self.loops + 1
            self._add(f"{axis} = {block} + {self._arange('LANES')}")
            self._add(f"{inside} = {test}")
        self.inside["LANES"] = Inside(inside, lanes | self._spans(s.start, s.stop))
        self._block(s.body)
        del self.inside["LANES"]
        if not self.whole:
            self.depth, self.loops = self.depth - 1, self.loops - 1

    def _once(self, name: str, text: str) -> str:
        """The name of a value, which is written unless it has been."""
        if not self.loops and text in self.values:
            return self.values[text]
        self._add(f"{name} = {text}")
        if not self.loops:
            self.values[text] = name
        return name

    def _product(self, s: Loop, dot: Dot) -> None:
        """A loop in steps of K; each factor is made with K along its own side."""
        axis = self.place.get(s.axis, s.axis)
        block = self._fresh(f"{axis}_block")
        start, stop = self._write(s.start), self._write(s.stop)
        self._add(f"for {block} in range({start}, {stop}, K):")
        self.depth += 1
        left, right = (dot.right, dot.left) if self.grid.swapped else (dot.left, dot.right)
        rows = self._factor(s, left, ["M", "K"], block)
        columns = self._factor(s, right, ["K", "N"], block)
        own = self.place.get(dot.name, dot.name)
        self._add(f'{own} = tl.dot({rows}, {columns}, {own}, input_precision="ieee")')
        self.depth -= 1

    def _factor(self, s: Loop, factor: Expr, order: list[str], block: str) -> str:
        """The statements that make a factor, as a block of two dimensions; its text."""
        saved = self.order, dict(self.place)
        side = "rows" if order[0] == "M" else "columns"
        axis = self._fresh(f"{s.axis}_{side}")
        self.order, self.place[s.axis] = order, axis
        self.spans[s.axis] = frozenset({"K"})
        self.inside["K"] = Inside(self._fresh(f"{axis}_inside"), frozenset({"K"}))
        self._add(f"{axis} = {block} + {self._arange('K')}")
        self._add(f"{self.inside['K'].text} = {axis} < {self._write(s.stop)}")
        for part in cone(s.body, factor):
            name = getattr(part, "name", "")
            if side == "columns" and name in self.spans:  # both factors need it
                self.place[name] = self._fresh(f"{name}_{side}")
            self._statement(part)
        text = self._write(factor)
        self.order, self.place = saved
        return text


def _wrapped(parts: Sequence[str]) -> str:
    """Parts separated by commas, in lines of at most 100 characters."""
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part) + 3 > 95:
            lines.append("")
        lines[-1] += f" {part}," if lines[-1] else f"{part},"
    return "\n".join(f"    {line}" for line in lines)
