"""Kernels as C that a person could have written: plain loops over tiles, `omp simd` on lanes.

    void NAME(const int64_t *ints, const double *floats, char *const *ptrs,
              int64_t tile_begin, int64_t tile_end, ab_ctx *ctx);

runs tiles of the grid; `runtime/kernel.h` and `prelude.c` go before it. `ints` are those of the
kernel, then the block size of each axis of the grid. Pointers are not `restrict`: a result may lie
on an operand that is read at the same place only.

Lanes of the grid become the innermost loop. If there are loops inside of them (a reduction by
columns), lanes are taken in strips, and what lives across a loop is a small array. The order of
every sum is fixed by the text and the compiler's vector width, never by threads.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from anabranch.codegen.cexpr import MEMORY, VALUE, convert_in, convert_out, literal, step, write
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
    defines,
    dtype_of,
    identity,
    statements,
    uses,
)
from anabranch.codegen.steady import steady_condition, under
from anabranch.ir.expr import Expr, integer, mul
from anabranch.ir.launch import KernelText
from anabranch.ir.types import is_float, itemsize

STRIP = 256  # lanes of a strip
BLOCK = 1024  # elements of a row that are summed before they join the rest
SIGNATURE = (
    "void {name}(const int64_t *ints, const double *floats, char *const *ptrs,\n"
    "    int64_t tile_begin, int64_t tile_end, ab_ctx *ctx)\n{{"
)


def prelude() -> str:
    """What kernels call: goes before them in every translation unit."""
    return (Path(__file__).parent / "prelude.c").read_text(encoding="utf-8")


def kernel_text(kernel: Kernel) -> KernelText:
    """The kernel as C; the symbol ends in the digest of the text, so equal names are equal code."""
    draft = source(replace(kernel, name="NAME"))
    digest = hashlib.sha256(draft.encode()).hexdigest()
    symbol = f"{re.sub(r'[^A-Za-z0-9_]', '_', kernel.name)}_{digest[:10]}"
    return KernelText("c", symbol, draft.replace("void NAME(", f"void {symbol}(", 1), digest)


def source(kernel: Kernel) -> str:
    return _Printer(kernel).print()


class _Printer:
    """Writes lines; `place` says how a name is written where it is not a plain variable."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.lines: list[str] = []
        self.depth = 1
        self.place: dict[str, str] = {}
        self.raw: dict[str, str] = {}  # accumulators in arrays, as they are updated
        self.starts = {s.name: s for s in statements(kernel.body) if isinstance(s, Start)}
        self.dtypes = {t.name: t.dtype for t in kernel.tensors}

    def print(self) -> str:
        kernel = self.kernel
        self.lines = [f"/* {line} */" for line in kernel.about]
        self.lines.append(SIGNATURE.format(name=kernel.name))
        self._arguments()
        self._open("for (int64_t tile = tile_begin; tile < tile_end; tile++)")
        self._tile_bounds()
        lanes = bool(kernel.grid) and kernel.grid[-1].lanes
        loops = _has_loops(kernel.body)
        if lanes and not loops:
            self._points()
        else:
            self._rows(strips=lanes)
        self._close()
        return "\n".join([*self.lines, "}", ""])

    # lines

    def _add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def _open(self, head: str) -> None:
        self._add(f"{head} {{")
        self.depth += 1

    def _close(self) -> None:
        self.depth -= 1
        self._add("}")

    def _for(self, name: str, start: str, stop: str, step: str = "") -> None:
        advance = f"{name} += {step}" if step else f"{name}++"
        self._open(f"for (int64_t {name} = {start}; {name} < {stop}; {advance})")

    def _simd(self, clauses: str = "") -> None:
        self.lines.append(f"#pragma omp simd{clauses}")

    def _write(self, expr: Expr) -> str:
        return write(expr, self.place)

    # arguments and tiles

    def _arguments(self) -> None:
        kernel = self.kernel
        for k, tensor in enumerate(kernel.pointers):
            const = "const " if tensor.role == "in" else ""
            kind = f"{const}{MEMORY[tensor.dtype]} *"
            self._add(f"{kind}{tensor.name} = ({kind.rstrip()})ptrs[{k}];")
        blocks = [f"block_{axis.name}" for axis in kernel.grid]
        for k, name in enumerate((*kernel.ints, *blocks)):
            self._add(f"const int64_t {name} = ints[{k}];")
        offset = "ctx->scratch"
        for tensor in kernel.tensors:
            if tensor.role == "local" and tensor.elements is not None:
                kind = MEMORY[tensor.dtype]
                self._add(f"{kind} *{tensor.name} = ({kind} *)({offset});")
                size = self._write(mul(tensor.elements, integer(itemsize(tensor.dtype))))
                offset += f" + ab_padded({size})"
        self._add("(void)ints, (void)floats, (void)ptrs, (void)ctx;")

    def _tile_bounds(self) -> None:
        grid = self.kernel.grid
        if len(grid) > 1:
            self._add("int64_t rest = tile;")
        for k in reversed(range(len(grid))):
            name, extent = grid[k].name, self._write(grid[k].extent)
            block = f"block_{name}"
            here = "rest" if len(grid) > 1 else "tile"
            count = f"(({extent} + {block} - 1) / {block})"
            turn = f"{here} % {count}" if k else here
            self._add(f"const int64_t {name}_begin = {turn} * {block};")
            self._add(f"const int64_t {name}_end = ab_min_i64({name}_begin + {block}, {extent});")
            if k:
                self._add(f"rest /= {count};")

    def _axis_loop(self, name: str) -> None:
        self._for(name, f"{name}_begin", f"{name}_end")

    # no loop inside: a nest over the grid, every statement as far out as it can be

    def _points(self) -> None:
        axes = [a.name for a in self.kernel.grid]
        depth = {name: 0 for name in self.kernel.ints} | {a: k + 1 for k, a in enumerate(axes)}
        levels: list[list[Statement]] = [[] for _ in range(len(axes) + 1)]
        for s in self.kernel.body:
            at = max((depth.get(n, 0) for n in uses(s)), default=0)
            at = len(axes) if isinstance(s, (Store, Combine)) else at
            levels[at].append(s)
            defined = defines(s)
            if defined is not None:
                depth[defined] = at
        self._statements(levels[0])
        for k, axis in enumerate(axes):
            if k == len(axes) - 1 and _may_be_simd(levels[-1]):
                self._simd()
            self._axis_loop(axis)
            self._statements(levels[k + 1])
        for _ in axes:
            self._close()

    def _statements(self, body: Iterable[Statement]) -> None:
        for s in body:
            self._statement(s)

    # loops inside: per row, or per strip of lanes

    def _rows(self, *, strips: bool) -> None:
        axes = [a.name for a in self.kernel.grid]
        if interleaves(self.kernel):
            self._interleaved(axes)
            return
        for axis in axes[:-1] if strips else axes:
            self._axis_loop(axis)
        if strips:
            axis = axes[-1]
            self._strip(axis, f"{axis}_begin", f"{axis}_end", self.kernel.body)
        else:
            self._statements(self.kernel.body)
        for _ in axes[:-1] if strips else axes:
            self._close()

    # ordered loops: points take each step together

    def _interleaved(self, axes: Sequence[str]) -> None:
        """The points of a tile run inside of the outer loops, whose turns they share."""
        for s in self.kernel.body:
            assert isinstance(s, Loop), "nothing stands beside the loops over steps"
            self._for(s.axis, self._write(s.start), self._write(s.stop))
            for inner in s.body:
                self._turns(inner, axes)
            self._close()

    def _turns(self, s: Statement, axes: Sequence[str]) -> None:
        """The points inside of the loops that have loops in them: what those load is theirs."""
        if not isinstance(s, Loop) or not _has_loops(s.body):
            self._each_point(axes, [s])
        elif s.lanes:
            self._strip(s.axis, self._write(s.start), self._write(s.stop), s.body, axes)
        else:
            self._for(s.axis, self._write(s.start), self._write(s.stop))
            if all(isinstance(inner, Loop) and not inner.lanes for inner in s.body):
                for inner in s.body:
                    self._turns(inner, axes)
            else:
                self._each_point(axes, s.body)
            self._close()

    def _each_point(self, axes: Sequence[str], body: Iterable[Statement]) -> None:
        for axis in axes:
            self._axis_loop(axis)
        self._statements(body)
        for _ in axes:
            self._close()

    def _strip(self, axis: str, start: str, stop: str, body: tuple[Statement, ...],
               points: Sequence[str] = ()) -> None:
        """Lanes in strips; each strip for all points of these axes."""
        self._for(f"{axis}_strip", start, stop, str(STRIP))
        self._add(f"const int64_t lanes = ab_min_i64({STRIP}, {stop} - {axis}_strip);")
        for point in points:
            self._axis_loop(point)
        self._strip_block(body, axis, _lane_names(body, axis))
        for _ in (axis, *points):
            self._close()

    def _strip_block(self, body: Sequence[Statement], axis: str, laned: set[str]) -> None:
        for run in _runs(body):
            if isinstance(run[0], Loop):
                loop = run[0]
                self._for(loop.axis, self._write(loop.start), self._write(loop.stop))
                self._strip_block(loop.body, axis, laned)
                self._close()
                continue
            scalar = [s for s in run if not _touches(s, laned)]
            self._statements(scalar)
            inside = [s for s in run if _touches(s, laned)]
            kept = _later(body, run) & {defines(s) for s in inside}
            holds = steady_condition(inside, laned) if not kept else None
            if holds is not None:
                self._open(f"if ({self._write(holds)})")
                inside = [under(holds, s) for s in inside]
            self._lane_loop(inside, run, body, axis)
            if holds is not None:
                self._close()

    def _lane_loop(self, inside: list[Statement], run: Sequence[Statement],
                   body: Sequence[Statement], axis: str) -> None:
        """One loop over the lanes of a strip; what is used after it is an array."""
        if not inside:
            return
        later = _later(body, run)
        kept: list[tuple[str, str]] = []
        for s in inside:
            name = defines(s)
            if name is not None and (name in later or isinstance(s, Start)):
                self._lane_array(s, name, kept)
        if _may_be_simd(inside):
            self._simd()
        self._for("lane", "0", "lanes")
        self._add(f"const int64_t {axis} = {axis}_strip + lane;")
        for s in inside:
            self._statement(s)
            for name, array in kept:
                if defines(s) == name and not isinstance(s, Start):
                    self._add(f"{array}[lane] = {name};")
        self._add(f"(void){axis};")
        self._close()
        self.place.update({name: f"{array}[lane]" for name, array in kept})

    def _lane_array(self, s: Statement, name: str, kept: list[tuple[str, str]]) -> None:
        if isinstance(s, Start):
            self._add(f"{VALUE[s.ref.dtype]} {name}[{STRIP}];")
            self.raw[name] = self.place[name] = f"{name}[lane]"
            if s.reduce in ("argmax", "argmin"):
                self._add(f"{VALUE[s.dtype]} {name}_best[{STRIP}];")
                self.raw[f"{name}_best"] = f"{name}_best[lane]"
            return
        self._add(f"{VALUE[self._dtype(s)]} {name}_lanes[{STRIP}];")
        kept.append((name, f"{name}_lanes"))

    def _dtype(self, s: Statement) -> str:
        match s:
            case Let(_, value):
                return dtype_of(value)
            case Load(_, tensor):
                return self.dtypes[tensor]
        return "i64"

    # statements

    def _statement(self, s: Statement) -> None:
        match s:
            case Let(name, value):
                self._add(f"const {VALUE[dtype_of(value)]} {name} = {self._write(value)};")
            case Load():
                self._load(s)
            case Store(tensor, index, value, mask):
                stored = convert_out(self._write(value), dtype_of(value), self.dtypes[tensor])
                self._masked(mask, f"{tensor}[{self._write(index)}] = {stored};")
            case Check(name, value, bound, mask):
                found = f"ab_checked(ctx, {self._write(value)}, {self._write(bound)})"
                found = found if mask is None else f"{self._write(mask)} ? {found} : 0"
                self._add(f"const int64_t {name} = {found};")
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

    def _masked(self, mask: Expr | None, line: str) -> None:
        self._add(line if mask is None else f"if ({self._write(mask)}) {line}")

    def _load(self, s: Load) -> None:
        dtype = self.dtypes[s.tensor]
        found = convert_in(f"{s.tensor}[{self._write(s.index)}]", dtype)
        if s.mask is not None:
            other = "0" if s.other is None else write(s.other, self.place, 4)
            found = f"{write(s.mask, self.place, 4)} ? {found} : {other}"
        self._add(f"const {VALUE[dtype]} {s.name} = {found};")

    def _combine(self, s: Combine) -> None:
        place = f"{s.tensor}[{self._write(s.index)}]"
        dtype = self.dtypes[s.tensor]
        self._masked(s.mask, step(s.reduce, dtype, place, self._write(s.value)))

    def _sort(self, s: Sort) -> None:
        read, written = (", ".join((f"{tensor} + {write(first, self.place, 11)}", self._write(by),
                                    self._write(count))) for tensor, first, by, count in s.walks)
        order = f"{int(s.descending)}, {s.scratch}"
        self._add(f"ab_order_{self.dtypes[s.tensor]}({read}, {written}, {order});")

    def _start(self, s: Start) -> None:
        places = s.reduce in ("argmax", "argmin")
        first = "-1" if places else literal(identity(s.reduce, s.dtype))
        self._declare(s.name, s.ref.dtype, first)
        if places:
            self.place[s.name] = f"ab_place({self.raw.get(s.name, s.name)})"
            self._declare(f"{s.name}_best", s.dtype, literal(identity(s.reduce, s.dtype)))
        elif s.name not in self.raw and _has_nan(s):
            self._add(f"{_flag(s)} {s.name}_nan = 0;")

    def _declare(self, name: str, dtype: str, first: str) -> None:
        """An accumulator, or its place in an array that is there already."""
        kind = "" if name in self.raw else f"{VALUE[dtype]} "
        self._add(f"{kind}{self.raw.get(name, name)} = {first};")

    def _update(self, name: str, value: Expr, mask: Expr | None, at: Expr | None) -> None:
        start, place = self.starts[name], self.raw.get(name, name)
        text = self._write(value)
        if at is not None:
            self._update_place(start, text, mask, self._write(at))
            return
        if mask is not None:
            nothing = literal(identity(start.reduce, start.dtype))
            text = f"{write(mask, self.place, 4)} ? {write(value, self.place, 4)} : {nothing}"
        if name in self.raw or not _has_nan(start):
            self._add(step(start.reduce, start.dtype, place, text))
            return
        sign = ">" if start.reduce == "max" else "<"
        self._add(f"const {VALUE[start.dtype]} {name}_new = {text};")
        self._add(f"{name} = {name}_new {sign} {name} ? {name}_new : {name};")
        self._add(f"{name}_nan |= {name}_new != {name}_new;")

    def _update_place(self, start: Start, value: str, mask: Expr | None, at: str) -> None:
        place = self.raw.get(start.name, start.name)
        best = self.raw.get(f"{start.name}_best", f"{start.name}_best")
        sign = ">" if start.reduce == "argmax" else "<"
        self._add(f"const {VALUE[start.dtype]} {start.name}_new = {value};")
        new = f"{start.name}_new"
        better = f"{place} < 0 || {new} {sign} {best}"
        if is_float(start.dtype):
            better += f" || ({new} != {new} && {best} == {best})"
        condition = f"({better})" if mask is None else f"({self._write(mask)}) && ({better})"
        self._add(f"if ({condition}) {best} = {new}, {place} = {at};")

    def _loop(self, s: Loop) -> None:
        if s.lanes and _has_loops(s.body):
            self._strip(s.axis, self._write(s.start), self._write(s.stop), s.body)
            return
        updated = {u.name for u in statements((s,)) if isinstance(u, (Update, Dot))}
        updated -= {x.name for x in statements((s,)) if isinstance(x, Start)}
        starts = [self.starts[n] for n in sorted(updated)]
        start, stop = self._write(s.start), self._write(s.stop)
        sums = [x for x in starts if x.reduce == "sum" and is_float(x.dtype)]
        if s.lanes and sums and _may_be_simd(s.body):
            self._blocked(s, start, stop, starts, sums)
        else:
            if s.lanes and _may_be_simd(s.body):
                self._simd(self._reduction_clauses(starts))
            self._for(s.axis, start, stop)
            self._statements(s.body)
            self._close()
        self._settle_nan(starts)

    def _blocked(self, s: Loop, start: str, stop: str, starts: Sequence[Start],
                 sums: Sequence[Start]) -> None:
        """Long sums of floats in blocks, whose rounding errors do not add up."""
        axis = s.axis
        self._for(f"{axis}_block", start, stop, str(BLOCK))
        self._add(f"const int64_t {axis}_stop = ab_min_i64({axis}_block + {BLOCK}, {stop});")
        for x in sums:
            self.raw[x.name] = f"{x.name}_block"
            self._add(f"{VALUE[x.dtype]} {x.name}_block = 0;")
        self._simd(self._reduction_clauses(starts))
        self._for(axis, f"{axis}_block", f"{axis}_stop")
        self._statements(s.body)
        self._close()
        for x in sums:
            del self.raw[x.name]
            self._add(f"{x.name} += {x.name}_block;")
        self._close()

    def _settle_nan(self, starts: Iterable[Start]) -> None:
        for x in starts:
            if x.name not in self.raw and _has_nan(x):
                nan = f'__builtin_nan{"f" if x.dtype == "f32" else ""}("")'
                self._add(f"if ({x.name}_nan) {x.name} = {nan};")

    def _reduction_clauses(self, starts: Sequence[Start]) -> str:
        signs = {"sum": "+", "prod": "*", "max": "max", "min": "min", "any": "|", "all": "&"}
        found: dict[str, list[str]] = {}
        for s in starts:
            if s.reduce in signs:
                sign = f"ab_{s.reduce}" if _has_nan(s) else signs[s.reduce]
                found.setdefault(sign, []).append(self.raw.get(s.name, s.name))
            if _has_nan(s):
                found.setdefault("|", []).append(f"{s.name}_nan")
        return "".join(f" reduction({sign}:{', '.join(n)})" for sign, n in found.items())


