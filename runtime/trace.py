"""What fired when: a timeline that Perfetto and chrome://tracing open.

Processes of the timeline are ranks, its threads are streams; every slice is a firing with its
micro-batch k and its step.
"""

from __future__ import annotations

import json
import os
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
    """Collects firings of all threads; appending to a list needs no lock."""

    def __init__(self) -> None:
        self.firings: list[Firing] = []

    def record(
        self, program: Program, state: ActorState, n: int, step: int, begin: float, end: float
    ) -> None:
        actor = state.actor
        kind = program.streams[actor.stream].kind
        place = (actor.name, actor.rank, actor.stream, kind)
        self.firings.append(Firing(program.name, *place, n % actor.fires, step, begin, end))

    def save(self, path: str | os.PathLike[str]) -> None:
        start = min((f.begin for f in self.firings), default=0.0)
        events = [*self._names(), *(_slice(f, start) for f in self.firings)]
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))

    def _names(self) -> list[dict[str, Any]]:
        ranks = sorted({f.rank for f in self.firings})
        streams = sorted({(f.rank, f.stream, f.kind) for f in self.firings})
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
