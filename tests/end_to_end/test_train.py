"""What `anabranch train` promises: its files, its numbers, and that nothing done is lost."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import anabranch as ab
from anabranch.cli import main
from tests.end_to_end.conftest import TINY, Train

ROOT = Path(__file__).resolve().parents[2]


def curve(report: dict[str, Any]) -> list[float]:
    with open(report["loss_curve"], newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def same_states(one: str, other: str) -> bool:
    first, second = load_file(one), load_file(other)
    assert first.keys() == second.keys()
    return all(np.array_equal(first[name], second[name]) for name in first)


def test_a_run_leaves_its_files_and_says_what_it_came_to(trained: Train, workplace: Path) -> None:
    report = trained("--mesh", "data=2", "--steps", "60")
    assert report["steps"] == 60
    assert report["val_loss"] < curve(report)[0] - 0.5
    assert report["tokens_per_second"] > 0
    assert report["compile_seconds"] > 0
    assert report["peak_bytes"] == report["predicted_peak_bytes"] > 0
    assert Path(report["checkpoint"]) == Path("runs/tiny/checkpoint.safetensors")
    assert Path(report["checkpoint"]).is_file()
    events = json.loads(Path(report["trace"]).read_text())["traceEvents"]
    assert {e["args"]["step"] for e in events if e.get("cat") == "train"} >= set(range(52, 60))
    assert {e["pid"] for e in events} == {0, 1}


def test_a_run_without_a_name_never_overwrites_another(trained: Train) -> None:
    folders = [Path(trained("--steps", "2")["checkpoint"]).parent.name for _ in range(3)]
    assert folders == ["tiny", "tiny-2", "tiny-3"]


@pytest.mark.parametrize("mesh", ["", "data=2"])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(trained: Train, mesh: str) -> None:
    """Dropout, the schedule, the optimizer and the order of batches included."""
    whole = trained("--mesh", mesh, "--name", "whole", "--checkpoint-every", "5")
    part = trained("--mesh", mesh, "--name", "part", "--set", "lr=cosine(peak=1e-2, warmup=2, "
                   "total=12)", "--steps", "7")
    rest = trained("--mesh", mesh, "--resume", part["checkpoint"], "--steps", "12")
    assert rest["checkpoint"] == part["checkpoint"]
    assert curve(rest) == curve(whole)
    assert len(curve(rest)) == 12
    assert same_states(whole["checkpoint"], rest["checkpoint"])


def test_a_run_that_did_what_it_was_asked_for_goes_on_to_the_recipes_steps(
    trained: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = trained("--name", "whole")
    part = trained("--name", "part", "--set", "lr=cosine(peak=1e-2, warmup=2, total=12)",
                   "--steps", "7")
    rest = trained("--resume", part["checkpoint"])
    assert (part["steps"], rest["steps"]) == (7, 12)
    assert curve(rest) == curve(whole)
    assert main(["train", str(TINY), "--resume", part["checkpoint"]]) == 1
    error = capsys.readouterr().err
    assert "has done 12 of 12 steps already" in error
    assert "--steps 24" in error


def test_a_run_that_goes_on_from_a_copy_writes_over_no_other(
    trained: Train, workplace: Path
) -> None:
    part = trained("--name", "part", "--steps", "2")
    before = Path(part["checkpoint"]).read_bytes()
    copy = Path(shutil.copy(part["checkpoint"], workplace / "runs" / "part" / "best.safetensors"))
    rest = trained("--resume", str(copy), "--steps", "3")
    assert Path(rest["checkpoint"]) == Path("runs/tiny/checkpoint.safetensors")
    assert Path(part["checkpoint"]).read_bytes() == before
    assert len(curve(rest)) == 1


def test_a_run_resumed_on_another_mesh_agrees_to_rounding(trained: Train) -> None:
    whole = trained("--name", "whole")
    part = trained("--name", "part", "--mesh", "data=2", "--set",
                   "lr=cosine(peak=1e-2, warmup=2, total=12)", "--steps", "6")
    rest = trained("--resume", part["checkpoint"], "--steps", "12", "--mesh", "model=2")
    np.testing.assert_allclose(curve(rest), curve(whole), rtol=1e-5)


def test_a_curve_that_is_none_is_not_written_over(
    trained: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    part = trained("--name", "part", "--steps", "2")
    Path(part["loss_curve"]).write_text("step,loss\n0,notes\n")
    assert main(["train", str(TINY), "--resume", part["checkpoint"], "--steps", "3"]) == 1
    assert "loss.csv is not the curve that a run left there" in capsys.readouterr().err
    assert Path(part["loss_curve"]).read_text() == "step,loss\n0,notes\n"


def spoil_length(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def spoil_kind(path: Path) -> None:
    save_file({"table": np.zeros((256, 8), np.float32)}, path)


def spoil_text(path: Path) -> None:
    path.write_text("not a checkpoint")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_length, "is not a checkpoint, or it is truncated"),
        (spoil_text, "is not a checkpoint, or it is truncated"),
        (spoil_kind, "was not written as"),
        (Path.unlink, "there is no checkpoint"),
    ],
)
def test_a_checkpoint_that_is_none_is_refused_and_nothing_is_touched(
    trained: Train, capsys: pytest.CaptureFixture[str], spoil: Any, message: str
) -> None:
    path = Path(trained("--steps", "2", "--name", "good")["checkpoint"])
    spoil(path)
    before = {p: p.read_bytes() for p in path.parent.iterdir()}
    assert main(["train", str(TINY), "--resume", str(path), "--steps", "4"]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert {p: p.read_bytes() for p in path.parent.iterdir()} == before


def test_a_checkpoint_of_another_program_is_refused_with_all_that_differs(
    trained: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trained("--steps", "2", "--name", "small")["checkpoint"]
    assert main(["train", str(TINY), "--data", "corpus.txt", "--resume", path, "--steps", "4",
                 "--set", "dim=4"]) == 1
    error = capsys.readouterr().err
    assert "table is float32[256, 8], the program has f32[256, 4]" in error
    assert "optimizer.table.m is float32[256, 8], the program has f32[256, 4]" in error


# A job in the background of a shell ignores Ctrl-C, and so would a test there.
INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from anabranch.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_saved_and_goes_on_bit_for_bit(
    trained: Train, workplace: Path, corpus: Path, number: signal.Signals
) -> None:
    whole = trained("--name", "whole", "--steps", "3000")
    command = [sys.executable, "-c", INTERRUPTIBLE, "train", str(TINY), "--data", str(corpus),
               "--steps", "3000", "--name", "cut", "--checkpoint-every", "10"]
    process = subprocess.Popen(command, cwd=workplace, env=os.environ | {"PYTHONPATH": str(ROOT)},
                               stderr=subprocess.PIPE, text=True)
    saved = Path("runs/cut/checkpoint.safetensors")
    while process.poll() is None and not saved.exists():
        time.sleep(0.01)
    process.send_signal(number)
    try:
        _, error = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 130, error
    assert "--resume runs/cut/checkpoint.safetensors" in error
    rest = trained("--resume", str(saved))
    assert rest["steps"] == 3000
    assert curve(rest) == curve(whole)
    assert same_states(whole["checkpoint"], rest["checkpoint"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "dmi=4"], "did you mean 'dim'?"),
        (["--data", "nowhere.txt"], "nowhere.txt is neither a file nor a folder"),
        (["--model", "Tinny"], "did you mean 'Tiny'?"),
    ],
)
def test_a_wrong_argument_is_a_clear_message(
    workplace: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["train", str(TINY), *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "fault of Anabranch" not in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "--steps: 0 is less than 1"),
        (["--steps", "two"], "--steps: 'two' is not an integer"),
        (["--seed", str(2**63)], f"--seed: {2**63} is more than"),
        (["--mesh", "data=two"], "'data=two' is not an axis of a mesh; write axes as"),
        (["--mesh", "data=2,data=2"], "the mesh axis 'data' is given twice"),
        (["--mesh", ","], "'' is not an axis of a mesh"),
        (["--set", "dim"], "'dim' is not an override; write --set name=value"),
    ],
)
def test_a_wrong_command_line_is_told_from_a_wrong_program(
    workplace: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["train", str(TINY), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_seconds_of_each_pass_are_printed(
    workplace: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", str(TINY), "--data", str(corpus), "--steps", "1", "--time-passes"]
    assert main(command) == 0
    printed = [line.split()[-1] for line in capsys.readouterr().err.splitlines() if " s  " in line]
    assert {"differentiate", "plan", "localise", "fuse", "schedule", "all"} <= set(printed)


def test_a_resumed_run_knows_its_settings_and_its_data(trained: Train, workplace: Path) -> None:
    whole = trained("--name", "whole", "--set", "dim=4")
    part = trained("--name", "part", "--set", "dim=4", "--set",
                   "lr=cosine(peak=1e-2, warmup=2, total=12)", "--steps", "5")
    command = ["train", str(TINY), "--resume", part["checkpoint"], "--steps", "12"]
    assert main(command) == 0
    assert curve(part) == curve(whole)


def test_a_loss_that_is_no_number_ends_the_run(
    trained: Train, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", str(TINY), "--data", "corpus.txt", "--set", "lr=1e30", "--steps", "50"]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "try a lower learning rate" in error
    assert "checkpoint" not in error  # there is none to go on from
    assert main([*command, "--checkpoint-every", "1"]) == 1
    assert "a lower learning rate, or go on from the last checkpoint" in capsys.readouterr().err


ARRAYS = """
model Line(n: int):
    w: f32[n] = zeros()

    def loss(x: f32[B, n], y: f32[B]) -> f32[]:
        return mse(x @ w, y)

