"""The library against oracles that others wrote, operator by operator.

    python -m benchmarks.coverage [--json] [--op NAME] [--suite opinfo|onnx|large]

Torch's samples of its operators (OpInfo), at most 20 of each, ONNX's tests of its nodes, and a
table of more elements than 32 bits count. Every sample is run by the reference evaluator, compiled
on one rank, and compiled on 2, 4 and 2x2 ranks in a dozen placements of its arguments, with
gradients; every result on every rank is compared with the oracle's (see `benchmarks/oracles`).
Printed per operator: samples that are right, refused with a message, wrong, that crashed, or hung;
and the bad calls (of those that torch refuses) that are refused too. With --json a line each: op,
right, refused, wrong, crash, hang, messages, bad.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass

from rich.console import Console

from benchmarks.oracles import large, pool
from benchmarks.oracles.judge import KINDS
from benchmarks.oracles.pool import Job
from benchmarks.oracles.wishes import NODE_TYPES, OPERATORS
from benchmarks.oracles.work import BAD, SECONDS, work

SUITES = ("opinfo", "onnx", "large")


@dataclass(frozen=True, slots=True)
class Score:
    """What became of the samples of an operator."""

    op: str
    counts: Counter[str]
    messages: tuple[str, ...]
    bad: int  # bad calls that are refused
    taken: int  # bad calls that are not

    def line(self) -> dict[str, object]:
        counts = {kind: self.counts[kind] for kind in KINDS}
        return {"op": self.op, **counts, "messages": list(self.messages), "bad": self.bad,
                "taken": self.taken}


def score(job: Job) -> Score:
    """The counts of a finished job. A bad call counts only where it ends in something else than a
    message or a result."""
    samples = [v for n, v in sorted(job.known.items()) if n < BAD]
    bad = [v for n, v in sorted(job.known.items()) if n >= BAD]
    fatal = [v for v in bad if v.kind in ("wrong", "crash", "hang")]
    taken = [f"taken: {v.message}" for v in bad if v.kind == "right"]
    messages = [f"{v.kind}: {v.message}" for v in (*samples, *fatal) if v.kind != "right"]
    name = job.name if job.suite == "opinfo" else f"{job.suite} {job.name}"
    return Score(
        name, Counter(v.kind for v in (*samples, *fatal)),
        tuple(dict.fromkeys((*messages, *taken))),
        sum(v.kind == "refused" for v in bad), len(taken))


def jobs(suites: tuple[str, ...], op: str, samples: int, placements: int) -> list[Job]:
    """What there is to judge: all, or what is called `op`, whatever its variant."""
    found = [Job("opinfo", name, samples, placements) for name in OPERATORS if "opinfo" in suites]
    found += [Job("onnx", name, samples) for name in NODE_TYPES if "onnx" in suites]
    found += [Job("large", name) for name in large.NAMES if "large" in suites]
    return [job for job in found if not op or op in (job.name, *job.name.split("."))]


def shown(one: Score) -> str:
    counts = "".join(f"{one.counts[kind]:>9}" for kind in KINDS)
    return f"{one.op:<44}{counts}{one.bad:>9}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each operator")
    parser.add_argument("--op", default="", help="one operator only")
    parser.add_argument("--suite", choices=SUITES, help="one oracle only")
    parser.add_argument("--samples", type=int, default=20, help="at most so many an operator")
    parser.add_argument("--placements", type=int, default=12, help="of the arguments of a sample")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    suites = (options.suite,) if options.suite else SUITES
    wanted = jobs(suites, options.op, options.samples, options.placements)
    if not wanted:
        sys.exit(f"there is no operator {options.op!r}")
    start = time.monotonic()
    os.environ.setdefault("ANABRANCH_THREADS", "1")
    console, total = Console(width=max(120, shutil.get_terminal_size().columns)), Counter[str]()
    if not options.json:
        console.print(f"{'':<44}" + "".join(f"{kind:>9}" for kind in (*KINDS, "bad")))
    for job in pool.run(wanted, work, options.processes, 4 * SECONDS):
        one = score(job)
        total += one.counts
        if options.json:
            print(json.dumps(one.line()), flush=True)
            continue
        console.print(shown(one), highlight=False)
        for message in one.messages[:3]:
            console.print(f"    {message}", markup=False, highlight=False)
    if not options.json:
        console.print(shown(Score("all", total, (), 0, 0)), highlight=False)
        share = 100 * total["right"] / max(1, total.total())
        console.print(f"{share:.1f} % right, {time.monotonic() - start:.0f} seconds")


if __name__ == "__main__":
    main()
