"""Which ops of a rank run together: chains, the actors of the Plan.

A chain is a set of ops that run as one firing, without a transfer between them. The guarantee: the
graph of chains and transfers has no cycle, so that some order of firings exists. It holds because
each op has a *level* that never falls along an edge and rises behind a transfer and where the rate
changes (once a step, or once a micro-batch); ops of equal level, rate and earliness form a chain.

*Early* ops are those that a value of the whole batch needs before any micro-batch can go on (the
number of targets that count, say): they get chains of their own, or the first backward would wait
for the last forward.

A state is overwritten in place, so its writer must come after all other readers of the old value;
`later` gives such orders that are not data.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from anabranch.ir.core import Function, Op, Value
from anabranch.ir.expr import Expr, Origin, walk
from anabranch.ir.ops import Compute, Fused, Return, Transfer


@dataclass(slots=True)
class Chain:
    """Ops that fire together, in launch order; `fires` is 1 or the number of micro-batches."""

    level: int
    fires: int
    early: bool
    ops: list[Op] = field(default_factory=list)


@dataclass(slots=True)
class Grouping:
    """`units` are chains and transfers in an order that respects all dependences."""

    units: list[Chain | Transfer]
    rates: dict[Value, int]
    levels: dict[Op, int]
    early: set[Op]


def accumulates(op: Op) -> bool:
    """Whether the op sums over micro-batches: it runs in each of them, its result once a step."""
    return isinstance(op, Transfer) and op.step == "accumulate"


def group(
    function: Function, micro: int, streamed: Iterable[Value], later: Mapping[Op, set[Op]]
) -> Grouping:
    """Chains of a local function. `streamed` are the arguments that come once a micro-batch;
    `later[op]` are ops that must run before it though it reads nothing of theirs."""
    rates = _rates(function, micro, set(streamed))
    ops = _ordered(function, later)
    early = _early(ops, rates) if micro > 1 else set()
    fires = {op: _fires(op, rates, micro) for op in ops}
    levels = _levels(ops, later, fires)
    chains: dict[tuple[int, int, int], Chain] = {}
    units: list[Chain | Transfer] = []
    for op in ops:
        if isinstance(op, Transfer) and not accumulates(op):
            units.append(op)
            continue
        key = (levels[op], op not in early, fires[op])
        if key not in chains:
            chains[key] = Chain(levels[op], fires[op], op in early)
            units.append(chains[key])
        chains[key].ops.append(op)
    return Grouping(sorted(units, key=lambda u: _unit_key(u, levels, early)), rates, levels, early)


def _unit_key(
    unit: Chain | Transfer, levels: Mapping[Op, int], early: set[Op]
) -> tuple[int, bool, bool, int]:
    """Within a level: early before late, chains before the transfers that read them."""
    if isinstance(unit, Chain):
        return unit.level, False, not unit.early, 0
    return levels[unit], True, unit not in early, unit.match


def _rates(function: Function, micro: int, streamed: set[Value]) -> dict[Value, int]:
    """How often each value is made in a step."""
    rates = {value: micro if value in streamed else 1 for value in function.body.args}
    for op in function.body:
        moving = any(rates[v] > 1 for v in op.operands) or _reads_the_micro_batch(op)
        for result in op.results:
            rates[result] = micro if moving and not accumulates(op) else 1
    return rates


def _reads_the_micro_batch(op: Op) -> bool:
    if isinstance(op, Fused):
        return any(_reads_the_micro_batch(inner) for inner in op.region)
    if not isinstance(op, Compute):
        return False
    return any(_moves(e) for e in (op.body, op.guard) if e is not None)


def _moves(expr: Expr) -> bool:
    return any(isinstance(node, Origin) and node.step for node in walk(expr))


def _fires(op: Op, rates: Mapping[Value, int], micro: int) -> int:
    if accumulates(op):
        return micro
    values = op.results or op.operands  # a send has no result
    return max((rates[v] for v in values), default=1)


def _ordered(function: Function, later: Mapping[Op, set[Op]]) -> list[Op]:
    """All ops but the return, in program order as far as the dependences allow."""
    ops = [op for op in function.body if not isinstance(op, Return)]
    position = {op: i for i, op in enumerate(ops)}
    waiting = {op: _before(op, later) for op in ops}
    after: dict[Op, list[Op]] = {op: [] for op in ops}
    for op, needed in waiting.items():
        for producer in needed:
            after[producer].append(op)
    missing = {op: len(needed) for op, needed in waiting.items()}
    ready = [position[op] for op in ops if not missing[op]]
    heapq.heapify(ready)
    order: list[Op] = []
    while ready:
        op = ops[heapq.heappop(ready)]
        order.append(op)
        for user in after[op]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, position[user])
    assert len(order) == len(ops), "an in-place update depends on a reader of what it overwrites"
    return order


def _before(op: Op, later: Mapping[Op, set[Op]]) -> set[Op]:
    return {v.op for v in op.operands if v.op is not None} | later.get(op, set())


def _levels(
    ops: list[Op], later: Mapping[Op, set[Op]], fires: Mapping[Op, int]
) -> dict[Op, int]:
    levels: dict[Op, int] = {}
    for op in ops:
        after = (_level_after(p, op, levels, fires) for p in _before(op, later))
        levels[op] = max(after, default=0)
    return levels


def _level_after(
    producer: Op, consumer: Op, levels: Mapping[Op, int], fires: Mapping[Op, int]
) -> int:
    moved = isinstance(producer, Transfer) and not accumulates(producer)
    changes = fires[producer] != fires[consumer] or accumulates(producer)
    return levels[producer] + (moved or changes)


def _early(ops: list[Op], rates: Mapping[Value, int]) -> set[Op]:
    """Ops of every micro-batch that some op of a micro-batch needs the sum of."""
    needed: set[Op] = set()  # ops that an op of a micro-batch depends on
    early: set[Op] = set()
    for op in reversed(ops):
        moving = any(rates[r] > 1 for r in op.results)
        if op in needed or moving:
            needed.update(v.op for v in op.operands if v.op is not None)
        if op in early or (op in needed and accumulates(op)):
            early.add(op)
            early.update(v.op for v in op.operands if v.op is not None and rates[v] > 1)
    return early
