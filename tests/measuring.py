"""CPU seconds of a piece of work in a test."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def cpu_seconds(work: Callable[[], object]) -> float:
    """What a call takes. What tests before it have left on the heap is set aside for good: to look
    through all that takes seconds, and happens at any time."""
    gc.collect(1)
    gc.freeze()
    start = time.process_time()
    work()
    return time.process_time() - start
