"""Statements that only rename places are read through, so that no copy of a tensor is made.

A *view* is a compute whose body is one read, without pad, of an affine place: a transpose, a
split or merge of axes, a slice. Two rewrites, neither of which changes a value:

- a reader of a view reads what is behind it. A contraction does so only if it stays one that the
  library can do, since strides decide that;
- a contraction that only a view reads is made in the view's order at once.

Views that nobody reads any more are gone afterwards. What is given to a transfer or returned needs
its own memory, and stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from anabranch.ir.contraction import is_contraction, matrix_product
from anabranch.ir.core import Block, Value
from anabranch.ir.expr import Expr, Read, Var, renumber, substitute, transform
from anabranch.ir.index import Affine, affine, expression, mixed_radix
from anabranch.ir.ops import Compute
from anabranch.ir.space import Clause, clause, split_variable


def read_through_views(block: Block) -> None:
    """Apply both rewrites in program order, then drop what is unused."""
    for op in block:
        if isinstance(op, Compute):
            _read_behind(op)
    for op in block:
        if isinstance(op, Compute) and is_view(clause(op)):
            _make_in_order(op)
    for op in reversed(block):
        if isinstance(op, Compute) and not op.result.uses and is_view(clause(op)):
            op.erase()


def is_view(c: Clause) -> bool:
    """Whether the clause is one read of an affine place."""
    return not c.reduce and isinstance(c.body, Read) and c.body.pad is None and all(
        affine(s) is not None for s in c.body.subscripts)


def _read_behind(op: Compute) -> None:
    """Let one op read what is behind the views it reads, one after the other."""
    kept: set[Value] = set()
    while True:
        seen = {v for v in op.operands if v not in kept}
        view = next((v for v in seen if isinstance(v.op, Compute) and is_view(clause(v.op))), None)
        if view is None:
            return
        assert isinstance(view.op, Compute)
        new = inline(clause(op), clause(view.op))
        if new is None or not _welcome(op, new):
            kept.add(view)
            continue
        op = _replace(op, new)


def _welcome(op: Compute, new: Clause) -> bool:
    old = clause(op)
    return not is_contraction(old) or matrix_product(old) is None or matrix_product(new) is not None


def _make_in_order(view: Compute) -> None:
    """Make a contraction whose only reader is a view in the view's order."""
    maker = view.operands[0].op
    if not isinstance(maker, Compute) or set(maker.result.uses) != {view}:
        return
    c = clause(maker)
    if not is_contraction(c) or view.stage != maker.stage or view.recompute != maker.recompute:
        return
    new = inline(clause(view), c)
    if new is None or matrix_product(new) is None or _points(new) != _points(c):
        return
    _replace(view, new)
    maker.erase()


def _points(c: Clause) -> int:
    return math.prod(n for _, n in c.ranges)


def _replace(op: Compute, c: Clause) -> Compute:
    """Put a compute with the contents of a clause in the place of an op."""
    assert op.block is not None
    new = Compute(c.operands, op.result.type.dtype, c.ranges, c.dims, c.body, reduce=c.reduce,
                  reduced=c.reduced, guard=c.guard, name=op.result.name, loc=op.loc,
                  stage=op.stage, recompute=op.recompute)
    op.block.insert_before(new, op)
    op.result.replace_by(new.result)
    op.erase()
    return new


# --- one clause read by another --------------------------------------------------------------


def inline(reader: Clause, maker: Clause) -> Clause | None:
    """The reader with the maker's body in place of every read of its result, or None.

    A maker with a reduction may be read only by a reader whose body is that read alone.
    """
    if maker.reduce and not (isinstance(reader.body, Read) and not reader.reduce):
        return None
    split = _split_to_match(reader, maker)
    if split is None:
        return None
    maker = _apart(maker, split)
    operands = tuple(dict.fromkeys((*(v for v in split.operands if v is not maker.result),
                                    *maker.operands)))
    number = {v: i for i, v in enumerate(operands)}
    extents = split.extents

    def numbered(expr: Expr) -> Expr:
        return renumber(expr, lambda k: number[maker.operands[k]])

    def replaced(expr: Expr) -> Expr | None:
        if not isinstance(expr, Read):
            return None
        if split.operands[expr.operand] is not maker.result:
            return Read(number[split.operands[expr.operand]], expr.subscripts, expr.pad)
        places = _places(expr, maker, extents)
        assert places is not None, "_split_to_match has seen every read"
        return substitute(numbered(maker.body), places)

    body = transform(split.body, replaced)
    guard = None if split.guard is None else transform(split.guard, replaced)
    if not maker.reduce:
        return Clause(split.result, operands, split.ranges, split.dims, body, split.reduce,
                      split.reduced, guard)
    assert isinstance(split.body, Read)
    places = _places(split.body, maker, extents) or {}
    inner_guard = None if maker.guard is None else substitute(numbered(maker.guard), places)
    ranges = (*split.ranges, *((v, maker.extents[v]) for v in maker.reduced))
    return Clause(split.result, operands, ranges, split.dims, body, maker.reduce, maker.reduced,
                  inner_guard)


