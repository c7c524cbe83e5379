"""What a recipe may say of a step, on one rank and on several, against torch by hand."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file, save_file

import anabranch as ab
from anabranch.cli import main
from anabranch.generation import harmless
from anabranch.runtime.data import make_reader
from tests.end_to_end import recipes
from tests.end_to_end.conftest import TINY
from tests.end_to_end.recipes import CLASSIFIER, GAN, classifier_batches, gan_batches, tensors

MESHES: list[tuple[dict[str, int], int]] = [
    ({}, 1), ({"data": 2}, 1), ({}, 2), ({"data": 2}, 2), ({"model": 2}, 1), ({"stage": 2}, 2)]
on_meshes = pytest.mark.parametrize(("mesh", "micro"), MESHES)
CLOSE: dict[str, Any] = {"rtol": 2e-5, "atol": 2e-6}


def plan_of(text: str, mesh: dict[str, int] | None = None, micro: int = 1, **more: Any) -> Any:
    return ab.compile(ab.loads(text).train, mesh=ab.Mesh(**(mesh or {})), micro=micro, **more)


def equal(found: dict[str, Any], expected: dict[str, torch.Tensor]) -> None:
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value.detach(), **CLOSE, err_msg=path)


@on_meshes
def test_a_gan_takes_its_own_steps(mesh: dict[str, int], micro: int) -> None:
    """Several updates in a step, each from the weights the last one left, each clipped; a penalty
    on gradients; one optimizer for each part. Optimizers count updates, as torch's do."""
    batches = gan_batches(3)
    with ab.Session(plan_of(GAN, mesh, micro)) as session:
        p = tensors(session.state_dict())
        for batch, (loss, critic) in zip(
                batches, recipes.gan_by_hand(p, batches), strict=True):
            assert session.step(**batch) == pytest.approx(loss, rel=1e-5)
            assert session.results["critic"] == pytest.approx(critic, rel=1e-5)
        equal(session.state_dict(), p)


@pytest.mark.parametrize(("mesh", "micro"), [({}, 1), ({"data": 2}, 2)])
def test_groups_of_parameters_have_optimizers_of_their_own(
    mesh: dict[str, int], micro: int
) -> None:
    """The last match wins, None freezes: no gradient, no state of an optimizer."""
    text = CLASSIFIER + ('    optimizer["*.bias"] = adamw(lr=1e-2, weight_decay=0.0)\n'
                         '    optimizer["body.up.*"] = None\n'
                         '    optimizer["head.*", "body.down.bias"] = adamw(lr=1e-3, eps=1e-6)\n')
    batches = classifier_batches(4)
    with ab.Session(plan_of(text, mesh, micro)) as session:
        p = tensors(session.state_dict())
        own = torch.optim.AdamW([p["head.weight"], p["head.bias"], p["body.down.bias"]], lr=1e-3,
                                eps=1e-6)
        rest = torch.optim.SGD([p["body.down.weight"]], lr=0.1, momentum=0.9)
        for batch in batches:
            loss = F.cross_entropy(recipes.logits(p, batch["x"]), torch.tensor(batch["label"]))
            own.zero_grad()
            rest.zero_grad()
            loss.backward()
            own.step()
            rest.step()
            assert session.step(**batch) == pytest.approx(loss.item(), rel=1e-5)
        equal(session.state_dict(), p)
        states = session.state_dict(optimizer=True)
    assert not [name for name in states if name.startswith("optimizer.body.up.")]
    assert {name for name in states if name.startswith("optimizer.body.down.")} == {
        "optimizer.body.down.weight.m", "optimizer.body.down.bias.m", "optimizer.body.down.bias.v"}


@pytest.mark.parametrize(("mesh", "micro"), [({}, 1), ({"data": 2}, 1), ({"model": 2}, 2)])
def test_averaged_weights_are_evaluated_and_given_back(mesh: dict[str, int], micro: int) -> None:
    """As torch's AveragedModel that saw the first weights before the first step."""
    batches = classifier_batches(5)
    with ab.Session(plan_of(CLASSIFIER + "    ema = 0.8\n", mesh, micro)) as session:
        p = tensors(session.state_dict())
        model = torch.nn.ParameterDict({k.replace(".", "/"): v for k, v in p.items()})
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8))
        average.update_parameters(model)
        sgd = torch.optim.SGD(p.values(), lr=0.1, momentum=0.9)
        for batch in batches:
            sgd.zero_grad()
            F.cross_entropy(recipes.logits(p, batch["x"]), torch.tensor(batch["label"])).backward()
            sgd.step()
            average.update_parameters(model)
            session.step(**batch)
        averaged = {k.replace("/", "."): v.detach() for k, v in average.module.items()}
        equal(session.state_dict(), averaged)
        equal(session.state_dict(optimizer=True), p)
        expected = F.cross_entropy(recipes.logits(averaged, batches[0]["x"]),
                                   torch.tensor(batches[0]["label"]))
        assert session.evaluate(**batches[0]) == pytest.approx(expected.item(), rel=1e-5)


