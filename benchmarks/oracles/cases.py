"""A case: one call of an operator, in our language, with the results that are right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.oracles.contract import Operand

Array = np.ndarray[Any, Any]

TOLERANCES = {  # those that torch's samples are compared with: relative, absolute
    "f64": (1e-7, 1e-7), "f32": (1.3e-6, 1e-5), "f16": (1e-3, 1e-5), "bf16": (1.6e-2, 1e-5),
}
OWN_ERROR = 3.0
"""How many times as far from the right result as the oracle's own computation a result may be."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A right result: exact, its dtype, and how far off one may be, relative and absolute."""

    value: Array
    dtype: str
    relative: float = 0.0
    absolute: float = 0.0

    def differs(self, found: Array) -> str:
        """What is wrong with a result, or nothing."""
        if found.shape != self.value.shape:
            return f"shape {list(found.shape)} instead of {list(self.value.shape)}"
        if not self.relative:
            same = np.equal(found, self.value)
        else:
            with np.errstate(over="ignore"):
                rounded = np.asarray(self.value, STORED[self.dtype])
            same = np.isclose(found, rounded, self.relative, self.absolute, equal_nan=True)
        if same.all():
            return ""
        place = tuple(int(i) for i in np.argwhere(~np.asarray(same))[0])
        return (f"{found[place]} instead of {self.value[place]} at {list(place)}, "
                f"{int(np.sum(~np.asarray(same)))} of {found.size} wrong")


STORED = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.float32}


def wanted(exact: Array, dtype: str, rough: Array | None = None) -> Wanted:
    """A right result; `rough` is what the oracle itself makes of it in its own dtype."""
    if dtype not in TOLERANCES:
        return Wanted(exact, dtype)
    relative, absolute = TOLERANCES[dtype]
    if rough is not None and rough.shape == exact.shape:
        with np.errstate(all="ignore"):
            error = np.abs(rough.astype(np.float64) - exact)
        absolute = max(absolute, OWN_ERROR * float(np.nanmax(
            np.where(np.isfinite(error), error, 0), initial=0)))
    return Wanted(exact, dtype, relative, absolute)


@dataclass(frozen=True, slots=True)
class Case:
    """A call and what it gives. `text` is an expression or statements; `upstream` weighs the float
    results for the gradients, which are by operand. Where a call draws random numbers, which are
    not those of the oracle, `drawn` makes of what a run gave the case whose results are right for
    the numbers drawn there. All runs draw the same."""

    name: str
    text: str
    operands: tuple[Operand, ...]
    results: tuple[Wanted, ...]
    upstream: tuple[Array, ...] = ()
    gradients: dict[str, Wanted] = field(default_factory=dict)
    training: bool = False
    drawn: Callable[[Sequence[Array]], Case] | None = None

    def arrays(self) -> dict[str, Array]:
        return {operand.name: operand.value for operand in self.operands}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A sample that an adapter has no words for, and why."""

    name: str
    reason: str
