"""The common iteration space of several computes, which is what makes them one kernel.

`unify` gives computes that read each other shared axes: where one reads the value of another, the
subscripts must name the whole of it, place by place. A merged index on one side and a plain one on
the other agree after the plain one is split. Computes without such a link are tied by a value that
both read plainly. Then either all axes are parallel, or the axes fall in two sets: `parallel`,
over which every compute runs, and `reduced`, over which some run too; every reduction reduces
exactly the latter, and so has one element per point of the former (a row).

`None` means that the computes have no such space. The answer depends on structure, and on extents
only through their equality; but an axis of a few elements has no lanes if another may have them.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from anabranch.ir.core import Value
from anabranch.ir.expr import Const, Expr, Read, Var, levels, reads, substitute, variables
from anabranch.ir.index import Affine, affine, expression, mixed_radix
from anabranch.ir.ops import Compute, identity

VECTOR = 8  # elements that are worth running together


@dataclass(frozen=True, slots=True)
class Clause:
    """A compute as plain data; `result` is the value it defines in its function."""

    result: Value
    operands: tuple[Value, ...]
    ranges: tuple[tuple[str, int], ...]
    dims: tuple[tuple[str, ...], ...]
    body: Expr
    reduce: str = ""
    reduced: tuple[str, ...] = ()
    guard: Expr | None = None
    reads: tuple[Read, ...] = field(init=False, compare=False, repr=False)
    """All reads, those of the guard included."""
    levels: int = field(init=False, compare=False, repr=False)
    """How deep the body is."""

    def __post_init__(self) -> None:
        guard = [] if self.guard is None else reads(self.guard)
        object.__setattr__(self, "reads", (*reads(self.body), *guard))
        object.__setattr__(self, "levels", levels(self.body))

    @property
    def extents(self) -> dict[str, int]:
        return dict(self.ranges)

    @property
    def result_vars(self) -> tuple[str, ...]:
        return tuple(v for dim in self.dims for v in dim)

    def replaced(self, values: Mapping[str, Expr]) -> Clause:
        """Body and guard with other expressions in place of variables."""
        guard = None if self.guard is None else substitute(self.guard, values)
        return replace(self, body=substitute(self.body, values), guard=guard)


def clause(op: Compute) -> Clause:
    """The op as data. A reduction over nothing reads nothing: it is its identity."""
    extents = dict(op.ranges)
    if op.reduce not in ("", "argmax", "argmin") and 0 in (extents[v] for v in op.reduced):
        dtype = op.result.type.dtype
        kept = tuple(r for r in op.ranges if r[0] not in op.reduced)
        return Clause(op.result, (), kept, op.dims, Const(identity(op.reduce, dtype), dtype))
    return Clause(op.result, op.operands, op.ranges, op.dims, op.body, op.reduce, op.reduced,
                  op.guard)


@dataclass(frozen=True, slots=True)
class Outline:
    """What is known of a space without rewriting the clauses, which may have had to be split.

    `axis_of` gives the axis of variable v of clause i. `lanes` is the axis that most accesses walk
    with stride one. `waves[i]` counts the reductions, one after another, that must have ended
    before clause i can run.
    """

    clauses: tuple[Clause, ...]
    axis_of: Mapping[Node, str]
    extents: dict[str, int]
    parallel: tuple[str, ...]
    reduced: tuple[str, ...]
    lanes: str | None
    waves: tuple[int, ...]

    @property
    def by_rows(self) -> bool:
        """Lanes run along a row: reductions end row by row, and any number may follow another."""
        return self.lanes in self.reduced and bool(self.parallel)

    def full(self, i: int) -> bool:
        """Whether clause i has an element for every point, not one per row."""
        c = self.clauses[i]
        return not c.reduce and set(self.reduced) <= {self.axis_of[i, v] for v in c.result_vars}


@dataclass(frozen=True, slots=True)
class Space:
    """`clauses` are the computes with axes as variables; the rest is as in `Outline`."""

    extents: dict[str, int]
    clauses: tuple[Clause, ...]
    parallel: tuple[str, ...]
    reduced: tuple[str, ...]
    lanes: str | None
    waves: tuple[int, ...]

    def full(self, i: int) -> bool:
        """Whether clause i has an element for every point, not one per row."""
        return not self.clauses[i].reduce and set(self.reduced) <= set(self.clauses[i].result_vars)


def unify(clauses: Sequence[Clause]) -> Space | None:
    """The space of the clauses, which are in an order in which they can run."""
    found = outline(clauses)
    if found is None:
        return None
    named = tuple(_renamed(c, {v: found.axis_of[i, v] for v, _ in c.ranges})
                  for i, c in enumerate(found.clauses))
    return Space(found.extents, named, found.parallel, found.reduced, found.lanes, found.waves)


def outline(clauses: Sequence[Clause]) -> Outline | None:
    """The space of the clauses, as far as it is needed to judge it."""
    homes = {c.result: i for i, c in enumerate(clauses)}
    split = _split(list(clauses), homes)
    if split is None:
        return None
    ties = _Ties(split)
    if not _tie_inner(split, homes, ties):
        return None
    _tie_shared(split, homes, ties)
    return _outlined(split, homes, ties)


# --- ties: which variables are one axis ------------------------------------------------------

Node = tuple[int, str]  # a variable of a clause


class _Ties:
    """A partition of the variables; two variables of one clause are never in one class."""

    def __init__(self, clauses: Sequence[Clause]) -> None:
        self.extent = {(i, v): n for i, c in enumerate(clauses) for v, n in c.ranges}
        self.parent = {node: node for node in self.extent}
        self.members = {node: [node] for node in self.extent}

    def root(self, node: Node) -> Node:
        while self.parent[node] != node:
            node = self.parent[node]
        return node

    def fits(self, a: Node, b: Node) -> bool:
        a, b = self.root(a), self.root(b)
        if a == b:
            return True
        apart = not {i for i, _ in self.members[a]} & {i for i, _ in self.members[b]}
        return apart and self.extent[a] == self.extent[b]

    def tie(self, a: Node, b: Node) -> bool:
        """Make two variables one axis, or say that this cannot be."""
        if not self.fits(a, b):
            return False
        first, second = sorted((self.root(a), self.root(b)))
        if first != second:
            self.parent[second] = first
            self.members[first] += self.members.pop(second)
        return True


def _tie_inner(clauses: list[Clause], homes: dict[Value, int], ties: _Ties) -> bool:
    """Tie what is linked by a read of a value of the group."""
    for i, read, home in _inner_reads(clauses, homes):
        for subscript, dim in zip(read.subscripts, clauses[home].dims, strict=True):
            found = matched(subscript, dim, clauses[home].extents, clauses[i].extents)
            if found is None or read.pad is not None:
                return False
            if not all(ties.tie((home, p), (i, c)) for p, c in zip(dim, found, strict=True)):
                return False
    return True


def _inner_reads(
    clauses: list[Clause], homes: dict[Value, int]
) -> Iterator[tuple[int, Read, int]]:
    """(reader, read, producer) for every read of a value of the group."""
    for i, reader in enumerate(clauses):
        for read in reader.reads:
            home = homes.get(reader.operands[read.operand])
            if home is not None:
                yield i, read, home


def matched(
    subscript: Expr, dim: tuple[str, ...], producer: Mapping[str, int], reader: Mapping[str, int]
) -> tuple[str, ...] | None:
    """The reader's variables that name the same places as those of a dimension, in its order."""
    form = affine(subscript)
    if form is None or form.constant or len(form.terms) != len(dim):
        return None
    weights = mixed_radix(dim, producer).coefficients
    wanted = sorted(dim, key=lambda v: (weights[v], producer[v]))
    given = sorted(form.terms, key=lambda term: (term[1], reader[term[0]]))
    for v, (name, weight) in zip(wanted, given, strict=True):
        if (weights[v], producer[v]) != (weight, reader[name]):
            return None
    found = {v: name for v, (name, _) in zip(wanted, given, strict=True)}
    return tuple(found[v] for v in dim)


