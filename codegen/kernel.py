"""The kernel language: what one launch computes, the same for every target.

A kernel is a function over pointers to dense tensors and integers (extents, strides, origins).
Its meaning is sequential and per element: `body` runs once for every point of `grid`, and

- points of the grid are independent, so a target may cut the grid into tiles and run those in any
  order. At most one axis, the last, is of `lanes`: neighbouring points that a target runs together
  (a vector of C's, a block of Triton's);
- a `Loop` runs in order; one of `lanes` has independent iterations but for its accumulators, so a
  target may run blocks of them at once;
- a value is defined once (`Let`, `Load`, `Check`, `Loop`) and seen to the end of its block. An
  accumulator (`Start`) holds the identity of its reduction until an `Update` combines a value into
  it. Where it starts says what it is for: inside of the lanes axis there is one per lane; outside
  of a lanes loop that updates it, the lanes are combined;
- a masked load touches no memory where the mask is false, a masked store neither;
- a `local` tensor is private to one point of the grid (but for the lanes axis, which shares it);
- `Combine` updates memory in the order of the loops around it.

Expressions are those of the IR without `Var`, `Read` and `Origin`: their leaves are constants and
`Ref`s to values, integer arguments and axes. f16 and bf16 are computed in f32; a `Cast` rounds.

`verify` proves a kernel safe for given integers: no two points of the grid store to one place, and
no unmasked access leaves its tensor, indirect ones that were not checked aside.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from anabranch.ir.expr import Call, Cast, Const, Expr, Rand, walk
from anabranch.ir.scalar import PRIMITIVES
from anabranch.ir.types import category, integers


@dataclass(frozen=True, slots=True)
class Ref(Expr):
    """A value of the kernel by name: an axis, an integer argument, or what a statement defines."""

    name: str
    dtype: str = "i64"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A pointer. Roles: in, out, scratch (shared by the launches of an op), local (private to a
    point of the grid, given by the target). `elements` is known where the tensor is not given."""

    name: str
    dtype: str
    role: str
    elements: Expr | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of the grid, [0, extent)."""

    name: str
    extent: Expr
    lanes: bool = False


@dataclass(frozen=True, slots=True)
class Statement:
    """Base of what a body is made of."""


@dataclass(frozen=True, slots=True)
class Let(Statement):
    name: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Load(Statement):
    """`name = tensor[index]`; where the mask is false, `other` (or anything, if that is None)."""

    name: str
    tensor: str
    index: Expr
    mask: Expr | None = None
    other: Expr | None = None


@dataclass(frozen=True, slots=True)
class Store(Statement):
    tensor: str
    index: Expr
    value: Expr
    mask: Expr | None = None


@dataclass(frozen=True, slots=True)
class Start(Statement):
    """An accumulator of dtype `dtype` with the identity of `reduce` (one of `ops.REDUCTIONS`).

    For argmax and argmin `dtype` is that of the values compared; the accumulator's own is i64, the
    first place that has the extremum (nan, if there is one), or 0 if there was no update.
    """

    name: str
    reduce: str
    dtype: str

    @property
    def ref(self) -> Ref:
        return Ref(self.name, "i64" if self.reduce in ("argmax", "argmin") else self.dtype)


@dataclass(frozen=True, slots=True)
class Update(Statement):
    """Combine `value` into an accumulator where the mask holds. `place`: for argmax, argmin."""

    name: str
    value: Expr
    mask: Expr | None = None
    place: Expr | None = None


@dataclass(frozen=True, slots=True)
class Dot(Statement):
    """`name += left * right` summed over the axis of the loop around it: an `Update` that a target
    with matrix units may do for whole blocks. Neither factor has both axes of the accumulator."""

    name: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Combine(Statement):
    """`tensor[index] = reduce(tensor[index], value)`, in the order of the loops around."""

    tensor: str
    index: Expr
    reduce: str
    value: Expr
    mask: Expr | None = None


@dataclass(frozen=True, slots=True)
class Sort(Statement):
    """`target[place + r * step] = p`, for r in [0, count), where p in [0, length) is the place of
    the r-th of the elements `tensor[index + p * stride]`: ascending or descending, ties by p, nan
    as the largest. `scratch` is a local tensor of `SORTING` bytes an element, or empty."""

    tensor: str
    index: Expr
    stride: Expr
    length: Expr
    target: str
    place: Expr
    step: Expr
    count: Expr
    descending: bool
    scratch: str = ""

    @property
    def walks(self) -> tuple[tuple[str, Expr, Expr, Expr], ...]:
        """What is read and what is written: a tensor, the first place, the step, how many."""
        return ((self.tensor, self.index, self.stride, self.length),
                (self.target, self.place, self.step, self.count))


SORTING = 32  # bytes of scratch for each element that is sorted


@dataclass(frozen=True, slots=True)
class Check(Statement):
    """`name = value` if that is in [0, bound); else report an index error, and `name = 0`."""

    name: str
    value: Expr
    bound: Expr
    mask: Expr | None = None


@dataclass(frozen=True, slots=True)
class Loop(Statement):
    """`body` for `axis` in [start, stop), in order. `ordered`: a step may load what one before it
    has stored; otherwise only accumulators and `Combine` lead from step to step."""

    axis: str
    start: Expr
    stop: Expr
    body: tuple[Statement, ...]
    lanes: bool = False
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """`ints` are the names of the integer arguments, in order. `about` says what it computes."""

    name: str
    tensors: tuple[Tensor, ...]
    ints: tuple[str, ...]
    grid: tuple[Axis, ...]
    body: tuple[Statement, ...]
    about: tuple[str, ...] = ()

    def tensor(self, name: str) -> Tensor:
        return next(t for t in self.tensors if t.name == name)

    @property
    def pointers(self) -> tuple[Tensor, ...]:
        """The tensors that are arguments: all but local ones."""
        return tuple(t for t in self.tensors if t.role != "local")


def dtype_of(expr: Expr) -> str:
    """The dtype of an expression of the kernel language."""
    match expr:
        case Ref(_, dtype) | Const(_, dtype) | Cast(dtype, _):
            return dtype
        case Rand():
            return "f32"
        case Call(fn, args):
            kind = PRIMITIVES[fn].kind
            return "bool" if kind == "bool" else dtype_of(args[1 if kind == "where" else 0])
    raise TypeError(f"not an expression of a kernel: {expr!r}")


def names(*exprs: Expr | None) -> set[str]:
    """The values that expressions refer to."""
    return {e.name for root in exprs if root is not None for e in walk(root) if isinstance(e, Ref)}


def expressions(statement: Statement) -> tuple[Expr, ...]:
    """The expressions of one statement, without those of a loop's body."""
    match statement:
        case Let(_, value):
            parts: tuple[Expr | None, ...] = (value,)
        case Load(_, _, index, mask, other):
            parts = (index, mask, other)
        case Store(_, index, value, mask) | Combine(_, index, _, value, mask):
            parts = (index, value, mask)
        case Update(_, value, mask, place):
            parts = (value, mask, place)
        case Dot(_, left, right):
            parts = (left, right)
        case Check(_, value, bound, mask):
            parts = (value, bound, mask)
        case Sort():
            parts = tuple(e for _, *walk_ in statement.walks for e in walk_)
        case Loop(_, start, stop, _, _):
            parts = (start, stop)
        case _:
            parts = ()
    return tuple(p for p in parts if p is not None)


