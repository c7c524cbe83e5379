"""`with per_micro:` a micro-batch is a batch of its own, as where gradients are accumulated by
hand. Without it the whole batch counts, and nothing depends on the number of micro-batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import anabranch as ab
from anabranch.cli import main

NET = """
model Norm(n: int):
    weight: f32[n] = ones()
    bias:   f32[n] = zeros()
    buffer running_mean: f32[n] = zeros()
    buffer running_var:  f32[n] = ones()
    buffer num_batches_tracked: i64[] = zeros()

    def forward(x: f32[B, n]) -> f32[B, n]:
        if not training:
            return (x - running_mean) / sqrt(running_var + 1e-5) * weight + bias
        m = mean(x, axis=0)
        v = mean((x - m) ** 2, axis=0)
        running_mean := 0.9 * running_mean + 0.1 * m
        running_var  := 0.9 * running_var + 0.1 * v * (x.shape[0] / (x.shape[0] - 1))
        num_batches_tracked := num_batches_tracked + 1
        return (x - m) / sqrt(v + 1e-5) * weight + bias

model Net():
    first: Linear(4, 5)
    norm:  Norm(5)
    head:  Linear(5, 3)

    def loss(x: f32[B, 4], label: i64[B]) -> f32[]:
        h = first(x)
        BODY
        return cross_entropy(head(relu(h)), label)

train Net():
    steps     = 3
    data      = arrays(batch=8)
    optimizer = sgd(lr=0.1)
"""
PER_MICRO = "with per_micro:\n            h = norm(h)\n            report(largest=max(h))"
MESHES: list[tuple[dict[str, int], int]] = [
    ({}, 1), ({}, 2), ({}, 4), ({"data": 2}, 2), ({"data": 2}, 4), ({"model": 2}, 2),
    ({"stage": 2}, 4)]
on_meshes = pytest.mark.parametrize(("mesh", "micro"), MESHES)
RANDOM = np.random.default_rng(0)
BATCH: dict[str, Any] = {
    "x": RANDOM.normal(size=(8, 4)).astype("f4"), "label": RANDOM.integers(0, 3, 8)}


def plan_of(text: str, mesh: dict[str, int], micro: int, **more: Any) -> Any:
    return ab.compile(ab.loads(text).train, mesh=ab.Mesh(**mesh), micro=micro, **more)


def by_hand(states: dict[str, Any], micro: int) -> tuple[list[float], dict[str, Any]]:
    """The losses of three steps of torch, and its states then."""
    model = torch.nn.ModuleDict({"first": torch.nn.Linear(4, 5), "norm": torch.nn.BatchNorm1d(5),
                                 "head": torch.nn.Linear(5, 3)})
    model.load_state_dict({name: torch.tensor(value) for name, value in states.items()})
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        sgd.zero_grad()
        losses.append(0.0)
        parts = (torch.tensor(BATCH[name]).chunk(micro) for name in ("x", "label"))
        for x, label in zip(*parts, strict=True):
            hidden = model["norm"](model["first"](x))
            loss = F.cross_entropy(model["head"](torch.relu(hidden)), label) / micro
            loss.backward()
            losses[-1] += loss.item()
        sgd.step()
    return losses, {name: value.detach().numpy() for name, value in model.state_dict().items()}


@on_meshes
@pytest.mark.parametrize("recompute", ["", ", recompute"])
def test_batch_normalisation_of_micro_batches_is_that_of_torch(
    mesh: dict[str, int], micro: int, recompute: str
) -> None:
    """Statistics of each micro-batch; running ones move on by one micro-batch after the other, and
    are not moved again by a recomputation."""
    body = PER_MICRO.replace("per_micro", f"per_micro{recompute}")
    with ab.Session(plan_of(NET.replace("BODY", body), mesh, micro)) as session:
        losses, states = by_hand(session.state_dict(), micro)
        for loss in losses:
            assert session.step(**BATCH) == pytest.approx(loss, rel=1e-5)
        found = session.state_dict()
    for name, value in states.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@on_meshes
def test_without_it_the_statistics_are_those_of_the_batch(mesh: dict[str, int], micro: int) -> None:
    with ab.Session(plan_of(NET.replace("BODY", "h = norm(h)"), mesh, micro)) as session:
        losses, states = by_hand(session.state_dict(), 1)
        for loss in losses:
            assert session.step(**BATCH) == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(session.state_dict()["norm.running_var"],
                                   states["norm.running_var"], rtol=1e-4)


ROWS = """
op centered(x: f32[B, N]) -> f32[B, N]:
    m[n] = mean[b](x[b, n])
    y[b, n] = x[b, n] - m[n]
    return y

