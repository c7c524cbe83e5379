"""Random plans give the values they must, under any delays, slots, orders and numbers of ranks."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anabranch.ir.plan import Plan, Stream
from anabranch.runtime.check import check_plan
from anabranch.runtime.errors import DeadPlan
from anabranch.runtime.events import edges, find_cycle
from anabranch.runtime.session import Session
from tests.runtime.random_plans import RandomPlan, Recipe, firings, play


def live_plan(recipe: Recipe) -> RandomPlan | None:
    made = RandomPlan(recipe)
    try:
        check_plan(made.plan)
    except DeadPlan:
        return None
    return made


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_random_graphs_run_to_the_right_values(ranks: int) -> None:
    ran = 0
    for seed in range(12):
        luck = random.Random(seed)
        made = live_plan(
            Recipe(seed, ranks, luck.choice((1, 2, 3)), 8, luck.choice((1, 2, 3)), seed % 2 == 0)
        )
        if made is None:
            continue
        ran += 1
        results: list[dict[str, Any]] = []
        with Session(made.plan, stall_seconds=20, canaries=seed % 3 == 0) as session:
            assert session.run("train", 5, None, lambda _, r, to=results: to.append(r)) == 5
        for step, result in enumerate(results):
            for name, value in made.expected(step).items():
                np.testing.assert_array_equal(result[name], value)
    assert ran >= 6


def test_slots_and_order_change_no_value() -> None:
    """The graph of a seed is the same for every number of slots and kind of order."""
    for seed in (3, 8, 21):
        results = []
        for slots in (1, 2, 3):
            for fixed in (True, False):
                made = live_plan(Recipe(seed, 2, 2, 7, slots, fixed))
                if made is not None:
                    with Session(made.plan, stall_seconds=20) as session:
                        results.append(session.step("train", step=4))
        assert len(results) >= 2
        for other in results[1:]:
            for name, value in results[0].items():
                np.testing.assert_array_equal(other[name], value)


def test_a_plan_passes_the_check_exactly_if_every_game_ends() -> None:
    """Sequences are shuffled, so that many plans are dead; the game is played three steps."""
    counted = {True: 0, False: 0}
    for seed in range(300):
        luck = random.Random(seed)
        recipe = Recipe(
            seed, luck.choice((1, 2, 3)), luck.choice((1, 2, 3)), 6, luck.choice((1, 2))
        )
        plan = shuffled(RandomPlan(recipe).plan, luck)
        program = plan.programs[0]
        live = not find_cycle(program, list(edges(plan, program)))
        ended = all(len(play(plan, 3, luck)) == 3 * firings(plan) for _ in range(2))
        assert live == ended, f"seed {seed}: check says live={live}, the game ended={ended}"
        counted[live] += 1
    assert min(counted.values()) > 30


def shuffled(plan: Plan, luck: random.Random) -> Plan:
    """Swaps some neighbours in the sequence of each stream, keeping each actor's own order."""
    program = plan.programs[0]
    every = [(a.id, k) for a in program.actors for k in range(a.fires)]
    streams = []
    for stream in program.streams:
        own = [e for e in every if program.actors[e[0]].stream == stream.id]
        streams.append(_swap(replace(stream, sequence=stream.sequence or tuple(own)), luck))
    return replace(plan, programs=(replace(program, streams=tuple(streams)),))


def _swap(stream: Stream, luck: random.Random) -> Stream:
    if stream.kind != "cpu" or luck.random() < 0.5:
        return stream
    order = list(stream.sequence)
    for _ in range(2):
        i = luck.randrange(max(1, len(order) - 1))
        if len(order) > i + 1 and order[i][0] != order[i + 1][0]:
            order[i], order[i + 1] = order[i + 1], order[i]
    return replace(stream, sequence=tuple(order))
