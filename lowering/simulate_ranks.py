"""All ranks of a mesh in one process: the oracle for everything that distributes.

`scatter` lays a logical array out as a layout says, `gather` puts it together again and insists
that copies agree; both work by the definition of SBP and know nothing of the compiler. `simulate`
runs the local modules of all ranks with the reference evaluator. Transfers are joint: each runs
when all its members have arrived at it, so mismatched counts, orders and members are found here.

A value is a list with an array for every micro-batch. `accumulate` sums over that list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anabranch.ir.core import Function, Module, Op, Value
from anabranch.ir.diagnostics import CompilerBug
from anabranch.ir.mesh import MICRO, Mesh
from anabranch.ir.ops import Compute, Order, Return, Scan, Transfer, identity
from anabranch.ir.reference import COMBINE, NUMPY, evaluate_op
from anabranch.ir.sbp import Layout, balanced
from anabranch.ir.types import TensorType, is_float
from anabranch.lowering.local_compute import (
    Place,
    held,
    local_compute,
    local_scan,
    local_type,
)
from anabranch.lowering.localise import localise, place_of
from anabranch.lowering.scan_signatures import Laid, lay_out

Array = np.ndarray[Any, Any]
Parts = dict[tuple[int, ...], Array]  # by position on the mesh of a stage, micro included


def scatter(
    array: Array, type: TensorType, mesh: Mesh, random: np.random.Generator | None = None,
    *, double: bool = False,
) -> Parts:
    """What every position holds (floats in f64, if `double`). Terms of a partial value are the
    value and identities, or arbitrary terms if there is a source of random numbers."""
    layout = type.layout or Layout()
    dtype = held(type.dtype, layout)
    parts: Parts = {(): np.asarray(array, "f8" if double and is_float(dtype) else NUMPY[dtype])}
    for name, size in mesh.axes:
        entry = layout[name]
        # Copies are one object, and their terms are the same on all ranks that hold a copy.
        pieces = {
            id(part): _split(part, entry.dim, size) if entry.kind == "S"
            else _terms(part, entry.op, type.dtype, size, random) if entry.kind == "P"
            else [part] * size
            for part in {id(part): part for part in parts.values()}.values()
        }
        parts = {
            (*position, i): piece
            for position, part in parts.items() for i, piece in enumerate(pieces[id(part)])
        }
    return parts


def _split(array: Array, dim: int, parts: int) -> list[Array]:
    sizes = [balanced(array.shape[dim], parts, i) for i in range(parts)]
    return [array.take(range(start, start + size), axis=dim) for size, start in sizes]


def _terms(
    array: Array, op: str, dtype: str, parts: int, random: np.random.Generator | None
) -> list[Array]:
    nothing = np.full_like(array, identity(op, dtype))
    if random is None:
        return [array, *[nothing] * (parts - 1)]
    if op == "sum":
        noise = random.integers(0, 9, (parts - 1, *array.shape)).astype(array.dtype)
        return [(array - noise.sum(0, dtype=array.dtype)).astype(array.dtype), *noise]
    owner = random.integers(0, parts, array.shape)
    if op == "prod":
        return [np.where(owner == i, array, nothing) for i in range(parts)]
    also = random.integers(0, 2, (parts, *array.shape))  # several may hold the extremum
    return [np.where((owner == i) | (also[i] == 1), array, nothing) for i in range(parts)]


def gather(parts: Mapping[tuple[int, ...], Array], type: TensorType, mesh: Mesh) -> Array:
    """The logical array of which these are the parts."""
    layout, found = type.layout or Layout(), dict(parts)
    for name, size in reversed(mesh.axes):
        entry = layout[name]
        groups = {position[:-1] for position in found}
        members = {group: [found[(*group, i)] for i in range(size)] for group in groups}
        if entry.kind == "S":
            found = {g: np.concatenate(m, axis=entry.dim) for g, m in members.items()}
        elif entry.kind == "P":
            found = {g: _reduce(entry.op, m) for g, m in members.items()}
        else:
            found = {g: _agreed(m) for g, m in members.items()}
    return found[()]


def _reduce(op: str, members: Sequence[Array]) -> Array:
    total = members[0]
    for member in members[1:]:
        total = np.asarray(COMBINE[op](total, member), total.dtype)
    return total


def _agreed(members: Sequence[Array]) -> Array:
    for member in members:
        np.testing.assert_array_equal(member, members[0], "copies of one value differ")
    return members[0]


def in_parts(
    op: Compute | Order, operands: Sequence[Array], layouts: Sequence[Layout], result: Layout,
    mesh: Mesh, random: np.random.Generator | None, *, double: bool = False,
) -> Array:
    """The result of one op, worked out in parts in these layouts and put together again."""
    whole = op.clone(_laid(op, layouts))
    whole.results = (Value(op.result.type.with_layout(result), "r", whole),)

    def part(local: Sequence[Value], place: Place) -> Op:
        return local_compute(whole, local, mesh, place)

    return _together(whole, operands, part, mesh, random, double)[0]


def scan_in_parts(
    op: Scan, operands: Sequence[Array], laid: Laid, mesh: Mesh, random: np.random.Generator | None,
    *, double: bool = False,
) -> list[Array]:
    """The results of a scan, worked out in parts and put together again."""
    whole = op.clone(_laid(op, laid.operands))
    for result, layout in zip(whole.results, laid.results, strict=True):
        result.type = result.type.with_layout(layout)
    lay_out(whole, mesh)

    def part(local: Sequence[Value], place: Place) -> Op:
        return local_scan(whole, local, mesh, place)

    return _together(whole, operands, part, mesh, random, double)


def _laid(op: Op, layouts: Sequence[Layout]) -> list[Value]:
    return [Value(v.type.with_layout(layout), v.name)
            for v, layout in zip(op.operands, layouts, strict=True)]


def _together(
    whole: Op, operands: Sequence[Array], part: Callable[[Sequence[Value], Place], Op], mesh: Mesh,
    random: np.random.Generator | None, double: bool,
) -> list[Array]:
    """The results of an op with layouts, of which `part` gives the part at a place."""
    laid = whole.operands
    parts = [scatter(x, v.type, mesh, random, double=double)
             for x, v in zip(operands, laid, strict=True)]
    results: list[Parts] = [{} for _ in whole.results]
    for place in mesh.positions():
        micro = place[mesh.names.index(MICRO)] if MICRO in mesh.names else 0
        start = tuple(0 if n == MICRO else i for n, i in zip(mesh.names, place, strict=True))
        local = [Value(local_type(v.type, mesh, start), v.name) for v in laid]
        given = [p[place] for p in parts]
        assert [x.shape for x in given] == [v.type.shape for v in local], "not the local shapes"
        made = evaluate_op(part(local, start), given, micro=micro, double=double)
        for found, array in zip(results, made, strict=True):
            found[place] = array
    return [gather(found, v.type, mesh) for found, v in zip(results, whole.results, strict=True)]


# --- whole functions -----------------------------------------------------------------------------

PerMicro = list[Array]  # an array for every micro-batch


@dataclass(slots=True)
class _Runner:
    """One rank on its way through its function."""

    function: Function
    micro: int
    env: dict[Value, PerMicro]
    returned: list[PerMicro] = field(default_factory=list)

    def run(self) -> Iterator[Transfer]:
        """Runs up to each transfer in turn, which has been done when it is resumed."""
        for op in self.function.body:
            operands = [self.env[v] for v in op.operands]
            if isinstance(op, Return):
                self.returned = operands
            elif isinstance(op, Transfer):
                yield op
            else:
                rows = [evaluate_op(op, [v[k] for v in operands], micro=k)
                        for k in range(self.micro)]
                self.env.update({v: [row[i] for row in rows] for i, v in enumerate(op.results)})


def run_ranks(functions: Sequence[Function], inputs: Sequence[Sequence[PerMicro]], micro: int = 1
              ) -> list[list[PerMicro]]:
    """What the function of each rank returns, all run together."""
    runners = [_Runner(f, micro, dict(zip(f.body.args, given, strict=True)))
               for f, given in zip(functions, inputs, strict=True)]
    coming = [runner.run() for runner in runners]
    waiting = [next(c, None) for c in coming]
    while any(waiting):
        ready = next((op.ranks for op in waiting if op and _all_here(op, waiting)), None)
        if ready is None:
            stuck = [op and op.match for op in waiting]
            raise CompilerBug(f"ranks wait for each other at the transitions {stuck}")
        _transfer([runners[r] for r in ready], [op for r in ready if (op := waiting[r])], micro)
        for r in ready:
            waiting[r] = next(coming[r], None)
    return [runner.returned for runner in runners]


def _all_here(op: Transfer, waiting: Sequence[Transfer | None]) -> bool:
    there = [waiting[r] for r in op.ranks]
    return op.step == "accumulate" or all(
        other is not None and (other.match, other.ranks) == (op.match, op.ranks) for other in there)


def _transfer(runners: Sequence[_Runner], ops: Sequence[Transfer], micro: int) -> None:
    """One joint transition, for all micro-batches."""
    given = [[runner.env[v] for v in op.operands] for runner, op in zip(runners, ops, strict=True)]
    if ops[0].step == "accumulate":
        total = _reduce(ops[0].reduce, given[0][0])
        taken = [[total] * micro]
    else:
        flat = [[np.ravel(v[k]) for v in values] for values in given for k in range(micro)]
        rounds = [
            _exchange(ops, [flat[i * micro + k] for i in range(len(ops))]) for k in range(micro)]
        taken = [[one[i] for one in rounds] for i in range(len(ops))]
    for runner, op, arrays in zip(runners, ops, taken, strict=True):
        for result in op.results:
            runner.env[result] = [a.reshape(result.type.shape) for a in arrays]


def _exchange(ops: Sequence[Transfer], given: Sequence[Sequence[Array]]) -> list[Array]:
    """The flat buffer that each member gets, of those that each gives."""
    first, nothing = ops[0], np.zeros(0)
    buffers = [values[0] if values else nothing for values in given]
    if first.step in ("all_gather", "reduce_scatter", "all_reduce"):
        assert all((op.step, op.counts, op.reduce) == (first.step, first.counts, first.reduce)
                   for op in ops), "members disagree"
    match first.step:
        case "send" | "recv":
            assert [op.step for op in ops] == ["send", "recv"]
            assert ops[0].counts == ops[1].counts == (buffers[0].size,)
            return [nothing, buffers[0]]
        case "all_gather":
            assert tuple(b.size for b in buffers) == first.counts
            return [np.concatenate(buffers)] * len(ops)
        case "all_reduce":
            assert {(b.size,) for b in buffers} == {first.counts}
            return [_reduce(first.reduce, buffers)] * len(ops)
        case "reduce_scatter":
            return _pieces(_reduce(first.reduce, buffers), first.counts)
    pieces = [_pieces(b, op.counts) for b, op in zip(buffers, ops, strict=True)]
    for i, op in enumerate(ops):
        assert tuple(p[i].size for p in pieces) == op.counts_back, "counts of members differ"
    return [np.concatenate([p[i] for p in pieces]) for i in range(len(ops))]


def _pieces(buffer: Array, counts: Sequence[int]) -> list[Array]:
    assert buffer.size == sum(counts), "a buffer is not as long as its counts"
    return np.split(buffer, np.cumsum(counts)[:-1])


def simulate(module: Module, name: str, args: Mapping[str, Array]) -> list[Array]:
    """All operands of the return of a function in phase `boxed`, run on all ranks of its mesh;
    `args` are the logical arguments by name."""
    assert module.mesh is not None, "a boxed module has a mesh"
    mesh, function = module.mesh, module.functions[name]
    last = function.body.last
    assert isinstance(last, Return), "a function ends in return"
    ranks = range(mesh.ranks)
    locals_ = [localise(module, rank).functions[name] for rank in ranks]
    parts = {a.value.name: scatter(args[a.value.name], a.value.type, mesh.inner)
             for a in function.arguments}
    positions = {rank: _positions(mesh, rank) for rank in ranks}
    inputs = [[[parts[v.name][p] for p in positions[rank]] for v in f.body.args]
              for rank, f in enumerate(locals_)]
    outputs = run_ranks(locals_, inputs, mesh.micro)
    stages = {a.value: a.stage for a in function.arguments}
    results = []
    for value in last.operands:
        stage = stages[value] if value.op is None else value.op.stage
        members = mesh.stage_ranks(stage)
        found = {p: a for r in members
                 for p, a in zip(positions[r], outputs[r].pop(0), strict=True)}
        results.append(gather(found, value.type, mesh.inner))
    return results


def _positions(mesh: Mesh, rank: int) -> list[tuple[int, ...]]:
    """The positions of a rank on the mesh of its stage, one for each micro-batch."""
    _, place = place_of(mesh, rank)
    if "micro" not in mesh.names:
        return [place]
    axis = mesh.inner.names.index("micro")
    return [(*place[:axis], k, *place[axis + 1 :]) for k in range(mesh.micro)]
