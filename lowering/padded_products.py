"""Products of matrices whose factors are read with a pad: `sum[t](d[t, n] * h[t - 1, k, pad=0])`.

A library multiplies what lies in memory. Where a pad alone keeps a sum of products from being a
matrix product, the padded factor becomes a value of its own: a copy, which is little beside the
product.
"""

from __future__ import annotations

from dataclasses import replace

from anabranch.ir.contraction import matrix_product
from anabranch.ir.core import Value
from anabranch.ir.expr import Const, Expr, Read, Var, transform
from anabranch.ir.index import affine
from anabranch.ir.ops import Compute
from anabranch.ir.space import Clause, clause
from anabranch.ir.types import tensor


def stand_apart(op: Compute) -> bool:
    """Put the padded factors of a product in statements before it; whether there were any."""
    if op.reduce != "sum" or op.guard is not None or op.block is None:
        return False
    c = clause(op)
    padded = {read: names for read in c.reads if read.pad is not None and (names := _axes(read))}
    held = [Value(tensor(c.operands[read.operand].type.dtype,
                         tuple(c.extents[v] for v in names))) for read, names in padded.items()]
    apart = _reading(c, padded, held)
    if not padded or matrix_product(apart) is None:
        return False
    copies = [op.block.insert_before(_copy(op, read, names), op)
              for read, names in padded.items()]
    op.body = apart.body
    op.set_operands([*op.operands, *(copy.result for copy in copies)])
    return True


def _axes(read: Read) -> tuple[str, ...]:
    """The variables of the subscripts, if each has one of its own, perhaps with a constant added,
    and the pad is a number; else none."""
    forms = [affine(s) for s in read.subscripts]
    names = [form.terms[0][0] for form in forms
             if form is not None and len(form.terms) == 1 and form.terms[0][1] == 1]
    plain = isinstance(read.pad, Const) and len(names) == len(forms) == len(set(names))
    return tuple(names) if plain else ()


def _reading(
    c: Clause, padded: dict[Read, tuple[str, ...]], held: list[Value]
) -> Clause:
    """The clause with values in place of the padded reads."""
    number = {read: len(c.operands) + k for k, read in enumerate(padded)}

    def rule(e: Expr) -> Expr | None:
        if isinstance(e, Read) and e in number:
            return Read(number[e], tuple(map(Var, padded[e])))
        return None

    return replace(c, body=transform(c.body, rule), operands=(*c.operands, *held))


def _copy(op: Compute, read: Read, names: tuple[str, ...]) -> Compute:
    source, extents = op.operands[read.operand], op.extents
    return Compute(
        [source], source.type.dtype, [(v, extents[v]) for v in names], [(v,) for v in names],
        Read(0, read.subscripts, read.pad), name=source.name, loc=op.loc, stage=op.stage,
        recompute=op.recompute)
