"""Which layouts a scan may have: those in which every statement of its region is legal alone.

On one mesh axis a split of one value of the region is carried to all that read it or that it reads,
by the signatures of the statements (`signatures.py`), until all agree: a history is laid out as the
result it is. Nothing is boxed inside, so nothing is P there, and the scan's own index is never
split: what one place makes, the next one reads. So the batch of a recurrent cell can be split, and
every index of an elementwise recurrence; the channels of a cell with a matrix cannot.

A value that several statements want in different parts is whole. Over several axes: the product,
as far as every statement is legal.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from anabranch.ir.core import Value
from anabranch.ir.diagnostics import CompilerBug
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Scan
from anabranch.ir.recurrence import scan_axis, statements
from anabranch.ir.sbp import B, Layout, S, Sbp, layout_on
from anabranch.lowering.signatures import (
    Signature,
    Structure,
    legal_structure,
    signatures_of,
    structure,
)

Node = int  # a value: statements from 0 on, operands from -1 down; a history is its statement
Sbps = tuple[Sbp, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """What of a scan decides its layouts: of each statement its structure, what it reads, and the
    dimension of the scan's index; the statements that are the results; the operands' shapes."""

    structures: tuple[Structure, ...]
    reads: tuple[tuple[Node, ...], ...]
    axes: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]  # of the results of statements
    news: tuple[Node, ...]
    operands: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Laid:
    """A legal way to lay a scan out; `split` has the variables that each statement splits."""

    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    values: tuple[Layout, ...]
    splits: tuple[tuple[str, ...], ...]


def loop(scan: Scan) -> Loop:
    node: dict[Value, Node] = {v: -1 - n for n, v in enumerate(scan.inputs)}
    ops = list(statements(scan))
    node |= {op.result: n for n, op in enumerate(ops)}
    node |= {history: node[new] for history, new in zip(scan.histories, scan.news, strict=True)}
    return Loop(
        tuple(map(structure, ops)), tuple(tuple(node[v] for v in op.operands) for op in ops),
        tuple(scan_axis(op, scan.variable) for op in ops),
        tuple(op.result.type.shape for op in ops), tuple(node[v] for v in scan.news),
        tuple(v.type.shape for v in scan.operands))


# ---- one axis


@functools.cache
def axis_forms(of: Loop, parts: int) -> tuple[tuple[Sbps, Sbps], ...]:
    """The entries of all operands and of all statements on one axis; first all B."""
    count = len(of.structures)
    found = {((B,) * len(of.operands), (B,) * count): None}
    if parts > 1:
        for values in _spread_splits(of, parts):
            found.setdefault((_operands(of, values, parts), values))
    return tuple(found)


def _spread_splits(of: Loop, parts: int) -> Iterator[Sbps]:
    for n, shape in enumerate(of.shapes):
        for dim, size in enumerate(shape):
            if dim != of.axes[n] and size > 1:
                agreed = _agreed(of, parts, {n: S(dim)}, frozenset())
                if agreed is not None:
                    yield tuple(agreed.get(m, B) for m in range(len(of.structures)))


def _agreed(
    of: Loop, parts: int, known: Mapping[Node, Sbp], done: frozenset[Node]
) -> Mapping[Node, Sbp] | None:
    """What is known of the region, carried through all statements that it concerns."""
    turn = next((n for n in range(len(of.structures)) if n not in done and (
        n in known or any(known.get(m, B) != B for m in of.reads[n]))), None)
    if turn is None:
        return known
    for signature in signatures_of(of.structures[turn], parts):
        wanted = _wanted(of, turn, signature, known)
        if wanted is not None:
            found = _agreed(of, parts, {**wanted, **known}, done | {turn})
            if found is not None and not _scan_is_split(of, found):
                return found
    return None


def _wanted(
    of: Loop, turn: Node, signature: Signature, known: Mapping[Node, Sbp]
) -> dict[Node, Sbp] | None:
    """What a signature wants of the region, if that is what is known. A whole value serves where a
    part would do."""
    entries = [(turn, signature.result), *(
        pair for pair in zip(of.reads[turn], signature.operands, strict=True) if pair[0] >= 0)]
    wanted: dict[Node, Sbp] = {}
    for node, entry in entries:
        have = known.get(node, wanted.get(node, entry))
        serves = have == entry or (have == B and entry.kind == "S" and node != turn)
        if entry.kind == "P" or not serves:
            return None
        wanted[node] = have
    return wanted


def _scan_is_split(of: Loop, found: Mapping[Node, Sbp]) -> bool:
    return any(entry == S(of.axes[n]) for n, entry in found.items())


def _operands(of: Loop, values: Sbps, parts: int) -> Sbps:
    """What the operands of the scan should be: a part, if all statements want the same."""
    wanted: dict[Node, set[Sbp]] = {}
    for turn, reads in enumerate(of.reads):
        known = dict(enumerate(values))
        signature = next((s for s in signatures_of(of.structures[turn], parts)
                          if _wanted(of, turn, s, known) is not None), None)
        entries = (B,) * len(reads) if signature is None else signature.operands
        for node, entry in zip(reads, entries, strict=True):
            if node < 0:
                wanted.setdefault(node, set()).add(entry)
    sets = (wanted.get(-1 - n, {B}) for n in range(len(of.operands)))
    return tuple(next(iter(entries)) if len(entries) == 1 else B for entries in sets)


# ---- all axes


@functools.cache
def forms(of: Loop, mesh: Mesh, small: bool) -> dict[tuple[tuple[Layout, ...], ...], Laid]:
    """Every legal way on a mesh, by the layouts of operands and results. Unless `small`, no rank
    is left without work."""
    found: dict[tuple[tuple[Layout, ...], ...], Laid] = {}
    for chosen in itertools.product(*(axis_forms(of, parts) for parts in mesh.sizes)):
        operands = _layouts(len(of.operands), [entries for entries, _ in chosen], mesh)
        values = _layouts(len(of.shapes), [entries for _, entries in chosen], mesh)
        splits = _splits(of, operands, values, mesh)
        filled = small or all(itertools.starmap(
            functools.partial(_fills, mesh=mesh),
            [*zip(of.shapes, values, strict=True), *zip(of.operands, operands, strict=True)]))
        if splits is not None and filled:
            results = tuple(values[n] for n in of.news)
            found.setdefault((operands, results), Laid(operands, results, values, splits))
    return found


def _layouts(count: int, columns: Sequence[Sbps], mesh: Mesh) -> tuple[Layout, ...]:
    """The layouts of so many values from their entries on each axis."""
    return tuple(layout_on(mesh, [entries[n] for entries in columns]) for n in range(count))


def _splits(
    of: Loop, operands: Sequence[Layout], values: Sequence[Layout], mesh: Mesh
) -> tuple[tuple[str, ...], ...] | None:
    """The variables that each statement splits, or None if one is not legal."""
    splits = []
    for n, reads in enumerate(of.reads):
        layouts = tuple(operands[-1 - node] if node < 0 else values[node] for node in reads)
        chosen = legal_structure(of.structures[n], layouts, values[n], mesh)
        if chosen is None:
            return None
        splits.append(tuple(signature.split for signature in chosen))
    return tuple(splits)


def _fills(shape: tuple[int, ...], layout: Layout, mesh: Mesh) -> bool:
    parts = [math.prod(mesh.size(axis) for axis, e in layout.entries if e == S(dim))
             for dim in range(len(shape))]
    return all(size >= n for size, n in zip(shape, parts, strict=True))


def scan_forms(scan: Scan, mesh: Mesh, *, small: bool = False) -> list[Laid]:
    """The ways to lay a scan out on a mesh; the first is all whole."""
    return list(forms(loop(scan), mesh, small).values())


def lay_out(scan: Scan, mesh: Mesh) -> None:
    """Give the values of the region layouts that go with those of the operands and results."""
    given = tuple(tuple(v.type.layout or Layout() for v in values)
                  for values in (scan.operands, scan.results))
    laid = forms(loop(scan), mesh, True).get(given)
    if laid is None:
        raise CompilerBug(f"no statement of a scan goes with {given}", scan.loc)
    for inside, operand in zip(scan.inputs, scan.operands, strict=True):
        inside.type = operand.type
    for op, layout in zip(statements(scan), laid.values, strict=True):
        op.result.type = op.result.type.with_layout(layout)
    for history, new in zip(scan.histories, scan.news, strict=True):
        history.type = new.type
