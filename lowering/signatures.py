"""Which layouts a compute may have: SBP signatures, derived from its index structure alone.

On one mesh axis a compute does one of these, each named by a `Rule`:

    whole      every rank computes all of it: all B
    split v    a result variable: the result is S where v stands; operands are S in a dimension
               that v runs over if the cuts agree there, else B
    split k    a reduced variable: likewise, and the result is P of the reduction
    carry      it commutes with a reduction in some operands: P in, P out (`carries.py`)
    table      `t[ids[i], d]`, linear in t: t is S in the dimension read indirectly, every rank
               reads its own rows and 0 for the others, the result is P(sum)

Over several axes: the product, with one kind of P per value. Cuts nest in mesh order, so whether
they agree is asked of the whole combination (`intervals.py`), operand by operand: splitting `c` of
a merged `(g, c)` is illegal alone and legal once `g` has been cut to single values.

Index values and random draws are logical, so they never stand in the way of a split. What cannot
be split is what the rules do not name: argmax over its own variable, a window across its dimension.

Nothing here looks at an operator's name, and everything is memoised by structure: a hundred equal
layers are derived once.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anabranch.ir.expr import Expr, Read, literals, reads, shared, variables
from anabranch.ir.mesh import MICRO, Mesh
from anabranch.ir.ops import Compute, Order
from anabranch.ir.sbp import B, Layout, P, S, Sbp, layout_on
from anabranch.ir.types import category
from anabranch.lowering.carries import carried, linear_in
from anabranch.lowering.intervals import Cut, covers, produces

# The partial value that a split of the reduced variable leaves; argmax and argmin have none.
PARTIAL = {"sum": "sum", "prod": "prod", "max": "max", "min": "min", "any": "max", "all": "min"}


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """What of a compute decides its signatures. Interned, so that equality is identity."""

    ranges: tuple[tuple[str, int], ...]
    dims: tuple[tuple[str, ...], ...]
    reduce: str
    reduced: tuple[str, ...]
    guard: Expr | None
    body: Expr
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    dtype: str

    @property
    def extents(self) -> dict[str, int]:
        return dict(self.ranges)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        return (self.body,) if self.guard is None else (self.body, self.guard)



@dataclass(frozen=True, slots=True)
class Signature:
    """Legal entries of the operands and the result on one axis. `split` is the variable that the
    axis divides, or empty; `why` says in words what makes it legal."""

    operands: tuple[Sbp, ...]
    result: Sbp
    split: str
    why: str

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.operands))} -> {self.result} ({self.why})"


@dataclass(frozen=True, slots=True)
class Rule:
    """What one axis may do: the entries each operand may choose from, best first."""

    choices: tuple[tuple[Sbp, ...], ...]
    result: Sbp
    split: str
    why: str


Option = tuple[tuple[Layout, ...], Layout]  # of the operands, of the result
Entries = tuple[tuple[Sbp, ...], Sbp]  # on one axis: of the operands, of the result
Settled = tuple[Entries | None, ...]  # by axis: entries that are decided, or none yet


def structure(op: Compute | Order) -> Structure:
    """The interned structure of a compute, or the one that is stated of an order."""
    if isinstance(op, Order):
        source = op.operands[0].type
        return _intern(op.ranges, op.dims, op.kind, op.reduced, None, op.body, (source.shape,),
                       (source.dtype,), op.result.type.dtype, (str(op.count),))
    return _intern(
        op.ranges, op.dims, op.reduce, op.reduced, op.guard, op.body,
        tuple(v.type.shape for v in op.operands), tuple(v.type.dtype for v in op.operands),
        op.result.type.dtype, literals(op.body, op.guard),
    )


@functools.cache
def _intern(
    ranges: tuple[tuple[str, int], ...], dims: tuple[tuple[str, ...], ...], reduce: str,
    reduced: tuple[str, ...], guard: Expr | None, body: Expr,
    shapes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...], dtype: str,
    _literals: tuple[str, ...],
) -> Structure:
    return Structure(ranges, dims, reduce, reduced, guard, shared(body), shapes, dtypes, dtype)


# --- the rules of one axis -----------------------------------------------------------------------


@functools.cache
def rules(of: Structure) -> tuple[Rule, ...]:
    """Everything one axis may do, before any cut is tested."""
    return (_whole(of), *_splits(of), *_tables(of), *_carries(of))


def _whole(of: Structure) -> Rule:
    return Rule(((B,),) * len(of.shapes), B, "", "everything whole")


def _splits(of: Structure) -> Iterator[Rule]:
    for name, _ in of.ranges:
        where = next((d for d, dim in enumerate(of.dims) if name in dim), None)
        if where is not None:
            result, why = S(where), f"split of {name}"
        elif of.reduce in PARTIAL:
            result, why = P(PARTIAL[of.reduce]), f"{of.reduce} over parts of {name}"
        else:
            continue
        choices = tuple((*map(S, _dims_over(of, t, name)), B) for t in range(len(of.shapes)))
        yield Rule(choices, result, name, why)


def _dims_over(of: Structure, operand: int, name: str) -> list[int]:
    """Dimensions of an operand that a variable runs over, in every read directly."""
    return [
        d for d in range(len(of.shapes[operand]))
        if any(name in variables(s) for s in _subscripts(of, operand, d))
        and not any(reads(s) for s in _subscripts(of, operand, d))
    ]


@functools.cache
def _reads(of: Structure) -> tuple[Read, ...]:
    """Each once."""
    return tuple(dict.fromkeys(
        read for expr in of.expressions for read in reads(expr)))


@functools.cache
def _subscripts(of: Structure, operand: int, dim: int) -> tuple[Expr, ...]:
    """How a dimension of an operand is subscripted, in every read of it."""
    return tuple(dict.fromkeys(
        read.subscripts[dim] for read in _reads(of) if read.operand == operand))


def _tables(of: Structure) -> Iterator[Rule]:
    for operand, dim in itertools.chain.from_iterable(
        ((t, d) for d in range(len(shape))) for t, shape in enumerate(of.shapes)
    ):
        if _is_table(of, operand, dim):
            choices = tuple((S(dim),) if t == operand else (B,) for t in range(len(of.shapes)))
            yield Rule(choices, P(), "", f"own rows of operand {operand}")


def _is_table(of: Structure, operand: int, dim: int) -> bool:
    indirect = _subscripts(of, operand, dim)
    guarded = any(read.operand == operand for read in (reads(of.guard) if of.guard else ()))
    return (
        bool(indirect) and all(reads(s) for s in indirect)
        and of.reduce in ("", "sum") and not guarded
        and "bool" not in (category(of.dtype), category(of.dtypes[operand]))
        and linear_in(of.body, operand, of.dtypes)
    )


def _carries(of: Structure) -> Iterator[Rule]:
    for way in carried(of.body, of.guard, of.reduce, of.dtypes, of.dtype):
        choices = tuple(
            (P(way.enters),) if t in way.operands else (B,) for t in range(len(of.shapes)))
        names = ", ".join(map(str, sorted(way.operands)))
        yield Rule(choices, P(way.leaves), "", f"carries {P(way.enters)} of operands {names}")


# --- combinations over the axes of a mesh ------------------------------------------------------


def _cuts(chosen: Sequence[Rule]) -> dict[str, Cut]:
    """The axes that split each variable."""
    cuts: dict[str, Cut] = {}
    for axis, rule in enumerate(chosen):
        if rule.split:
            cuts[rule.split] = (*cuts.get(rule.split, ()), axis)
    return cuts


def _one_partial(entries: Sequence[Sbp]) -> bool:
    return len({e.op for e in entries if e.kind == "P"}) <= 1


def _is_even(extent: int, cut: Cut, mesh: Mesh) -> bool:
    """Micro-batches are equal: a split in time divides what it splits."""
    return extent % mesh.micro == 0 or not any(mesh.names[axis] == MICRO for axis in cut)


def _result(of: Structure, chosen: Sequence[Rule], mesh: Mesh) -> tuple[Sbp, ...] | None:
    """The entries of the result, or None if the combination is illegal at the result."""
    entries = tuple(rule.result for rule in chosen)
    cuts, extents = _cuts(chosen), of.extents
    legal = (
        _one_partial(entries)
        and all(_is_even(extents[name], cut, mesh) for name, cut in cuts.items())
        and all(produces(dim, extents, cuts, mesh.sizes) for dim in of.dims)
    )
    return entries if legal else None


@functools.cache
def _holds(
    of: Structure, operand: int, entries: tuple[Sbp, ...], splits: tuple[str, ...], mesh: Mesh
) -> bool:
    """Whether an operand laid out so has on every rank what the rank's part of the work reads.
    A dimension read indirectly needs nothing: the rule for tables has seen to it."""
    cuts: dict[str, Cut] = {}
    for axis, name in enumerate(splits):
        if name:
            cuts[name] = (*cuts.get(name, ()), axis)
    extents = of.extents
    for d, length in enumerate(of.shapes[operand]):
        cut = tuple(axis for axis, e in enumerate(entries) if e.kind == "S" and e.dim == d)
        if not _is_even(length, cut, mesh) or (cut and not all(
            covers(subscript, length, cut, extents, cuts, mesh.sizes)
            for subscript in _subscripts(of, operand, d) if not reads(subscript)
        )):
            return False
    return True


@functools.cache
def _layouts(
    of: Structure, operand: int, choices: tuple[tuple[Sbp, ...], ...], splits: tuple[str, ...],
    mesh: Mesh,
) -> tuple[tuple[Sbp, ...], ...]:
    """The legal layouts of an operand, without those that keep more than another needs."""
    found: list[tuple[Sbp, ...]] = []
    for entries in itertools.product(*choices):
        if (
            _one_partial(entries)
            and not any(_at_least(entries, better) for better in found)
            and _holds(of, operand, entries, splits, mesh)
        ):
            found.append(entries)
    return tuple(found)


def _at_least(entries: tuple[Sbp, ...], better: tuple[Sbp, ...]) -> bool:
    """Whether `entries` is `better` with some of its splits left whole."""
    return all(a == b or (a == B and b.kind == "S") for a, b in zip(entries, better, strict=True))


@functools.cache
def _options(of: Structure, mesh: Mesh, small: bool, settled: Settled) -> dict[
    Option, tuple[str, ...]
]:
    found: dict[Option, tuple[str, ...]] = {}
    every = [rule for rule in rules(of) if small or _is_long(of, rule.split)]
    per_axis = [every if entries is None else list(_narrowed(of, entries)) for entries in settled]
    for chosen in itertools.product(*per_axis):
        result = _result(of, chosen, mesh)
        if result is None or not (small or _is_filled(of, chosen, mesh)):
            continue
        splits = tuple(rule.split for rule in chosen)
        per_operand = [
            _layouts(of, t, tuple(rule.choices[t] for rule in chosen), splits, mesh)
            for t in range(len(of.shapes))
        ]
        for operands in itertools.product(*per_operand):
            option = (tuple(layout_on(mesh, e) for e in operands), layout_on(mesh, result))
            found.setdefault(option, splits)
    return found


def _narrowed(of: Structure, entries: Entries) -> Iterator[Rule]:
    """The rules that have these entries, with no others."""
    operands, result = entries
    for rule in rules(of):
        fits = all(e in choices for e, choices in zip(operands, rule.choices, strict=True))
        if fits and rule.result == result:
            yield Rule(tuple((e,) for e in operands), rule.result, rule.split, rule.why)


def _is_long(of: Structure, split: str) -> bool:
    return not split or of.extents[split] > 1


def _is_filled(of: Structure, chosen: Sequence[Rule], mesh: Mesh) -> bool:
    """Whether every rank has a part of every split variable."""
    extents = of.extents
    return all(math.prod(mesh.sizes[axis] for axis in cut) <= extents[name]
               for name, cut in _cuts(chosen).items())


# --- what others ask -----------------------------------------------------------------------------


def options(op: Compute | Order, mesh: Mesh, *, small: bool = False) -> tuple[Option, ...]:
    """All legal (operand layouts, result layout) on a mesh, without those in which an operand is
    whole where a part would do. Splits that would leave some ranks without work are legal but left
    out, unless `small`."""
    return tuple(split_options(op, mesh, small=small))


def split_options(
    op: Compute | Order, mesh: Mesh, *, small: bool = False, settled: Settled = ()
) -> dict[Option, tuple[str, ...]]:
    """The same options, each with the variable that every axis splits (empty: none). Where entries
    on an axis are `settled`, only those."""
    return _options(structure(op), mesh, small, settled or (None,) * len(mesh.axes))


@functools.cache
def signatures_of(of: Structure, parts: int) -> tuple[Signature, ...]:
    """`signatures`, of a structure."""
    mesh = Mesh((("axis", parts),))
    found: dict[tuple[tuple[Sbp, ...], Sbp], Signature] = {}
    for rule in rules(of):
        if _result(of, [rule], mesh) is None:
            continue
        per_operand = [
            _layouts(of, t, (rule.choices[t],), (rule.split,), mesh)
            for t in range(len(of.shapes))
        ]
        for entries in itertools.product(*per_operand):
            operands = tuple(entry for (entry,) in entries)
            found.setdefault((operands, rule.result),
                             Signature(operands, rule.result, rule.split, rule.why))
    return tuple(found.values())


def signatures(op: Compute | Order, parts: int) -> tuple[Signature, ...]:
    """The legal signatures on one axis that cuts into `parts`; the first is all B."""
    return signatures_of(structure(op), parts)


@functools.cache
def legal_structure(
    of: Structure, operands: tuple[Layout, ...], result: Layout, mesh: Mesh
) -> tuple[Signature, ...] | None:
    columns = [
        (tuple(layout[axis] if size > 1 else B for layout in operands),
         result[axis] if size > 1 else B)
        for axis, size in mesh.axes
    ]
    matching = [
        [rule for rule in rules(of) if rule.result == out and all(
            entry in choices for entry, choices in zip(column, rule.choices, strict=True))]
        for column, out in columns
    ]
    for chosen in itertools.product(*matching):
        splits = tuple(rule.split for rule in chosen)
        rows = [tuple(column[t] for column, _ in columns) for t in range(len(operands))]
        if (
            _result(of, chosen, mesh) is not None
            and all(map(_one_partial, rows))
            and all(_holds(of, t, row, splits, mesh) for t, row in enumerate(rows))
        ):
            return tuple(Signature(column, out, rule.split, rule.why)
                         for (column, out), rule in zip(columns, chosen, strict=True))
    return None


def legal(
    op: Compute | Order, operand_layouts: Sequence[Layout], result_layout: Layout, mesh: Mesh
) -> tuple[Signature, ...] | None:
    """The signature on every axis of the mesh that these layouts amount to, or None. Beside the
    options it accepts operands that are whole where a part would do."""
    return legal_structure(structure(op), tuple(operand_layouts), result_layout, mesh)
