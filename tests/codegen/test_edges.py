"""No kernel reads beside its tensors, whatever the compiler makes of a condition around a read."""

from __future__ import annotations

import subprocess
import sys


def test_nothing_is_read_beside_a_tensor() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.codegen.edges"], capture_output=True,
                          text=True, check=False, timeout=250)
    last = done.stdout.splitlines()[-1:]
    assert done.returncode == 0, f"{last} ended with {done.returncode}: {done.stderr[-2000:]}"
