"""Every op of the library, found by looking: what is added to `std/*.ab` is tested without a word.

A trial of an op has sizes that its signature allows and data that it accepts. `stepped` is the
same with gradients: what a training step would compute of the op.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anabranch.frontend import syntax as s
from anabranch.frontend.evaluate import LIBRARY
from anabranch.frontend.parse import parse
from anabranch.frontend.program import Program, loads
from anabranch.frontend.values import Function, Model
from anabranch.gradient_check import copied, float_inputs, weighted_sum
from anabranch.ir.ops import Gradient, Return
from anabranch.ir.types import is_float
from anabranch.trials import Trial, usual

Array = np.ndarray[Any, Any]

FILES: Mapping[str, s.Module] = {
    path.stem: parse(path.read_text(encoding="utf-8"), str(path))
    for path in sorted(Path(LIBRARY).glob("*.ab"))
}


def defined(kind: type[s.Item]) -> Iterator[tuple[str, Any]]:
    """The definitions of a kind in the library, each with its file."""
    for file, tree in FILES.items():
        yield from ((file, item) for item in tree.items if isinstance(item, kind))


OPS: tuple[str, ...] = tuple(item.name for _, item in defined(s.OpDef))
DEFS: tuple[str, ...] = tuple(item.name for _, item in defined(s.FuncDef))
MODELS: tuple[str, ...] = tuple(item.name for _, item in defined(s.ModelDef))


@functools.cache
def library() -> Program:
    """A program that has nothing of its own."""
    return loads("", "empty.ab")


def op(name: str) -> Function:
    found = library().scope.find(name)
    assert isinstance(found, Function)
    return found


def model(name: str) -> Model:
    found = library().scope.find(name)
    assert isinstance(found, Model)
    return found


@functools.cache
def trial(name: str) -> Trial:
    """An op with sizes that do not divide, or the nearest to it that it allows."""
    found = usual(op(name))
    assert found is not None, f"no sizes or data can be made up for '{name}'"
    return found


def stepped(of: Trial) -> Trial:
    """The results of an op, then the gradients of their weighted sum by its float arguments."""
    copy, values = copied(of.function)
    last = copy.body.last
    assert isinstance(last, Return)
    last.erase()
    results = list(last.values)
    floats = [v for v in results if is_float(v.type.dtype)]
    by = [values[a.value] for a in float_inputs(of.function)]
    given: list[Array] = []
    if floats and by:
        total, weights = weighted_sum(copy, floats, np.random.default_rng(7))
        given = [np.asarray(w, np.float32) for w in weights]
        results += copy.body.append(Gradient(total, by)).results
    copy.body.append(Return(results))
    return Trial(copy, (*of.arguments, *given), of.sizes)
