"""Plans, kept between compilations.

A plan is kept under the hash of everything it depends on: the program with its imports, the
settings, the mesh, the machine, and the compiler itself. The folder belongs to the user alone,
since the kernels in a plan get executed; a file appears whole or not at all, and one that is
damaged is not used, since a plan carries its own hash. The newest few are kept.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

from anabranch.ir.plan import Plan, PlanError
from anabranch.runtime.build import private_folder, writing_to
from anabranch.runtime.settings import cache_folder

KEPT = 64
LAYERS = ("ir", "frontend", "lowering", "codegen")
SUFFIXES = (".py", ".ab", ".lark", ".c", ".json")
LIBRARIES = ("highspy", "numpy", "sympy", "lark")
"""What may change a plan beside our own sources."""


def key(sources: Mapping[str, str], *settings: object) -> str:
    """The name of a plan: texts of the program by file, and all else it is made of."""
    facts = [compiler_digest(), *(text for _, text in sorted(sources.items())),
             *sorted(sources), *map(repr, settings)]
    return _hash("\0".join(facts).encode())


@functools.cache
def compiler_digest() -> str:
    """Changes with every change of the compiler and of the libraries it computes with."""
    root = Path(__file__).parent
    files = [p for layer in LAYERS for p in (root / layer).rglob("*") if p.suffix in SUFFIXES]
    files.append(root / "driver.py")
    code = [_hash(path.read_bytes()) for path in sorted(files)]
    return _hash("\0".join([sys.version, *map(version, LIBRARIES), *code]).encode())


def plan(name: str, make: Callable[[], Plan]) -> tuple[Plan, bool]:
    """The plan of this name, and whether it was there already; else it is made and kept."""
    folder = private_folder(private_folder(cache_folder()) / "plans")
    path = folder / f"{name}.plan"
    if (found := _kept(path)) is not None:
        return found, True
    made = make()  # outside of any handler: what is wrong with the program is all that is shown
    with writing_to(folder):
        made.save(path)
        _forget_old(folder)
    return made, False


def _kept(path: Path) -> Plan | None:
    try:
        found = Plan.load(path)
    except (OSError, PlanError):
        return None
    with contextlib.suppress(OSError):  # of a cache that can only be read nothing is forgotten
        path.touch()
    return found


def _forget_old(folder: Path) -> None:
    """Another process may forget the same files at the same time."""
    ages = {}
    for path in folder.glob("*.plan"):
        try:
            ages[path] = path.stat().st_mtime
        except FileNotFoundError:
            continue
    for path in sorted(ages, key=lambda p: ages[p])[:-KEPT]:
        path.unlink(missing_ok=True)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
