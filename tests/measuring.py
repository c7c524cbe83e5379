"""CPU seconds of a piece of work in a test, as on the machine for which the budgets were set."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

USUAL_SECONDS = 0.0105  # what `_usual_work` takes there, on an idle core


def cpu_seconds(work: Callable[[], object]) -> float:
    """What a call takes. What tests before it have left on the heap is set aside for good: to look
    through all that takes seconds, and happens at any time."""
    gc.collect(1)
    gc.freeze()
    before = slowness()
    taken = _cpu_seconds(work)
    return taken / max(before, slowness())


def slowness() -> float:
    """How much longer than there this machine takes now, be it a slow or a busy one; at least 1."""
    return max(1.0, min(_cpu_seconds(_usual_work) for _ in range(5)) / USUAL_SECONDS)


def _cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _usual_work() -> None:
    """What a compiler does all day: it makes objects, hashes, looks up and sorts."""
    made = {str(i): (i, [i]) for i in range(20_000)}
    sum(len(key) + value[0] for key, value in sorted(made.items()))
