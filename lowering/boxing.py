"""Changes of layout as shortest paths of primitive steps: phase `sbp` -> `boxed`.

Steps, each along one mesh axis, inside the groups of ranks that differ along it:

    slice           B -> S       every rank keeps its part
    fill            B, S -> P    a whole value on the first rank, or every rank's own part, and the
                                 identity of the reduction elsewhere
    all_gather      S -> B
    reduce_scatter  P -> S
    all_reduce      P -> B
    all_to_all      S -> S       of another dimension
    move                         to another pipeline stage, rank by rank, in one layout

Cuts of one dimension nest in mesh order, so a step may touch S(d) on an axis only if no later axis
has S(d) too. Any layout still reaches any other: from the last axis to the first make everything B,
then from the first to the last make the target. P(op) reaches P(op') through B, since a value has
one kind of P.

On the axis `micro`, which is time, whole values can be sliced and filled, and terms accumulate
(all_reduce): a value that comes in parts is never whole in the middle of a program. Asking for it
is the user's error, with the line that asks.

Every form of a value is made once, and a box starts from the nearest form there is.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from anabranch.ir.core import Function, Module, Value
from anabranch.ir.diagnostics import CompilerBug, Loc, Span, UserError, fail
from anabranch.ir.mesh import MICRO, Mesh
from anabranch.ir.ops import Box
from anabranch.ir.sbp import B, Layout, S, Sbp, local_box
from anabranch.ir.types import TensorType

Seconds = Callable[[TensorType, Layout, Layout, str, str], float]
"""What a step costs: the type, the layouts before and after, the step and its axis."""

STEPS = {
    ("B", "S"): "slice", ("B", "P"): "fill", ("S", "P"): "fill", ("S", "B"): "all_gather",
    ("P", "S"): "reduce_scatter", ("P", "B"): "all_reduce", ("S", "S"): "all_to_all",
}
IN_TIME = {("B", "S"), ("B", "P"), ("P", "B")}  # the steps that the axis `micro` has
LOCAL = {"slice", "fill"}


@dataclass(frozen=True, slots=True)
class Step:
    """One primitive step and the layout it leads to. A move has no axis."""

    step: str
    axis: str
    layout: Layout


def elements_moved(mesh: Mesh) -> Seconds:
    """A price that needs no machine: elements of the largest rank, a message as 1000 of them."""

    def price(type: TensorType, source: Layout, target: Layout, step: str, axis: str) -> float:
        local = sum(_elements(type, layout, mesh) for layout in (source, target))
        alone = axis != "" and mesh.size(axis) == 1
        if step in LOCAL or alone or axis == MICRO:
            return 1.0 + local / 10
        return 1000.0 + local * (2 if step == "all_reduce" else 1)

    return price


def _elements(type: TensorType, layout: Layout, mesh: Mesh) -> int:
    shape, _ = local_box(type.shape, layout, mesh, (0,) * len(mesh.axes))
    return type.with_shape(shape).elements


# --- one route -----------------------------------------------------------------------------------


def neighbours(type: TensorType, layout: Layout, target: Layout, mesh: Mesh) -> Iterator[Step]:
    """The legal steps from a layout, on the way to one with the target's kind of P."""
    entries = layout.sbps()
    for number, (axis, parts) in enumerate(mesh.axes):
        before, later = entries[number], entries[number + 1 :]
        for after in _entries(type.rank, target[axis]):
            step = STEPS.get((before.kind, after.kind), "")
            if (
                step and before != after
                and not any(e in later for e in (before, after) if e.kind == "S")
                and (axis != MICRO or _in_time(type, before, after, parts))
                and after.op in ("", layout.partial or after.op)
            ):
                yield Step(step, axis, layout.replace(axis, after))


def _entries(rank: int, wanted: Sbp) -> list[Sbp]:
    """The entries worth having on an axis: terms are only made where they are wanted."""
    return [B, *map(S, range(rank)), *([wanted] if wanted.kind == "P" else [])]


def _in_time(type: TensorType, before: Sbp, after: Sbp, parts: int) -> bool:
    even = after.kind != "S" or type.shape[after.dim] % parts == 0
    return even and (before.kind, after.kind) in IN_TIME