def _apart(maker: Clause, reader: Clause) -> Clause:
    """The maker with reduced variables that the reader does not use."""
    taken = {v for v, _ in reader.ranges}
    for v in maker.reduced:
        if v in taken:
            fresh = next(n for n in (f"{v}_{k}" for k in range(999))
                         if n not in taken and n not in maker.extents)
            maker = _renamed(maker, v, fresh)
    return maker


def _renamed(c: Clause, old: str, new: str) -> Clause:
    body = c.replaced({old: Var(new)})
    return replace(body, ranges=tuple((new if v == old else v, n) for v, n in c.ranges),
                   reduced=tuple(new if v == old else v for v in c.reduced))


def _split_to_match(reader: Clause, maker: Clause) -> Clause | None:
    """The reader with variables split until each read names a place per variable of the maker."""
    for _ in range(8):
        bad = next((r for r in reader.reads if reader.operands[r.operand] is maker.result
                    and _places(r, maker, reader.extents) is None), None)
        if bad is None:
            pads = any(r.pad is not None for r in reader.reads
                       if reader.operands[r.operand] is maker.result)
            return None if pads else reader
        found = _split_for(bad, reader, maker)
        if found is None:
            return None
        reader = found
    return None


def _split_for(read: Read, reader: Clause, maker: Clause) -> Clause | None:
    for subscript, dim in zip(read.subscripts, maker.dims, strict=True):
        form = affine(subscript)
        sizes = [maker.extents[v] for v in dim]
        if form is None or len(dim) < 2 or digits_of(form, sizes, reader.extents) is not None:
            continue
        for name, step in form.terms:
            whole = step == 1 and reader.extents[name] == math.prod(sizes)
            if whole and name not in _places_wanted(reader):
                return split_variable(reader, name, sizes)
    return None


def _places_wanted(c: Clause) -> set[str]:
    return set(c.reduced) if c.reduce in ("argmax", "argmin") else set()


def _places(read: Read, maker: Clause, extents: Mapping[str, int]) -> dict[str, Expr] | None:
    """The maker's result variables in terms of the reader's."""
    found: dict[str, Expr] = {}
    for subscript, dim in zip(read.subscripts, maker.dims, strict=True):
        if len(dim) == 1:
            found[dim[0]] = subscript
            continue
        form = affine(subscript)
        parts = None if form is None else digits_of(form, [maker.extents[v] for v in dim], extents)
        if parts is None:
            return None
        found |= {v: expression(part) for v, part in zip(dim, parts, strict=True)}
    return found


def digits_of(
    form: Affine, sizes: list[int], extents: Mapping[str, int]
) -> list[Affine] | None:
    """The digits of a place in a mixed radix, each an affine form, or None if terms carry over."""
    sizes = [max(n, 1) for n in sizes]  # what is empty has the structure of what is not
    extents = {v: max(n, 1) for v, n in extents.items()}
    names = [str(k) for k in range(len(sizes))]
    weights = mixed_radix(names, dict(zip(names, sizes, strict=True))).coefficients
    terms: list[list[tuple[str, int]]] = [[] for _ in sizes]
    constants, rest = [], form.constant
    for name in names:
        constants.append(rest // weights[name] if rest >= 0 else 0)
        rest -= constants[-1] * weights[name]
    for name, step in form.terms:
        home = next((k for k in range(len(sizes)) if step % weights[str(k)] == 0
                     and step // weights[str(k)] * (extents[name] - 1) < sizes[k]), None)
        if home is None or step < 0:
            return None
        terms[home].append((name, step // weights[str(home)]))
    parts = [Affine(tuple(t), c) for t, c in zip(terms, constants, strict=True)]
    for part, size in zip(parts, sizes, strict=True):
        low, high = part.bounds(extents)
        if low < 0 or high >= size:
            return None
    return None if rest else parts
