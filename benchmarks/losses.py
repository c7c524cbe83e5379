"""First losses of W1 under many meshes, against plain torch with the same weights and batches.

    python -m benchmarks.losses [--steps 50] [--only data=2] [--drop 0.1] [--json]

A run is a program (w1: planned freely, w1_pinned: layouts written down), a mesh and a number of
micro-batches. Without dropout the peer is torch; with it, our own run on one rank, since torch
draws other masks. Printed are the worst relative difference, the transfers of a step, and the
layouts that occur.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from anabranch.cli.options import mesh_of
from anabranch.driver import Compiled, Options, compile_training
from anabranch.frontend.program import load
from anabranch.ir.core import Module
from anabranch.ir.plan import Plan
from anabranch.runtime.session import Session
from benchmarks.training import batches, torch_stepper

FOLDER = Path(__file__).parent
RUNS = [
    ("w1", "", 1), ("w1", "data=2", 1), ("w1", "model=2", 1), ("w1", "data=2,model=2", 1),
    ("w1", "stage=2", 2), ("w1", "data=3", 1), ("w1", "", 4), ("w1", "data=2,stage=2", 2),
    ("w1_pinned", "data=2", 1), ("w1_pinned", "model=2", 1), ("w1_pinned", "data=2,model=2", 1),
    ("w1_pinned", "data=3", 1), ("w1_pinned", "data=2", 4),
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run gave."""

    program: str
    mesh: str
    micro: int
    worst: float
    transfers: dict[str, int]
    layouts: dict[str, int]
    pinned: list[str]
    compile_seconds: float
    step_seconds: float


def run(program: str, mesh: str, micro: int, steps: int, drop: float,
        weights: dict[str, np.ndarray]) -> tuple[list[float], Compiled, float, float]:
    """(losses, program, compile seconds, seconds a step); fills `weights` if it is empty."""
    begin = time.perf_counter()
    shape = mesh_of(mesh)
    training = load(FOLDER / f"{program}.ab").training(
        overrides={"drop": drop}, stages=shape.stages)
    made = compile_training(training, Options(mesh=shape, micro=micro))
    compiled = time.perf_counter()
    losses = []
    with Session(made.plan) as session:
        session.run("init", 1)
        if not weights:
            weights.update({name: session.state(name) for name in session.states()})
        session.load_states(weights)
        start = time.perf_counter()
        for step, batch in enumerate(batches(steps)):
            losses.append(float(session.step("train", batch, step)["loss"]))
        seconds = (time.perf_counter() - start) / steps
    return losses, made, compiled - begin, seconds


def compare(losses: list[float], expected: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))


def layouts_of(module: Module) -> dict[str, int]:
    """How many values of the training step have each SBP entry on some axis."""
    layouts = [r.type.layout for op in module.functions["train"].body for r in op.results]
    return dict(Counter(str(e) for layout in layouts if layout for e in set(layout.sbps())))


def forced_by_pins(program: str, module: Module) -> list[str]:
    """The states whose layout the source writes down, with what they got."""
    source = load(FOLDER / f"{program}.ab").training().module.functions["train"]
    pinned = {a.value.name for a in source.arguments if a.pin}
    planned = module.functions["train"].arguments
    return [f"{a.value.name} {a.value.type.layout}" for a in planned if a.value.name in pinned]


def transfers_of(plan: Plan) -> dict[str, int]:
    train = plan.program("train")
    return dict(Counter(a.transfer.op for a in train.actors if a.transfer is not None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--only", help="just the runs on this mesh")
    parser.add_argument("--drop", type=float, default=0.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    weights: dict[str, np.ndarray] = {}
    expected, *_ = run("w1", "", 1, options.steps, options.drop, weights)
    if not options.drop:
        parameters = {n: w for n, w in weights.items() if not n.startswith("optimizer.")}
        step = torch_stepper(parameters)
        expected = [step(batch) for batch in batches(options.steps)]
    outcomes = []
    for program, mesh, micro in RUNS:
        if options.only is not None and mesh != options.only:
            continue
        losses, made, compiled, seconds = run(
            program, mesh, micro, options.steps, options.drop, weights)
        module = made.boxed["train"]
        outcome = Outcome(program, mesh, micro, compare(losses, expected),
                          transfers_of(made.plan), layouts_of(module),
                          forced_by_pins(program, module), compiled, seconds)
        outcomes.append(outcome)
        print(json.dumps({k: getattr(outcome, k) for k in outcome.__slots__}), flush=True)
    if not options.json:
        show(outcomes, options)


def show(outcomes: list[Outcome], options: argparse.Namespace) -> None:
    table = Table(title=f"{options.steps} losses, dropout {options.drop}")
    for name in ("program", "mesh", "micro", "worst", "transfers", "layouts"):
        table.add_column(name)
    for o in outcomes:
        table.add_row(o.program, o.mesh or "1 rank", str(o.micro), f"{o.worst:.1e}",
                      str(o.transfers), str(o.layouts))
    Console(width=140).print(table)
    assert all(o.worst < 1e-4 for o in outcomes), "losses differ by more than 1e-4"


if __name__ == "__main__":
    main()