def test_an_average_begins_anew_at_weights_that_are_loaded() -> None:
    with ab.Session(plan_of(CLASSIFIER + "    ema = 0.8\n")) as session:
        weights = {k: v + 1 for k, v in session.state_dict().items()}
        session.load_state_dict(weights)
        states = session.state_dict(optimizer=True)
    for name, value in weights.items():
        np.testing.assert_array_equal(states[name], value)
        np.testing.assert_array_equal(states[f"ema.{name}"], value)


@on_meshes
def test_what_is_reported_is_of_the_whole_batch(mesh: dict[str, int], micro: int) -> None:
    (batch,) = classifier_batches(1)
    with ab.Session(plan_of(CLASSIFIER, mesh, micro)) as session:
        found = recipes.logits(tensors(session.state_dict()), batch["x"])
        session.evaluate(**batch)
        evaluated = session.results["largest"]
        session.step(**batch)
        assert session.results["largest"] == pytest.approx(found.max().item(), rel=1e-5)
        assert evaluated == pytest.approx(found.max().item(), rel=1e-5)


@pytest.mark.parametrize("name", ["step", "loss"])
def test_what_the_curve_has_anyway_is_not_reported(name: str) -> None:
    with pytest.raises(ab.UserError, match=f"'{name}' is shown anyway"):
        plan_of(CLASSIFIER.replace("largest=", f"{name}="))


@pytest.mark.parametrize("mesh", [{}, {"data": 2}, {"data": 4}])
def test_every_held_out_row_counts_once(mesh: dict[str, int]) -> None:
    """21 rows in batches of 8, of which the first alone is right: nothing repeated or dropped."""
    plan = plan_of(CLASSIFIER + "    metrics = [accuracy]\n", mesh)
    (rows,) = classifier_batches(1, rows=21)
    with ab.Session(plan) as session:
        guess = recipes.logits(tensors(session.state_dict()), rows["x"]).argmax(1).numpy()
        rows["label"] = np.where(np.arange(21) == 0, guess, (guess + 1) % 3)
        scores = session.measure(**rows)
        loss = F.cross_entropy(recipes.logits(tensors(session.state_dict()), rows["x"]),
                               torch.tensor(rows["label"]))
        session.evaluate(**{name: array[:8] for name, array in rows.items()})
        assert session.results["accuracy"] == pytest.approx(1 / 8)
    assert scores["accuracy"] == pytest.approx(1 / 21)
    assert scores["loss"] == pytest.approx(loss.item(), rel=1e-5)


MEASURED = """
model Net(n: int):
    w: f32[n] = normal()
    v: f32[n, n] @ {model: S(0)} = normal()
    buffer shift: f32[] = constant(value=0.5)

    def loss(x: f32[B, n] @ {data: S(1), model: B}, y: f32[B]) -> f32[]:
        return mse(x @ w, y)

    def score(x: f32[B, n] @ {data: S(0), model: S(1)}, y: f32[B]) -> f32[]:
        with stage(stages - 1):
            return mean(tanh(x @ v + shift)) + mean(y)

train Net(n=6):
    steps     = 1
    data      = arrays(batch=8)
    metrics   = [score]
    optimizer = sgd(lr=0.1)
"""


@pytest.mark.parametrize("mesh", [
    {}, {"data": 2}, {"model": 2}, {"model": 2, "data": 2}, {"data": 3, "model": 2}, {"stage": 2}])
