"""What fired when: a timeline that Perfetto and chrome://tracing open.

Processes of the timeline are ranks, its threads are streams; every slice is a firing with its
micro-batch k and its step. Of each program the last few steps are kept, so a trace does not grow.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anabranch.ir.plan import Program
from anabranch.runtime.actor import ActorState


@dataclass(frozen=True, slots=True)
class Firing:
    """Times are seconds of one clock."""

    program: str
    name: str
    rank: int
    stream: int
    kind: str
    k: int
    step: int
    begin: float
    end: float


class Trace:
    """Collects the firings of all threads in the last `steps` steps of each program; appending to
    a deque needs no lock."""

    def __init__(self, steps: int = 8) -> None:
        self.steps = steps
        self._kept: dict[str, deque[Firing]] = {}

    def expect(self, program: Program, ranks: Iterable[int]) -> None:
        """Before a program runs: make room for the firings of these ranks."""
        per_step = sum(a.fires for a in program.actors if a.rank in set(ranks))
        self._kept[program.name] = deque(maxlen=self.steps * per_step)

    @property
    def firings(self) -> list[Firing]:
        return [firing for kept in self._kept.values() for firing in kept]

    def record(
        self, program: Program, state: ActorState, n: int, step: int, begin: float, end: float
    ) -> None:
        actor = state.actor
        kind = program.streams[actor.stream].kind
        place = (actor.name, actor.rank, actor.stream, kind)
        firing = Firing(program.name, *place, n % actor.fires, step, begin, end)
        self._kept[program.name].append(firing)

    def save(self, path: str | os.PathLike[str]) -> None:
        firings = self.firings
        start = min((f.begin for f in firings), default=0.0)
        events = [*_names(firings), *(_slice(f, start) for f in firings)]
        text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
        Path(path).write_text(text, encoding="utf-8")


def _names(firings: list[Firing]) -> list[dict[str, Any]]:
    ranks = sorted({f.rank for f in firings})
    streams = sorted({(f.rank, f.stream, f.kind) for f in firings})
    return [_name("process_name", rank, 0, f"rank {rank}") for rank in ranks] + [
        _name("thread_name", rank, stream, f"{kind} {stream}") for rank, stream, kind in streams
    ]


def _name(what: str, rank: int, stream: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": stream, "args": {"name": name}}


def _slice(firing: Firing, start: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": firing.name,
        "cat": firing.program,
        "pid": firing.rank,
        "tid": firing.stream,
        "ts": (firing.begin - start) * 1e6,
        "dur": (firing.end - firing.begin) * 1e6,
        "args": {"k": firing.k, "step": firing.step},
    }
