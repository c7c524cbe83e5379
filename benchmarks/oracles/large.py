"""Calls that need gigabytes, with places beyond what 32 bits count. Only the full run has them."""

from __future__ import annotations

import numpy as np

from anabranch.ir.sbp import B, S
from benchmarks.oracles.cases import Case, wanted
from benchmarks.oracles.contract import Operand
from benchmarks.oracles.placements import MESHES, Placement

ROWS, COLUMNS, ROW = 262_144, 8_960, 255_999
SECONDS = 300.0
NAMES = ("embedding",)


def embedding() -> tuple[Case, list[Placement]]:
    """Rows of a table of 2.3 GB, one past the 2**31st element; also with the table split."""
    table = np.zeros((ROWS, COLUMNS), np.int8)
    table[ROW] = 7
    ids = np.array([0, ROW])
    operands = (Operand("x0", ids.shape, "i64", ids), Operand("x1", table.shape, "i8", table))
    case = Case("embedding of 2.3 GB", "embedding(x0, x1)", operands, (wanted(table[ids], "i8"),))
    return case, [Placement(MESHES[0], ((B,), (S(0),)))]
