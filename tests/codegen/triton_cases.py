"""The ops whose kernels are printed for Triton: those of whole training steps, with operands.

A step is walked op by op with the reference evaluator, so that operands are what they are in
training. A transfer gives what its operand has, in the shape it needs: the kernels of one rank are
what is looked at here, not what ranks tell each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anabranch.codegen.emit import structure
from anabranch.codegen.tile import clauses_of, inputs_of
from anabranch.driver import Options, lower
from anabranch.frontend.program import loads
from anabranch.ir.core import Function, Module, Op
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Compute, Fused, Return, Transfer
from anabranch.ir.reference import evaluate_op

Array = np.ndarray[Any, Any]
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = {"dim": 20, "heads": 2, "depth": 2, "context": 11, "vocab": 37}  # nothing divides a block


@dataclass(frozen=True)
class Case:
    """An op, and arrays for its operands."""

    op: Op
    operands: tuple[Array, ...]


def steps(mesh: Mesh, sizes: Mapping[str, object], batch: int) -> list[Module]:
    """The fused training step of W1 on every rank; with its layout pinned where there are some."""
    path = BENCHMARKS / ("w1.ab" if mesh.ranks == 1 else "w1_pinned.ab")
    text = path.read_text()
    assert "batch=8" in text
    program = loads(text.replace("batch=8", f"batch={batch}"), str(path))
    return [
        lower(program.training(None, dict(sizes)).module, "train", Options(mesh), stage="fused",
              rank=rank)
        for rank in range(mesh.ranks)
    ]


def cases(modules: Sequence[Module], seed: int = 0) -> Iterator[Case]:
    """Each op of different structure once, with operands."""
    seen: set[object] = set()
    for module in modules:
        for function in module.functions.values():
            for op, operands in _walk(function, np.random.default_rng(seed)):
                if not isinstance(op, (Compute, Fused)):
                    continue
                clauses, outputs = clauses_of(op)
                key = structure(clauses, inputs_of(op), outputs)
                if key not in seen:
                    seen.add(key)
                    yield Case(op, operands)


def _walk(function: Function, rng: np.random.Generator) -> Iterator[tuple[Op, tuple[Array, ...]]]:
    known = {a.value: _argument(a.value.type.shape, a.value.type.dtype, a.value.name, rng)
             for a in function.arguments}
    for op in function.body:
        if isinstance(op, Return):
            continue
        operands = tuple(known[v] for v in op.operands)
        yield op, operands
        if isinstance(op, Transfer):
            results = [np.resize(operands[0] if operands else np.ones(1, np.float32),
                                 r.type.shape) for r in op.results]
        else:
            results = evaluate_op(op, operands)
        known.update(zip(op.results, results, strict=True))


def _argument(shape: tuple[int, ...], dtype: str, name: str, rng: np.random.Generator) -> Array:
    """Tokens and other integers are small; what is a mean of squares is positive."""
    if dtype == "i64":
        values = rng.integers(0, 16, shape)
        return np.where(rng.random(shape) < 0.1, -100, values) if name == "targets" else values
    values = rng.standard_normal(shape).astype(np.float32)
    return np.abs(values) if name.endswith(".v") else values
