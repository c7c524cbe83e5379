"""Two pipeline stages with 1, 2 and 3 slots: the simulated and the measured step of W1.

    python -m benchmarks.pipeline [--micro 4] [--steps 6]

Sessions of all three are alive at once and take turns, so that noise meets them alike. Losses must
be equal bit for bit.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time

from rich.console import Console
from rich.table import Table

from anabranch.driver import Options, compile_training
from anabranch.frontend.program import load
from anabranch.ir.mesh import Mesh
from anabranch.ir.plan import Plan
from anabranch.runtime.session import Session
from benchmarks.training import SOURCE, batches


def plan_with(slots: int, micro: int) -> Plan:
    training = load(SOURCE).training(stages=2)
    return compile_training(training, Options(Mesh.of(stage=2), micro=micro, slots=slots)).plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--micro", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    plans = {slots: plan_with(slots, options.micro) for slots in (1, 2, 3)}
    seconds: dict[int, list[float]] = {slots: [] for slots in plans}
    losses: dict[int, list[float]] = {slots: [] for slots in plans}
    with contextlib.ExitStack() as stack:
        sessions = {s: stack.enter_context(Session(plan)) for s, plan in plans.items()}
        for session in sessions.values():
            session.run("init", 1)
        for step, batch in enumerate(batches(options.steps)):
            for slots, session in sessions.items():
                start = time.perf_counter()
                losses[slots].append(float(session.step("train", batch, step)["loss"]))
                seconds[slots].append(time.perf_counter() - start)
    assert losses[1] == losses[2] == losses[3], "slots changed a value"
    table = Table(title=f"W1, stage=2, micro={options.micro}")
    for name in ("slots", "simulated s", "measured s", "peak MB"):
        table.add_column(name, justify="right")
    for slots, plan in plans.items():
        program = plan.program("train")
        table.add_row(str(slots), f"{program.seconds:.3f}",
                      f"{statistics.median(seconds[slots][1:]):.3f}",
                      f"{sum(program.peak) / 1e6:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
