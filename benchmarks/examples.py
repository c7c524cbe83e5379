"""The trained examples against plain torch: same model, weights, batches and steps, on real data.

    python -m benchmarks.examples [NAME...] [--threads N] [--json]

Of each are printed what its kind of model must reach, what torch and we reach on held-out data,
the seconds of both, and the worst relative difference of 20 losses: of ours from torch's, and on
each mesh from those on one rank.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import anabranch as ab
from anabranch.runtime.data import Reader, make_reader
from benchmarks import examples_torch as peers
from benchmarks.examples_torch import Trainer
from examples.prepare import DATA

EXAMPLES = Path(__file__).parents[1] / "examples"
MESHES: list[dict[str, int]] = [{"data": 2}, {"model": 2}, {"data": 2, "model": 2}]
CURVE = 20
ACCURACY, ROOT = "accuracy", "root of mean square"
Losses = list[float]


@dataclass(frozen=True, slots=True)
class Task:
    """A program, its data, and the same in torch. `measure` is of the mean loss on held-out data,
    or accuracy. `must` is what a model of its kind is known to reach."""

    data: str
    measure: str
    must: float | None
    forward: peers.Forward
    loss: peers.Forward
    optimizer: Callable[[list[torch.Tensor]], torch.optim.Optimizer]
    rate: Callable[[int], float]
    clip: float | None = None
    set: dict[str, Any] = field(default_factory=dict)
    curve: dict[str, Any] = field(default_factory=dict)  # for the curves, ours and torch's


def sgd(decay: float = 0.0) -> Callable[..., torch.optim.Optimizer]:
    return functools.partial(torch.optim.SGD, momentum=0.9, weight_decay=decay)


def adamw(decay: float, second: float = 0.999) -> Callable[..., torch.optim.Optimizer]:
    return functools.partial(torch.optim.AdamW, betas=(0.9, second), weight_decay=decay)


TASKS = {
    "mlp": Task("digits", ACCURACY, 0.964, peers.mlp, peers.cross_entropy, sgd(), lambda _: 0.1),
    "gpt": Task("text", "nats per byte", 2.17, peers.gpt, peers.cross_entropy, adamw(0.1, 0.95),
                lambda _: 3e-3, clip=1.0,
                set={"context": 64, "dim": 64, "depth": 2, "steps": 400, "lr": 3e-3}),
    "resnet": Task("mnist", ACCURACY, 0.951, peers.resnet, peers.cross_entropy, sgd(5e-4),
                   peers.cosine(0.05, 30, 250), curve={"lr": 1e-4}),
    "vit": Task("mnist", ACCURACY, None, peers.vit, peers.cross_entropy, adamw(0.05),
                peers.cosine(2e-3, 60, 630)),
    "wide_and_deep": Task("movielens", ROOT, 0.905, peers.wide_and_deep,
                          torch.nn.functional.mse_loss, adamw(0.01), peers.cosine(5e-3, 50, 1000),
                          curve={"drop": 0.0}),
    "faces": Task("faces", "loss", None, peers.faces, peers.with_margin, sgd(), lambda _: 0.5),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one task; differences are relative."""

    name: str
    measure: str
    must: float | None
    torch: float
    ours: float
    torch_seconds: float
    seconds: float
    from_torch: float
    from_one_rank: dict[str, float]


# ---- ours


