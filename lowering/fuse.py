"""Computes that become one kernel: `local` -> `fused`.

Every compute starts as a group of its own; two groups merge if

- they are in one pipeline stage, recomputation region and rate (`chains.py` says which), and no
  third group lies on a path between them. The transfers of a rank count as a chain, each before
  the next: what other ranks do in between may depend on the first and feed the second;
- together they have a space (`ir/space.py`), in which no element waits for a reduction unless rows
  are walked one by one;
- neither is a contraction, which a library does, nor a scatter;
- a state that is overwritten in place does not share a kernel with a reduction;
- it saves time: bytes that are not written and read again, or a launch.

Merges are tried in three rounds: first along values that only the consumer wants, which then never
reach memory, then along all values, then between groups that read the same whole tensor. Which
groups merge is a function of structure, not of sizes, so that ranks with uneven shards agree; the
sizes only give the numbers in the log.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from anabranch.ir.contraction import is_contraction
from anabranch.ir.core import Block, Function, Module, Op, Value
from anabranch.ir.index import scatter_places
from anabranch.ir.ops import Compute, Fused, Return, Transfer
from anabranch.ir.printer import print_function
from anabranch.ir.rewrite import dce
from anabranch.ir.space import Clause, Outline, clause, outline
from anabranch.lowering.chains import group as chains_of
from anabranch.lowering.machine import CPU2, Machine
from anabranch.lowering.views import read_through_views

OF_A_RANK = re.compile(r"origin\([^)]*\)|(match|ranks)=(\d+|\[[^]]*\])")
MOST_TENSORS = 24  # pointers of one kernel
MOST_CLAUSES = 48
MOST_LEVELS = 240  # of what is computed from one another: a kernel is emitted from its end


@dataclass(frozen=True, slots=True)
class Decision:
    """Two groups that were considered: whether they merged, why (not), and what it saves."""

    producer: str
    consumer: str
    merged: bool
    why: str
    saved_bytes: int = 0
    saved_seconds: float = 0.0

    def __str__(self) -> str:
        verdict = "fused" if self.merged else "not fused"
        gain = f", saves {self.saved_bytes} bytes, {self.saved_seconds * 1e6:.1f} us" \
            if self.merged else ""
        return f"{verdict}: %{self.producer} and %{self.consumer}: {self.why}{gain}"


@dataclass(frozen=True, slots=True)
class Grouping:
    """Which ops become one, by their places in the function, in the order of the new ops."""

    groups: tuple[tuple[int, ...], ...]
    decisions: tuple[Decision, ...]


def fuse(module: Module, *, machine: Machine = CPU2, log: list[Decision] | None = None) -> Module:
    """Group the computes of a local module into kernels; the module is changed in place."""
    for function in module.functions.values():
        read_through_views(function.body)
        dce(function)
        micro = 1 if module.mesh is None else module.mesh.micro
        grouping = _known_grouping(function, micro, machine)
        _rebuild(function, grouping)
        if log is not None:
            log += grouping.decisions
    module.phase = "fused"
    return module


_KNOWN: dict[tuple[str, int, Machine], Grouping] = {}
KNOWN = 32  # groupings that are remembered: ranks and programs repeat each other


def _known_grouping(function: Function, micro: int, machine: Machine) -> Grouping:
    """The grouping of a function, found once for all ranks that differ in nothing but origins and
    partners."""
    text = OF_A_RANK.sub("", print_function(function, locations=False))
    key = text, micro, machine
    if key not in _KNOWN:
        while len(_KNOWN) >= KNOWN:
            del _KNOWN[next(iter(_KNOWN))]
        _KNOWN[key] = _Fusion(function, micro, machine).run()
    return _KNOWN[key]


def _rebuild(function: Function, grouping: Grouping) -> None:
    """Put the ops in their new order, groups of several as one op."""
    ops = [op for op in function.body if not isinstance(op, Return)]
    block, last = function.body, function.body.last
    assert last is not None
    for places in grouping.groups:
        if len(places) > 1:
            block.insert_before(_fused([ops[i] for i in places]), last)
        else:
            block.unlink(ops[places[0]])
            block.insert_before(ops[places[0]], last)
    for places in grouping.groups:
        if len(places) > 1:
            for i in reversed(places):
                ops[i].erase()


@dataclass(eq=False, slots=True)
class _Group:
    """Ops that will be one. `before` holds the numbers of all groups that must run earlier."""

    number: int
    ops: list[Op]
    side: tuple[object, ...] | None  # what may merge has equal sides; None: never merges
    before: int = 0
    mask: int = 0
    needs: set[_Group] = field(default_factory=set)
    clauses: list[Clause] = field(default_factory=list)

    @property
    def name(self) -> str:
        results = self.ops[-1].results
        return results[0].name if results else self.ops[-1].kind


class _Fusion:
    """Fusion of one function."""

    def __init__(self, function: Function, micro: int, machine: Machine) -> None:
        self.function, self.machine = function, machine
        self.log: list[Decision] = []
        self.ops = [op for op in function.body if not isinstance(op, Return)]
        self.position = {op: i for i, op in enumerate(self.ops)}
        last = function.body.last
        assert isinstance(last, Return)
        self.updates = set(last.updates.values())
        self.groups = self._single_groups(micro)
        self.of = {g.ops[0]: g for g in self.groups}
        self.refused: set[tuple[int, int, int, int]] = set()

    def run(self) -> Grouping:
        for round_ in (self._along_single_uses, self._along_values, self._between_readers):
            for first, second, shared in round_():
                self._try(first, second, shared)
        places = (tuple(self.position[op] for op in g.ops) for g in self._ordered())
        return Grouping(tuple(places), tuple(self.log))

    # what to try

    def _along_single_uses(self) -> Iterator[tuple[Op, Op, Value]]:
        for producer, consumer, value in self._along_values():
            if all(self.of.get(u) is self.of[consumer] for u in value.uses):
                yield producer, consumer, value

    def _along_values(self) -> Iterator[tuple[Op, Op, Value]]:
        for op in self.ops:
            for value in sorted(dict.fromkeys(op.operands), key=lambda v: -v.type.rank):
                if value.op is not None:
                    yield value.op, op, value

    def _between_readers(self) -> Iterator[tuple[Op, Op, Value]]:
        values = dict.fromkeys(v for op in self.ops for v in op.operands)
        for value in values:
            readers = sorted((u for u in value.uses if u in self.position),
                             key=lambda u: self.position[u])
            for first, second in itertools.pairwise(readers):
                yield first, second, value

    # whether to merge

    def _try(self, first: Op, second: Op, shared: Value) -> None:
        a, b = sorted((self.of[first], self.of[second]), key=lambda g: g.number)
        key = (a.number, b.number, len(a.ops), len(b.ops))
        if a is b or a.side is None or b.side is None or key in self.refused:
            return
        why = self._obstacle(a, b, shared)
        if why:
            self.refused.add(key)
            self.log.append(Decision(a.name, b.name, False, why))
            return
        nbytes = shared.type.nbytes * (2 if self._internal(shared, a, b) else 1)
        seconds = nbytes / self.machine.memory + self.machine.launch
        self._merge(a, b)
        self.log.append(Decision(first.results[0].name, second.results[0].name, True,
                                 f"they share %{shared.name}", nbytes, seconds))

    def _internal(self, value: Value, a: _Group, b: _Group) -> bool:
        return value.op is not None and all(self.of.get(u) in (a, b) for u in value.uses)

    def _obstacle(self, a: _Group, b: _Group, shared: Value) -> str:
        """Why two groups stay apart; empty if they may merge."""
        if a.side != b.side:
            return "they run at different times"
        if self._between(a, b):
            return "another kernel must run between them"
        clauses = self._in_order(a.clauses + b.clauses)
        if (len(clauses) > MOST_CLAUSES or _pointers(clauses) > MOST_TENSORS
                or _levels(clauses) > MOST_LEVELS):
            return "the kernel would be too large"
        space = outline(clauses)
        if space is None:
            return "their axes do not agree"
        return self._unfit(space, shared)

    def _unfit(self, space: Outline, shared: Value) -> str:
        reductions = any(c.reduce for c in space.clauses)
        if reductions and any(c.result in self.updates for c in space.clauses):
            return "a state could not be overwritten in place"
        if space.by_rows:
            return self._too_small(space, shared)
        if not reductions and space.reduced:
            return "values per row without rows to walk"
        if any(w and (c.reduce or space.full(i))
               for i, (c, w) in enumerate(zip(space.clauses, space.waves, strict=True))):
            return "elements would wait for a reduction over all tiles"
        return self._too_small(space, shared)

    def _too_small(self, space: Outline, shared: Value) -> str:
        """Readers of a common value merge only for the sake of a whole tensor."""
        homes = {c.result for c in space.clauses}
        axes = len(space.parallel) + len(space.reduced)
        if shared in homes or shared.type.rank >= axes:
            return ""
        return "what they share is small"

    def _between(self, a: _Group, b: _Group) -> bool:
        """Whether a third group depends on one and is needed by the other."""
        return any(
            before.before & one.mask
            for one, other in ((a, b), (b, a))
            for before in self._directly_before(other)
            if before is not a and before is not b
        )

    def _directly_before(self, g: _Group) -> set[_Group]:
        """The groups that make what a group reads, and the transfer before a transfer."""
        return {self.of[before.ops[0]] for before in g.needs} - {g}

    def _in_order(self, clauses: list[Clause]) -> list[Clause]:
        return sorted(clauses, key=lambda c: self.position[_maker(c)])

    def _merge(self, a: _Group, b: _Group) -> None:
        a.ops = sorted(a.ops + b.ops, key=lambda op: self.position[op])
        a.clauses = self._in_order(a.clauses + b.clauses)
        a.mask |= b.mask
        a.needs |= b.needs
        a.before = (a.before | b.before) & ~a.mask
        for op in b.ops:
            self.of[op] = a
        b.side = None
        self.groups.remove(b)
        for g in self.groups:
            if g.before & a.mask:
                g.before |= a.before | a.mask

    # the groups at first, and at last

    def _single_groups(self, micro: int) -> list[_Group]:
        grouping = chains_of([self.function], micro, self._streamed(micro), {})
        groups: list[_Group] = []
        known: dict[Op, _Group] = {}
        transfer: _Group | None = None
        for i, op in enumerate(self.ops):
            g = _Group(i, [op], None, mask=1 << i)
            g.needs = {known[v.op] for v in op.operands if v.op is not None}
            if isinstance(op, Compute):
                g.clauses = [clause(op)]
                if not _stands_alone(op):
                    g.side = (op.stage, op.recompute, op in grouping.early,
                              grouping.rates[op.result])
            elif isinstance(op, Transfer):
                g.needs |= set() if transfer is None else {transfer}
                transfer = g
            for before in g.needs:
                g.before |= before.before | before.mask
            known[op] = g
            groups.append(g)
        return groups

    def _streamed(self, micro: int) -> set[Value]:
        """The arguments that may come once a micro-batch."""
        return {a.value for a in self.function.arguments if a.role == "input" and micro > 1}

    def _ordered(self) -> list[_Group]:
        """Producers first; otherwise in the order of the groups' last ops."""
        place = {g: max(self.position[op] for op in g.ops) for g in self.groups}
        missing = {g: self._directly_before(g) for g in self.groups}
        after: dict[_Group, list[_Group]] = {g: [] for g in self.groups}
        for g, needed in missing.items():
            for before in needed:
                after[before].append(g)
        count = {g: len(needed) for g, needed in missing.items()}
        ready = [(place[g], g.number, g) for g in self.groups if not count[g]]
        heapq.heapify(ready)
        order: list[_Group] = []
        while ready:
            _, _, g = heapq.heappop(ready)
            order.append(g)
            for user in after[g]:
                count[user] -= 1
                if not count[user]:
                    heapq.heappush(ready, (place[user], user.number, user))
        assert len(order) == len(self.groups), "groups have no cycle"
        return order


