"""What `anabranch check` says of a recipe: what its model holds, and what is known of its functions
before there are data.

States of equal layers are one line: `blocks.*.weight  f32[4, 4]  x 12`. An index that a statement
takes from a tensor is checked in every run unless a condition proves it; all other reads have been
proven to stay inside of their tensors, or the program would have been refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from anabranch.frontend.program import Training
from anabranch.ir.core import Function
from anabranch.ir.expr import Call, walk
from anabranch.ir.ops import Compute, nested
from anabranch.ir.plan import ADDED
from anabranch.ir.types import TensorType

State = tuple[str, TensorType]


def describe(training: Training) -> Iterator[str]:
    """Lines about the model, then one for each function."""
    own = [state for state in training.states if not _is_added(state)]
    yield f"{_total(own)} of the model:"
    yield from (f"  {line}" for line in _grouped(own))
    if added := [state for state in training.states if _is_added(state)]:
        yield f"{_total(added)} of training: the state of optimizers, averages"
    for function in training.module.functions.values():
        yield f"{function.name}: {_known(function)}"


def _is_added(state: State) -> bool:
    return state[0].partition(".")[0] in ADDED


def _total(states: list[State]) -> str:
    numbers = sum(type_.elements for _, type_ in states)
    return f"{len(states)} tensor{'s' if len(states) > 1 else ''}, {numbers:,} numbers"


def _grouped(states: list[State]) -> list[str]:
    """A line for all states that differ in the numbers of their paths only."""
    counts: dict[State, int] = {}
    for path, type_ in states:
        shown = re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path), type_
        counts[shown] = counts.get(shown, 0) + 1
    width = max((len(path) for path, _ in counts), default=0)
    kind = max((len(str(type_)) for _, type_ in counts), default=0)
    return [f"{path:{width}}  {type_!s:{kind}}  {type_.elements:,}" + (
        f" x {count}" if count > 1 else "") for (path, type_), count in counts.items()]


def _known(function: Function) -> str:
    """What is known of the statements of a function."""
    statements = [op for op in nested(function.body) if isinstance(op, Compute)]
    lines = sorted({op.loc.line for op in statements if _checks(op)})
    shown = ", ".join(map(str, lines))
    places = f"line{'s' if len(lines) > 1 else ''} {shown}"
    checked = f"but for indices in {places}, which every run checks" if lines else "everywhere"
    return f"{len(statements)} statements; shapes and types agree; reads stay inside {checked}"


def _checks(op: Compute) -> bool:
    return any(isinstance(node, Call) and node.fn == "check"
               for root in (op.body, op.guard) if root is not None for node in walk(root))