def test_a_metric_has_weights_of_its_own_and_sees_the_batch_as_the_loss_does(
    mesh: dict[str, int],
) -> None:
    """Weights that no step trains lie where a metric wants them; rows are cut in two ways."""
    random = np.random.default_rng(0)
    batch = {"x": random.normal(size=(8, 6)).astype("f4"),
             "y": random.normal(size=8).astype("f4")}
    x, y = torch.tensor(batch["x"]), torch.tensor(batch["y"])
    with ab.Session(plan_of(MEASURED, mesh)) as session:
        p = tensors(session.state_dict())
        assert session.evaluate(**batch) == pytest.approx(F.mse_loss(x @ p["w"], y).item())
        score = torch.tanh(x @ p["v"] + p["shift"]).mean() + y.mean()
        assert session.results["score"] == pytest.approx(score.item(), rel=1e-5)


NAMED = """
model Net(n: int):
    w:    f32[n] = normal()
    seed: f32[n] = normal()

    def loss(step: f32[B, n], w: f32[B]) -> f32[]:
        return mse(dropout(step, 0.5) @ seed, w)

train Net(n=6):
    steps     = 1
    data      = arrays(batch=8)
    optimizer = adam(lr=0.1)
"""


def test_arguments_and_fields_may_have_the_names_of_what_the_runtime_gives() -> None:
    """And an argument that of a field, which it hides."""
    random = np.random.default_rng(0)
    batch = {"step": random.normal(size=(8, 6)).astype("f4"),
             "w": random.normal(size=8).astype("f4")}
    losses = []
    for text in (NAMED, NAMED.replace("step:", "x:").replace("step,", "x,").replace("seed", "u")):
        given = batch if text is NAMED else {"x": batch["step"], "w": batch["w"]}
        with ab.Session(plan_of(text, {"data": 2})) as session:
            path = "seed" if text is NAMED else "u"
            session.load_state_dict({path: np.ones(6, "f4")}, strict=False)
            losses.append([session.step(**given) for _ in range(3)])
    assert losses[0] == losses[1]


EVERYTHING = GAN + ('    optimizer["generator.up.bias"] = None\n    ema = 0.9\n'
                    "    metrics = [generator_loss]\n")


@pytest.mark.parametrize(("mesh", "micro"), [({}, 1), ({"data": 2}, 2)])
def test_all_of_it_goes_on_bit_for_bit_from_a_checkpoint(
    mesh: dict[str, int], micro: int, tmp_path: Path
) -> None:
    plan, batches = plan_of(EVERYTHING, mesh, micro), gan_batches(5)
    with ab.Session(plan) as session:
        for batch in batches[:3]:
            session.step(**batch)
        session.save(tmp_path / "c")
        losses = [session.step(**batch) for batch in batches[3:]]
        states = session.state_dict(optimizer=True)
    with ab.Session(plan) as session:
        session.resume(tmp_path / "c")
        assert [session.step(**batch) for batch in batches[3:]] == losses
        again = session.state_dict(optimizer=True)
    for name, value in states.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)


def test_the_loss_of_a_step_is_what_its_update_returns() -> None:
    text = CLASSIFIER + ("\n    def update(x, label):\n        first = loss(x, label)\n"
                         "        minimize(first)\n        minimize(loss(x, label))\n"
                         "        return first\n")
    (batch,) = classifier_batches(1)
    with ab.Session(plan_of(text)) as session:
        before = session.evaluate(**batch)
        assert session.step(**batch) == pytest.approx(before, rel=1e-6)


def test_buffers_go_through_a_step_in_program_order() -> None:
    text = """
    model Net():
        w: f32[2] = ones()
        buffer calls: f32[] = zeros()

        def loss(x: f32[B, 2]) -> f32[]:
            calls := calls + 1
            return mean(x @ w) * calls

    train Net():
        steps     = 1
        data      = arrays(batch=2)
        optimizer = sgd(lr=1.0)

        def update(x):
            minimize(loss(x))
            minimize(loss(x))
    """
    with ab.Session(plan_of("\n".join(line[4:] for line in text.splitlines()))) as session:
        for step in range(2):
            session.step(x=np.ones((2, 2), np.float32))
            assert session.state_dict()["calls"] == 2 * (step + 1)
        # every call multiplied the gradient of ones by its number
        np.testing.assert_allclose(session.state_dict()["w"], 1.0 - (1 + 2 + 3 + 4))


