"""The builder of one kernel: clauses over a space become statements, a pass at a time.

What does not depend on a loop stands before it. A value of the group is computed once per pass in
which it is needed; where that is much work, the first pass keeps it (in the result it is stored to
anyway, or in a local row) and later ones load it. Loads are masked where a `where`, a guard or a
pad decides whether they happen and bounds alone do not prove them harmless.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anabranch.codegen.kernel import (
    Axis,
    Check,
    Dot,
    Kernel,
    Let,
    Load,
    Loop,
    Ref,
    Start,
    Statement,
    Store,
    Tensor,
    Update,
    dtype_of,
    names,
)
from anabranch.ir.core import Value
from anabranch.ir.diagnostics import CompilerBug
from anabranch.ir.expr import (
    FALSE,
    TRUE,
    Call,
    Cast,
    Const,
    Expr,
    Origin,
    Rand,
    Read,
    Var,
    add,
    integer,
    mul,
    variables,
    walk,
    where,
)
from anabranch.ir.index import interval
from anabranch.ir.launch import IntArg
from anabranch.ir.linear import Linear, linear, place, strides
from anabranch.ir.scalar import PRIMITIVES, flops
from anabranch.ir.space import Clause, Space
from anabranch.ir.types import accumulator, itemsize

SOME_WORK = 4  # operations of a call that is worth a name of its own outside of a loop
EXPENSIVE = 12  # operations from which on keeping a value beats computing it again
OF_BOOLS = {"sum": "any", "max": "any", "prod": "all", "min": "all"}
RESERVED = {
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else",
    "enum", "extern", "float", "for", "goto", "if", "inline", "int", "long", "register",
    "restrict", "return", "short", "signed", "sizeof", "static", "struct", "switch", "typedef",
    "union", "unsigned", "void", "volatile", "while", "bool", "true", "false", "asm", "linux",
    "unix", "tl", "triton", "ints", "floats", "ptrs", "ctx", "tile", "tile_begin", "tile_end",
    "and", "or", "not", "is", "in", "def", "del", "from", "import", "lambda", "None", "pass",
    "class", "try", "with", "yield", "raise", "global", "assert", "as", "elif", "except",
    "finally", "nonlocal", "True", "False", "min", "max", "I", "_Complex", "NAN", "INFINITY",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a space is walked: `grid` axes, then `loops`, outer ones first.

    `lanes` says whether the last axis of the grid, or of the loops, is one of lanes. With `chunk`
    the first loop is cut: the grid begins with an axis of tiles, each of which takes so many
    steps, and reductions leave partial results there. `keep`: rows may be kept in local memory.
    `dots`: sums of products of two reads become `Dot`.
    """

    grid: tuple[str, ...]
    loops: tuple[str, ...] = ()
    lanes: str = ""  # grid | loops | ""
    chunk: int = 0
    keep: bool = True
    dots: bool = False


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


class Names:
    """Fresh names, also legal in C and Python."""

    def __init__(self) -> None:
        self.taken = set(RESERVED)

    def fresh(self, hint: str) -> str:
        stem = re.sub(r"[^0-9A-Za-z_]+", "_", hint).strip("_") or "v"
        stem = f"v{stem}" if stem[0].isdigit() else stem
        name, number = stem, 2
        while name in self.taken or name.startswith("ab_"):
            name, number = f"{stem}_{number}", number + 1
        self.taken.add(name)
        return name


