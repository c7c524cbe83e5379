"""Chooses how every value lies on the mesh, by predicted seconds: phase `global` -> `sbp`.

The objective is the predicted time of a step: each op in the layouts it is given, times how often
it fires, and each change of layout once per value and target, however many ops read it. The choice
is exact (`solve.py`): a plan is only beaten if a price is wrong. Nothing is assumed of what belongs
together: a parameter, its gradient and its moments each lie where it is cheapest, but for one rule,
that the next value of a state lies as the state does.

Order of work: pins (`pins.py`), the axis of micro-batches by propagation (`micro_axis.py`), then
the axes of ranks: choices with their seconds (`choices.py`, `prices.py`), exact elimination
(`eliminate.py`), a linear program (`solve.py`), and the result as ops and boxes (`distribute.py`).
On meshes of more than two such axes the larger two are planned first, then the next two with those
as they are. A short step with very many choices is planned an axis at a time as well, again and
again while that helps: an exact search would take longer than it could ever win back. Stages are
given. What was decided, and what else there was, is kept in `Decisions`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from anabranch.ir.core import Function, Module, Value
from anabranch.ir.diagnostics import CompilerBug
from anabranch.ir.mesh import MICRO, Mesh
from anabranch.ir.ops import Compute, Order, nested
from anabranch.ir.sbp import Layout
from anabranch.lowering.choices import Choices, Node, build_choices
from anabranch.lowering.decisions import Decisions
from anabranch.lowering.distribute import distribute
from anabranch.lowering.machine import Machine
from anabranch.lowering.micro_axis import plan_micro, waits
from anabranch.lowering.pins import Pins, collect_pins
from anabranch.lowering.settled import AxisPlan, SettledAxes
from anabranch.lowering.signatures import legal
from anabranch.lowering.solve import Solution, solve

TOGETHER = 2  # axes planned at once; the choices grow with the power of this

# A step of fewer seconds and more choices is planned an axis at a time. Small models on many ranks
# are degenerate (everything costs a launch): the exact search takes half a minute where this takes
# two seconds, and was better by a tenth of a percent at most.
SHORT_STEP = 0.2
MANY_CHOICES = 2000
GAIN = 1e-4  # relative; another round for less is not worth it


@dataclass(frozen=True, slots=True)
class Planned:
    """A module of phase `sbp` and, for each function, how it came about."""

    module: Module
    decisions: dict[str, Decisions]


def plan(
    module: Module, mesh: Mesh, machine: Machine, pins: Mapping[str, Layout] | None = None,
    hints: list[str] | None = None,
) -> Module:
    """The module in layouts on the mesh (all its axes, `micro` included). `pins` are layouts of
    states, by name, that other programs have fixed. What the user should know is put in `hints`."""
    planned = decide(module, mesh, machine, pins)
    if hints is not None:
        hints += [hint for each in planned.decisions.values() for hint in each.hints]
    return planned.module


def decide(
    module: Module, mesh: Mesh, machine: Machine, pins: Mapping[str, Layout] | None = None
) -> Planned:
    """`plan`, with its decisions."""
    if module.phase != "global":
        raise CompilerBug(f"planning comes in phase 'global', not '{module.phase}'")
    planned = Planned(Module({}, "sbp", mesh), {})
    for function in module.functions.values():
        decisions = _decide(function, mesh, machine, pins or {})
        planned.decisions[function.name] = decisions
        planned.module.add(distribute(function, mesh.inner, decisions.layouts))
        _check_legal(planned.module.functions[function.name], mesh.inner)
    return planned


def state_layouts(function: Function) -> dict[str, Layout]:
    """Where a planned function keeps its states, by name: pins for the programs that share them."""
    return {
        a.value.name: Layout(tuple(e for e in layout.entries if e[0] != MICRO))
        for a in function.states() if (layout := a.value.type.layout) is not None}


def _decide(
    function: Function, mesh: Mesh, machine: Machine, states: Mapping[str, Layout]
) -> Decisions:
    pins = collect_pins(function, mesh, states)
    settled, planned = SettledAxes(), set[str]()
    hints, search = list(pins.notes), list[str]()
    rounds = _rounds(mesh)
    if len(rounds) > 1:
        search.append(f"the axes {' and '.join(rounds[0])} were planned before the others")
    if mesh.micro > 1:
        settled[MICRO] = plan_micro(function, mesh.micro)
        hints += waits(function, settled[MICRO])
    for axes in rounds:
        planned |= {*settled, *axes}
        problem = Problem(function, mesh, machine, pins)
        choices = problem.choices(settled, planned)
        if len(axes) > 1 and _is_laborious(choices):
            search.append(f"the axes {' and '.join(axes)} were planned in turn")
            solution = problem.in_turn(choices, settled, axes)
        else:
            solution = solve(choices)
        decisions = Decisions(function, mesh, choices, solution, tuple(hints), tuple(search))
        settled |= {axis: _settle(function, decisions, axis) for axis in axes}
    return decisions


def _is_laborious(choices: Choices) -> bool:
    count = sum(len(node.options) for node in choices.nodes)
    return count > MANY_CHOICES and _least(choices) < SHORT_STEP


def _least(choices: Choices) -> float:
    """Seconds that no plan can be below: everything at its best, and nothing moved."""
    return sum(float(node.seconds.min()) for node in choices.nodes)


@dataclass(frozen=True, slots=True)
class Problem:
    """A function to be planned on a mesh of these machines."""

    function: Function
    mesh: Mesh
    machine: Machine
    pins: Pins

    def choices(self, settled: SettledAxes, axes: Collection[str]) -> Choices:
        return build_choices(self.function, self.mesh, self.machine, self.pins, settled, axes)

    def in_turn(self, choices: Choices, settled: SettledAxes, axes: Sequence[str]) -> Solution:
        """The best of what planning the axes in each order finds. It is one of `choices`."""
        found = [self._in_order(choices, settled, order) for order in itertools.permutations(axes)]
        chosen = min(found, key=choices.seconds)
        return Solution(chosen, choices.seconds(chosen), _least(choices))

    def _in_order(
        self, choices: Choices, settled: SettledAxes, axes: Sequence[str]
    ) -> list[int]:
        """Plan each axis with the others as they are, until a round makes nothing better."""
        others, best, chosen = SettledAxes(settled), math.inf, list[int]()
        while True:
            for axis in axes:
                others.pop(axis, None)
                found = self.choices(others, {*others, axis})
                decisions = Decisions(self.function, self.mesh, found, solve(found))
                others[axis] = _settle(self.function, decisions, axis)
            now = [_place(node, others) for node in choices.nodes]
            seconds = choices.seconds(now)
            if seconds >= best * (1 - GAIN):
                return chosen
            best, chosen = seconds, now


def _place(node: Node, settled: SettledAxes) -> int:
    """The choice of a node that is as the axes were settled."""
    return next(number for number, (operands, results) in enumerate(node.options)
                if settled.are(node.members[0], operands, results))


def _rounds(mesh: Mesh) -> list[tuple[str, ...]]:
    """The axes of several ranks within a stage, as many at a time as can be planned together."""
    axes = [(name, size) for name, size in mesh.inner.space.axes if size > 1]
    axes.sort(key=lambda axis: -axis[1])
    return [tuple(name for name, _ in axes[start : start + TOGETHER])
            for start in range(0, max(len(axes), 1), TOGETHER)]


def _settle(function: Function, decisions: Decisions, axis: str) -> AxisPlan:
    """What was decided for an axis."""
    found = AxisPlan()
    for value in function.body.args:
        found.values[value] = decisions.layout(value)[axis]
    for op in function.body:
        operands, results = decisions.layouts(op)
        made = tuple(layout[axis] for layout in results)
        found.ops[op] = tuple(layout[axis] for layout in operands), made
        found.values.update(zip(op.results, made, strict=True))
    return found


def _check_legal(function: Function, mesh: Mesh) -> None:
    for op in nested(function.body):
        if isinstance(op, Compute | Order):
            operands, result = _layouts(op.operands), _layouts(op.results)[0]
            if legal(op, operands, result, mesh) is None:
                raise CompilerBug(f"planned {', '.join(map(str, operands))} -> {result} for an op "
                                  "that has no such signature", op.loc)


def _layouts(values: tuple[Value, ...]) -> list[Layout]:
    return [v.type.layout or Layout() for v in values]