@functools.cache
def route(
    type: TensorType, source: Layout, target: Layout, mesh: Mesh, seconds: Seconds,
    moves: bool = False,
) -> tuple[Step, ...] | None:
    """The cheapest steps from layout to layout, with a move to another stage among them if it
    `moves`; None if there are none, which happens only in time. `type` is without layout."""
    start, goal = (source, not moves), (target, True)
    order = itertools.count()  # breaks ties by age: equal costs give one answer
    queue: list[tuple[float, int, tuple[Layout, bool], tuple[Step, ...]]] = [
        (0.0, next(order), start, ())]
    done: set[tuple[Layout, bool]] = set()
    while queue:
        cost, _, state, path = heapq.heappop(queue)
        if state == goal:
            return path
        if state in done:
            continue
        done.add(state)
        layout, moved = state
        steps = list(neighbours(type, layout, target, mesh))
        if not moved:
            steps.append(Step("move", "", layout))
        for step in steps:
            price = seconds(type, layout, step.layout, step.step, step.axis)
            reached = (step.layout, moved or step.step == "move")
            heapq.heappush(queue, (cost + price, next(order), reached, (*path, step)))
    return None


# --- all boxes of a module -----------------------------------------------------------------------


def lower_boxes(module: Module, seconds: Seconds | None = None) -> Module:
    """The module with every box replaced by primitive steps, in place."""
    if module.phase != "sbp" or module.mesh is None:
        raise CompilerBug(f"boxes are lowered after planning, not in phase '{module.phase}'")
    mesh = module.mesh.inner
    for function in module.functions.values():
        for argument in function.arguments:
            check_even(argument.value, mesh, argument.span)
        _Forms(mesh, seconds or elements_moved(mesh)).lower(function)
    module.phase = "boxed"
    return module


def check_even(value: Value, mesh: Mesh, span: Span | None) -> None:
    """Micro-batches are equal, so that what is known of one is known of all."""
    layout = value.type.layout
    entry = layout[MICRO] if layout is not None else B
    if entry.kind == "S" and value.type.shape[entry.dim] % mesh.micro:
        raise fail(
            f"dimension {entry.dim} of '{value.name}' has {value.type.shape[entry.dim]} elements, "
            f"which {mesh.micro} micro-batches cannot share evenly", span,
            help=f"choose micro so that it divides {value.type.shape[entry.dim]}, or micro=1")


Form = tuple[Layout, int]  # of a value: its layout and stage


class _Forms:
    """The forms that the values of a function already have; recompute regions have their own."""

    def __init__(self, mesh: Mesh, seconds: Seconds) -> None:
        self.mesh, self.seconds = mesh, seconds
        self.known: dict[tuple[Value, int], dict[Form, Value]] = {}

    def lower(self, function: Function) -> None:
        stages = {argument.value: argument.stage for argument in function.arguments}
        for op in function.body:
            if isinstance(op, Box):
                source = op.operands[0]
                stage = stages[source] if source.op is None else source.op.stage
                op.result.replace_by(self.reach(op, stage))
                op.erase()

    def reach(self, box: Box, stage: int) -> Value:
        """The box's operand in the box's layout, on its stage, from the nearest form of it by steps
        in front of the box."""
        origin = box.operands[0]
        forms = self.known.setdefault(
            (origin, box.recompute), {(box.source, stage): origin})
        ways = [(form, self.way(box, form)) for form in forms]
        possible = [(form, steps) for form, steps in ways if steps is not None]
        if not possible:
            raise whole_batch(origin, box.loc)
        (layout, stage), steps = min(possible, key=lambda way: self.price(box, *way))
        value = forms[layout, stage]
        for step in steps:
            stage = box.stage if step.step == "move" else stage
            value = forms[step.layout, stage] = self.insert(box, value, step, stage)
        return value

    def way(self, box: Box, form: Form) -> tuple[Step, ...] | None:
        layout, stage = form
        plain = box.result.type.with_layout(None)
        return route(plain, layout, box.target, self.mesh, self.seconds, stage != box.stage)

    def price(self, box: Box, form: Form, steps: tuple[Step, ...]) -> float:
        plain, total, layout = box.result.type.with_layout(None), 0.0, form[0]
        for step in steps:
            total += self.seconds(plain, layout, step.layout, step.step, step.axis)
            layout = step.layout
        return total

    def insert(self, box: Box, value: Value, step: Step, stage: int) -> Value:
        assert box.block is not None, "the box stands in a function"
        made = Box(value, step.layout, box.result.name, step=step.step, axis=step.axis,
                   loc=box.loc, stage=stage, recompute=box.recompute)
        return box.block.insert_before(made, box).result


def whole_batch(value: Value, loc: Loc) -> UserError:
    """What is said when a value that comes in micro-batches is wanted whole."""
    made = value.op.loc if value.op is not None else loc
    span = Span(loc.file, loc.line, loc.col, loc.line, loc.col + 1) if loc.line else None
    where = f" (made at {made})" if made.line and made != loc else ""
    return fail(
        f"this needs the whole batch of '{value.name}'{where}, which comes in micro-batches", span,
        help="use micro=1, or say per_micro where statistics of a micro-batch are meant")