def reader_of(task: Task, program: ab.Program) -> Reader:
    """The batches of a program's own recipe."""
    reader = program.source.training(None, task.set).reader
    arrays = data(task.data)
    if reader.name != "text":
        return make_reader(reader.name, arrays, 0, reader.arguments)
    with tempfile.TemporaryDirectory() as folder:  # every 20th of the blocks is held out
        for i, block in enumerate(np.split(arrays["text"], len(arrays["text"]) // 5000)):
            (Path(folder) / f"{i:04}").write_bytes(block.tobytes())
        return make_reader(reader.name, folder, 0, reader.arguments)


@functools.cache
def data(name: str) -> Mapping[str, Any]:
    return DATA[name]()


def compiled(task: Task, program: ab.Program, reader: Reader, mesh: dict[str, int],
             **more: Any) -> Any:
    return ab.compile(program.train, mesh=ab.Mesh(**mesh), set=task.set | more, **reader.batch(0))


def curve(task: Task, program: ab.Program, reader: Reader, mesh: dict[str, int]) -> Losses:
    """The first losses on a mesh."""
    with ab.Session(compiled(task, program, reader, mesh, **task.curve)) as session:
        return [float(session.step(**reader.batch(step))) for step in range(CURVE)]


def trained(task: Task, program: ab.Program, reader: Reader) -> tuple[float, float]:
    """(what the measure gives, seconds)."""
    with ab.Session(compiled(task, program, reader, {})) as session:
        begin = time.perf_counter()
        for step in range(program.source.training(None, task.set).steps):
            session.step(**reader.batch(step))
        seconds = time.perf_counter() - begin
        found = session.measure(**held_out(reader))
    if task.measure == ACCURACY:
        return found[ACCURACY], seconds
    return of_loss(task, found["loss"]), seconds


def held_out(reader: Reader) -> dict[str, Any]:
    """All held-out rows, each once."""
    batches = list(reader.validation())
    return {name: np.concatenate([batch[name][:rows] for batch, rows in batches])
            for name in batches[0][0]}


def of_loss(task: Task, loss: float) -> float:
    return loss**0.5 if task.measure == ROOT else loss


# ---- theirs


def trainer(task: Task, program: ab.Program, reader: Reader) -> Trainer:
    """Torch with our initial weights."""
    with ab.Session(compiled(task, program, reader, {})) as session:
        weights = session.state_dict(torch=True)
    learned = [w.requires_grad_() for name, w in weights.items() if "running_" not in name]
    optimizer = task.optimizer(learned)
    return Trainer(weights, task.forward, task.loss, optimizer, task.rate, task.clip)


def tensors(batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def torch_curve(task: Task, program: ab.Program, reader: Reader) -> Losses:
    rate = task.curve.get("lr")
    peer = trainer(task if rate is None else replace(task, rate=lambda _: rate), program, reader)
    return [peer.step(step, tensors(reader.batch(step))) for step in range(CURVE)]


def torch_trained(task: Task, program: ab.Program, reader: Reader) -> tuple[float, float]:
    """(what the measure gives, seconds)."""
    peer = trainer(task, program, reader)
    begin = time.perf_counter()
    for step in range(program.source.training(None, task.set).steps):
        peer.step(step, tensors(reader.batch(step)))
    seconds = time.perf_counter() - begin
    with torch.no_grad():
        held = tensors(held_out(reader))
        if task.measure != ACCURACY:
            return of_loss(task, peer.loss(held).item()), seconds
        right = task.forward(peer.weights, held["x"]).argmax(-1) == held["label"]
        return right.float().mean().item(), seconds


# ---- both


def run(name: str) -> Outcome:
    task, program = TASKS[name], ab.load(EXAMPLES / f"{name}.ab")
    reader = reader_of(task, program)
    alone = curve(task, program, reader, {})
    meshes = {" ".join(f"{axis}={n}" for axis, n in mesh.items()):
              worst(curve(task, program, reader, mesh), alone) for mesh in MESHES}
    ours, seconds = trained(task, program, reader)
    theirs, torch_seconds = torch_trained(task, program, reader)
    return Outcome(name, task.measure, task.must, theirs, ours, torch_seconds, seconds,
                   worst(alone, torch_curve(task, program, reader)), meshes)


def worst(losses: Losses, expected: Losses) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TASKS))
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    outcomes = []
    for name in options.names or TASKS:
        outcomes.append(run(name))
        print(json.dumps(asdict(outcomes[-1])), flush=True)
    if not options.json:
        Console(width=150).print(table(outcomes))


def table(outcomes: list[Outcome]) -> Table:
    shown = Table(title=f"Examples, anabranch {ab.__version__}")
    for name in ("model", "measure", "must reach", "torch", "ours", "torch s", "ours s",
                 "from torch", *next(iter(outcomes)).from_one_rank):
        shown.add_column(name, justify="left" if name in ("model", "measure") else "right")
    for o in outcomes:
        numbers = [f"{o.must:.4g}" if o.must else "", *(f"{x:.4g}" for x in (
            o.torch, o.ours, o.torch_seconds, o.seconds))]
        differences = [o.from_torch, *o.from_one_rank.values()]
        shown.add_row(o.name, o.measure, *numbers, *(f"{x:.1e}" for x in differences))
    return shown


if __name__ == "__main__":
    main()
