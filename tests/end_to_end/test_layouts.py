"""One program, every mesh: the same losses and the same next states as the reference evaluator.

The program has dropout, a tied table, a clipped norm and targets that are ignored, and its sizes
divide by nothing, so a wrong offset, mask, mean or sum of parts shows.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from anabranch.driver import Options, compile_training
from anabranch.frontend.program import load, loads
from anabranch.ir.mesh import Mesh
from anabranch.ir.reference import evaluate
from anabranch.lowering.differentiate import differentiate
from anabranch.runtime.session import Session

SOURCE = Path(__file__).with_name("gpt.ab")
SEED, STEPS = 7, 3
IGNORED = -100
MESHES = {
    "one rank": (Mesh(), 1),
    "micro=4": (Mesh(), 4),
    "data=2": (Mesh.of(data=2), 1),
    "data=3": (Mesh.of(data=3), 1),
    "model=2": (Mesh.of(model=2), 1),
    "data=2,model=2": (Mesh.of(data=2, model=2), 1),
    "data=2 micro=2": (Mesh.of(data=2), 2),
    "stage=2": (Mesh.of(stage=2), 1),
    "stage=2 micro=4": (Mesh.of(stage=2), 4),
    "stage=2,data=2 micro=2": (Mesh.of(stage=2, data=2), 2),
}


def batch(step: int) -> dict[str, np.ndarray]:
    """Tokens and targets; a third of the targets, unevenly spread, is ignored."""
    random = np.random.default_rng(step)
    tokens = random.integers(0, 11, (8, 7))
    targets = np.where(random.random((8, 7)) < np.linspace(0, 0.7, 8)[:, None], IGNORED, tokens)
    return {"tokens": tokens, "targets": targets}


@cache
def expected() -> tuple[list[float], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(losses, states before, states after) of the reference evaluator."""
    module = load(SOURCE).training().module
    init, train = module.functions["init"], differentiate(module).functions["train"]
    seed = np.array(SEED)
    given = {"seed": seed, "step": np.array(0)}
    values = evaluate(init, [  # the states before are not read
        given.get(a.role, np.zeros(a.value.type.shape, np.float32)) for a in init.arguments])
    states = dict(zip(init.body.last.states, values, strict=True))
    before, losses = dict(states), []
    for step in range(STEPS):
        feeds = {**batch(step), **states}
        given = {"seed": seed, "step": np.array(step)}
        arguments = [given.get(a.role, feeds.get(a.value.name)) for a in train.arguments]
        loss, *following = evaluate(train, arguments)
        losses.append(float(loss))
        states.update(zip(train.body.last.states, following, strict=True))
    return losses, before, states


@pytest.mark.parametrize("name", MESHES)
def test_every_mesh_trains_as_the_reference_does(name: str) -> None:
    mesh, micro = MESHES[name]
    losses, before, after = expected()
    training = load(SOURCE).training(stages=mesh.stages)
    plan = compile_training(training, Options(mesh=mesh, micro=micro)).plan
    with Session(plan, seed=SEED, canaries=True) as session:
        session.run("init", 1)
        for state in session.states():
            np.testing.assert_allclose(session.state(state), before[state], rtol=1e-6, atol=1e-7)
        for step in range(STEPS):
            loss = session.step("train", batch(step), step)["loss"]
            assert float(loss) == pytest.approx(losses[step], rel=2e-5)
        for state in session.states():
            np.testing.assert_allclose(
                session.state(state), after[state], rtol=2e-3, atol=2e-5, err_msg=state)


def test_a_pinned_layout_is_kept_and_moves_data() -> None:
    text = SOURCE.read_text().replace(
        "table:    f32[vocab, dim]   =", "table: f32[vocab, dim] @ {model: S(0)} =").replace(
        "loss(tokens: i64[B, S],", "loss(tokens: i64[B, S] @ {data: S(0)},")
    pinned = SOURCE.with_name("pinned.ab")
    training = loads(text, str(pinned)).training()
    plan = compile_training(training, Options(mesh=Mesh.of(data=2, model=2))).plan
    table = next(s for s in plan.states if s.name == "table")
    assert plan.values[table.value].sbp[1] == "S0"
    moves = Counter(a.transfer.op for a in plan.program("train").actors if a.transfer)
    assert moves
    losses, _, _ = expected()
    with Session(plan, seed=SEED) as session:
        session.run("init", 1)
        for step in range(STEPS):
            loss = session.step("train", batch(step), step)["loss"]
            assert float(loss) == pytest.approx(losses[step], rel=2e-5)
