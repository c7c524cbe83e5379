"""Shrinks a choice problem exactly, before the solver sees it.

A flow with one reader is an *edge*: seconds for each pair of choices. A node that touches nothing
but edges, two at most, is eliminated: its best choice is a function of its neighbours', and what it
costs is added to the edge between them (or to the one neighbour). That takes out chains of
elementwise ops, casts, transposes, parameters that are read once. What is left are flows with
several readers and the nodes around them.

Rows of an edge that differ by a constant are one *class* (the constant belongs to the node): the
solver gets few classes even where edges have been added up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from anabranch.lowering.choices import Flow, Numbers
from anabranch.lowering.prices import Matrix

Undo = Callable[[list[int]], int]  # the choice of an eliminated node, given all later ones


@dataclass(slots=True)
class Rest:
    """What is left: seconds of the nodes still there, and flows among them."""

    seconds: dict[int, Matrix]
    flows: list[Flow]
    undo: list[tuple[int, Undo]] = field(default_factory=list)

    def complete(self, chosen: list[int]) -> list[int]:
        """Choices of all nodes, from those of the nodes that were left."""
        for node, undo in reversed(self.undo):
            chosen[node] = undo(chosen)
        return chosen


def eliminate(seconds: Sequence[Matrix], flows: Sequence[Flow]) -> Rest:
    """Take out every node that can be, smallest degree first."""
    graph = _Graph({n: c.copy() for n, c in enumerate(seconds)})
    for flow in flows:
        graph.add_flow(flow)
    graph.run()
    edges = [graph.as_flow(a, b) for a in graph.edges for b in graph.edges[a] if a < b]
    return Rest(graph.seconds, [*graph.wide, *edges], graph.undo)


class _Graph:
    """Nodes with seconds, symmetric edges with matrices, and the wide flows left alone."""

    def __init__(self, seconds: dict[int, Matrix]) -> None:
        self.seconds = seconds
        self.edges: dict[int, dict[int, Matrix]] = {n: {} for n in seconds}
        self.wide: list[Flow] = []
        self.held: set[int] = set()  # nodes of wide flows
        self.undo: list[tuple[int, Undo]] = []

    def add_flow(self, flow: Flow) -> None:
        readers = _distinct(flow)
        nodes = {node for node, _ in readers}
        if nodes <= {flow.producer}:
            self.seconds[flow.producer] += _together(flow.prices[flow.made], readers, diagonal=True)
        elif len(nodes) == 1:
            (reader,) = nodes
            self.add_edge(flow.producer, reader, _together(flow.prices[flow.made], readers))
        elif nodes:
            self.wide.append(Flow(flow.producer, flow.made, readers, flow.prices))
            self.held.update({flow.producer, *nodes})

    def add_edge(self, a: int, b: int, seconds: Matrix) -> None:
        known = self.edges[a].get(b)
        total = seconds if known is None else known + seconds
        self.edges[a][b], self.edges[b][a] = total, total.T

    def run(self) -> None:
        waiting = [n for n in self.seconds if n not in self.held]
        while waiting:
            node = waiting.pop()
            if node in self.seconds and len(self.edges[node]) <= 2:
                around = list(self.edges[node])
                self._eliminate(node, around)
                waiting.extend(n for n in around if n not in self.held)

    def _eliminate(self, node: int, around: list[int]) -> None:
        own = self.seconds.pop(node)
        edges = [self.edges[n].pop(node) for n in around]  # [choice of neighbour, own choice]
        del self.edges[node]
        match edges:
            case []:
                best = int(own.argmin())
                self.undo.append((node, lambda chosen: best))
            case [edge]:
                (a,) = around
                table = own[None, :] + edge
                self.seconds[a] = self.seconds[a] + table.min(axis=1)
                of_one = table.argmin(axis=1)
                self.undo.append((node, lambda chosen: int(of_one[chosen[a]])))
            case _:
                a, b = around
                cube = own[None, None, :] + edges[0][:, None, :] + edges[1][None, :, :]
                self.add_edge(a, b, cube.min(axis=2))
                of_two = cube.argmin(axis=2)
                self.undo.append((node, lambda chosen: int(of_two[chosen[a], chosen[b]])))

    def as_flow(self, a: int, b: int) -> Flow:
        """An edge over classes of choices."""
        matrix = self.edges[a][b]
        rows, own_a, made = _classes(matrix)
        columns, own_b, wanted = _classes(rows.T)
        self.seconds[a] = self.seconds[a] + own_a
        self.seconds[b] = self.seconds[b] + own_b
        return Flow(a, made, [(b, wanted)], columns.T)


def _distinct(flow: Flow) -> list[tuple[int, Numbers]]:
    """Readers that want different things."""
    found: dict[tuple[int, bytes], tuple[int, Numbers]] = {}
    for node, wanted in flow.readers:
        found.setdefault((node, wanted.tobytes()), (node, wanted))
    return list(found.values())


def _together(
    prices: Matrix, readers: Sequence[tuple[int, Numbers]], *, diagonal: bool = False
) -> Matrix:
    """Seconds of all copies that one node reads, each copy once, by choice of the producer and of
    the reader; with `diagonal` both are the same node."""
    total: Matrix = np.zeros(())
    for place, (_, wanted) in enumerate(readers):
        each = prices[np.arange(len(wanted)), wanted] if diagonal else prices[:, wanted]
        again = np.zeros(len(wanted), bool)
        for _, earlier in readers[:place]:
            again |= earlier == wanted
        total = total + np.where(again, 0.0, each)
    return total


def _classes(matrix: Matrix) -> tuple[Matrix, Matrix, Numbers]:
    """(a row for each class, the constant of each row, the class of each row)."""
    constant = matrix.min(axis=1)
    rest = matrix - np.where(np.isfinite(constant), constant, 0.0)[:, None]
    classes: dict[bytes, int] = {}
    rounded = np.round(rest, 12) + 0.0  # differences of sums carry noise far below any price
    of = np.array([classes.setdefault(row.tobytes(), len(classes)) for row in rounded])
    first = [int(np.argmax(of == c)) for c in range(len(classes))]
    return rest[first], constant, of
