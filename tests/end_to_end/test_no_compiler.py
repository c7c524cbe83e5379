"""A machine without a C compiler trains the same, slowly, and says so once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import TINY, Train

ROOT = Path(__file__).resolve().parents[2]


def loss_of(report: dict[str, Any]) -> float:
    return float(Path(report["loss_curve"]).read_text().splitlines()[-1].split(",")[1])


def test_training_without_a_compiler_warns_once_and_gives_the_same_losses(
    trained: Train, workplace: Path, corpus: Path
) -> None:
    environment = {**os.environ, "ANABRANCH_CC": "none", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "anabranch", "train", str(TINY), "--data", str(corpus)]
    done = subprocess.run([*command, "--json", "--steps", "3"], env=environment, cwd=workplace,
                          capture_output=True, text=True, check=True)
    assert done.stderr.count("warning: no C compiler was found") == 1
    slow = json.loads(done.stdout.splitlines()[-1])
    assert loss_of(slow) == pytest.approx(loss_of(trained("--steps", "3")), rel=1e-5)
