"""Seconds per training step of W1, ours beside torch eager, interleaved in one run.

    python -m benchmarks.training [--steps 20] [--mesh data=2] [--json]

Both start from the same weights and see the same batches, and their losses must agree before a
time counts. The machine's ceiling is the time of the step's matrix products at the rate of one
large product, measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import anabranch
from anabranch.cli.options import mesh_of
from anabranch.driver import Options, compile_training
from anabranch.frontend.program import load
from anabranch.runtime.session import Session
from benchmarks import gpt_torch

SOURCE = Path(__file__).with_name("w1.ab")
VOCAB, CONTEXT, DIM, DEPTH, HEADS, BATCH = 256, 256, 256, 4, 8, 8
MATRIX_GFLOP = 45.0  # of a step, attention counted full


def batches(count: int) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    rows = [random.integers(0, VOCAB, (BATCH, CONTEXT + 1)) for _ in range(count)]
    return [{"tokens": r[:, :-1].copy(), "targets": r[:, 1:].copy()} for r in rows]


def torch_stepper(weights: dict[str, np.ndarray]) -> Callable[[dict[str, np.ndarray]], float]:
    model = gpt_torch.GPT(VOCAB, CONTEXT, DIM, DEPTH, HEADS)
    gpt_torch.with_weights(model, weights)
    updates = gpt_torch.optimizer(model)

    def step(batch: dict[str, np.ndarray]) -> float:
        tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
        return gpt_torch.step(model, updates, **tensors)

    return step


def ceiling_gflops(threads: int) -> float:
    """The rate of a 1024-cubed product in torch."""
    torch.set_num_threads(threads)
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    best = min(_seconds(lambda: a @ b) for _ in range(10))
    return 2 * 1024**3 / best / 1e9


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def run(steps: int, mesh: str, threads: int) -> dict[str, float]:
    """Medians of both, their ratio, the ceiling and the worst relative difference of losses."""
    torch.set_num_threads(threads)
    compiled = compile_training(load(SOURCE).training(), Options(mesh=mesh_of(mesh)))
    ours: list[float] = []
    theirs: list[float] = []
    worst = 0.0
    with Session(compiled.plan, cores=threads) as session:
        session.run("init", 1)
        weights = {n: session.state(n) for n in session.states() if not n.startswith("optimizer.")}
        peer = torch_stepper(weights)
        for i, batch in enumerate(batches(steps)):
            start = time.perf_counter()
            loss = float(session.step("train", batch, step=i)["loss"])
            middle = time.perf_counter()
            expected = peer(batch)
            ours.append(middle - start)
            theirs.append(time.perf_counter() - middle)
            worst = max(worst, abs(loss - expected) / abs(expected))
    assert worst < 1e-4, f"losses differ by {worst:.1e} relative"
    own, peers = statistics.median(ours[2:]), statistics.median(theirs[2:])
    rate = ceiling_gflops(threads)
    return {
        "ours_seconds": own, "torch_seconds": peers, "ratio": own / peers,
        "predicted_seconds": compiled.plan.program("train").seconds,
        "ceiling_seconds": MATRIX_GFLOP / rate, "worst_loss_difference": worst,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--mesh", default="")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = run(options.steps, options.mesh, options.threads)
    if options.json:
        print(json.dumps(result))
        return
    table = Table(title=f"W1 training step, anabranch {anabranch.__version__}")
    table.add_column("quantity")
    table.add_column("value", justify="right")
    for name, value in result.items():
        table.add_row(name, f"{value:.3g}")
    Console().print(table)


if __name__ == "__main__":
    main()
