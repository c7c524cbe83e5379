"""Seconds to compile a 12-layer GPT-2-small training step for a 2x2 mesh, cold and warm.

    python -m benchmarks.compile_time [--depth 12] [--mesh data=2,model=2]

Each measurement is a process of its own with an empty cache folder, then the same again with the
cache it left. Nothing runs, and the kernels' C is
not compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

SIZES = ["vocab=50257", "context=1024", "dim=768", "heads=12"]
SOURCE = Path(__file__).with_name("w1.ab")


def measure(depth: int, mesh: str, cache: str) -> dict[str, float]:
    """Seconds by pass, and the whole process under `process`."""
    sizes = {name: int(value) for name, _, value in (x.partition("=") for x in SIZES)}
    code = (f"import anabranch as ab; from anabranch.cli.options import mesh_of; "
            f"ab.compile(ab.load({str(SOURCE)!r}).train, mesh=mesh_of({mesh!r}), "
            f"set={sizes | {'depth': depth}!r})")
    command = [sys.executable, "-c", code]
    start = time.perf_counter()
    done = subprocess.run(command, env={**os.environ, "ANABRANCH_CACHE": cache}, text=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    print(done.stderr, file=sys.stderr)
    return {"process": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--mesh", default="data=2,model=2")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        cold = measure(options.depth, options.mesh, cache)
        warm = measure(options.depth, options.mesh, cache)
    if options.json:
        print(json.dumps({"cold": cold["process"], "warm": warm["process"]}))
        return
    table = Table(title=f"GPT-2 small, {options.depth} layers, {options.mesh}")
    table.add_column("cache")
    table.add_column("seconds", justify="right")
    table.add_row("cold", f"{cold['process']:.2f}")
    table.add_row("warm", f"{warm['process']:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
