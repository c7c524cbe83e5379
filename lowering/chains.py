"""Which ops of each rank run together: chains, the actors of the Plan.

A chain is a set of ops of one rank that run as one firing, without a transfer between them. The
guarantee: the graph of chains and transfers of all ranks has no cycle, so that some order of
firings exists. It holds because each op has a *level* that never falls along an edge and rises
behind a transfer and where the rate changes (once a step, or once a micro-batch); the parts of one
transfer share a level on all their ranks; ops of one rank with equal level, rate and earliness form
a chain.

*Early* ops are those that a value of the whole batch needs before any micro-batch can go on (the
number of targets that count, say): they get chains of their own, or the first backward would wait
for the last forward.

A state is overwritten in place, so its writer must come after all other readers of the old value;
`later` gives such orders that are not data.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.ir.core import Function, Op, Value
from anabranch.ir.diagnostics import CompilerBug
from anabranch.ir.expr import Expr, Origin, walk
from anabranch.ir.ops import Compute, Return, Transfer, region_of


@dataclass(slots=True)
class Chain:
    """Ops that fire together, in launch order; `fires` is 1 or the number of micro-batches."""

    level: int
    fires: int
    early: bool
    ops: list[Op] = field(default_factory=list)


Unit = Chain | Transfer


@dataclass(slots=True)
class Grouping:
    """`units` are the chains and transfers of each rank, in an order that respects dependences.
    `rates` says how often a value is made in a step."""

    units: list[list[Unit]]
    rates: dict[Value, int]
    levels: dict[Op, int]
    early: set[Op]


@dataclass(eq=False, slots=True)
class _Node:
    """An op, or all parts of one transfer."""

    parts: list[Op]
    before: set[_Node] = field(default_factory=set)
    fires: int = 1
    level: int = 0
    early: bool = False

    @property
    def moves(self) -> bool:
        return isinstance(self.parts[0], Transfer) and not accumulates(self.parts[0])


def accumulates(op: Op) -> bool:
    """Whether the op sums over micro-batches: it runs in each of them, its result once a step."""
    return isinstance(op, Transfer) and op.step == "accumulate"


def group(functions: Sequence[Function], micro: int, streamed: set[Value],
          later: Mapping[Op, set[Op]]) -> Grouping:
    """Chains of the local functions of all ranks. `streamed` are the arguments that come once a
    micro-batch; `later[op]` are ops that must run before it though it reads nothing of theirs."""
    nodes, node_of = _nodes(functions, later)
    order = _ordered(nodes)
    rates = {v: micro if v in streamed else 1 for f in functions for v in f.body.args}
    for node in order:
        _rate(node, rates, micro)
    if micro > 1:
        _mark_early(order, rates)
    for node in order:
        node.level = max((_level_behind(p, node) for p in node.before), default=0)
    position = {node: i for i, node in enumerate(order)}
    return Grouping(
        [_units(function, node_of, position) for function in functions], rates,
        {op: node.level for op, node in node_of.items()},
        {op for op, node in node_of.items() if node.early})


def _nodes(
    functions: Sequence[Function], later: Mapping[Op, set[Op]]
) -> tuple[list[_Node], dict[Op, _Node]]:
    nodes: list[_Node] = []
    node_of: dict[Op, _Node] = {}
    joint: dict[int, _Node] = {}
    for function in functions:
        for op in function.body:
            if isinstance(op, Return):
                continue
            if isinstance(op, Transfer) and not accumulates(op) and op.match in joint:
                joint[op.match].parts.append(op)
                node_of[op] = joint[op.match]
                continue
            node_of[op] = _Node([op])
            nodes.append(node_of[op])
            if isinstance(op, Transfer) and not accumulates(op):
                joint[op.match] = node_of[op]
    for op, node in node_of.items():
        needed = {v.op for v in op.operands if v.op is not None} | later.get(op, set())
        node.before.update(node_of[n] for n in needed)
    return nodes, node_of


def _ordered(nodes: list[_Node]) -> list[_Node]:
    """In program order as far as the dependences allow."""
    position = {node: i for i, node in enumerate(nodes)}
    after: dict[_Node, list[_Node]] = {node: [] for node in nodes}
    for node in nodes:
        for producer in node.before:
            after[producer].append(node)
    missing = {node: len(node.before) for node in nodes}
    ready = [position[node] for node in nodes if not missing[node]]
    heapq.heapify(ready)
    order: list[_Node] = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        order.append(node)
        for user in after[node]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, position[user])
    if len(order) != len(nodes):
        stuck = next(node for node in nodes if missing[node])
        raise CompilerBug("ops of several ranks wait for each other", stuck.parts[0].loc)
    return order


def _rate(node: _Node, rates: dict[Value, int], micro: int) -> None:
    """How often an op fires and its results are made: with each micro-batch if anything it reads
    is; a sum over micro-batches is made once."""
    moving = any(rates[v] > 1 for op in node.parts for v in op.operands) or any(
        _reads_the_micro_batch(op) for op in node.parts)
    total = accumulates(node.parts[0])
    node.fires = micro if moving or total else 1
    for op in node.parts:
        rates.update(dict.fromkeys(op.results, 1 if total else node.fires))


def _reads_the_micro_batch(op: Op) -> bool:
    if (region := region_of(op)) is not None:
        return any(map(_reads_the_micro_batch, region))
    if not isinstance(op, Compute):
        return False
    return any(_moves(e) for e in (op.body, op.guard) if e is not None)


def _moves(expr: Expr) -> bool:
    return any(isinstance(node, Origin) and node.step for node in walk(expr))


def _mark_early(order: list[_Node], rates: Mapping[Value, int]) -> None:
    """Nodes of every micro-batch that some node of a micro-batch needs the sum of, and what stands
    between that sum and the node."""
    needed: set[_Node] = set()  # what a node of a micro-batch depends on
    summed: set[_Node] = set()  # what depends on a sum
    for node in order:
        if accumulates(node.parts[0]) or not summed.isdisjoint(node.before):
            summed.add(node)
    for node in reversed(order):
        total = accumulates(node.parts[0])
        if node in needed or (node.fires > 1 and not total):
            needed.update(node.before)
        if node in needed and (total or (node.fires == 1 and node in summed)):
            node.early = True
        if node.early:
            for producer in node.before:
                producer.early = producer.early or _in_parts(producer, rates)


def _in_parts(node: _Node, rates: Mapping[Value, int]) -> bool:
    return node.fires > 1 and any(rates[v] > 1 for op in node.parts for v in (
        *op.results, *op.operands))


def _level_behind(producer: _Node, consumer: _Node) -> int:
    changes = producer.fires != consumer.fires or accumulates(producer.parts[0])
    return producer.level + (producer.moves or changes)


def _units(
    function: Function, node_of: Mapping[Op, _Node], position: Mapping[_Node, int]
) -> list[Unit]:
    ops = [op for op in function.body if not isinstance(op, Return)]
    chains: dict[tuple[int, bool, int], Chain] = {}
    units: list[tuple[tuple[int, bool, bool, int], Unit]] = []
    for op in sorted(ops, key=lambda op: position[node_of[op]]):
        node = node_of[op]
        if isinstance(op, Transfer) and not accumulates(op):
            units.append(((node.level, True, not node.early, op.match), op))
            continue
        key = (node.level, not node.early, node.fires)
        if key not in chains:
            chain = chains[key] = Chain(node.level, node.fires, node.early)
            units.append(((node.level, False, not node.early, 0), chain))
        chains[key].ops.append(op)
    return [unit for _, unit in sorted(units, key=lambda entry: entry[0])]