@pytest.mark.parametrize("mesh", ["data=2", "data=4"])
def test_the_command_line_shows_metrics_and_reports(
    workplace: Path, capsys: pytest.CaptureFixture[str], mesh: str
) -> None:
    """Of 420 rows 21 are held out, all of one class, of which one is labelled as it is."""
    Path("c.ab").write_text(CLASSIFIER + "    metrics = [accuracy]\n    ema = 0.5\n")
    reader = make_reader("arrays", {"row": np.arange(420)}, 0, {"batch": 8})
    held = np.unique([batch["row"] for batch, _ in reader.validation()])
    assert len(held) == 21
    label = np.ones(420, np.int64)
    label[held[1:]] = 2
    np.savez("data.npz", x=np.ones((420, 4), np.float32), label=label)
    command = ["train", "c.ab", "--data", "data.npz", "--mesh", mesh, "--json"]
    assert main([*command, "--steps", "40"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out.splitlines()[-1])
    assert (report["scored_rows"], report["scored_targets"]) == (21, 21)
    assert report["metrics"]["accuracy"] == pytest.approx(1 / 21)
    assert report["reports"].keys() == {"largest"}
    assert "validation loss" in err
    assert "accuracy 0.047619" in err
    assert "largest" in err
    with open(report["loss_curve"], newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0].keys() == {"step", "loss", "largest"}
    resumed = ["--resume", report["checkpoint"], "--steps", "41"]
    assert main([*command, *resumed]) == 0
    with open(report["loss_curve"], newline="") as file:
        assert list(csv.DictReader(file))[:40] == rows


PIPELINE = """
model Net():
    a: Linear(4, 5)
    b: Linear(4, 5)
    c: Linear(5, 1)

    def first(x: f32[B, 4], y: f32[B, 1]) -> f32[]:
        with stage(0):
            return mean((b(x) - y) ** 2)

    def second(x: f32[B, 4], y: f32[B, 1]) -> f32[]:
        with stage(0):
            h = tanh(b(x))
        with stage(stages - 1):
            return mean((c(h) + 0.1 * sum(a(x) ** 2) - y) ** 2)

train Net():
    steps     = 3
    data      = arrays(batch=8)
    ema       = 0.9
    clip      = 1.0
    optimizer = adamw(lr=1e-2, weight_decay=0.1)
    optimizer["c.*"] = lamb(lr=1e-2)

    def update(x, y):
        minimize(first(x, y), "b.*")
        minimize(second(x, y))
"""


def test_a_parameter_lives_where_it_is_first_used_in_any_step() -> None:
    random = np.random.default_rng(0)
    batch = {"x": random.normal(size=(8, 4)).astype("f4"),
             "y": random.normal(size=(8, 1)).astype("f4")}
    found = []
    for mesh, micro in ((), 1), ((("stage", 2),), 1), ((("stage", 2), ("data", 2)), 4):
        plan = plan_of(PIPELINE, dict(mesh), micro)
        with ab.Session(plan) as session:
            found.append([session.step(**batch) for _ in range(4)])
        if mesh:
            homes = {state.name: state.shards[0].rank * 2 // plan.ranks for state in plan.states}
            assert homes["a.weight"] == homes["c.weight"] == homes["ema.c.weight"] == 1
            assert homes["b.weight"] == homes["optimizer.b.weight.m"] == 0
    for losses in found[1:]:
        assert losses == pytest.approx(found[0], rel=1e-5)


def test_a_model_without_a_loss_is_trained_from_the_command_line(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("gan.ab").write_text(GAN)
    random = np.random.default_rng(0)
    np.savez("data.npz", images=random.normal(size=(40, 4)), noise=random.normal(size=(40, 3)),
             unused=np.arange(40))
    assert main(["train", "gan.ab", "--data", "data.npz", "--json"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out.splitlines()[-1])
    assert (report["val_loss"], report["scored_rows"], report["metrics"]) == (None, 0, {})
    assert report["reports"].keys() == {"critic"}
    assert "training loss" in err
    assert "validation" not in err


def test_averaged_weights_write_the_text(
    workplace: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = TINY.read_text() + "    ema = 0.9\n"
    Path("averaged.ab").write_text(text)
    assert main(["train", "averaged.ab", "--data", str(corpus), "--steps", "20", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    states = load_file(report["checkpoint"])
    save_file({name.removeprefix("ema."): value for name, value in states.items()
               if name.startswith("ema.") or f"ema.{name}" not in states}, "plain.safetensors")
    assert main(["generate", "averaged.ab", "--checkpoint", report["checkpoint"], "--json",
                 "--length", "20"]) == 0
    written = json.loads(capsys.readouterr().out)["text"]
    with ab.Session(plan_of(TINY.read_text())) as session:
        session.load_state_dict(load_file("plain.safetensors"), strict=False)
        assert session.generate("def ", 20) == harmless(written)