train Line(n=3):
    steps     = 200
    data      = arrays(batch=8)
    optimizer = adamw(lr=1e-1, weight_decay=0.0)
"""


def test_arrays_of_a_file_are_trained_on(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("line.ab").write_text(ARRAYS)
    x = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    np.savez("data.npz", x=x, y=x @ np.array([1, -2, 3], np.float32))
    assert main(["train", "line.ab"]) == 1
    assert "give --data PATH" in capsys.readouterr().err
    assert main(["train", "line.ab", "--data", "data.npz", "--mesh", "data=2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    np.testing.assert_allclose(load_file(report["checkpoint"])["w"], [1, -2, 3], atol=1e-2)
    assert report["val_loss"] < 1e-3


@pytest.mark.parametrize(("odd", "told"), [
    (np.nan, "'x' has nan in row "), (np.inf, "'x' has inf in row "),
    (None, "of step 0 is inf, and what it was fed is finite; look in the model"),
])
def test_a_first_loss_that_is_no_number_is_looked_for_in_the_data(
    workplace: Path, capsys: pytest.CaptureFixture[str], odd: float | None, told: str
) -> None:
    x = np.ones((100, 3), "f4")
    x[:, 1] = 1 if odd is None else odd
    np.savez("data.npz", x=x, y=np.ones(100, "f4"))
    Path("line.ab").write_text(ARRAYS.replace("mse(x @ w, y)", "mse(x @ w, y) / (1 - max(y))"))
    assert main(["train", "line.ab", "--data", "data.npz"]) == 1
    error = capsys.readouterr().err
    assert told in error
    assert "learning rate" not in error
    assert "checkpoint" not in error


LABELS = """
model Labels(n: int):
    w: f32[n, 2] = zeros()

    def loss(x: f32[B, n], y: i64[B]) -> f32[]:
        return cross_entropy(x @ w, y)

