"""What one rank runs: phase `boxed` -> `local`.

A rank gets the ops and arguments of its pipeline stage (the step and the seed are everywhere), on
the shapes it holds: computes in part (`local_compute.py`), boxes as computes and transfers
(`transfers.py`), moves between stages as a send here and a recv there. The result has no layouts.

Joint transitions are numbered in program order, one for each group or pair of ranks, by the same
count on all ranks: so members agree on numbers, and every rank posts its own in ascending order.
"""

from __future__ import annotations

import functools
import itertools

from anabranch.ir.core import Function, Module, Op, Value
from anabranch.ir.diagnostics import CompilerBug
from anabranch.ir.mesh import MICRO, STAGE, Mesh
from anabranch.ir.ops import Box, Compute, Order, Return, Scan, Transfer
from anabranch.lowering.local_compute import Place, local_compute, local_scan, local_type
from anabranch.lowering.transfers import Spot, lower_step


def localise(module: Module, rank: int) -> Module:
    """The module of one rank; `module` stays as it is."""
    if module.phase != "boxed" or module.mesh is None:
        raise CompilerBug(f"a module of phase '{module.phase}' cannot be localised")
    local = Module(phase="local", mesh=module.mesh)
    numbers = itertools.count()
    for function in module.functions.values():
        local.add(_Rank(module.mesh, rank).function(function, numbers))
    return local


class _Rank:
    """One rank, and the local forms of the values of one function."""

    def __init__(self, mesh: Mesh, rank: int) -> None:
        self.mesh, self.rank = mesh, rank
        self.inner = mesh.inner
        self.stage, self.place = place_of(mesh, rank)
        self.values: dict[Value, Value] = {}
        self.stages: dict[Value, int] = {}

    def function(self, logical: Function, numbers: itertools.count[int]) -> Function:
        made = Function(logical.name)
        for a in logical.arguments:
            self.stages[a.value] = a.stage
            if a.stage == self.stage or a.role in ("step", "seed"):
                type = local_type(a.value.type, self.inner, self.place)
                self.values[a.value] = made.add_argument(
                    a.value.name, type, a.role, stage=a.stage, span=a.span)
        for op in logical.body:
            if isinstance(op, Box):
                self.box(op, made, numbers)
            elif op.stage == self.stage or isinstance(op, Return):
                self.here(op, made)
            self.stages.update(dict.fromkeys(op.results, op.stage))
        return made

    def here(self, op: Op, made: Function) -> None:
        match op:
            case Compute() | Order():
                operands = [self.values[v] for v in op.operands]
                part = local_compute(op, operands, self.inner, self.place)
                self.values[op.result] = made.body.append(part).result
            case Scan():
                operands = [self.values[v] for v in op.operands]
                scan = made.body.append(local_scan(op, operands, self.inner, self.place))
                self.values.update(zip(op.results, scan.results, strict=True))
            case Return():
                made.body.append(self.returned(op))
            case _:
                raise CompilerBug(f"'{op.kind}' in phase 'boxed'", op.loc)

    def returned(self, op: Return) -> Return:
        """Of what the function gives, that which lives here."""
        values = [self.values[v] for v in op.values if self.stages[v] == self.stage]
        updates = {n: self.values[v] for n, v in op.updates.items() if self.stages[v] == self.stage}
        return Return([*values, *updates.values()], tuple(updates), loc=op.loc, stage=self.stage)

    def box(self, op: Box, made: Function, numbers: itertools.count[int]) -> None:
        """A step; every rank counts the transitions of all, and takes part in its own."""
        if op.step == "move":
            return self.move(op, made, numbers)
        members: tuple[int, ...] = (self.rank,)
        match = 0
        if op.axis != MICRO:
            for group in stage_groups(self.mesh, op.stage, op.axis):
                number = next(numbers)
                if self.rank in group:
                    members, match = group, number
        if op.stage == self.stage:
            spot = Spot(self.inner, self.place, members, match)
            value = self.values[op.operands[0]]
            self.values[op.result] = lower_step(op, value, spot, made.body)

    def move(self, op: Box, made: Function, numbers: itertools.count[int]) -> None:
        """Every rank of the old stage sends what it holds to its like on the new one."""
        source = op.operands[0]
        for pair in zip(self.mesh.stage_ranks(self.stages[source]),
                        self.mesh.stage_ranks(op.stage), strict=True):
            match = next(numbers)
            if self.rank == pair[0]:
                value = self.values[source]
                made.body.append(Transfer(
                    [value], [], "send", match, pair, counts=[value.type.elements], loc=op.loc,
                    stage=self.stage, recompute=op.recompute))
            elif self.rank == pair[1]:
                type = local_type(op.result.type, self.inner, self.place)
                self.values[op.result] = made.body.append(Transfer(
                    [], [type], "recv", match, pair, counts=[type.elements],
                    name=op.result.name, loc=op.loc, stage=op.stage,
                    recompute=op.recompute)).result


def place_of(mesh: Mesh, rank: int) -> tuple[int, Place]:
    """The stage of a rank and its position on the mesh of the stage, `micro` being 0."""
    where = dict(zip(mesh.names, mesh.position(rank), strict=True))
    return where.get(STAGE, 0), tuple(where[name] for name in mesh.inner.names)


@functools.cache
def stage_groups(mesh: Mesh, stage: int, axis: str) -> tuple[tuple[int, ...], ...]:
    """The ranks of a stage that differ only along an axis, group by group."""
    ranks = mesh.stage_ranks(stage)
    return tuple(tuple(ranks[i] for i in group) for group in mesh.inner.groups(axis))
