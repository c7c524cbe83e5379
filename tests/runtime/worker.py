"""One process of a two-process run: `python -m tests.runtime.worker WHAT FOLDER`.

What it found goes to FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch.runtime.checkpoint import CheckpointError
from anabranch.runtime.errors import RunError
from anabranch.runtime.processes import ProcessWorld
from anabranch.runtime.session import Session
from tests.runtime.collectives import channel, examples, inputs, transfer_plan
from tests.runtime.models import WIDTH, counter
from tests.runtime.test_faults import looking_up


def plain(results: dict[str, Any]) -> dict[str, Any]:
    """Exact, as text: the bytes of the arrays."""
    return {name: np.ascontiguousarray(a).tobytes().hex() for name, a in results.items()}


def collectives(world: ProcessWorld) -> Any:
    """Every transfer; threads and processes have to give equal bits."""
    got = []
    for parts in [*examples(2), channel("f32", 5), channel("bf16", 0)]:
        with Session(transfer_plan(parts), world=world) as session:
            got.append(plain(session.step("train", inputs(parts, seed=1))))
    return got


def train(world: ProcessWorld) -> Any:
    """Bursts, then single steps, then another program, then the state; rank 0's reader runs dry."""
    losses: list[Any] = []

    def feed(step: int) -> Any:
        if step == 17:
            raise StopIteration
        return {"x": np.random.default_rng(step).normal(size=(2, WIDTH))}

    with Session(counter(2, slots=2), world=world) as session:
        done = session.run("train", 50, feed, lambda _, r: losses.append(plain(r)))
        losses.append(plain(session.step("train", feed(0), step=done)))
        losses.append(plain(session.step("eval")))
        session.set_state("w", np.arange(WIDTH))
        losses.append(plain(session.step("eval")))
        losses.append(plain({"w": session.state("w")}))
    return [done, losses]


def interrupted(world: ProcessWorld) -> Any:
    """Ctrl-C reaches the processes at different steps; they stop at the same one."""

    def look(step: int, results: Any) -> None:
        if step == 3 - world.process:
            raise KeyboardInterrupt

    with Session(counter(2), world=world) as session:
        raised = False
        try:
            session.run("train", 1000, lambda _: {"x": np.ones((2, WIDTH))}, look)
        except KeyboardInterrupt:
            raised = True
        session.step("train", {"x": np.zeros((2, WIDTH))})
        return [raised, session.state("w").tolist()]


def healthy(world: ProcessWorld) -> Any:
    return {what.__name__: what(world) for what in (collectives, train, interrupted)}


def planted(world: ProcessWorld) -> Any:
    """Rank 1 fails in a kernel; rank 0 has to hear why."""
    with Session(looking_up(2, bound=10), world=world) as session:
        try:
            session.step("train", {"x": np.array([3.0, 12.0])})
        except Exception as error:
            return str(error)
    return "no error"


def killed(world: ProcessWorld) -> Any:
    """Rank 1 ends without a word in the middle of a run."""

    def feed(step: int) -> Any:
        if step == 5 and world.process == 1:
            os._exit(9)
        return {"x": np.zeros((2, WIDTH))}

    with Session(counter(2), world=world) as session:
        try:
            session.run("train", 1000, feed)
        except Exception as error:
            return str(error)
    return "no error"


def raising(world: ProcessWorld) -> Any:
    """The reader of rank 2 has a mistake that shows in step 3."""

    def feed(step: int) -> Any:
        if step == 3 and world.process == 2:
            raise ValueError("boom")
        return {"x": np.zeros((4, WIDTH))}

    with Session(counter(4), world=world) as session:
        session.run("train", 1000, feed)


NET = """
model Net():
    w: f32[{size}] = ones()
    {more}

    def loss(x: f32[B, {size}] @ {{data: S(0)}}) -> f32[]:
        return mean({body})

train Net():
    steps     = 1
    data      = arrays(batch=4)
    optimizer = sgd(lr=1.0)
"""


def different(world: ProcessWorld) -> Any:
    """Sessions of programs that differ on rank 1."""
    usual = {"size": "3", "more": "", "body": "x @ w"}
    changes = [{"more": "extra: f32[3] = ones()", "body": "x @ w + x @ extra"}, {"size": "4"},
               {"body": "exp(x @ w)"}]
    messages = []
    for change in changes:
        text = NET.format(**(usual | change if world.process else usual))
        plan = ab.compile(ab.loads(text, "net.ab").train, mesh=ab.Mesh(data=2))
        try:
            Session(plan, world=world)
        except RunError as error:
            messages.append(str(error))
    return messages


def unreadable(world: ProcessWorld) -> Any:
    """A checkpoint that rank 1 alone cannot read, or that is another one there."""
    plan = ab.compile(ab.loads(NET.format(size="3", more="", body="x @ w")).train,
                      mesh=ab.Mesh(data=2))
    path = Path(sys.argv[2], "checkpoint.safetensors")
    messages = []
    with ab.Session(plan) as session:
        for steps in range(2):
            session.save(path.with_name(f"{steps}.safetensors"))
            session.step(x=np.ones((4, 3), np.float32))
        path.write_text("no checkpoint")
        for of_rank_1 in (path, path.with_name("1.safetensors")):
            try:
                session.resume(of_rank_1 if world.process else path.with_name("0.safetensors"))
            except CheckpointError as error:
                messages.append(str(error))
    return messages


def refused(world: ProcessWorld) -> Any:
    return {what.__name__: what(world) for what in (different, unreadable)}


if __name__ == "__main__":
    own = ProcessWorld()
    Path(sys.argv[2], f"{own.process}.there").touch()
    found = globals()[sys.argv[1]](own)
    Path(sys.argv[2], f"{own.process}.json").write_text(json.dumps(found))