train Labels(n=3):
    steps     = 5
    data      = arrays(batch=8)
    optimizer = adamw(lr=1e-1)
"""


def test_a_label_out_of_range_is_told_at_the_line_that_uses_it(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("labels.ab").write_text(LABELS)
    np.savez("data.npz", x=np.ones((100, 3), "f4"), y=np.full(100, 2))
    assert main(["train", "labels.ab", "--data", "data.npz"]) == 1
    told = capsys.readouterr().err
    lines = told[told.index("labels.ab:"):].splitlines()
    assert lines == [
        "labels.ab:6:9: error: index 2 is outside 0..1: 'y' holds places along a dimension of "
        "size 2, in loss cross_entropy",
        "            return cross_entropy(x @ w, y)", "            ^",
        "help: labels, tokens and other places count from 0 to one less than the size",
        "note: in step 0, on rank 0"]


LONG = ARRAYS.replace("y: f32[B])", "y: f32[B, S])").replace("(x @ w,", "(outer(x @ w, y),") + """
op outer(a: f32[B], y: f32[B, S]) -> f32[B, S]:
    z[b, s] = a[b] + 0 * y[b, s]
    return z
"""


def test_what_only_the_data_say_of_a_size_is_theirs(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("long.ab").write_text(LONG)
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    np.savez("data.npz", x=x, y=np.repeat(x @ np.float32([[1], [-2], [3]]), 12, axis=1))
    command = ["train", "long.ab", "--data", "data.npz", "--steps", "2", "--out", "out", "--json"]
    assert main(command) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[-1])["train_loss"]
    assert main([*command, "--set", "S=12"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["train_loss"] == first
    assert main([*command, "--set", "S=13"]) == 1
    assert "S is set to 13, and 'y' of the data has S=12" in capsys.readouterr().err
    arrays = {"x": np.ones((8, 3), "f4"), "y": np.ones((8, 12), "f4")}
    with pytest.raises(ab.UserError, match="S is set to 13, and 'y' of the data has S=12"):
        ab.compile(ab.load("long.ab").train, set={"S": 13}, **arrays)
    assert main(["explain", "long.ab", "--set", "S=12"]) == 0
    capsys.readouterr()
    assert main(["explain", "long.ab"]) == 1
    assert 'help: set it: set={"S": 8}, or --set S=8 in a shell' in capsys.readouterr().err
    with pytest.raises(ab.UserError, match=r'help: set it: set=\{"S": 8\}, or --set S=8'):
        ab.compile(ab.load("long.ab").train)
    assert ab.compile(ab.load("long.ab").train, set={"S": 8}).programs
    assert main([*command, "--set", "Z=12"]) == 1
    assert "the recipe has no 'Z' to set" in capsys.readouterr().err


@pytest.mark.parametrize(("old", "new", "message"), [
    ("batch=8", "batch=8, shuffle=True", "the reader 'arrays' takes no 'shuffle'"),
    ("batch=8", "batch=8, hold=0.2", "did you mean 'held'?"),
    ("batch=8", "batch=8, held=1.5", "'held' is a part of the rows, between 0 and 1, not the "
     "number 1.5"),
    ("batch=8", "batch=8, held=True", "'held' is a part of the rows, between 0 and 1, not True"),
    ("batch=8", "8", "the arguments of the reader 'arrays' go by name"),
    ("steps     = 200", "steps = 200\n    metrics = [far]", "the reader 'arrays' gives no 'z'"),
])
def test_what_the_data_cannot_give_is_said_before_anything_is_planned(
    workplace: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str
) -> None:
    metric = "    def far(z: f32[B, n]) -> f32[]:\n        return mean(z)\n"
    text = ARRAYS.replace("\ntrain", f"\n{metric}\ntrain")
    Path("line.ab").write_text(text.replace(old, new))
    np.savez("data.npz", x=np.ones((100, 3), "f4"), y=np.ones(100, "f4"))
    assert main(["train", "line.ab", "--data", "data.npz"]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "line.ab:" in error
    assert "planned" not in error


@pytest.mark.parametrize("held", ["0", "1", "1.5", '"half"', "True", "None"])
def test_a_part_of_the_rows_that_is_none_is_found_without_the_data(
    workplace: Path, capsys: pytest.CaptureFixture[str], held: str
) -> None:
    Path("line.ab").write_text(ARRAYS.replace("batch=8", f"batch=8, held={held}"))
    assert main(["check", "line.ab"]) == 1
    told = "".join(capsys.readouterr())
    assert "line.ab:10:17: error: 'held' is a part of the rows, between 0 and 1, not " in told


def test_an_override_of_the_optimizer_is_written_like_the_line(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("line.ab").write_text(ARRAYS)
    np.savez("data.npz", x=np.ones((100, 3), "f4"), y=np.ones(100, "f4"))
    command = ["train", "line.ab", "--data", "data.npz", "--steps", "1", "--out", "out", "--json"]
    assert main([*command, "--set", "optimizer=sgd(lr=0.25)"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    np.testing.assert_allclose(load_file(report["checkpoint"])["w"], 0.5)  # 0.25 * 2 * 1 * 1
