"""Why a plan is as it is: the seconds of every op and box in it, and what else there was.

An alternative is a value made in another layout with everything else as planned: the seconds of its
op, and of the boxes that would then be needed before and after it. The plan as a whole is best, so
no alternative is better alone, but it may differ by little, and then one knows.

What chooses together (the same value of repeated layers) is one decision: seconds are of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from anabranch.ir.core import Function, Op, Value
from anabranch.ir.diagnostics import Loc
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Return
from anabranch.ir.sbp import Layout
from anabranch.lowering.boxing import Step, route
from anabranch.lowering.choices import Choices, Form, flow_seconds
from anabranch.lowering.cost import box_bytes, fires, step_prices
from anabranch.lowering.solve import Solution


@dataclass(frozen=True, slots=True)
class Reshard:
    """A change of layout in the plan: the primitive steps, their seconds and the bytes that pass a
    rank in a step of training, and the ops that want the value so; the first of them forced it."""

    value: Value
    source: Layout
    target: Layout
    steps: tuple[Step, ...]
    seconds: float
    bytes: float
    wanted_by: tuple[Op, ...]

    @property
    def forced_by(self) -> Loc:
        return self.wanted_by[0].loc


@dataclass(frozen=True, slots=True)
class Alternative:
    """A value made in a layout: seconds of its op, and of the boxes in front of it and behind."""

    layout: Layout
    chosen: bool
    op_seconds: float
    box_seconds: float

    @property
    def seconds(self) -> float:
        return self.op_seconds + self.box_seconds


@dataclass(frozen=True, slots=True)
class Decisions:
    """A plan of one function on a mesh (all axes). `hints` say where the program does what its
    author may not have meant; `search` says what the planner left out."""

    function: Function
    mesh: Mesh
    choices: Choices
    solution: Solution
    hints: tuple[str, ...] = ()
    search: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.hints, *self.search)

    @property
    def seconds(self) -> float:
        """Predicted seconds of a step."""
        return self.solution.seconds

    @property
    def box_seconds(self) -> float:
        """The part of them that goes to changes of layout."""
        return sum(flow_seconds(flow, self.solution.chosen) for flow in self.choices.flows)

    def layouts(self, member: Op | Value) -> Form:
        """Layouts of what an op reads and of what it makes (of an argument: its own)."""
        return self.choices.option(member, self.solution.chosen)

    def together(self, member: Op | Value) -> int:
        """How many ops or arguments made this choice as one."""
        return len(self.choices.nodes[self.choices.node_of[member]].members)

    def layout(self, value: Value) -> Layout:
        """The layout in which a value is made."""
        _, results = self.layouts(value.op or value)
        return results[0 if value.op is None else value.op.results.index(value)]

    def alternatives(self, value: Value) -> list[Alternative]:
        """The layouts in which a value may be made, each at its best; the cheapest first."""
        number = self.choices.node_of[value.op or value]
        place = 0 if value.op is None else value.op.results.index(value)
        node, chosen = self.choices.nodes[number], self.solution.chosen[number]
        best: dict[Layout, Alternative] = {}
        for k, (_, results) in enumerate(node.options):
            layout = results[place]
            boxes = self._boxes(number, k)
            found = Alternative(layout, k == chosen, float(node.seconds[k]), boxes)
            known = best.get(layout)
            if math.isfinite(boxes) and (known is None or (
                    not known.chosen and (found.chosen or found.seconds < known.seconds))):
                best[layout] = found
        return sorted(best.values(), key=lambda a: (not a.chosen, a.seconds))

    def _boxes(self, number: int, choice: int) -> float:
        """Seconds of all changes of layout around a node, if it chose so and no other changed."""
        chosen = list(self.solution.chosen)
        chosen[number] = choice
        return sum(flow_seconds(flow, chosen) for flow in self.choices.flows
                   if flow.producer == number or number in [node for node, _ in flow.readers])

    # ---- changes of layout

    def reshards(self) -> list[Reshard]:
        """Every change of layout, in the order in which they are first wanted."""
        wanted: dict[tuple[Value, Layout, bool], list[Op]] = {}
        for value, layout, moves, op in self._demands():
            if moves or layout != self.layout(value):
                wanted.setdefault((value, layout, moves), []).append(op)
        return [self._reshard(*form, tuple(ops)) for form, ops in wanted.items()]

    def _demands(self) -> Iterator[tuple[Value, Layout, bool, Op]]:
        """(value, the layout it is wanted in, whether on another stage, by whom)."""
        stages = {a.value: a.stage for a in self.function.arguments}
        everywhere = {a.value for a in self.function.arguments if a.role in ("step", "seed")}
        homes = {a.value.name: a for a in self.function.states()}
        for op in self.function.body:
            operands, _ = self.layouts(op)
            plain = op.values if isinstance(op, Return) else op.operands
            for value, layout in zip(plain, operands, strict=True):
                moves = not isinstance(op, Return) and stages[value] != op.stage
                if value not in everywhere:
                    yield value, layout, moves, op
            stages.update(dict.fromkeys(op.results, op.stage))
            for name, value in op.updates.items() if isinstance(op, Return) else ():
                home = homes[name]
                yield value, self.layout(home.value), stages[value] != home.stage, op

    def _reshard(
        self, value: Value, target: Layout, moves: bool, wanted_by: tuple[Op, ...]
    ) -> Reshard:
        source = self.layout(value)
        plain = value.type.with_layout(None)
        prices = step_prices(self.mesh, self.choices.machine)
        steps = route(plain, source, target, self.choices.mesh, prices, moves) or ()
        seconds, nbytes, layout = 0.0, 0.0, source
        for step in steps:
            seconds += prices(plain, layout, step.layout, step.step, step.axis)
            once = box_bytes(plain, layout, step.layout, self.mesh, step.step, step.axis)
            nbytes += once * fires((layout, step.layout), self.mesh)
            layout = step.layout
        return Reshard(value, source, target, steps, seconds, nbytes, wanted_by)
