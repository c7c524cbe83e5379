"""Orders for tests: every dtype, every axis, rows with ties, nan and infinities, and no rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from anabranch.ir.core import Value
from anabranch.ir.ops import Order
from anabranch.ir.reference import convert
from anabranch.ir.types import DTYPES, is_float, tensor

ODD = (np.nan, np.inf, -np.inf, -0.0, 0.0)


@st.composite
def orders(draw: Any, longest: int = 300) -> Order:
    lengths = st.sampled_from((0, 1, 2, 5, 31, 33, 100, longest))
    shape = draw(st.lists(st.integers(0, 3), max_size=2))
    axis = draw(st.integers(0, len(shape)))
    shape.insert(axis, draw(lengths))
    most = shape[axis]
    count = draw(st.sampled_from((most, 0, min(3, most), min(most, 40), most // 2)))
    value = Value(tensor(draw(st.sampled_from(tuple(DTYPES))), tuple(shape)), "x")
    return Order(value, axis, count, descending=draw(st.booleans()), name="y")


def numbers(op: Order, seed: int = 0) -> np.ndarray[Any, Any]:
    """Few different numbers, so that there are ties, and odd ones among floats."""
    random, type = np.random.default_rng(seed), op.operands[0].type
    found = random.integers(0, 9, type.shape) - (0 if type.dtype[0] == "u" else 4)
    if is_float(type.dtype):
        odd = random.choice(ODD, type.shape)
        return convert(np.where(random.random(type.shape) < 0.2, odd, found / 2), type.dtype)
    return convert(np.asarray(found), type.dtype)
