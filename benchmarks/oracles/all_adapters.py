"""Importing this registers every adapter: each module here called `adapters_*` or `nodes_*`."""

from __future__ import annotations

import importlib
from pathlib import Path

for _path in sorted(Path(__file__).parent.glob("*.py")):
    if _path.stem.startswith(("adapters_", "nodes_")):
        importlib.import_module(f"benchmarks.oracles.{_path.stem}")
