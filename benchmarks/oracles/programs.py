"""The programs of a case: its call, its arguments laid out as a placement says, its gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anabranch.frontend.program import loads
from anabranch.gradient_check import copied, weighted_sum
from anabranch.ir.core import Function
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Gradient, Return
from anabranch.ir.sbp import Layout, S, Sbp, layout_on
from anabranch.ir.types import is_float
from benchmarks.oracles.cases import Array, Case
from benchmarks.oracles.contract import Operand
from benchmarks.oracles.placements import EXACT_TERMS, ONE, Placement, terms

FILE = "oracle.ab"


def text(case: Case, placement: Placement | None = None) -> str:
    """The case as a program in our language."""
    parameters, lines = [], []
    for place, operand in enumerate(case.operands):
        entries = () if placement is None else placement.arguments[place]
        parameter, more = _parameter(operand, placement.mesh if placement else ONE, entries)
        parameters.append(parameter)
        lines += more
    call = case.text.splitlines()
    if not call[-1].lstrip().startswith("return"):
        call[-1] = f"return {call[-1]}"
    body = "\n".join(f"    {line}" for line in (*lines, *call))
    return f"def f({', '.join(parameters)}):\n{body}\n"


def _parameter(operand: Operand, mesh: Mesh, entries: Sequence[Sbp]) -> tuple[str, list[str]]:
    """A parameter with its type and layout, and the statement that makes the argument of it."""
    if not entries:
        return _typed(operand, operand.shape, None), []
    if not any(entry.kind == "P" for entry in entries):
        return _typed(operand, operand.shape, layout_on(mesh, entries)), []
    layout = layout_on(mesh, entries)
    if operand.dtype not in EXACT_TERMS:
        return _typed(operand, operand.shape, None), [f"{operand} = to({operand}, {layout})"]
    extra = _parts(mesh, entries)
    places = iter(range(len(extra)))
    own = [S(next(places)) if e.kind == "P" else S(e.dim + len(extra)) if e.kind == "S" else e
           for e in entries]
    axes = ", ".join(map(str, range(len(extra))))
    whole = f"{operand} = to(sum({operand}, axis=({axes},)), {layout})"
    return _typed(operand, (*extra, *operand.shape), layout_on(mesh, own)), [whole]


def _parts(mesh: Mesh, entries: Sequence[Sbp]) -> tuple[int, ...]:
    return tuple(size for size, entry in zip(mesh.sizes, entries, strict=True)
                 if entry.kind == "P")


def _typed(operand: Operand, shape: Sequence[int], layout: Layout | None) -> str:
    sizes = ", ".join(map(str, shape))
    return f"{operand}: {operand.dtype}[{sizes}]{f' @ {layout}' if layout else ''}"


def feeds(case: Case, placement: Placement | None = None) -> dict[str, Array]:
    """The arrays that such a program takes, with the weights of its results."""
    random = np.random.default_rng(0)
    found: dict[str, Array] = {}
    for place, operand in enumerate(case.operands):
        found[operand.name] = operand.value
        if placement is not None and operand.dtype in EXACT_TERMS:
            extra = _parts(placement.mesh, placement.arguments[place])
            found[operand.name] = terms(operand.value, extra, random) if extra else operand.value
    if case.gradients:
        found |= {f"weight{n}": weight for n, weight in enumerate(case.upstream)}
    return found


def function(case: Case, placement: Placement | None = None) -> Function:
    """The function of a case, as the front end makes it. Raises `UserError`."""
    made = loads(text(case, placement), FILE).function(
        "f", training=case.training).functions["f"]
    return with_gradients(made, list(case.gradients)) if case.gradients else made


def with_gradients(made: Function, by: Sequence[str]) -> Function:
    """The function with, after its results, the gradients of their weighted sum."""
    copy, _ = copied(made)
    end = copy.body.last
    assert isinstance(end, Return)
    end.erase()
    results = list(end.values)
    values = {v.name: v for v in copy.body.args}
    floats = [v for v in results if is_float(v.type.dtype)]
    if floats:
        total, _ = weighted_sum(copy, floats, np.random.default_rng(0))
        results += copy.body.append(Gradient(total, [values[name] for name in by])).results
    copy.body.append(Return(results))
    return copy

