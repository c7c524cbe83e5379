"""CPU seconds of a piece of work in a test."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def cpu_seconds(work: Callable[[], object]) -> float:
    """What a call takes. What tests before it have left on the heap is set aside: a collection of
    all that may take seconds, and happens at any time."""
    gc.collect()
    gc.freeze()
    try:
        start = time.process_time()
        work()
        return time.process_time() - start
    finally:
        gc.unfreeze()
