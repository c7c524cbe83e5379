"""Random modules of every phase, for property tests: correct, and as odd as correct allows.

    @given(modules("sbp"))        any module that the verifier accepts
    @given(statements())          a function of computes only, whose every read is inside or padded
    @given(recurrences())         a function of one scan
    arrays(function, seed)        arguments for it

Reads stay inside of their operands, are padded, or are checked indirect ones, so that a reference
can run what is drawn. Extents are 0 to 6; expressions use every primitive, cast and reduction.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from anabranch.ir.core import Block, Function, Module, Op, Value
from anabranch.ir.diagnostics import NOWHERE, Loc, Span
from anabranch.ir.expr import (
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
    sub,
    where,
)
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import (
    REDUCTIONS,
    Box,
    Compute,
    Fused,
    Gradient,
    Order,
    Pin,
    Return,
    Scan,
    Transfer,
)
from anabranch.ir.reference import held
from anabranch.ir.sbp import PARTIAL_OPS, B, Layout, P, S, Sbp
from anabranch.ir.scalar import OF_INTEGERS, PRIMITIVES
from anabranch.ir.types import DTYPES, TensorType, category, is_float, tensor

PHASES = ("global", "sbp", "boxed", "local", "fused")
SIZES = st.sampled_from((1, 2, 3, 4, 2, 3, 6, 0))
COMMON_DTYPES = ("f32", "f32", "i64", "bool", *DTYPES)
VARIABLES = ("i", "j", "k", "n", "pad", "x_1", "k.2", "é", "sum")
NAMES = st.sampled_from(("", "x", "x", "x.1", "0", "a b", "é", "d.x", "h"))
NEVER_BOOL = {"add", "sub", "mul", "div", "floordiv", "mod", "pow", "neg", "abs", "sign"}

meshes = st.lists(
    st.tuples(st.sampled_from(("data", "model", "stage")), st.integers(1, 3)),
    max_size=3, unique_by=lambda axis: axis[0],
).map(lambda axes: Mesh(tuple(axes)))
timed_meshes = st.builds(Mesh.with_micro, meshes, st.integers(1, 3))

locations = st.one_of(
    st.just(NOWHERE),
    st.builds(Loc, st.sampled_from(("gpt.ab", "a dir/é.ab", "")), st.integers(0, 99),
              st.integers(0, 99), st.sampled_from(("", "blocks.0 softmax", "a // b  // c:1:2"))))
spans = st.none() | st.builds(
    Span, st.just("gpt.ab"), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9),
    st.integers(1, 9))


def shapes(largest: int = 3) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(SIZES, max_size=largest).map(tuple)


def layouts(mesh: Mesh, rank: int) -> st.SearchStrategy[Layout]:
    """A full layout of a tensor, with one kind of P at most."""

    def entries(partial: str) -> st.SearchStrategy[Layout]:
        choices = [B, P(partial), *map(S, range(rank))]
        each = st.lists(st.sampled_from(choices), min_size=len(mesh.axes), max_size=len(mesh.axes))
        return each.map(lambda sbps: Layout(tuple(zip(mesh.names, sbps, strict=True))))

    return st.sampled_from(PARTIAL_OPS).flatmap(entries)


def modules(phase: str) -> st.SearchStrategy[Module]:
    """A module that the verifier accepts in this phase."""
    return st.composite(_module)(phase)


def statements() -> st.SearchStrategy[Function]:
    """A function of computes, which returns all their results."""
    return st.composite(_statements)()


def recurrences() -> st.SearchStrategy[Function]:
    """A function of one scan, of which it returns all results."""
    return st.composite(_recurrence)()


def arrays(function: Function, seed: int) -> list[np.ndarray[Any, Any]]:
    """Small numbers for the arguments, integers (so that they may serve as indices) and halves."""
    random = np.random.default_rng(seed)

    def array(type: TensorType) -> np.ndarray[Any, Any]:
        numbers = np.asarray(random.integers(0, 5, type.shape))
        halves = numbers / 2 - 1 if is_float(type.dtype) else numbers
        return np.asarray(halves, held(type.dtype, False))

    return [array(value.type) for value in function.body.args]


def _module(draw: Any, phase: str) -> Module:
    mesh = draw(st.none() if phase == "global" else timed_meshes)
    module = Module(phase=phase, mesh=mesh)
    for name in draw(st.sampled_from((["f"], ["train", "eval.1"]))):
        module.add(_Writer(draw, phase, mesh or Mesh(), Function(name)).function())
    return module


def _statements(draw: Any) -> Function:
    writer = _Writer(draw, "global", Mesh(), Function("f"))
    writer.arguments()
    block, scope = writer.made.body, list(writer.made.body.args)
    for _ in range(draw(st.integers(1, 4))):
        scope.append(block.append(writer.compute(scope, 0)).result)
    block.append(Return(scope[len(block.args) :]))
    return writer.made


def _recurrence(draw: Any) -> Function:
    writer = _Writer(draw, "global", Mesh(), Function("f"))
    writer.arguments()
    scan = writer.made.body.append(writer.scan(list(writer.made.body.args)))
    writer.made.body.append(Return(scan.results))
    return writer.made


@dataclass(slots=True)
class _Writer:
    """Draws one function, op by op. `stages` tells on which pipeline stage a value lives."""

    draw: Any
    phase: str
    mesh: Mesh
    made: Function
    stages: dict[Value, int] = field(default_factory=dict)

    @property
    def planned(self) -> bool:
        return self.phase in ("sbp", "boxed")

    def some(self, choices: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(choices))

    def chance(self, percent: int) -> bool:
        return bool(self.draw(st.integers(0, 99)) < percent)

    def function(self) -> Function:
        self.arguments()
        block = self.made.body
        for _ in range(self.draw(st.integers(0, 5))):
            for value in block.append(self.op()).results:
                self.stages[value] = value.op.stage if value.op else 0
        block.append(self.end())
        return self.made

    def arguments(self) -> None:
        for n in range(self.draw(st.integers(1, 4))):
            type = self.typed(self.some(COMMON_DTYPES), self.draw(shapes()))
            role = self.some(("input", "state"))
            name = f"blocks.{n}.w" if role == "state" else self.draw(NAMES)
            pin = type.layout if self.planned else self.pin(type)
            self.argument(name, type, role, pin if self.chance(50) else None)
        for role in ("step", "seed"):
            if self.chance(50):
                self.argument(role, self.typed("i64", ()), role, None)

    def argument(self, name: str, type: TensorType, role: str, pin: Layout | None) -> None:
        stage = self.draw(self.any_stage())
        span = self.draw(spans)
        value = self.made.add_argument(name, type, role, pin, stage, span)
        self.stages[value] = stage

    def typed(self, dtype: str, shape: tuple[int, ...]) -> TensorType:
        layout = self.draw(layouts(self.mesh.inner, len(shape))) if self.planned else None
        return tensor(dtype, shape, layout)

    def pin(self, type: TensorType) -> Layout:
        mesh = self.draw(meshes) if self.phase == "global" else self.mesh
        return self.draw(layouts(mesh.inner, type.rank))

    def any_stage(self) -> st.SearchStrategy[int]:
        last = 2 if self.phase == "global" else self.mesh.stages - 1
        return st.integers(0, last)

    def common(self, stage: int | None = None) -> dict[str, Any]:
        return {
            "loc": self.draw(locations),
            "stage": self.draw(self.any_stage()) if stage is None else stage,
            "recompute": self.some((0, 0, 3)),
        }

    def scope(self) -> list[Value]:
        """All values so far."""
        return [*self.made.body.args, *(r for op in self.made.body for r in op.results)]

    def local_scope(self, stage: int) -> list[Value]:
        """The values an op of this stage may read."""
        everywhere = {a.value for a in self.made.arguments if a.role in ("step", "seed")}
        return [v for v in self.scope()
                if not self.planned or v in everywhere or self.stages[v] == stage]

    def op(self) -> Op:
        other = {"global": (self.pin_op, self.gradient), "sbp": (self.box,),
                 "boxed": (self.step, self.move), "local": (self.transfer,),
                 "fused": (self.transfer, self.fused)}[self.phase]
        if self.chance(10):
            return self.scan()
        if self.chance(40):
            made = self.some(other)()
            if made is not None:
                return made  # type: ignore[no-any-return]
        stage = self.draw(self.any_stage())
        scope = self.local_scope(stage)
        return (self.order(scope, stage) if self.chance(15) else None) or self.compute(scope, stage)

    def end(self) -> Return:
        scope = self.scope()
        states = [a.value for a in self.made.states() if self.chance(60)]
        values = self.draw(st.lists(st.sampled_from(scope), max_size=3))
        updates = [self.some([v for v in scope if v.type is s.type]) for s in states]
        return Return([*values, *updates], [s.name for s in states], **self.common())

    # Ops but computes

    def pin_op(self) -> Op:
        value = self.some(self.scope())
        return Pin(value, self.pin(value.type), self.draw(NAMES), **self.common())

    def gradient(self) -> Op | None:
        floats = [v for v in self.scope() if is_float(v.type.dtype)]
        scalars = [v for v in floats if not v.type.shape]
        if not scalars:
            return None
        by = self.draw(st.lists(st.sampled_from(floats), max_size=3))
        return Gradient(self.some(scalars), by, **self.common())

    def box(self) -> Op:
        value = self.some(self.scope())
        layout = self.draw(layouts(self.mesh.inner, value.type.rank))
        return Box(value, layout, self.draw(NAMES), **self.common())

    def step(self) -> Op | None:
        """One primitive step, along an axis inside of which no other axis cuts."""
        value = self.some(self.scope())
        source = value.type.layout
        choices = [(axis, step, sbp) for axis in source.axes
                   for step, sbp in _steps_from(source, axis, value.type.rank)]
        if not choices:
            return None
        axis, step, sbp = self.some(choices)
        return Box(value, source.replace(axis, sbp), self.draw(NAMES), step=step, axis=axis,
                   **self.common(self.stages[value]))

    def move(self) -> Op | None:
        value = self.some(self.scope())
        others = [s for s in range(self.mesh.stages) if s != self.stages[value]]
        if not others:
            return None
        return Box(value, value.type.layout, step="move", **self.common(self.some(others)))

    def transfer(self) -> Op:
        step = self.some(("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send",
                          "recv", "accumulate"))
        value = self.some(self.scope())
        keeps = step in ("all_reduce", "accumulate")
        type = value.type if keeps else tensor(value.type.dtype, (self.draw(SIZES),))
        ranks = self.draw(st.sets(st.integers(0, self.mesh.ranks - 1), min_size=1).map(sorted))
        alike = keeps or step in ("send", "recv")
        counts = tuple(self.draw(SIZES) for _ in ("all",) * alike or ranks)
        reducing = keeps or step == "reduce_scatter"
        return Transfer(
            [] if step == "recv" else [value], [] if step == "send" else [type], step,
            self.draw(st.integers(0, 99)), ranks, counts=counts if self.chance(50) else (),
            reduce=self.some(PARTIAL_OPS) if reducing else "", counts_back=counts,
            name=self.draw(NAMES), **self.common())

    def fused(self) -> Op:
        operands = self.draw(st.lists(st.sampled_from(self.scope()), min_size=1, max_size=3))
        region = Block([(self.draw(NAMES), v.type) for v in operands])
        scope = list(region.args)
        for _ in range(self.draw(st.integers(0, 3))):
            scope.append(region.append(self.compute(scope, 0)).result)
        results = self.draw(st.lists(st.sampled_from(scope), min_size=1, max_size=2))
        region.append(Return(results))
        return Fused(operands, region, **self.common())

    def scan(self, scope: list[Value] | None = None) -> Scan:
        """A recurrence over `t`, whose statements have it in front."""
        stage = self.draw(self.any_stage()) if scope is None else 0
        scope = self.local_scope(stage) if scope is None else scope
        extent, reverse = self.draw(SIZES), self.chance(30)
        some = st.lists(st.sampled_from(scope), min_size=1, max_size=2)
        operands = self.draw(some) if scope else []
        reductions = [self.some(("", *REDUCTIONS)) for _ in range(self.draw(st.integers(1, 2)))]
        kinds = [(reduce, *self.dtypes(reduce)) for reduce in reductions]
        types = [self.typed(d, (extent, *self.draw(shapes(1)))) for _, d, _ in kinds]
        region = Block([(self.draw(NAMES), v.type) for v in operands])
        inside = list(region.args)
        histories = [region.add_arg(self.draw(NAMES), type) for type in types]
        back = integer(self.some((1, 2)))
        places = dict.fromkeys(histories, (add if reverse else sub)(Var("t"), back))
        for type, (reduce, _, body) in zip(types, kinds, strict=True):
            ranges = list(zip("tj", type.shape, strict=False))
            dims = [(name,) for name, _ in ranges]
            sources = [*inside, *places]
            op = region.append(self.statement(sources, stage, ranges, dims, reduce, type.dtype,
                                              body, type.layout, places))
            places[op.result] = Var("t")
        region.append(Return([v for v in places if v not in histories]))
        return Scan(operands, region, "t", extent, reverse=reverse, **self.common(stage))

    def order(self, scope: list[Value], stage: int) -> Order | None:
        candidates = [v for v in scope if v.type.rank]
        if not candidates:
            return None
        value = self.some(candidates)
        axis = self.draw(st.integers(0, value.type.rank - 1))
        count = self.draw(st.integers(0, value.type.shape[axis]))
        layout = self.draw(layouts(self.mesh.inner, value.type.rank)) if self.planned else None
        return Order(value, axis, count, descending=self.chance(50), layout=layout,
                     name=self.draw(NAMES), **self.common(stage))

    # Computes

    def compute(self, scope: list[Value], stage: int) -> Compute:
        names = self.draw(st.permutations(VARIABLES))
        ranges = [(name, self.draw(SIZES)) for name in names[: self.draw(st.integers(0, 3))]]
        dims = self.dimensions([name for name, _ in ranges])
        reduce = self.some(("", "", *REDUCTIONS))
        layout = self.draw(layouts(self.mesh.inner, len(dims))) if self.planned else None
        return self.statement(scope, stage, ranges, dims, reduce, *self.dtypes(reduce), layout, {})

    def statement(self, scope: list[Value], stage: int, ranges: list[tuple[str, int]],
                  dims: list[tuple[str, ...]], reduce: str, dtype: str, body_dtype: str,
                  layout: Layout | None, places: dict[Value, Expr]) -> Compute:
        """A compute of this form; `places` fixes the first subscript of what a scan makes."""
        free = [name for name in VARIABLES if name not in dict(ranges)]
        one = reduce in ("argmax", "argmin")
        count = self.draw(st.integers(1, 1 if one else 2)) if reduce else 0
        reduced = [(name, self.draw(SIZES)) for name in free[-count:] if count]
        text = _Expressions(self, scope, dict([*ranges, *reduced]), places=places)
        guard = text.expr("bool", 2) if reduce and self.chance(40) else None
        body = text.expr(body_dtype, 3)
        return Compute(
            text.operands, dtype, [*ranges, *reduced], dims, body, reduce=reduce,
            reduced=[name for name, _ in reduced], guard=guard, layout=layout,
            name=self.draw(NAMES), **self.common(stage))

    def dimensions(self, names: list[str]) -> list[tuple[str, ...]]:
        """The variables in order: one a dimension, merged, and dimensions of no variable."""
        dims: list[tuple[str, ...]] = []
        for name in names:
            if self.chance(15):
                dims.append(())
            if dims and dims[-1] and self.chance(30):
                dims[-1] = (*dims[-1], name)
            else:
                dims.append((name,))
        return dims

    def dtypes(self, reduce: str) -> tuple[str, str]:
        """Dtypes of the result and of the body."""
        body = self.some(COMMON_DTYPES)
        if reduce in ("any", "all"):
            return "bool", "bool"
        if reduce in ("argmax", "argmin"):
            return "i64", body
        widens = category(body) == "int" and self.chance(50)
        if reduce in ("sum", "prod") and (body == "bool" or widens):
            return "i64", body
        return body, body


def _steps_from(source: Layout, axis: str, rank: int) -> list[tuple[str, Sbp]]:
    later = source.axes[source.axes.index(axis) + 1 :]
    cut = {source[name].dim for name in later if source[name].kind == "S"}
    free = [S(d) for d in range(rank) if d not in cut]
    mine = source[axis]
    if mine.kind == "B":
        return [("fill", P(source.partial or "sum")), *(("slice", s) for s in free)]
    if mine.kind == "P":
        return [("all_reduce", B), *(("reduce_scatter", s) for s in free)]
    others = [("all_to_all", s) for s in free if s != mine]
    partial = P(source.partial or "sum")
    return [("all_gather", B), ("fill", partial), *others] if mine in free else []


@functools.cache
def primitives_of(dtype: str) -> tuple[str, ...]:
    """The primitives that give this dtype, but comparisons, `where` and the subscript check."""
    def fits(name: str) -> bool:
        kind = PRIMITIVES[name].kind
        if name in ("and", "or", "not"):
            return dtype == "bool"
        if kind == "float":
            return is_float(dtype)
        if name in OF_INTEGERS:
            return category(dtype) == "int"
        return kind == "same" and not (dtype == "bool" and name in NEVER_BOOL)

    return tuple(name for name in PRIMITIVES if name != "check" and fits(name))


COMPARISONS = tuple(n for n, p in PRIMITIVES.items() if p.kind == "bool" and p.arity == 2)
OF_FLOATS = tuple(n for n, p in PRIMITIVES.items() if p.kind == "bool" and p.arity == 1)


@dataclass(slots=True)
class _Expressions:
    """Draws the expressions of one compute, and collects its operands as they are read."""

    writer: _Writer
    scope: list[Value]
    extents: dict[str, int]
    operands: list[Value] = field(default_factory=list)
    places: dict[Value, Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.scope and self.writer.chance(10):  # an operand that is perhaps not read
            self.operands.append(self.some(self.scope))

    def some(self, choices: Sequence[Any]) -> Any:
        return self.writer.some(choices)

    def expr(self, dtype: str, depth: int) -> Expr:
        if depth == 0 or self.writer.chance(20):
            return self.leaf(dtype, depth)
        forms = [self.call, self.call, self.read, self.cast, self.choice]
        if dtype == "bool":
            forms += [self.comparison, self.comparison]
        if dtype == "f32":
            forms.append(self.random)
        made: Expr = self.some(forms)(dtype, depth - 1)
        return made

    def leaf(self, dtype: str, depth: int) -> Expr:
        if dtype == "i64" and self.writer.chance(50):
            return self.index()
        return self.constant(dtype) if self.writer.chance(50) else self.read(dtype, depth)

    def index(self) -> Expr:
        """A variable, where a rank knows them an origin, or a number."""
        if self.extents and self.writer.chance(60):
            return Var(self.some(list(self.extents)))
        if self.writer.phase in ("local", "fused") and self.writer.chance(50):
            return self.origin()
        return self.constant("i64")

    def origin(self) -> Expr:
        return Origin(self.some((0, 4, -3)), self.some((0, 0, 2)))

    def constant(self, dtype: str) -> Expr:
        if dtype == "bool":
            return Const(self.some((True, False)), dtype)
        if category(dtype) == "int":
            return Const(self.some((0, 1, 2, 3, 127) if dtype[0] == "u" else (0, 1, -1, 3)), dtype)
        return Const(self.some((0.0, 1.0, -2.5, 1e-05, 1e16, 3, math.inf, -math.inf, math.nan)),
                     dtype)

    def call(self, dtype: str, depth: int) -> Expr:
        fn = self.some(primitives_of(dtype))
        return Call(fn, tuple(self.expr(dtype, depth) for _ in range(PRIMITIVES[fn].arity)))

    def cast(self, dtype: str, depth: int) -> Expr:
        return Cast(dtype, self.expr(self.some(COMMON_DTYPES), depth))

    def choice(self, dtype: str, depth: int) -> Expr:
        return where(self.expr("bool", depth), self.expr(dtype, depth), self.expr(dtype, depth))

    def comparison(self, _dtype: str, depth: int) -> Expr:
        if self.writer.chance(20):
            return Call(self.some(OF_FLOATS), (self.expr("f32", depth),))
        dtype = self.some(COMMON_DTYPES)
        return Call(self.some(COMPARISONS), (self.expr(dtype, depth), self.expr(dtype, depth)))

    def random(self, _dtype: str, _depth: int) -> Expr:
        scalars = [v for v in self.scope if v.type.dtype == "i64" and not v.type.shape]
        seed = Read(self.number(self.some(scalars)), ()) if scalars else integer(7)
        return Rand(self.some(("uniform", "normal")), self.some((0, 5)), seed, seed,
                    self.leaf("i64", 0))

    def read(self, dtype: str, depth: int) -> Expr:
        candidates = [v for v in self.scope if v.type.dtype == dtype]
        if not candidates:
            return self.constant(dtype)
        value = self.some(candidates)
        number = self.number(value)
        places = [self.subscript(size, depth) for size in value.type.shape]
        if (fixed := self.places.get(value)) is not None:
            places[0] = fixed, isinstance(fixed, Var)
        inside = all(known for _, known in places)
        pad = None
        if not inside or self.writer.chance(30):
            pad = self.expr(dtype, depth - 1) if depth else self.constant(dtype)
        return Read(number, tuple(place for place, _ in places), pad)

    def number(self, value: Value) -> int:
        """The operand number of a value, which now and then is an operand twice."""
        if value not in self.operands or self.writer.chance(5):
            self.operands.append(value)
            return len(self.operands) - 1
        return self.operands.index(value)

    def subscript(self, size: int, depth: int) -> tuple[Expr, bool]:
        """A subscript of a dimension, and whether it certainly lies inside."""
        fitting = [name for name, extent in self.extents.items() if extent <= size]
        if fitting and self.writer.chance(60):
            plain = Var(self.some(fitting))
            return self.some((plain, plain, sub(integer(size - 1), plain))), True
        pairs = [(g, c) for g in self.extents for c in self.extents
                 if g != c and self.extents[g] * self.extents[c] <= size]
        if pairs and self.writer.chance(60):
            g, c = self.some(pairs)
            return add(mul(Var(g), integer(self.extents[c])), Var(c)), True
        if size and depth and self.writer.chance(40):
            return Call("check", (self.expr("i64", depth - 1), integer(size))), True
        if size and self.writer.chance(40):
            return integer(self.some(range(size))), True
        return sub(self.expr("i64", depth - 1) if depth else self.index(), integer(1)), False
