"""ONNX's tests of its nodes as cases: one node, its inputs, and the outputs that are right.

Left out are tests of nodes written out in others, and those whose inputs or outputs are no arrays
of ordinary numbers (but texts, sequences, floats of 8 bits). What ONNX passes as an input but is
known when compiling for us (a shape, axes, a number of classes) is the adapter's to read from the
value of its operand.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

from anabranch.ir.sbp import B, S
from benchmarks.oracles import all_adapters  # noqa: F401 - registers them
from benchmarks.oracles.cases import TOLERANCES, Array, Case, Refusal, Wanted
from benchmarks.oracles.contract import (
    DRAWN,
    NODES,
    Operand,
    Unsupported,
    dtype_name,
    mentioned,
)
from benchmarks.oracles.placements import MESHES, Placement

NOISE = {"f32": 1e-6, "f16": 5e-4}  # how far off outputs are that were computed so themselves


@dataclass(frozen=True, slots=True)
class Test:
    """A test of one node."""

    name: str
    node: Any
    inputs: list[Array]
    outputs: list[Array]
    rtol: float
    atol: float


@functools.cache
def tests() -> dict[str, list[Test]]:
    """The tests of one node, by its type."""
    found: dict[str, list[Test]] = {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        loaded = load_model_tests(kind="node")
    for test in loaded:
        inputs, outputs = ([_array(a) for a in side] for side in test.data_sets[0])
        if "_expanded" not in test.name and all(a is not None for a in (*inputs, *outputs)):
            node = test.model.graph.node[0]
            found.setdefault(node.op_type, []).append(
                Test(test.name, node, inputs, outputs, test.rtol, test.atol))
    return found


def _array(given: Any) -> Any:
    """Numbers as an array, or None."""
    if isinstance(given, TensorProto):
        given = numpy_helper.to_array(given)
    if not isinstance(given, np.ndarray | np.generic):
        return None
    ordinary = given.dtype.kind in "fiub" and "float8" not in str(given.dtype)
    return np.asarray(given) if ordinary or _is_bf16(given) else None


def _is_bf16(array: Any) -> bool:
    return str(array.dtype) == "bfloat16"


def cases(kind: str) -> Iterator[Case | Refusal]:
    """The cases of a type of node."""
    for test in tests()[kind]:
        try:
            text, operands = written(test)
            wanted = tuple(_wanted(o, test) for o in test.outputs)
        except Unsupported as error:
            yield Refusal(test.name, str(error))
            continue
        case = Case(test.name, text, operands, wanted)
        yield case if kind not in DRAWN else replace(
            case, results=(), training=True, drawn=partial(_with_draws, test, case))


def _with_draws(test: Test, case: Case, found: Sequence[Array]) -> Case:
    """What is right for these draws, and would be the test's own for others."""
    made = DRAWN[test.node.op_type](found, *test.inputs, **_attributes(test.node))
    right = [array for array, _ in zip(made, case.results, strict=False)]
    return replace(case, training=True, results=tuple(_wanted(array, test) for array in right))


def written(test: Test) -> tuple[str, tuple[Operand, ...]]:
    """The node as text, over the operands that the text mentions."""
    node, adapter = test.node, NODES[test.node.op_type]
    given = enumerate(test.inputs)
    operands: list[Operand | None] = []
    for name in node.input:
        number, array = next(given) if name else (0, None)
        operands.append(None if array is None else Operand(
            f"x{number}", array.shape, dtype_name(array.dtype), _plain_floats(array)))
    attributes = _attributes(node)
    if "outputs" in inspect.signature(adapter).parameters:
        attributes["outputs"] = [bool(name) for name in node.output]
    text = adapter(*operands, **attributes)
    return text, tuple(o for o in operands if o is not None and mentioned(o.name, text))


def _attributes(node: Any) -> dict[str, Any]:
    return {a.name: _plain(helper.get_attribute_value(a)) for a in node.attribute}


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _plain_floats(array: Array) -> Array:
    """bf16, which NumPy lacks, in f32."""
    return array.astype(np.float32) if _is_bf16(array) else array


def _wanted(given: Array, test: Test) -> Wanted:
    dtype, array = dtype_name(given.dtype), _plain_floats(given)
    if dtype not in TOLERANCES:
        return Wanted(array, dtype)
    relative, absolute = TOLERANCES[dtype]
    loose = NOISE.get(dtype, absolute)
    return Wanted(array, dtype, max(test.rtol, relative), max(test.atol, loose))


def placements(case: Case) -> list[Placement]:
    """Two ranks, the first input split along each of its dimensions."""
    if not case.operands:
        return []
    first, *others = case.operands
    return [Placement(MESHES[0], ((S(d),), *(((B,),) * len(others)))) for d in range(first.ndim)]
