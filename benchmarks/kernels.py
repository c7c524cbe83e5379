"""Where a training step's time goes: every launch of a program's chains, measured and predicted.

    python -m benchmarks.kernels benchmarks/w1.ab [--data PATH] [--repeat 5] [--top 30]

Each launch runs alone, in the order of the chain, on the memory of a live session; the minimum of
the repetitions counts. The predicted column is what the planner believed.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from anabranch.cli.options import mesh_of
from anabranch.driver import Options, compile_training
from anabranch.frontend.program import load
from anabranch.ir.plan import Launch, Plan
from anabranch.lowering.machine import CPU2
from anabranch.runtime.chain import Chain
from anabranch.runtime.data import make_reader
from anabranch.runtime.kernels import NativeKernel
from anabranch.runtime.native import LAUNCH
from anabranch.runtime.session import Session


@dataclass(frozen=True, slots=True)
class Timing:
    """One launch: the kernel's symbol, where it is from, seconds."""

    launch: Launch
    symbol: str
    place: str
    seconds: float


def measure(plan: Plan, chain: Chain, repeat: int, abort_flag: int) -> list[Timing]:
    """The launches of a chain that has run at least once."""
    timings = []
    for part in next(iter(chain._variants.values())):
        first = chain.binding.kernels[part.launches[0].kernel]
        assert isinstance(first, NativeKernel)
        best = [float("inf")] * len(part.launches)
        for _ in range(repeat):
            for i in range(len(part.launches)):
                start = time.perf_counter()
                first.pool.run_chain(part.table.ctypes.data + i * LAUNCH.itemsize, 1,
                                     part.status.ctypes.data, abort_flag)
                best[i] = min(best[i], time.perf_counter() - start)
        for launch, seconds in zip(part.launches, best, strict=True):
            symbol = plan.kernels[launch.kernel].symbol
            timings.append(Timing(launch, symbol, str(plan.locs[launch.loc]), seconds))
    return timings


def predicted(launch: Launch, plan: Plan) -> float:
    contraction = plan.kernels[launch.kernel].kind == "library"
    return CPU2.work_seconds(launch.flops, launch.bytes, contraction=contraction)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("file")
    parser.add_argument("--data", help="for a reader that needs some")
    parser.add_argument("--mesh", default="")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--top", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    training = load(options.file).training()
    plan = compile_training(training, Options(mesh=mesh_of(options.mesh))).plan
    reader = make_reader(
        training.reader.name, options.data, 0, dict(training.reader.arguments))
    with Session(plan, cores=options.threads) as session:
        session.run("init", 1)
        for step in range(2):
            session.step("train", reader.batch(step), step)
        chains = session._engines["train"]._chains.values()
        flag = session._failure.flag_address
        timings = [t for chain in chains for t in measure(plan, chain, options.repeat, flag)]
    report(plan, timings, options.top)


def report(plan: Plan, timings: list[Timing], top: int) -> None:
    groups: dict[str, list[Timing]] = defaultdict(list)
    for timing in timings:
        groups[timing.symbol].append(timing)
    total = sum(t.seconds for t in timings)
    table = Table(title=f"{len(timings)} launches, {1e3 * total:.1f} ms")
    for name in ("kernel", "launches", "ms", "predicted ms", "GFLOP/s", "GB/s", "from"):
        table.add_column(name, justify="left" if name in ("kernel", "from") else "right")
    rows = sorted(groups.items(), key=lambda item: -sum(t.seconds for t in item[1]))
    for symbol, members in rows[:top]:
        seconds = sum(t.seconds for t in members)
        table.add_row(
            symbol, str(len(members)), f"{1e3 * seconds:.2f}",
            f"{1e3 * sum(predicted(t.launch, plan) for t in members):.2f}",
            f"{sum(t.launch.flops for t in members) / seconds / 1e9:.1f}",
            f"{sum(t.launch.bytes for t in members) / seconds / 1e9:.1f}", members[0].place)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