model Rows():
    w: f32[4, 6] = normal()

    def loss(x: f32[B, 4], label: i64[B]) -> f32[]:
        h = x @ w
        BODY
        return mean(h ** 2)

train Rows():
    steps     = 1
    data      = arrays(batch=8)
    optimizer = sgd(lr=0.1)
"""
SAME_ROWS = {  # nothing here mixes rows: a micro-batch of its own changes nothing
    "draws": "h = dropout(h, 0.5)",
    "noise of its own": "noise = normal(h.shape)\n            h = h + noise",
    "an order within a row": "h = sort(h)[0] * arange(6)",
    "merged rows": "h = reshape(tanh(reshape(h, [-1, 3])), h.shape)",
    "a list": "parts = [h, 2 * h]\n            h = parts[0] + parts[1]",
    "a gradient": "y = sum(h ** 3)\n            h = grad(y, h)",
    "a pin": "h = to(h, {model: S(1)}) * 2",
    "a view": "t = h.T\n            h = (2 * t).T",
    "a function": "def twice(a):\n                return 2 * a\n            h = twice(h)",
}


@pytest.mark.parametrize("mesh", [{}, {"data": 2}, {"model": 2}])
@pytest.mark.parametrize("case", SAME_ROWS)
def test_what_mixes_no_rows_is_the_same(case: str, mesh: dict[str, int]) -> None:
    losses = []
    for region in ("if True:", "with per_micro:"):
        text = ROWS.replace("BODY", f"{region}\n            {SAME_ROWS[case]}")
        with ab.Session(plan_of(text, mesh, 4)) as session:
            losses.append(session.step(**BATCH))
            losses.append(session.step(**BATCH))
    assert losses[2:] == pytest.approx(losses[:2], rel=1e-6)


@pytest.mark.parametrize("body", [
    "with per_micro:\n            h = centered(h)",
    "with per_micro:\n            m[n] = mean[b](h[b, n])\n            h = h - m",
])
def test_index_notation_sees_one_micro_batch(body: str) -> None:
    with ab.Session(plan_of(ROWS.replace("BODY", body), {}, 2)) as session:
        h = (BATCH["x"] @ session.state_dict()["w"]).reshape(2, 4, 6)
        expected = ((h - h.mean(1, keepdims=True)) ** 2).mean()
        assert session.step(**BATCH) == pytest.approx(expected, rel=1e-5)


def test_rows_are_returned_from_within() -> None:
    text = ROWS.replace("        BODY\n        return mean(h ** 2)",
                        "        return mean(own(h) ** 2)\n\n    def own(h):\n"
                        "        with per_micro:\n            return centered(h)")
    with ab.Session(plan_of(text, {}, 2)) as session:
        h = (BATCH["x"] @ session.state_dict()["w"]).reshape(2, 4, 6)
        expected = ((h - h.mean(1, keepdims=True)) ** 2).mean()
        assert session.step(**BATCH) == pytest.approx(expected, rel=1e-5)


def test_what_is_reported_within_is_the_mean_over_micro_batches() -> None:
    text = ROWS.replace("BODY", "with per_micro:\n            report(most=max(h))")
    with ab.Session(plan_of(text, {}, 4)) as session:
        h = (BATCH["x"] @ session.state_dict()["w"]).reshape(4, -1)
        session.step(**BATCH)
        assert session.results["most"] == pytest.approx(h.max(1).mean(), rel=1e-5)


@pytest.mark.parametrize(("body", "message"), [
    ("with per_micro:\n            m = mean(h, axis=0)\n        h = h - m",
     "'m' has a value for each micro-batch, and none outside"),
    ("with per_micro:\n            return mean(h)", "what is returned has a value for each"),
])
def test_what_is_of_one_micro_batch_stays_there(body: str, message: str) -> None:
    with pytest.raises(ab.UserError, match=message):
        plan_of(ROWS.replace("BODY", body), {}, 2)


def test_rows_that_do_not_divide_are_refused() -> None:
    text = ROWS.replace("BODY", "with per_micro:\n            h = centered(h)")
    with pytest.raises(ab.UserError, match="cannot share the 8 rows"):
        plan_of(text, {}, 3)


def test_a_buffer_that_steers_its_own_micro_batch_is_refused() -> None:
    text = NET.replace("BODY", "with per_micro:\n            h = norm(h) + norm.running_mean")
    with pytest.raises(ab.UserError, match="used for something else than its next value"):
        plan_of(text, {}, 2)


def test_where_micro_batches_wait_for_each_other_is_told_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = []
    for region in ("if True:", "with per_micro:"):
        path = tmp_path / "net.ab"
        path.write_text(NET.replace("BODY", PER_MICRO).replace("with per_micro:", region))
        assert main(["explain", str(path), "--micro", "2"]) == 0
        out = capsys.readouterr().out
        told.append([line for line in out.splitlines() if "of the whole batch" in line])
    mean, variance = told[0]
    assert "net.ab:12 norm: 'm' is of the whole batch" in mean
    assert "net.ab:13 norm: 'v' is of the whole batch" in variance
    assert not told[1]


def test_training_says_where_micro_batches_wait_and_what_its_losses_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also when the plan was there already; and nothing is said of what is made per micro-batch."""
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", x=np.ones((40, 4), "f4"), label=np.zeros(40, np.int64))
    text = NET.replace("Norm(5)", "BatchNorm(5)")
    for body, said in (("h = norm(h)", True), (PER_MICRO, False)):
        Path("net.ab").write_text(text.replace("BODY", body))
        for steps in (3, 30):
            assert main(["train", "net.ab", "--data", "data.npz", "--micro", "2",
                         "--steps", str(steps), "--out", "out"]) == 0
            out, err = capsys.readouterr()
            assert ("so the micro-batches wait" in err) == said, err
            assert f"(mean of the last {min(steps, 20)} steps)" in out


