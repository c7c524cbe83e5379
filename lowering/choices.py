"""The choices of a plan as numbers: nodes that choose, flows of values between them, all priced.

A *node* is an op or an argument with its legal choices: the layouts of what it reads and of what it
makes, and seconds of each. A *flow* is a value: the node that makes it, the nodes that want it, and
seconds from each layout in which it may be made to each copy that may be wanted (a layout on the
stage of the reader or on another one). A copy is paid for once, however many readers want it.

Repeated layers choose together. Ops of `blocks.0.mlp` and `blocks.1.mlp` that have the same path
but for the numbers, structure, stage and pins are one node, with their seconds added up: whatever
it chooses is legal for all. Ops without such a path are nodes of their own.

Terms of a maximum, a minimum or a product are considered only where a reduction makes them, not
where a whole value could be turned into them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from anabranch.ir.core import Argument, Function, Op, Value
from anabranch.ir.diagnostics import CompilerBug
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Compute, Order, Pin, Return, Scan
from anabranch.ir.sbp import Layout, P, broadcast_on, local_box
from anabranch.ir.types import TensorType, itemsize
from anabranch.lowering.cost import fires, part_seconds, scan_seconds, step_prices
from anabranch.lowering.machine import Machine
from anabranch.lowering.pins import Demand, Pins, conflict
from anabranch.lowering.prices import Copy, Matrix, conversions, entries_of, layouts_of
from anabranch.lowering.scan_signatures import loop, scan_forms
from anabranch.lowering.settled import SettledAxes
from anabranch.lowering.signatures import split_options, structure

Numbers = np.ndarray[Any, np.dtype[np.int64]]

NO_TERMS = {""}
NUMBER = re.compile(r"(?<![^.\s])\d+(?![^.\s])")  # of a layer, in a path
Form = tuple[tuple[Layout, ...], tuple[Layout, ...]]  # of what an op reads, of what it makes
Priced = dict[Form, float]  # what a node may choose, with seconds

MEMORY_PRICE = 1e-15  # seconds a byte held on a rank is worth, where time does not decide


@dataclass(slots=True)
class Node:
    """Ops or arguments that choose together; `seconds` is the sum over all of them."""

    members: list[Op | Value]
    options: tuple[Form, ...]
    seconds: Matrix

    @property
    def name(self) -> str:
        """The name of the first member, without its numbers."""
        first = self.members[0]
        value = first if isinstance(first, Value) else (*first.results, None)[0]
        return NUMBER.sub("*", value.name) if value is not None else ""


@dataclass(slots=True, eq=False)
class Flow:
    """Values that one node makes, as the same result, and the same nodes read, `count` of them.
    `prices[row, copy]` is for all of them; `made` gives the row of each choice of the producer,
    `wanted` the copy of each choice of a reader."""

    producer: int
    made: Numbers
    readers: list[tuple[int, Numbers]]
    prices: Matrix
    count: int = 1


@dataclass(slots=True)
class Choices:
    """All nodes and flows of a function on a mesh (of those axes that are planned)."""

    mesh: Mesh
    machine: Machine
    nodes: list[Node] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)
    node_of: dict[Op | Value, int] = field(default_factory=dict)

    def option(self, member: Op | Value, chosen: Sequence[int]) -> Form:
        """What a member of a node has been given."""
        number = self.node_of[member]
        return self.nodes[number].options[chosen[number]]

    def seconds(self, chosen: Sequence[int]) -> float:
        """The predicted seconds of a plan."""
        return (sum(float(n.seconds[k]) for n, k in zip(self.nodes, chosen, strict=True))
                + sum(flow_seconds(flow, chosen) for flow in self.flows))


def flow_seconds(flow: Flow, chosen: Sequence[int]) -> float:
    """Seconds of the copies that a plan makes of a value."""
    row = flow.made[chosen[flow.producer]]
    copies = {int(wanted[chosen[node]]) for node, wanted in flow.readers}
    return float(sum(flow.prices[row, copy] for copy in sorted(copies)))


def build_choices(
    function: Function, mesh: Mesh, machine: Machine, pins: Pins, settled: SettledAxes,
    axes: Collection[str],
) -> Choices:
    """Everything that a plan of a function may choose from. `mesh` has all axes; layouts are those
    on `axes`, of which some are settled."""
    return _Builder(function, mesh, machine, pins, settled, axes).build()


class _Builder:
    """Makes nodes of ops and arguments, then flows of values."""

    def __init__(
        self, function: Function, mesh: Mesh, machine: Machine, pins: Pins, settled: SettledAxes,
        axes: Collection[str],
    ) -> None:
        self.function, self.settled = function, settled
        self.mesh = Mesh(tuple(axis for axis in mesh.axes if axis[0] in axes))
        self.pins = pins.on(self.mesh)
        self.machine = machine.shared_by(mesh.ranks)
        self.prices = step_prices(mesh, self.machine)
        self.found = Choices(self.mesh, self.machine)
        self.small = not all(_fills(type, d.layout, self.mesh) for d, type in self._demands())
        self.stages = {a.value: a.stage for a in function.arguments}
        self.everywhere = {a.value for a in function.arguments if a.role in ("step", "seed")}
        self.keys: dict[Hashable, int] = {}
        self.terms: dict[Value, set[str]] = {}
        self.tie = Ties(function)

    def build(self) -> Choices:
        for argument in self.function.arguments:
            key = self.tie.of_argument(argument, self.pins.arguments.get(argument.value, []))
            self._add(argument.value, key, partial(self._argument, argument))
        for op in self.function.body:
            key = self.tie.of_op(op, self.settled.of_op(op, self.mesh))
            self._add(op, key, partial(self._of_op, op))
            self.stages.update(dict.fromkeys(op.results, op.stage))
        for node in self.found.nodes:
            node.seconds = node.seconds * len(node.members)
        self.found.flows = self._flows()
        return self.found

    def _demands(self) -> Iterable[tuple[Demand, TensorType]]:
        for value, demands in self.pins.arguments.items():
            yield from ((demand, value.type) for demand in demands)
        for op, demand in self.pins.ops.items():
            yield demand, op.result.type

    # ---- nodes ---------------------------------------------------------------------------------

    def _add(self, member: Op | Value, key: Hashable, priced: Callable[[], Priced]) -> None:
        number = self.keys.setdefault(key, len(self.found.nodes))
        if number == len(self.found.nodes):
            found = priced()
            self.found.nodes.append(Node([], tuple(found), np.array(list(found.values()))))
        elif isinstance(member, Op) and member.results:
            first = self.found.nodes[number].members[0]
            assert isinstance(first, Op), "ops and arguments do not choose together"
            for mine, its in zip(member.results, first.results, strict=True):
                self.terms[mine] = self.terms[its]
        self.found.nodes[number].members.append(member)
        self.found.node_of[member] = number

    def _of_op(self, op: Op) -> Priced:
        match op:
            case Compute() | Order():
                return self._compute(op)
            case Scan():
                return self._scan(op)
            case Pin():
                return self._pin(op)
            case Return():
                return {((broadcast_on(self.mesh),) * len(op.values), ()): 0.0}
        raise CompilerBug(f"'{op.kind}' cannot be planned", op.loc)

    def _argument(self, argument: Argument) -> Priced:
        value = argument.value
        demands = self.pins.arguments.get(value, [])
        layouts = self._allowed(value, demands)
        return {((), (layout,)): self._memory(value.type, layout) for layout in layouts}

    def _allowed(
        self, value: Value, demands: list[Demand], terms: Iterable[str] = ()
    ) -> list[Layout]:
        """The layouts that meet all demands; without any, those that leave no rank empty."""
        def meeting(demands: Sequence[Demand]) -> list[Layout]:
            every = layouts_of(self.mesh, [
                entries_of(value.type, size, (
                    *map(P, terms), *(demand.layout[axis] for demand in demands)))
                if axis not in self.settled else (self.settled[axis].values[value],)
                for axis, size in self.mesh.axes])
            return [layout for layout in every if all(d.allows(layout) for d in demands)
                    and _is_filled(value.type, layout, self.mesh, demands)]

        found = meeting(demands)
        if not found:
            raise conflict(demands, lambda some: bool(meeting(some)))
        return found

    def _compute(self, op: Compute | Order) -> Priced:
        settled = tuple(None if entries is None else (entries[0], entries[1][0])
                        for entries in self.settled.of_op(op, self.mesh))
        every = split_options(op, self.mesh, small=self.small, settled=settled)
        options: Priced = {
            (operands, (result,)): self._seconds(
                op, operands, (result,), part_seconds(op, splits, self.mesh, self.machine))
            for (operands, result), splits in every.items()
            if all(layout.partial in self.terms.get(value, NO_TERMS)
                   for value, layout in zip(op.operands, operands, strict=True))}
        self.terms[op.result] = {results[0].partial for _, results in options} | NO_TERMS
        return options

    def _scan(self, op: Scan) -> Priced:
        settled = [(axis, entries) for axis, entries in zip(
            self.mesh.names, self.settled.of_op(op, self.mesh), strict=True) if entries is not None]
        self.terms |= {result: NO_TERMS for result in op.results}
        return {
            (laid.operands, laid.results): self._seconds(
                op, laid.operands, laid.results, scan_seconds(op, laid, self.mesh, self.machine))
            for laid in scan_forms(op, self.mesh, small=self.small)
            if all(entries == (tuple(layout[axis] for layout in laid.operands),
                               tuple(layout[axis] for layout in laid.results))
                   for axis, entries in settled)}

    def _seconds(
        self, op: Op, operands: tuple[Layout, ...], results: tuple[Layout, ...], once: float
    ) -> float:
        """Seconds of an op in a step, of which one firing takes `once`."""
        held = sum(self._memory(v.type, layout)
                   for v, layout in zip(op.results, results, strict=True))
        return once * fires((*operands, *results), self.mesh) + held

    def _pin(self, op: Pin) -> Priced:
        """The same value in a layout that the pin allows: made so, or boxed."""
        demand = self.pins.ops[op]
        terms = self.terms.get(op.operands[0], NO_TERMS) - NO_TERMS
        layouts = self._allowed(op.result, [demand], sorted(terms))
        self.terms[op.result] = {layout.partial for layout in layouts} | NO_TERMS
        return {((layout,), (layout,)): 0.0 for layout in layouts}

    def _memory(self, type: TensorType, layout: Layout) -> float:
        shape, _ = local_box(type.shape, layout, self.mesh, (0,) * len(self.mesh.axes))
        return MEMORY_PRICE * float(np.prod(shape)) * itemsize(type.dtype)

    # ---- flows ---------------------------------------------------------------------------------

    def _flows(self) -> list[Flow]:
        found: dict[Hashable, Flow] = {}
        for value, demands in self._readers().items():
            producer = self.found.node_of[value.op or value]
            number = 0 if value.op is None else value.op.results.index(value)
            key = (producer, number, tuple(demands))
            if key in found:
                found[key].count += 1
            else:
                found[key] = self._flow(value, producer, number, demands)
        for flow in found.values():
            flow.prices = flow.prices * flow.count
        return list(found.values())

    def _readers(self) -> dict[Value, list[tuple[int, int, bool]]]:
        """For each value (node, operand or -1 for its own layout, whether on another stage)."""
        found: dict[Value, list[tuple[int, int, bool]]] = {}
        last = self.function.body.last
        assert isinstance(last, Return)
        for op in self.function.body:
            operands = last.values if op is last else op.operands
            for place, value in enumerate(operands):
                moves = op is not last and self._moves(value, op.stage)
                found.setdefault(value, []).append((self.found.node_of[op], place, moves))
        states = {a.value.name: a for a in self.function.states()}
        for name, value in last.updates.items():
            home = states[name]
            moves = self._moves(value, home.stage)
            found.setdefault(value, []).append((self.found.node_of[home.value], -1, moves))
        return found

    def _moves(self, value: Value, stage: int) -> bool:
        return value not in self.everywhere and self.stages[value] != stage

    def _flow(
        self, value: Value, producer: int, number: int, demands: list[tuple[int, int, bool]]
    ) -> Flow:
        sources, made = _numbered(
            [results[number] for _, results in self.found.nodes[producer].options])
        copies: dict[Copy, int] = {}
        readers = []
        for node, place, moves in demands:
            wanted = np.array([
                copies.setdefault((_wanted(option, place), moves), len(copies))
                for option in self.found.nodes[node].options])
            readers.append((node, wanted))
        plain = value.type.with_layout(None)
        prices = conversions(
            plain, sources, tuple(copies), self.mesh, self.prices, self.settled.keys())
        return Flow(producer, made, readers, prices)


def _wanted(form: Form, place: int) -> Layout:
    operands, results = form
    return results[0] if place < 0 else operands[place]


def _numbered(layouts: Sequence[Layout]) -> tuple[tuple[Layout, ...], Numbers]:
    index: dict[Layout, int] = {}
    numbers = np.array([index.setdefault(layout, len(index)) for layout in layouts])
    return tuple(index), numbers


def _fills(type: TensorType, layout: Layout, mesh: Mesh) -> bool:
    """Whether every rank has a part of every dimension that is split."""
    parts: Counter[int] = Counter()
    for axis, sbp in layout.entries:
        if sbp.kind == "S":
            parts[sbp.dim] = max(parts[sbp.dim], 1) * mesh.size(axis)
    return all(type.shape[dim] >= n for dim, n in parts.items())


def _is_filled(
    type: TensorType, layout: Layout, mesh: Mesh, demands: Sequence[Demand]
) -> bool:
    """The same, but for the splits that are demanded."""
    pinned = {axis for demand in demands for axis in demand.layout.axes}
    free = {sbp.dim for axis, sbp in layout.entries if sbp.kind == "S" and axis not in pinned}
    return _fills(type, Layout(tuple(
        (axis, sbp) for axis, sbp in layout.entries if sbp.kind == "S" and sbp.dim in free)), mesh)


class Ties:
    """Which ops and arguments choose together: keys that are equal for those of repeated layers."""

    def __init__(self, function: Function) -> None:
        self.count: Counter[Hashable] = Counter()
        self.pins = _pins_by_layer(function)

    def of_argument(self, argument: Argument, demands: Sequence[Demand]) -> Hashable:
        name = argument.value.name
        if argument.role != "state" or not NUMBER.search(name):
            return argument.value
        pinned = tuple(demand.layout for demand in demands)
        return ("state", self._shared(name), argument.value.type, pinned, argument.stage)

    def of_op(self, op: Op, settled: Hashable) -> Hashable:
        path = op.loc.path
        if isinstance(op, Return) or not NUMBER.search(path):
            return op
        alike = _structure(op)
        here = (path, op.loc.line, alike, op.stage, settled, op.recompute)
        self.count[here] += 1
        return ("op", self._shared(path), *here[1:], self.count[here])

    def _shared(self, path: str) -> Hashable:
        """A path without its numbers, and the pins of the layer that it lies in."""
        return NUMBER.sub("*", path), self.pins.get(layer_of(path), frozenset())


def _structure(op: Op) -> Hashable:
    match op:
        case Compute() | Order():
            return structure(op)
        case Scan():
            return loop(op), op.extent, op.reverse
    return op.result.type


def layer_of(path: str) -> str:
    """The outermost numbered part of a path: `blocks.3` of `optimizer.blocks.3.attn.proj`."""
    number = NUMBER.search(path)
    return ".".join(path[: number.end()].split(".")[-2:]) if number else path


def _pins_by_layer(function: Function) -> Mapping[str, frozenset[tuple[str, Layout]]]:
    found: dict[str, set[tuple[str, Layout]]] = {}
    pinned = [(op.loc.path, op.layout) for op in function.body if isinstance(op, Pin)]
    pinned += [(a.value.name, a.pin) for a in function.arguments if a.pin is not None]
    for path, layout in pinned:
        found.setdefault(layer_of(path), set()).add((NUMBER.sub("*", path), layout))
    return {layer: frozenset(pins) for layer, pins in found.items()}