class Numbers:
    """The integer arguments of a kernel; equal numbers share one."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.args: dict[str, IntArg] = {}

    def extent(self, axis: str, size: int) -> Ref:
        """A name of its own for the extent of an axis, whatever its size."""
        name = self.names.fresh(f"n_{axis}")
        self.args[name] = IntArg(size)
        return Ref(name)

    def argument(self, arg: IntArg, hint: str) -> Ref:
        for name, known in self.args.items():
            if known == arg:
                return Ref(name)
        name = self.names.fresh(hint)
        self.args[name] = arg
        return Ref(name)

    def number(self, value: int) -> Expr:
        """Small numbers are text; others are arguments, so that shapes can share the text."""
        return integer(value) if -1 <= value <= 2 else self.argument(IntArg(value), "k")


def both(mask: Expr | None, more: Expr) -> Expr | None:
    """The conjunction of two conditions; None is true."""
    if more == TRUE:
        return mask
    return more if mask is None else Call("and", (mask, more))


def negated(condition: Expr) -> Expr:
    if isinstance(condition, Const):
        return FALSE if condition.value else TRUE
    return Call("not", (condition,))


class Builder:
    """Collects the statements of one kernel. `row` stands before the loops, `inner` in them."""

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
        self.kept = _kept(space, set(outputs)) if scheme.keep and scheme.loops else {}
        self.local_bytes = 0
        self._chunk: tuple[Expr, Expr] | None = None
        self.tile = self._tile_axis(parts)
        self._make_axes(also)

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
        fixed, accesses = _accesses(self.space, self.outputs, also)
        self.steps: list[tuple[Ref, str]] = []  # kernel axis, and the axis whose stride it has
        self.axis: dict[str, Ref] = {}
        chunked = self.scheme.loops[:1] if self.scheme.chunk else ()
        apart = fixed | set(chunked)
        self.grid = [self._axis(g) for g in _merge(self.scheme.grid, self.space, apart, accesses)]
        self.loops = [self._axis(g) for g in _merge(self.scheme.loops, self.space, apart, accesses)]

    def _axis(self, group: tuple[str, ...]) -> Ref:
        ref = Ref(self.names.fresh("_".join(group)))
        self.size[ref.name] = math.prod(self.space.extents[a] for a in group)
        self.extent[ref.name] = self.numbers.extent(ref.name, self.size[ref.name])
        self.steps.append((ref, group[-1]))
        if len(group) == 1:
            self.axis[group[0]] = ref
        return ref

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
        return self._remember(key, Ref(name, _computed(self.tensors[tensor].dtype)))

    def let(self, hint: str, value: Expr) -> Expr:
        if isinstance(value, (Ref, Const)):
            return value
        name = self.names.fresh(hint)
        self.emit(Let(name, value), name)
        return Ref(name, dtype_of(value))

    # expressions

    def lower(self, expr: Expr, at: int, mask: Expr | None) -> Expr:
        """An expression of clause `at`, evaluated where `mask` holds."""
        if expr in self.facts:
            return TRUE if self.facts[expr] else FALSE
        match expr:
            case Const(value, dtype):
                return self.numbers.number(int(value)) if dtype == "i64" else expr
            case Var(name):
                return self.axis[name]
            case Origin(base, step):
                return self.numbers.argument(IntArg(base, step), "origin")
            case Cast(dtype, arg):
                return Cast(dtype, self.lower(arg, at, mask))
            case Rand(kind, stream, seed, step, counter):
                place = self.index(linear(counter), at, mask)
                return Rand(kind, stream, self.lower(seed, at, mask), self.lower(step, at, mask),
                            place)
            case Read():
                return self._read(expr, at, mask)
            case Call("where", (condition, yes, no)):
                return self._where(condition, yes, no, at, mask)
            case Call("and" | "or" as fn, (a, b)):
                return self._logic(fn, a, b, at, mask)
            case Call("check", (value, bound)):
                return self._check(value, bound, at, mask)
            case Call("not", (arg,)):
                return negated(self.lower(arg, at, mask))
            case Call("stop" | "stop_grad", args):
                return self.lower(args[0], at, mask)
            case Call(fn, args):
                return self._hoisted(Call(fn, tuple(self.lower(a, at, mask) for a in args)))
        raise CompilerBug(f"not an expression: {expr!r}")

    def _hoisted(self, value: Call) -> Expr:
        """What does not depend on a loop and is some work is done before it; dividing many elements
        by one number is multiplying by its reciprocal."""
        if self.inner is None or dtype_of(value) not in ("f32", "f64"):
            return value
        if not names(value) & self.inner_names:
            return self._once(value) if PRIMITIVES[value.fn].flops >= SOME_WORK else value
        top, bottom = value.args[0], value.args[-1]
        if value.fn == "div" and names(bottom) and not names(bottom) & self.inner_names:
            return mul(top, self._once(Call("div", (Const(1.0, dtype_of(bottom)), bottom))))
        return value

    def _once(self, value: Expr) -> Expr:
        known = self._known(value)
        return self._remember(value, self.let("t", value)) if known is None else known

    def _where(self, condition: Expr, yes: Expr, no: Expr, at: int, mask: Expr | None) -> Expr:
        chosen = self.lower(condition, at, mask)
        if isinstance(chosen, Const):
            return self.lower(yes if chosen.value else no, at, mask)
        return where(chosen, self.lower(yes, at, both(mask, chosen)),
                     self.lower(no, at, both(mask, negated(chosen))))

    def _logic(self, fn: str, a: Expr, b: Expr, at: int, mask: Expr | None) -> Expr:
        first = self.lower(a, at, mask)
        if isinstance(first, Const):
            settled = bool(first.value) == (fn == "or")
            return first if settled else self.lower(b, at, mask)
        second = self.lower(b, at, both(mask, first if fn == "and" else negated(first)))
        if isinstance(second, Const):
            return second if bool(second.value) == (fn == "or") else first
        return Call(fn, (first, second))

    def _check(self, value: Expr, bound: Expr, at: int, mask: Expr | None) -> Expr:
        place, size = self.lower(value, at, mask), self.lower(bound, at, mask)
        key = ("check", place, size, mask)
        known = self._known(key)
        if known is not None:
            return known
        name = self.names.fresh("at")
        self.emit(Check(name, place, size, mask), name)
        return self._remember(key, Ref(name))

    def _read(self, read: Read, at: int, mask: Expr | None) -> Expr:
        c = self.space.clauses[at]
        operand = c.operands[read.operand]
        home = self.homes.get(operand)
        if home is not None:
            return self.value(home)
        shape = operand.type.shape
        inside = self._inside(read, shape, at, mask)
        needed, other = both(mask, inside) if inside is not None else None, None
        if inside is not None and read.pad is not None:
            other = self.lower(read.pad, at, both(mask, negated(inside)))
        if read.pad is None and not provable(read, shape, self.space.extents):
            needed = mask
        index = self.index(place(read.subscripts, shape), at, mask)
        tensor = self.pointer(operand, "scratch" if operand in self.scratch else "in")
        return self.load(operand.name or "v", tensor, index, needed, other)

    def _inside(self, read: Read, shape: Sequence[int], at: int, mask: Expr | None) -> Expr | None:
        """The condition that a read with a pad stays inside; None if it always does."""
        if read.pad is None:
            return None
        condition: Expr | None = None
        for subscript, size in zip(read.subscripts, shape, strict=True):
            condition = both(condition, self.within(subscript, size, at, mask))
        return condition

    def within(self, subscript: Expr, size: int, at: int, mask: Expr | None) -> Expr:
        """The condition that a subscript is in [0, size), as far as bounds do not prove it."""
        low, high = _outside(subscript, size, self.space.extents)
        condition: Expr = TRUE
        if low or high:
            place = self.lower(subscript, at, mask)
            parts = [Call("ge", (place, integer(0)))] if low else []
            parts += [Call("lt", (place, self.numbers.number(size)))] if high else []
            condition = parts[0] if len(parts) == 1 else Call("and", tuple(parts))
        return condition

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

    def run(self, partials: dict[int, Value] | None = None) -> tuple[Statement, ...]:
        """The body. With `partials`, reductions are stored there and nothing follows them."""
        last = max((self.space.waves[i] for i in range(len(self.space.clauses))), default=0)
        for self.wave in range(last + 1):
            self._pass()
        for i, c in enumerate(self.space.clauses):
            if partials is not None and i in partials:
                tensor = self.pointer(partials[i], "scratch")
                self.row.append(Store(tensor, self._partial_place(c), self.row_env["raw", i]))
            elif partials is None and c.result in self.outputs and self._after_loops(i):
                index = self.index(self.home_place(c), i, None)
                self.row.append(Store(self.target(c.result), index, self.value(i)))
        return tuple(self.row)

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
        for i, start in accumulators.items():
            self.row_env["raw", i] = start.ref
            c = self.space.clauses[i]
            self.row_env["value", i] = self.let(c.result.name, self._rounded(c, start.ref))

    def _start(self, i: int) -> Start:
        c = self.space.clauses[i]
        dtype = c.result.type.dtype
        if c.reduce in ("argmax", "argmin"):
            dtype = self.body_dtype(c)
        reduce = OF_BOOLS.get(c.reduce, c.reduce) if dtype == "bool" else c.reduce
        start = Start(self.names.fresh(c.result.name), reduce, _computed(dtype))
        self.row.append(start)
        return start

    def body_dtype(self, c: Clause) -> str:
        from_reads = {r.operand: c.operands[r.operand].type.dtype for r in c.reads}
        return _clause_dtype(c.body, from_reads)

    def _segment(self, start: Expr, stop: Expr, facts: dict[Expr, bool],
                 accumulators: dict[int, Start], stored: list[int]) -> None:
        inner = self.open_loops(facts)
        values = {i: self.value(i) for i in stored}
        for i, accumulator_ in accumulators.items():
            self._update(i, accumulator_)
        for i, value in values.items():  # last, for they may overwrite what was read
            c = self.space.clauses[i]
            index = self.index(self.home_place(c), i, None)
            inner.append(Store(self.target(c.result), index, value))
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
        assert self.inner is not None
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
        if self.scheme.dots and c.reduce == "sum" and mask is None and _is_product(value):
            assert isinstance(value, Call)
            self.inner.append(Dot(start.name, *value.args))
            return
        at = self.axis[c.reduced[0]] if c.reduce in ("argmax", "argmin") else None
        self.inner.append(Update(start.name, value, mask, at))

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
        clauses = [self.space.clauses[i] for i in sorted(_closure(self.space, roots))]
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
        loop_points = math.prod(self.space.extents[a] for a in self.scheme.loops)
        return Piece(
            kernel, tuple(self.bindings[t.name] for t in kernel.pointers),
            tuple(self.numbers.args.values()), {a.name: self.size[a.name] for a in grid},
            per_point * (self.scheme.chunk or max(1, loop_points)), self.local_bytes)


# --- analysis --------------------------------------------------------------------------------


def _computed(dtype: str) -> str:
    """The dtype in which a value is computed."""
    return accumulator(dtype)


def _is_product(value: Expr) -> bool:
    return (isinstance(value, Call) and value.fn == "mul" and value.args[0] != value.args[1]
            and all(isinstance(a, Ref) for a in value.args))


def _clause_dtype(expr: Expr, operands: dict[int, str]) -> str:
    match expr:
        case Read(operand):
            return operands[operand]
        case Const(_, dtype) | Cast(dtype, _):
            return dtype
        case Rand():
            return "f32"
        case Call("where", (_, yes, _)):
            return _clause_dtype(yes, operands)
        case Call(fn, args):
            boolean = fn in ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf")
            return "bool" if boolean else _clause_dtype(args[0], operands)
    return "i64"


def provable(read: Read, shape: Sequence[int], extents: dict[str, int]) -> bool:
    """Whether bounds alone show that a read stays inside (checked subscripts do)."""
    return not any(
        any(_outside(s, n, extents)) for s, n in zip(read.subscripts, shape, strict=True))


def _outside(subscript: Expr, size: int, extents: dict[str, int]) -> tuple[bool, bool]:
    """Whether a subscript might be below 0, and whether it might reach the size."""
    if isinstance(subscript, Call) and subscript.fn == "check":
        bound = subscript.args[1]
        return False, not (isinstance(bound, Const) and bound.value <= size)
    bounds = interval(subscript, extents)
    if bounds is None:
        return True, True
    return bounds[0] < 0, bounds[1] >= size


def comparisons(
    clauses: Sequence[Clause], lane: str, loops: set[str]
) -> list[tuple[Expr, Expr, bool]]:
    """(condition, limit, below): `condition` is `below` for lanes under `limit`, else its opposite.

    Found in bodies and guards, where the lane itself is compared with something known per row.
    """
    found: dict[Expr, tuple[Expr, bool]] = {}
    for c in clauses:
        for root in (c.body, *(() if c.guard is None else (c.guard,))):
            for node in walk(root):
                limit = _limit(node, lane, loops)
                if limit is not None:
                    found[node] = limit
    return [(condition, limit, below) for condition, (limit, below) in found.items()]


FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def _limit(node: Expr, lane: str, loops: set[str]) -> tuple[Expr, bool] | None:
    if not isinstance(node, Call) or node.fn not in FLIPPED:
        return None
    fn, (a, b) = node.fn, node.args
    if b == Var(lane):
        fn, a, b = FLIPPED[fn], b, a
    steady = not variables(b) & loops and not any(isinstance(e, (Read, Rand)) for e in walk(b))
    if a != Var(lane) or not steady:
        return None
    limit = add(b, integer(1)) if fn in ("le", "gt") else b
    return limit, fn in ("lt", "le")


def _closure(space: Space, roots: Sequence[int]) -> set[int]:
    """The clauses over elements that the roots need, with the roots."""
    homes = {c.result: i for i, c in enumerate(space.clauses)}
    found, stack = set(roots), list(roots)
    while stack:
        for operand in space.clauses[stack.pop()].operands:
            j = homes.get(operand)
            if j is not None and j not in found and space.full(j):
                found.add(j)
                stack.append(j)
    return found


def _kept(space: Space, outputs: set[Value]) -> dict[int, int]:
    """The clauses worth keeping for a later pass, with the pass that computes them."""
    homes = {c.result: i for i, c in enumerate(space.clauses)}
    cost: dict[int, int] = {}
    for i, c in enumerate(space.clauses):
        inner = [homes[v] for v in c.operands if v in homes and space.full(homes[v])]
        cost[i] = flops(c.body) + sum(cost[j] for j in inner)
    wanted: dict[int, set[int]] = {i: set() for i in range(len(space.clauses))}
    kept: dict[int, int] = {}
    for i in reversed(range(len(space.clauses))):
        c = space.clauses[i]
        if c.reduce or c.result in outputs:
            wanted[i].add(space.waves[i])
        if not (space.full(i) or c.reduce):
            continue
        if not c.reduce and len(wanted[i]) > 1 and cost[i] >= EXPENSIVE:
            kept[i] = min(wanted[i])
        for v in c.operands:
            if v in homes:
                wanted[homes[v]] |= {kept[i]} if i in kept else wanted[i]
    return kept


def _accesses(
    space: Space, outputs: Sequence[Value], also: Sequence[Linear]
) -> tuple[set[str], list[dict[str, int]]]:
    """Axes whose own value matters, and the strides of every access, those of `also` included."""
    homes = {c.result for c in space.clauses}
    fixed: set[str] = set()
    accesses: list[dict[str, int]] = []
    for form in also:
        accesses.append(dict(form.terms))
        for _, atom in form.atoms:
            _scan(atom, space.clauses[0], homes, space, fixed, accesses)
    for c in space.clauses:
        for root in (c.body, *(() if c.guard is None else (c.guard,))):
            _scan(root, c, homes, space, fixed, accesses)
        if c.reduce in ("argmax", "argmin"):
            fixed |= set(c.reduced)
        if c.result in outputs or c.reduce:
            steps = strides([space.extents[v] for v in c.result_vars])
            accesses.append(dict(zip(c.result_vars, steps, strict=True)))
    return fixed, accesses


def _scan(expr: Expr, c: Clause, homes: set[Value], space: Space, fixed: set[str],
          accesses: list[dict[str, int]]) -> None:
    match expr:
        case Var(name):
            fixed.add(name)
        case Read(operand, subscripts, pad):
            value = c.operands[operand]
            if pad is not None:
                _scan(pad, c, homes, space, fixed, accesses)
                for s, n in zip(subscripts, value.type.shape, strict=True):
                    if any(_outside(s, n, space.extents)):
                        fixed |= variables(s)
            if value in homes:
                return
            form = place(subscripts, value.type.shape)
            accesses.append(dict(form.terms))
            for _, atom in form.atoms:
                _scan(atom, c, homes, space, fixed, accesses)
        case Call(_, args):
            for arg in args:
                _scan(arg, c, homes, space, fixed, accesses)
        case Cast(_, arg):
            _scan(arg, c, homes, space, fixed, accesses)
        case Rand(_, _, seed, step, counter):
            form = linear(counter)
            accesses.append(dict(form.terms))
            for part in (seed, step, *(atom for _, atom in form.atoms)):
                _scan(part, c, homes, space, fixed, accesses)


def _merge(axes: Sequence[str], space: Space, fixed: set[str],
           accesses: list[dict[str, int]]) -> list[tuple[str, ...]]:
    """Neighbouring axes that every access walks as one become one."""
    groups: list[tuple[str, ...]] = []
    for axis in axes:
        outer = groups[-1][-1] if groups else None
        size = space.extents[axis]
        if outer is not None and not {outer, axis} & fixed and all(
            a.get(outer, 0) == a.get(axis, 0) * size for a in accesses
        ):
            groups[-1] += (axis,)
        else:
            groups.append((axis,))
    return groups
