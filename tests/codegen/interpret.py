"""Runs kernels in Triton's interpreter, in a process of its own: `python -m ... NAME`.

Prints a line of JSON for every op: its kernels, how many programs ran, and the greatest error
against the reference, in units of the tolerance.
"""

from __future__ import annotations

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from triton.runtime import interpreter

from anabranch.codegen.emit import TARGETS, emit
from anabranch.codegen.triton import print_piece
from anabranch.ir.mesh import Mesh
from anabranch.ir.reference import evaluate_op
from tests.codegen.triton_cases import SMALL, Case, cases, steps
from tests.codegen.triton_memory import run

PROGRAMS = 8  # at most, for the interpreter takes milliseconds for each
FEW = replace(TARGETS["triton"], print=partial(print_piece, most=PROGRAMS))
TOLERANCE = 3e-5  # of f32 sums of some hundred terms, in another order than the reference


def mend_interpreter() -> None:
    """The interpreter forgets that a comparison of scalars is a condition when it repeats it."""

    def splat(self: Any, kind: Any, arg: Any) -> Any:
        return interpreter.TensorHandle(np.full(kind.shape, arg.data), arg.dtype.scalar)

    interpreter.InterpreterBuilder.create_splat = splat


def error(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> float:
    """The greatest difference over what may be expected; infinite where one is nan."""
    if found.size == 0:
        return 0.0
    if not np.issubdtype(wanted.dtype, np.floating):
        return 0.0 if np.array_equal(found, wanted) else float("inf")
    if not np.array_equal(np.isnan(found), np.isnan(wanted)):
        return float("inf")
    with np.errstate(invalid="ignore"):
        gap = np.where(found == wanted, 0.0, np.abs(found.astype(np.float64) - wanted))
    scale = 0.1 * np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-30) + np.abs(wanted)
    return float(np.nanmax(gap / (TOLERANCE * scale), initial=0.0))


def checked(case: Case) -> dict[str, object]:
    specs = emit(case.op, FEW)
    outcome = run(case.op, case.operands, specs)
    wanted = evaluate_op(case.op, case.operands)
    return {
        "kernels": [s.kernel.symbol for s in specs],
        "programs": max(s.tiles for s in specs),
        "status": outcome.status[0],
        "error": max(error(f, w) for f, w in zip(outcome.results, wanted, strict=True)),
    }


def main(drop: str, mesh: str) -> None:
    mend_interpreter()
    axes = dict(pair.split("=") for pair in mesh.split(",") if pair)
    sizes = {**SMALL, "drop": float(drop)}
    modules = steps(Mesh.of(**{k: int(v) for k, v in axes.items()}), sizes, batch=3)
    for case in cases(modules):
        print(json.dumps(checked(case)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
