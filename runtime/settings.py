"""Every environment variable the runtime reads, in one place.

ANABRANCH_CACHE    folder of compiled kernels          (default: ~/.cache/anabranch)
ANABRANCH_CC       the C compiler; "none" for no compiler  (default: cc, clang, gcc or ziglang)
ANABRANCH_THREADS  cores a process may keep busy       (default: its share of those it may run on)
LOCAL_WORLD_SIZE   processes that share this machine   (set by torchrun)
"""

from __future__ import annotations

import os
from pathlib import Path

from anabranch.runtime.errors import RuntimeFailure


def cache_folder() -> Path:
    if chosen := os.environ.get("ANABRANCH_CACHE"):
        return Path(chosen)
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise RuntimeFailure("this user has no home folder: set ANABRANCH_CACHE") from None
    return base / "anabranch"


def compiler_command() -> str:
    return os.environ.get("ANABRANCH_CC", "")


def cores() -> int:
    chosen = os.environ.get("ANABRANCH_THREADS")
    if chosen:
        return max(1, _integer("ANABRANCH_THREADS", chosen))
    affinity = getattr(os, "sched_getaffinity", None)
    usable = len(affinity(0)) if affinity else os.cpu_count() or 1
    sharing = _integer("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, usable // max(1, sharing))


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise RuntimeFailure(f"{name} is an integer, not {text!r}") from None