def _maker(c: Clause) -> Op:
    assert c.result.op is not None
    return c.result.op


def _stands_alone(op: Compute) -> bool:
    c = clause(op)
    return is_contraction(c) or bool(op.reduce and scatter_places(op)[0])


def _levels(clauses: Sequence[Clause]) -> int:
    """How deep the last of them is, written out to what is read from memory."""
    known: dict[Value, int] = {}
    for each in clauses:
        below = max((known.get(v, 0) for v in each.operands), default=0)
        known[each.result] = each.levels + below
    return max(known.values())


def _pointers(clauses: Sequence[Clause]) -> int:
    made = {c.result for c in clauses}
    return len({v for c in clauses for v in c.operands} | made)


def _fused(ops: Sequence[Op]) -> Fused:
    """One op with the given ones inside, whose users then read its results."""
    made = {r for op in ops for r in op.results}
    inside = set(ops)
    operands = list(dict.fromkeys(v for op in ops for v in op.operands if v not in made))
    results = [r for op in ops for r in op.results if any(u not in inside for u in r.uses)]
    region = Block([(v.name, v.type) for v in operands])
    seen = dict(zip(operands, region.args, strict=True))
    for op in ops:
        new = region.append(op.clone([seen[v] for v in op.operands]))
        seen.update(zip(op.results, new.results, strict=True))
    region.append(Return([seen[r] for r in results]))
    last = ops[-1]
    fused = Fused(operands, region, [r.name for r in results], loc=last.loc, stage=last.stage,
                  recompute=last.recompute)
    for old, new_value in zip(results, fused.results, strict=True):
        for user in list(old.uses):
            if user not in inside:
                user.set_operands([new_value if v is old else v for v in user.operands])
    return fused
