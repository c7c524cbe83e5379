"""Shrinks a choice problem exactly, before the solver sees it.

A node whose factors (flows, and tables made here) join it to three others at most is eliminated:
its best choice is a function of theirs, and what it costs then is a new table over them. Smallest
tables go first, and none is made that is large. That takes out chains, states that only their
optimizer reads, and most of an optimizer: what is left are the values that many ops read.

Slices of a table that differ by a constant are one *class* (the constant belongs to the node): the
solver gets few classes even where tables have been added up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from anabranch.lowering.choices import Flow, Numbers
from anabranch.lowering.prices import Matrix

MOST_JOINED = 3  # nodes in a new table
LARGEST = 200_000  # entries looked at to make one
SAME = 9  # decimals of a microsecond that tell prices apart; sums carry noise below


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Seconds for every combination of choices of some nodes."""

    nodes: tuple[int, ...]
    seconds: Matrix


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """A table over classes of choices: `of[n]` gives the class of each choice of node n."""

    nodes: tuple[int, ...]
    of: tuple[Numbers, ...]
    seconds: Matrix


@dataclass(slots=True)
class Rest:
    """What is left: seconds of the nodes still there, flows and tables among them, and how the
    others follow: (node, the nodes it follows, its best choice for each combination of theirs)."""

    seconds: dict[int, Matrix]
    flows: list[Flow]
    tables: list[Classes]
    followers: list[tuple[int, tuple[int, ...], Numbers]]

    def complete(self, chosen: list[int]) -> list[int]:
        """Choices of all nodes, from those of the nodes that were left."""
        for node, leaders, best in reversed(self.followers):
            chosen[node] = int(best[tuple(chosen[n] for n in leaders)])
        return chosen


def eliminate(seconds: Sequence[Matrix], flows: Sequence[Flow]) -> Rest:
    """Take out every node that can be."""
    graph = _Graph({n: c.copy() for n, c in enumerate(seconds)})
    for flow in flows:
        graph.add(Flow(flow.producer, flow.made, _distinct(flow), flow.prices))
    graph.run()
    factors = dict.fromkeys(f for around in graph.factors.values() for f in around)
    tables = [_classes(f, graph.seconds) for f in factors if isinstance(f, Table)]
    left = [f for f in factors if isinstance(f, Flow)]
    return Rest(graph.seconds, left, tables, graph.followers)


@dataclass(slots=True)
class _Graph:
    """Nodes with their seconds, and the factors around each."""

    seconds: dict[int, Matrix]
    factors: dict[int, dict[Flow | Table, None]] = field(default_factory=dict)
    followers: list[tuple[int, tuple[int, ...], Numbers]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.factors = {n: {} for n in self.seconds}

    def add(self, factor: Flow | Table) -> None:
        """Add a factor; one over a single node becomes its seconds, and two tables over the same
        nodes become one."""
        nodes = _nodes(factor)
        if len(nodes) == 1:
            (node,) = nodes
            self.seconds[node] = self.seconds[node] + _table(factor, nodes)
            return
        for known in [f for f in self.factors[nodes[0]] if isinstance(f, Table)]:
            if isinstance(factor, Table) and set(known.nodes) == set(nodes):
                self.remove(known)
                factor = Table(nodes, factor.seconds + _table(known, nodes))
        for node in nodes:
            self.factors[node][factor] = None

    def remove(self, factor: Flow | Table) -> None:
        for node in _nodes(factor):
            del self.factors[node][factor]

    def run(self) -> None:
        """Eliminate nodes, those with the smallest work first, until none is easy."""
        work = {node: self._work(node) for node in self.seconds}
        while work:
            node = min(work, key=work.__getitem__)
            if math.isinf(work.pop(node)):
                return
            for n in self._eliminate(node):
                if n in work:
                    work[n] = self._work(n)

    def _leaders(self, node: int) -> tuple[int, ...]:
        joined = dict.fromkeys(n for f in self.factors[node] for n in _nodes(f))
        return tuple(n for n in joined if n != node)

    def _work(self, node: int) -> float:
        leaders = self._leaders(node)
        entries = math.prod(len(self.seconds[n]) for n in (node, *leaders))
        return entries if len(leaders) <= MOST_JOINED and entries <= LARGEST else math.inf

    def _eliminate(self, node: int) -> tuple[int, ...]:
        leaders = self._leaders(node)
        scope = (*leaders, node)
        total = self.seconds.pop(node).reshape((1,) * len(leaders) + (-1,))
        for factor in list(self.factors[node]):
            total = total + _table(factor, scope)
            self.remove(factor)
        del self.factors[node]
        self.followers.append((node, leaders, total.argmin(axis=-1)))
        if leaders:
            self.add(Table(leaders, total.min(axis=-1)))
        return leaders


def _nodes(factor: Flow | Table) -> tuple[int, ...]:
    if isinstance(factor, Table):
        return factor.nodes
    return tuple(dict.fromkeys((factor.producer, *(node for node, _ in factor.readers))))


def _table(factor: Flow | Table, scope: Sequence[int]) -> Matrix:
    """A factor as an array over the nodes of a scope, of length 1 along those it does not have."""
    if isinstance(factor, Table):
        order = sorted(range(len(factor.nodes)), key=lambda i: scope.index(factor.nodes[i]))
        array = factor.seconds.transpose(order)
        sizes = dict(zip((factor.nodes[i] for i in order), array.shape, strict=True))
        return array.reshape([sizes.get(n, 1) for n in scope])
    row = _along(factor.made, factor.producer, scope)
    wanted = [_along(copies, node, scope) for node, copies in factor.readers]
    total: Matrix = np.zeros((1,) * len(scope))
    for place, copy in enumerate(wanted):
        again = np.zeros((1,) * len(scope), bool)
        for earlier in wanted[:place]:
            again = again | (earlier == copy)
        total = total + np.where(again, 0.0, factor.prices[row, copy])
    return total


def _along(numbers: Numbers, node: int, scope: Sequence[int]) -> Numbers:
    return numbers.reshape([-1 if n == node else 1 for n in scope])


def _distinct(flow: Flow) -> list[tuple[int, Numbers]]:
    """Readers that want different things."""
    found: dict[tuple[int, bytes], tuple[int, Numbers]] = {}
    for node, wanted in flow.readers:
        found.setdefault((node, wanted.tobytes()), (node, wanted))
    return list(found.values())


def _classes(table: Table, seconds: dict[int, Matrix]) -> Classes:
    """The table over classes; constants go to the seconds of the nodes."""
    array, of = table.seconds, []
    for axis, node in enumerate(table.nodes):
        slices = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
        constant, first, numbers = _alike(slices)
        seconds[node] = seconds[node] + constant
        constant = constant.reshape([-1 if a == axis else 1 for a in range(array.ndim)])
        array = np.take(array - constant, first, axis=axis)
        of.append(numbers)
    return Classes(table.nodes, tuple(of), array)


def _alike(slices: Matrix) -> tuple[Matrix, list[int], Numbers]:
    """(the constant of each slice, a slice of each class, the class of each slice)."""
    constant = slices.min(axis=1)
    constant = np.where(np.isfinite(constant), constant, 0.0)
    classes: dict[bytes, int] = {}
    first: list[int] = []
    numbers = []
    for place, row in enumerate(np.round(slices - constant[:, None], SAME) + 0.0):
        if (key := row.tobytes()) not in classes:
            classes[key] = len(classes)
            first.append(place)
        numbers.append(classes[key])
    return constant, first, np.array(numbers)
