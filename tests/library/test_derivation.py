"""What deriving everything of an op may take. The figures that are aimed at are in
`benchmarks/derivation.py`; here they are far enough above for a machine that is busy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.derivation import PER_OP, START

ROOT = Path(__file__).resolve().parents[2]
BUSY = 4


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    """In a process of its own: this one may be large, and then collecting garbage takes long."""
    done = subprocess.run([sys.executable, "-m", "benchmarks.derivation", "--json"], cwd=ROOT,
                          capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_an_op_is_derived_in_a_moment(measured: dict[str, Any]) -> None:
    totals = {each.pop("op"): sum(each.values()) for each in measured["ops"]}
    assert len(totals) > 50
    assert sum(totals.values()) / len(totals) < PER_OP
    assert {op: t for op, t in totals.items() if t > BUSY * PER_OP} == {}


def test_the_whole_library_is_checked_in_a_second(measured: dict[str, Any]) -> None:
    assert {name: seconds for name, seconds in measured["starts"].items()
            if seconds > START * (BUSY if "cold" in name else 2)} == {}