def _tie_shared(clauses: list[Clause], homes: dict[Value, int], ties: _Ties) -> None:
    """Tie what reads one value from outside plainly; links that would contradict are left out."""
    first: dict[Value, list[tuple[int, tuple[str, ...]]]] = {}
    for i, reader in enumerate(clauses):
        for read in reader.reads:
            value, names = reader.operands[read.operand], plain(read)
            if value in homes or names is None:
                continue
            known = first.setdefault(value, [])
            for j, others in known:
                pairs = [((j, a), (i, b)) for a, b in zip(others, names, strict=True)]
                if j != i and all(ties.fits(a, b) for a, b in pairs):
                    for a, b in pairs:
                        ties.tie(a, b)
                    break
            known.append((i, names))


def plain(read: Read) -> tuple[str, ...] | None:
    """The variables of a read whose subscripts are variables, all different; else None."""
    names = [s.name for s in read.subscripts if isinstance(s, Var)]
    whole = len(names) == len(read.subscripts) == len(set(names)) and read.pad is None
    return tuple(names) if whole else None


# --- splitting plain variables to match merged ones ------------------------------------------


def _split(clauses: list[Clause], homes: dict[Value, int]) -> list[Clause] | None:
    """The clauses after every split that a link asks for; None if that does not end."""
    for _ in range(4 * len(clauses) + 4):
        found = _next_split(clauses, homes)
        if found is None:
            return clauses
        i, name, sizes = found
        clauses[i] = split_variable(clauses[i], name, sizes)
    return None