PARTS = """
model Tagger():
    scores: f32[7, 3] = normal()

    def loss(word: i64[B, S], tag: i64[B, S]) -> f32[]:
        return cross_entropy(scores[word], tag, ignore=-1)

    def right(word: i64[B, S], tag: i64[B, S]) -> f32[]:
        return sum(argmax(scores[word], axis=2) == tag) / B

    def counted(word: i64[B, S], tag: i64[B, S]) -> f32[]:
        return sum(tag != -1) / B

train Tagger():
    steps     = 1
    data      = arrays(batch=4)
    optimizer = sgd(lr=0.1)
    metrics   = [right, counted]
"""


def test_the_quotient_of_two_metrics_is_a_mean_over_counted_targets() -> None:
    """Batches with unlike numbers of ignored targets: as the README says."""
    word = RANDOM.integers(0, 7, (11, 5))
    tag = np.where(RANDOM.random((11, 5)) < np.linspace(0, 1, 11)[:, None], -1, word % 3)
    plan = ab.compile(ab.loads(PARTS).train, word=word[:4], tag=tag[:4], cached=False)
    with ab.Session(plan) as session:
        means = session.measure(word=word, tag=tag)
        scores = session.state_dict()["scores"]
    hits = np.argmax(scores[word], axis=2) == tag
    assert means["right"] / means["counted"] == pytest.approx(hits.sum() / (tag != -1).sum())