def defines(statement: Statement) -> str | None:
    """The name a statement brings into its block."""
    match statement:
        case Let(name) | Load(name) | Start(name) | Check(name):
            return name
    return None


def uses(statement: Statement) -> set[str]:
    """Every name a statement refers to, a loop's body included; updates use their accumulator."""
    found = names(*expressions(statement))
    match statement:
        case Loop(axis, body=body):
            inner = {n for s in body for n in uses(s)}
            found |= inner - {axis} - {d for s in body if (d := defines(s))}
        case Update(name) | Dot(name):
            found.add(name)
    return found


def statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """All statements, those inside of loops after their loop."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from statements(statement.body)


def identity(reduce: str, dtype: str) -> Const:
    """What a reduction over nothing gives."""
    match reduce, category(dtype):
        case ("any" | "all"), _:
            return Const(reduce == "all", "bool")
        case ("sum" | "prod"), kind:
            one = reduce == "prod"
            return Const({"bool": one, "int": int(one), "float": float(one)}[kind], dtype)
        case _, "bool":
            return Const(reduce not in ("max", "argmax"), "bool")
        case _, "int":
            return Const(integers(dtype)[0 if reduce in ("max", "argmax") else -1], dtype)
    return Const(-math.inf if reduce in ("max", "argmax") else math.inf, dtype)


# --- text ------------------------------------------------------------------------------------

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "and", "or": "or",
}  # fmt: skip


def text(kernel: Kernel) -> str:
    """The kernel for people to read."""
    tensors = [f"{t.name}: {t.role} {t.dtype}" for t in kernel.tensors]
    grid = [f"{a.name} < {show(a.extent)}{' lanes' if a.lanes else ''}" for a in kernel.grid]
    head = [f"# {line}" for line in kernel.about]
    head += [f"kernel {kernel.name}({', '.join(tensors)}; {', '.join(kernel.ints)})"]
    return "\n".join([*head, f"  grid {', '.join(grid)}", *_block(kernel.body, "    "), ""])


def _block(body: tuple[Statement, ...], indent: str) -> list[str]:
    lines: list[str] = []
    for statement in body:
        lines.append(indent + _line(statement))
        if isinstance(statement, Loop):
            lines += _block(statement.body, indent + "  ")
    return lines


def _line(statement: Statement) -> str:
    match statement:
        case Let(name, value):
            return f"{name} = {show(value)}"
        case Load(name, tensor, index, mask, other):
            otherwise = "" if other is None else f" else {show(other)}"
            return f"{name} = {tensor}[{show(index)}]{_when(mask)}{otherwise}"
        case Store(tensor, index, value, mask):
            return f"{tensor}[{show(index)}] = {show(value)}{_when(mask)}"
        case Combine(tensor, index, reduce, value, mask):
            return f"{tensor}[{show(index)}] {reduce}= {show(value)}{_when(mask)}"
        case Sort(tensor, index, stride, length, target, place, step, count, descending):
            order = "descending" if descending else "ascending"
            return (f"{target}[{show(place)} + r * {show(step)}] = order of {show(length)} "
                    f"{tensor}[{show(index)} + p * {show(stride)}], {order}, r < {show(count)}")
        case Check(name, value, bound, mask):
            return f"{name} = check({show(value)}, {show(bound)}){_when(mask)}"
        case Loop(axis, start, stop, _, lanes, ordered):
            kind = " lanes" if lanes else " ordered" if ordered else ""
            return f"for {axis} in {show(start)} .. {show(stop)}{kind}:"
    return _accumulating(statement)


def _accumulating(statement: Statement) -> str:
    match statement:
        case Start(name, reduce, dtype):
            return f"{name} = start {reduce} {dtype}"
        case Update(name, value, mask, place):
            where = "" if place is None else f" at {show(place)}"
            return f"{name} <- {show(value)}{where}{_when(mask)}"
        case Dot(name, left, right):
            return f"{name} <- dot({show(left)}, {show(right)})"
    raise TypeError(f"not a statement: {statement!r}")


def _when(mask: Expr | None) -> str:
    return "" if mask is None else f" if {show(mask)}"


def show(expr: Expr) -> str:
    """An expression, with parentheses around every operation inside of another."""
    match expr:
        case Ref(name):
            return name
        case Const(value):
            return str(value).lower() if isinstance(value, bool) else repr(value)
        case Cast(dtype, arg):
            return f"{dtype}({show(arg)})"
        case Rand(kind, stream, seed, step, counter):
            inner = ", ".join(show(e) for e in (seed, step, counter))
            return f"{kind}({stream}, {inner})"
        case Call(fn, (a, b)) if fn in INFIX:
            return f"{_atom(a)} {INFIX[fn]} {_atom(b)}"
        case Call(fn, args):
            return f"{fn}({', '.join(map(show, args))})"
    raise TypeError(f"not an expression of a kernel: {expr!r}")


def _atom(expr: Expr) -> str:
    return f"({show(expr)})" if isinstance(expr, Call) and expr.fn in INFIX else show(expr)


# --- json, for an interpreter ----------------------------------------------------------------


def serialised(kernel: Kernel) -> str:
    """All that a run of the kernel depends on: a record is the list of its class and its fields.

    Name and notes are left out, so that kernels that do the same have one text.
    """
    return json.dumps(_record(replace(kernel, name="", about=())), separators=(",", ":"))


def _record(node: Any) -> Any:
    if is_dataclass(node):
        return [type(node).__name__, *(_record(getattr(node, f.name)) for f in fields(node))]
    return [_record(part) for part in node] if isinstance(node, tuple) else node
