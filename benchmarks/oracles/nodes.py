"""ONNX's tests of its nodes as cases: one node, its inputs, and the outputs that are right.

Left out are tests of nodes written out in others, and those whose inputs or outputs are no arrays
of numbers. What ONNX passes as an input but is known when compiling for us (a shape, axes, a
number of classes) is the adapter's to read from the value of its operand.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import helper
from onnx.backend.test.loader import load_model_tests

from anabranch.ir.sbp import B, S
from benchmarks.oracles import all_adapters  # noqa: F401 - registers them
from benchmarks.oracles.cases import TOLERANCES, Case, Refusal, Wanted
from benchmarks.oracles.contract import NODES, Operand, Unsupported, dtype_name
from benchmarks.oracles.placements import MESHES, Placement

NOISE = 1e-6  # of f32: outputs were computed in f32 themselves


@functools.cache
def tests() -> dict[str, list[Any]]:
    """The tests of one node, by its type."""
    found: dict[str, list[Any]] = {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        loaded = load_model_tests(kind="node")
    for test in loaded:
        if "_expanded" not in test.name and _has_arrays(test):
            found.setdefault(test.model.graph.node[0].op_type, []).append(test)
    return found


def _has_arrays(test: Any) -> bool:
    arrays = [a for inputs, outputs in test.data_sets for a in (*inputs, *outputs)]
    return all(isinstance(a, np.ndarray | np.generic) and a.dtype.kind in "fiub" for a in arrays)


def cases(kind: str) -> Iterator[Case | Refusal]:
    """The cases of a type of node."""
    for test in tests()[kind]:
        inputs, outputs = test.data_sets[0]
        try:
            text, operands = written(kind, test, inputs)
            wanted = tuple(_wanted(np.asarray(o), test) for o in outputs)
        except Unsupported as error:
            yield Refusal(test.name, str(error))
            continue
        yield Case(test.name, text, operands, wanted)


def written(kind: str, test: Any, inputs: list[Any]) -> tuple[str, tuple[Operand, ...]]:
    """The node as text, over the operands that the text mentions."""
    node = test.model.graph.node[0]
    given = iter(zip(range(len(inputs)), inputs, strict=True))
    operands: list[Operand | None] = []
    for name in node.input:
        number, array = next(given) if name else (0, None)
        operands.append(None if array is None else Operand(
            f"x{number}", array.shape, dtype_name(array.dtype), np.asarray(array)))
    attributes = {a.name: _plain(helper.get_attribute_value(a)) for a in node.attribute}
    if "outputs" in inspect.signature(NODES[kind]).parameters:
        attributes["outputs"] = [bool(name) for name in node.output]
    text = NODES[kind](*operands, **attributes)
    return text, tuple(o for o in operands if o is not None and _mentioned(o.name, text))


def _mentioned(name: str, text: str) -> bool:
    words = "".join(c if c.isalnum() or c == "_" else " " for c in text).split()
    return name in words


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _wanted(array: Any, test: Any) -> Wanted:
    dtype = dtype_name(array.dtype)
    if dtype not in TOLERANCES:
        return Wanted(array, dtype)
    relative, absolute = TOLERANCES[dtype]
    loose = NOISE if dtype == "f32" else absolute
    return Wanted(array, dtype, max(test.rtol, relative), max(test.atol, loose))


def placements(case: Case) -> list[Placement]:
    """Two ranks, the first input split along each of its dimensions."""
    if not case.operands:
        return []
    first, *others = case.operands
    return [Placement(MESHES[0], ((S(d),), *(((B,),) * len(others)))) for d in range(first.ndim)]
