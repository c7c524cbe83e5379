"""The harness itself: what it says of right and wrong programs, and of processes that are lost."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from anabranch.ir.mesh import Mesh
from anabranch.ir.sbp import Sbp
from benchmarks.oracles import judge, pool, programs
from benchmarks.oracles.cases import Case, Wanted
from benchmarks.oracles.contract import Operand, check_share
from benchmarks.oracles.placements import MESHES, choices, placements, terms
from benchmarks.oracles.pool import At, Job, Judged, Send

X = np.arange(12, dtype=np.float32).reshape(4, 3)
OPERANDS = (Operand("x0", (4, 3), "f32", X), Operand("x1", (3,), "f32", X[0]))


def case(text: str, value: np.ndarray, dtype: str = "f32") -> Case:
    return Case("a case", text, OPERANDS, (Wanted(value, dtype, 1e-6, 1e-6),))


def verdict(of: Case) -> judge.Verdict:
    return judge.judge(of, placements(of.operands, 0, 12))


def test_every_argument_is_in_every_placement_beside_others() -> None:
    found = list(placements(OPERANDS, 0, 12))
    for place, operand in enumerate(OPERANDS):
        assert {p.arguments[place][0] for p in found} == set(choices(operand))
    assert len({p.arguments for p in found}) > 8
    assert {p.mesh.ranks for p in found} == {2, 4}


RANKS = [ranks for count in (1, 2, 3) for ranks in product(range(5), repeat=count)]


@pytest.mark.parametrize("ranks", RANKS, ids=str)
def test_over_the_samples_every_argument_is_in_every_placement_on_every_mesh(
    ranks: tuple[int, ...],
) -> None:
    """A dozen placements of a sample see each on some mesh, those of six samples on each."""
    operands = [Operand(f"x{n}", (2,) * rank, "f32", None) for n, rank in enumerate(ranks)]
    seen: dict[tuple[Mesh, int], set[Sbp]] = defaultdict(set)
    for number in range(6):
        found = list(placements(operands, number, 12))
        for place, operand in enumerate(operands):
            for laid in found:
                seen[laid.mesh, place] |= {*laid.arguments[place]}
            entries = {entry for laid in found for entry in laid.arguments[place]}
            assert entries == {*choices(operand)}
    for (_, place), entries in seen.items():
        assert entries == {*choices(operands[place])}
    assert len(seen) == len(MESHES) * len(operands)


def test_terms_sum_to_the_whole_exactly() -> None:
    parts = terms(X, (2, 3), np.random.default_rng(0))
    np.testing.assert_array_equal(parts.sum((0, 1)), X)
    assert (parts[0, 0] != X).any()


def test_a_right_program_is_right_in_every_placement() -> None:
    assert verdict(case("x0 * x1", X * X[0])).kind == "right"


def test_a_wrong_number_a_wrong_shape_and_a_wrong_dtype_are_wrong() -> None:
    off = X * X[0]
    off[2, 1] += 1
    assert "[2, 1]" in verdict(case("x0 * x1", off)).message
    for wrong in (case("x0 * x1", off), case("x0", X[:2]), case("i64(x0)", X)):
        assert verdict(wrong).kind == "wrong"


def dropping(text: str, off: float = 0.0) -> Case:
    """A call that drops half of the elements, and what is right for the draws of a run."""
    x = np.ones((16, 16), np.float32)

    def drawn(found: Sequence[np.ndarray]) -> Case:
        check_share(found[0] != 0, 0.5)
        return replace(known, results=(Wanted(2 * (found[0] != 0) + off, "f32", 1e-6),))

    known = Case("draws", text, (Operand("x0", x.shape, "f32", x),), (), training=True)
    return replace(known, drawn=drawn)


def test_draws_are_right_for_what_was_drawn_if_every_run_draws_the_same() -> None:
    assert verdict(dropping("dropout(x0, 0.5)")).kind == "right"


def test_draws_of_a_wrong_share_or_with_wrong_values_are_wrong() -> None:
    for text in ("dropout(x0, 0.9)", "dropout(x0, 0.1)"):
        found = verdict(dropping(text))
        assert (found.kind, "dropped with probability 0.5" in found.message) == ("wrong", True)
    assert verdict(dropping("dropout(x0, 0.5)", off=1e-3)).kind == "wrong"


def test_a_run_that_draws_otherwise_than_the_reference_is_wrong() -> None:
    asked = judge.settled(dropping("dropout(x0, 0.5)"))
    assert verdict(asked).kind == "right"
    assert verdict(replace(asked, text="y = dropout(x0, 0.5)\nreturn dropout(x0, 0.5)")
                   ).kind == "wrong"


def test_what_is_refused_has_a_message() -> None:
    found = verdict(case("x0 @ x0", X))
    assert found.kind == "refused"
    assert found.message


def test_a_program_says_how_its_arguments_lie() -> None:
    laid = next(p for p in placements(OPERANDS, 0, 12) if p.arguments[0][0].kind == "P")
    text = programs.text(case("x0 * x1", X), laid)
    assert "x0 = to(sum(x0, axis=" in text
    assert "P}" in text


def lost(job: Job, send: Send) -> None:
    """Three samples: the first kills its process, the second never ends, the third is right."""
    for number in range(3):
        if number not in job.known:
            send(At(number, 3.0))
            if number == 0:
                os.abort()
            if number == 1:
                time.sleep(60)
            send(Judged(number, judge.RIGHT))


def hopeless(job: Job, send: Send) -> None:
    send(At(pool.TOGETHER, 60.0))
    os.abort()


def test_a_job_that_kills_every_process_before_its_first_sample_ends() -> None:
    (job,) = pool.run([Job("none", "none")], hopeless, 1, 60.0)
    assert [verdict.kind for verdict in job.known.values()] == ["crash"]


def test_a_process_that_dies_or_hangs_is_replaced_and_its_sample_blamed() -> None:
    (job,) = pool.run([Job("none", "none")], lost, 1, 60.0)
    assert [job.known[n].kind for n in range(3)] == ["crash", "hang", "right"]
    assert "sample 1: nothing for 3 seconds" in job.known[1].message
    assert "in lost" in job.known[1].message