def _next_split(
    clauses: list[Clause], homes: dict[Value, int]
) -> tuple[int, str, tuple[int, ...]] | None:
    for i, read, home in _inner_reads(clauses, homes):
        reader, producer = clauses[i], clauses[home]
        for subscript, dim in zip(read.subscripts, producer.dims, strict=True):
            if isinstance(subscript, Var) and len(dim) > 1 and _may_split(reader, subscript.name):
                sizes = tuple(producer.extents[v] for v in dim)
                if math.prod(sizes) == reader.extents[subscript.name]:
                    return i, subscript.name, sizes
            if len(dim) == 1 and not isinstance(subscript, Var) and _may_split(producer, dim[0]):
                radix = _radix(affine(subscript), reader.extents)
                if radix and math.prod(radix) == producer.extents[dim[0]]:
                    return home, dim[0], radix
    return None


def _may_split(c: Clause, name: str) -> bool:
    return not (c.reduce in ("argmax", "argmin") and name in c.reduced)


def _radix(form: Affine | None, extents: Mapping[str, int]) -> tuple[int, ...] | None:
    """The sizes of a merged index of two or more variables, most significant first."""
    if form is None or form.constant or len(form.terms) < 2:
        return None
    order = sorted(form.terms, key=lambda term: (-term[1], -extents[term[0]]))
    names = [name for name, _ in order]
    exact = mixed_radix(names, extents).coefficients == form.coefficients
    return tuple(extents[name] for name in names) if exact else None