# --- analysis --------------------------------------------------------------------------------


def _has_nan(start: Start) -> bool:
    return start.reduce in ("max", "min") and is_float(start.dtype)


def _flag(start: Start) -> str:
    return "int64_t" if start.dtype == "f64" else "int32_t"


def _may_be_simd(body: Iterable[Statement]) -> bool:
    """Not with calls that report errors, and not where the first of equals matters."""
    return not any(isinstance(s, Check) or (isinstance(s, Update) and s.place is not None)
                   for s in statements(tuple(body)))


def _lane_names(body: Sequence[Statement], axis: str) -> set[str]:
    """The names that differ from lane to lane: accumulators, and what depends on the axis."""
    laned = {axis}
    for s in statements(tuple(body)):
        name = defines(s)
        if name is not None and (isinstance(s, Start) or _touches(s, laned)):
            laned.add(name)
    return laned


def _has_loops(body: Iterable[Statement]) -> bool:
    return any(isinstance(s, Loop) for s in body)


def interleaves(kernel: Kernel) -> bool:
    """Whether the kernel is loops over steps, in which loops alone stand."""
    loops = [s for s in kernel.body if isinstance(s, Loop) and s.ordered]
    return bool(loops) and len(loops) == len(kernel.body) and all(
        isinstance(s, Loop) for loop in loops for s in loop.body)


def _touches(s: Statement, laned: set[str]) -> bool:
    return isinstance(s, (Start, Store, Combine)) or bool(uses(s) & laned)


def _runs(body: Sequence[Statement]) -> list[list[Statement]]:
    """Loops by themselves, and the runs of statements between them."""
    runs: list[list[Statement]] = []
    for s in body:
        if isinstance(s, Loop) or not runs or isinstance(runs[-1][0], Loop):
            runs.append([s])
        else:
            runs[-1].append(s)
    return runs


def _later(body: Sequence[Statement], run: Sequence[Statement]) -> set[str]:
    """What is used after a run of statements."""
    last = next(k for k, other in enumerate(body) if other is run[-1])
    return {n for s in body[last + 1 :] for n in uses(s)}
