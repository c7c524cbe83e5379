"""Tables and losses over a vocabulary that is split; targets that do not count; bad places."""

from __future__ import annotations

import re

import numpy as np
import pytest

from anabranch.runtime.errors import RunError
from tests.faults.cases import Case, check, counted, everywhere, run, scattered

N2, N24 = ("a=2",), ("a=2", "a=4")

SPLIT_CLASSES = """
def f(x: f32[4, 7] @ {a: S(1)}, targets: i64[4]):
    loss = cross_entropy(x, targets)
    return loss, grad(loss, x)[0]
"""
SPLIT_ROWS = """
def f(x: f32[8, 3] @ {a: S(0)}, targets: i64[8] @ {a: S(0)}):
    return cross_entropy(x, targets)
"""
LOSSES = [
    Case("classes that are split", SPLIT_CLASSES,
         (2.292845, [-.236209, .028905, .060584, .016844, .035305, .073997, .020574]),
         {"x": scattered(4, 7), "targets": np.array([0, 6, 3, 4])}, N24),
    Case("a rank without a target that counts", SPLIT_ROWS, 1.345370,
         {"x": scattered(8, 3), "targets": np.array([-100, -100, 0, 1, 2, 0, 1, 2])}, N24),
    Case("means over unlike numbers of tokens",
         "def f(x: f32[2, 5] @ {a: S(0)}, w: bool[2, 5] @ {a: S(0)}):\n"
         "    m[] = mean[b, s if w[b, s]](x[b, s])\n    return m\n", 2.0,
         {"x": np.array([[1, 1, 1, 1, 1], [7, 0, 0, 0, 0]], "f4"),
          "w": np.array([[1, 1, 1, 1, 1], [1, 0, 0, 0, 0]], bool)}, N2),
]


@everywhere(*LOSSES)
def test_a_loss_is_that_of_the_whole_batch(case: Case, mesh: str) -> None:
    check(case, mesh)


LOOK_UP = "def f(ids: i64[1], table: f32[4, 2] @ {{{pin}}}):\n    return embedding(ids, table)\n"


@pytest.mark.parametrize("mesh", ["", "a=2", "a=4"])
@pytest.mark.parametrize("pin", ["a: B", "a: S(0)", "a: S(1)"])
@pytest.mark.parametrize("place", [4, -5, -1])
def test_a_place_outside_a_table_is_named_with_its_size(place: int, pin: str, mesh: str) -> None:
    """A negative place is outside like any other, on every layout."""
    with pytest.raises(RunError) as failure:
        run(LOOK_UP.format(pin=pin), {"ids": np.array([place]), "table": counted(4, 2)}, mesh)
    told = (rf"<program>:2:\d+: error: index {place} is outside 0\.\.3: 'ids' holds places along "
            r"(dimension 0 of 'table'|a dimension of size 4), in ")  # a rank may have no column
    assert re.match(told, str(failure.value))


SET = """
def f(ids: i64[16] @ {a: S(0)}, x: f32[16] @ {a: S(0)}):
    return to(segment_sum(x, ids, 16), {a: S(0)})
"""


@everywhere(
    Case("places in order", SET, np.ones(16),
         {"ids": np.arange(16), "x": np.ones(16, "f4")}, N24),
    Case("places reversed", SET, counted(16)[::-1],
         {"ids": np.arange(16)[::-1].copy(), "x": counted(16)}, N24))
def test_places_of_a_scatter_are_those_of_the_whole(case: Case, mesh: str) -> None:
    check(case, mesh)


LABELLED = """
def f(x: f32[6, 5] @ {{a: S({axis})}}, t: i64[6], w: f32[5]):
    loss = {call}
    return loss, grad(sum(where(loss == loss, loss, 0)), x)
"""
CALLS = {
    "cross_entropy(x, t, ignore={})": (1, 0), "cross_entropy(x, t, w, ignore={})": (0, 0),
    "cross_entropy(x, t, w, ignore={}, smoothing=0.2)": (0, 0.2),
    "nll(log_softmax(x), t, ignore={})": (1, 0), "nll(log_softmax(x), t, w, ignore={})": (0, 0),
}
WEIGHTS = np.array([0.5, 1, 2, 0.1, 3], "f4")


@pytest.mark.parametrize(("axis", "mesh"), [(0, ""), (0, "a=4"), (1, "a=2")])
@pytest.mark.parametrize("ignored", [-100, -1, 2, 5, 1000])
@pytest.mark.parametrize("call", CALLS)
def test_what_is_ignored_does_not_count_wherever_its_label_lies(
    call: str, ignored: int, axis: int, mesh: str
) -> None:
    """Inside of the table or outside of it; of nothing that counts the sum is 0, the mean nan as
    in PyTorch, and the gradient 0."""
    x = scattered(6, 5)
    targets = np.array([0, 4, ignored, 1, ignored, 3])
    weights = np.ones(5) if CALLS[call][0] else WEIGHTS.astype("f8")
    logs = log_softmax(x.astype("f8"))
    kept = targets != ignored
    rows, share = logs[kept], weights[targets[kept]]
    smoothed = -(rows * weights).mean(1)
    each = -rows[np.arange(4), targets[kept]] * share
    each = each * (1 - CALLS[call][1]) + smoothed * CALLS[call][1]
    arrays = {"x": x, "t": targets, "w": WEIGHTS}
    source = LABELLED.format(axis=axis, call=call.format(ignored))
    loss, gradient = run(source, arrays, mesh)
    assert loss == pytest.approx(each.sum() / share.sum(), rel=1e-5)
    assert (gradient[~kept] == 0).all()
    assert (gradient[kept] != 0).all()
    nothing, gradient = run(source, arrays | {"t": np.full(6, ignored)}, mesh)
    assert np.isnan(nothing)
    assert (gradient == 0).all()


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_a_sum_over_no_targets_is_nothing() -> None:
    for how, expected in (("sum", 0.0), ("none", np.zeros(6))):
        call = f'cross_entropy(x, t, reduction="{how}")'
        arrays = {"x": scattered(6, 5), "t": np.full(6, -100), "w": WEIGHTS}
        loss, gradient = run(LABELLED.format(axis=0, call=call), arrays, "a=4")
        np.testing.assert_array_equal(loss, expected)
        assert (gradient == 0).all()


PLACES = [
    "gather(x, k[:, None], axis=0)", "scatter(x, k[:, None], 1, axis=0)", "take(x[:, 0], k)",
    "scatter_add(x, k[:, None], x, axis=0)", "index_select(x, k, axis=0)", "x[k]",
    "index_add(x, k, x[:2], axis=0)", "index_copy(x, k, x[:2], axis=0)", "one_hot(k, 5)",
    "index_fill(x, k, 1, axis=0)", "segment_sum(x[:2], k, 5)", "bincount(k, 5)",
    "embedding_bag(k, x, k, 5)", "take_along_axis(x, k[:, None], axis=0)",
    "cross_entropy(x[:2], k % 9, ignore=-100)",
]


@pytest.mark.parametrize("place", [5, -1])
@pytest.mark.parametrize("call", PLACES)
def test_a_place_outside_of_a_split_axis_is_an_error_that_names_it(call: str, place: int) -> None:
    source = f"def f(x: f32[5, 5] @ {{a: S(0)}}, k: i64[2]):\n    return {call}\n"
    given = 8 if "% 9" in call else place
    with pytest.raises(RunError) as failure:
        run(source, {"x": counted(5, 5), "k": np.array([0, given])}, "a=2")
    told = rf"<program>:2:\d+: error: index {given} is outside 0\.\.4: '(k|target)' holds places "
    assert re.match(told, str(failure.value))