def split_variable(c: Clause, name: str, sizes: Sequence[int]) -> Clause:
    """The same clause with one variable replaced by several, of the given sizes."""
    taken = {v for v, _ in c.ranges}
    parts: list[str] = []
    for k in range(len(sizes)):
        parts.append(next(n for n in _fresh(name, k) if n not in taken))
    extents = dict(zip(parts, sizes, strict=True))
    inner = {name: expression(mixed_radix(parts, extents))}

    def widen(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(p for v in names for p in (parts if v == name else [v]))

    ranges = tuple((v, extents.get(v, c.extents.get(v, 0))) for v in widen(c.extents))
    return replace(c.replaced(inner), ranges=ranges, dims=tuple(map(widen, c.dims)),
                   reduced=widen(c.reduced))


def _fresh(name: str, k: int) -> Iterator[str]:
    suffix = "_"
    while True:
        yield f"{name}{suffix}{k}"
        suffix += "_"


# --- the space -------------------------------------------------------------------------------


def _outlined(
    clauses: list[Clause], homes: dict[Value, int], ties: _Ties
) -> Outline | None:
    axis_of = _axis_names(clauses, ties)
    sets = _two_sets(clauses, axis_of)
    if sets is None:
        return None
    parallel, reduced = sets
    extents = {axis_of[i, v]: n for i, c in enumerate(clauses) for v, n in c.ranges}
    lanes = _lanes(clauses, axis_of, homes, {a: extents[a] for a in parallel + reduced})
    return Outline(tuple(clauses), axis_of, extents, parallel, reduced, lanes,
                   _waves(clauses, homes))


def _axis_names(clauses: list[Clause], ties: _Ties) -> dict[Node, str]:
    """A name for every class of variables: that of its first, made unique."""
    roots: dict[Node, str] = {}
    taken: set[str] = set()
    for i, c in enumerate(clauses):
        for v, _ in c.ranges:
            root = ties.root((i, v))
            if root not in roots:
                name = v if v not in taken else next(
                    n for n in (f"{v}{k}" for k in itertools.count(2)) if n not in taken)
                roots[root] = name
                taken.add(name)
    return {(i, v): roots[ties.root((i, v))] for i, c in enumerate(clauses) for v, _ in c.ranges}


def _renamed(c: Clause, axis_of: Mapping[str, str]) -> Clause:
    body = c.replaced({v: Var(a) for v, a in axis_of.items()})
    return replace(
        body, ranges=tuple((axis_of[v], n) for v, n in c.ranges),
        dims=tuple(tuple(axis_of[v] for v in dim) for dim in c.dims),
        reduced=tuple(axis_of[v] for v in c.reduced))


def _two_sets(
    clauses: Sequence[Clause], axis_of: Mapping[Node, str]
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The parallel and the reduced axes, each in the order of the widest result."""
    results = [tuple(axis_of[i, v] for v in c.result_vars) for i, c in enumerate(clauses)]
    reductions = [tuple(axis_of[i, v] for v in c.reduced) for i, c in enumerate(clauses)]
    widest = sorted(range(len(clauses)), key=lambda i: -len(results[i]))
    order = list(dict.fromkeys(v for i in widest for v in (*results[i], *reductions[i])))
    reduced_sets = {frozenset(r) for r, c in zip(reductions, clauses, strict=True) if c.reduce}
    if len(reduced_sets) > 1:
        return None
    least = min(map(frozenset, results), key=len)
    reduced = next(iter(reduced_sets), frozenset(order) - least)
    parallel = frozenset(order) - reduced
    for result, c in zip(results, clauses, strict=True):
        axes = frozenset(result)
        if axes != parallel and (c.reduce or axes != parallel | reduced):
            return None
    return tuple(v for v in order if v in parallel), tuple(v for v in order if v in reduced)


def _waves(clauses: Sequence[Clause], homes: dict[Value, int]) -> tuple[int, ...]:
    waves: list[int] = []
    for c in clauses:
        before = [homes[v] for v in c.operands if v in homes]
        waves.append(max((waves[j] + bool(clauses[j].reduce) for j in before), default=0))
    return tuple(waves)


def _lanes(
    clauses: Sequence[Clause], axis_of: Mapping[Node, str], homes: Mapping[Value, int],
    axes: Mapping[str, int],
) -> str | None:
    """The axis that most accesses of full rank have last; final results count twice. One that is
    too short for a vector, as windows are, comes after all others that are last anywhere."""
    order = tuple(axes)
    votes: Counter[tuple[int, str]] = Counter()
    inner = {v for c in clauses for v in c.operands}
    for i, c in enumerate(clauses):
        if c.dims and c.dims[-1] and c.result not in inner:
            votes[len(c.result_vars), axis_of[i, c.dims[-1][-1]]] += 2
        for read in c.reads:
            place = affine(read.subscripts[-1]) if read.subscripts else None
            if place is None or c.operands[read.operand] in homes:
                continue
            used = {v for s in read.subscripts for v in variables(s)}
            for name, stride in place.terms:
                if stride == 1:
                    votes[len(used), axis_of[i, name]] += 1
    if not votes:
        return order[-1] if order else None
    widest = max(rank for rank, _ in votes)
    last = {axis for _, axis in votes}
    return max((a for a in order if a in last),
               key=lambda a: (min(axes[a], VECTOR), votes[widest, a], order.index(a)),
               default=order[-1] if order else None)

