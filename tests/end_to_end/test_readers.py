"""Readers that recipes name: those that are there, and one of a user's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.cli import main
from anabranch.frontend.builtins import BUILTINS
from anabranch.frontend.readers import READERS
from anabranch.readers import signature_of
from anabranch.runtime import data
from anabranch.runtime.errors import FeedError

WAVES = """
import numpy as np
import anabranch as ab

@ab.register_reader("waves")
class Waves:
    def __init__(self, source, seed, *, rows, frequency=1.0):
        self.seed, self.rows, self.frequency = seed, rows, frequency

    def batch(self, step):
        x = np.random.default_rng([self.seed, step]).uniform(-1, 1, (self.rows, 3)).astype("f4")
        return {"x": x, "y": np.sin(self.frequency * x.sum(axis=1)).astype("f4")}

    def validation(self):
        yield self.batch(1_000_000), self.rows
"""
FIT = """
model Fit(hidden: int):
    up:   Linear(3, hidden)
    down: Linear(hidden, 1)

    def loss(x: f32[B, 3], y: f32[B]) -> f32[]:
        return mse(down(tanh(up(x)))[:, 0], y)

train Fit(hidden=8):
    steps     = 150
    data      = waves(rows=16, frequency=1.2)
    optimizer = adamw(lr=3e-2)
"""
PICTURES = """
model Pictures(classes: int):
    head: Linear(12, classes)

    def loss(images: f32[B, C, H, W], labels: i64[B]) -> f32[]:
        return cross_entropy(head(flatten(images, 1)), labels)

train Pictures(classes=2):
    steps     = 60
    data      = images(batch=4, held=0.2)
    optimizer = adamw(lr=3e-2)
"""
SALES = """
model Sales(shops: int):
    offset: f32[shops] = zeros()

    def loss(shop: i64[B], price: f32[B]) -> f32[]:
        return mse(offset[shop], price)

train Sales(shops=3):
    steps     = 200
    data      = table(batch=8, columns=["shop", "price"])
    optimizer = sgd(lr=0.5)
"""


@pytest.fixture(autouse=True)
def no_reader_stays() -> Iterator[None]:
    """What a test registers is gone after it."""
    tables: list[dict[str, Any]] = [READERS, BUILTINS, data.READERS]
    before = [dict(table) for table in tables]
    yield
    for table, was in zip(tables, before, strict=True):
        table.clear()
        table.update(was)


def trained(capsys: pytest.CaptureFixture[str], program: str, *more: str) -> dict[str, Any]:
    Path("program.ab").write_text(program)
    assert main(["train", "program.ab", "--json", "--out", "out", *more]) == 0, capsys.readouterr()
    report: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return report


@pytest.mark.parametrize("name", sorted(data.READERS))
def test_recipes_give_a_reader_what_its_maker_takes(name: str) -> None:
    made, known = signature_of(name, data.READERS[name]), READERS[name]
    assert ({*made.needed}, {*made.optional}) == ({*known.needed}, {*known.optional})


def test_a_recipe_reads_images(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Dark ones and bright ones, told apart; their sizes are those of the files."""
    for number in range(40):
        folder = Path("pictures") / ("bright" if number % 2 else "dark")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 120, (2, 6)) + 130 * (number % 2)
        (folder / f"{number}.pgm").write_bytes(b"P5 6 2 255\n" + pixels.astype("u1").tobytes())
    assert trained(capsys, PICTURES, "--data", "pictures")["val_loss"] < 0.35


def test_a_recipe_reads_a_table(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{n},{'abc'[n % 3]},{n % 3 * 1.5}" for n in range(60)]
    Path("sales.csv").write_text("\n".join(["day,shop,price", *rows]))
    assert trained(capsys, SALES, "--data", "sales.csv")["val_loss"] < 1e-3


def test_a_recipe_names_a_reader_of_the_user(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("waves.py").write_text(WAVES)
    report = trained(capsys, FIT, "--readers", "waves.py")
    assert report["val_loss"] < 0.1
    assert main(["check", "program.ab", "--readers", "waves.py"]) == 0
    assert "train Fit\n  tried with B = 8, which the data will say" in capsys.readouterr().out
    assert main(["explain", "program.ab", "--readers", "waves.py", "--set", "B=16"]) == 0
    resumed = ["train", "program.ab", "--readers", "waves.py", "--resume", report["checkpoint"]]
    assert main([*resumed, "--steps", "152"]) == 0
    assert "--readers waves.py --resume" in capsys.readouterr().out


@pytest.mark.parametrize(("old", "new", "message"), [
    ("waves(rows", "wave(rows", "did you mean 'waves'?"),
    ("waves(rows", "tides(rows", "'tides' is not defined\n"),
    ("waves(rows", "tides(rows", "\nhelp: there are the readers arrays, images, table, text, "
     "waves; --readers FILE.py registers more"),
    ("rows=16", "row=16", "did you mean 'rows'?"),
    ("rows=16, ", "", "the reader 'waves' is called without 'rows'"),
])
def test_a_mistake_in_naming_a_users_reader_has_a_place(
    workplace: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str
) -> None:
    Path("waves.py").write_text(WAVES)
    Path("program.ab").write_text(FIT.replace(old, new))
    assert main(["train", "program.ab", "--readers", "waves.py"]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "program.ab:11:17" in error


@pytest.mark.parametrize(("text", "message"), [
    ("import numpy\n1 / 0\n", "bad.py:2:1: error: ZeroDivisionError: division by zero"),
    ("x = = 1\n", "bad.py:1:5: error: SyntaxError"),
    (WAVES.replace('"waves"', '"softmax"'), "a reader cannot be called 'softmax'"),
    (WAVES.replace("def validation", "def validate"), "'waves' has no validation(...)\n"),
    (WAVES.replace("def batch", "def next"), "'waves' has no batch(...)\n"),
    (WAVES[:WAVES.index("    def batch")], "'waves' has no batch(...) and no validation(...)\n"),
    (WAVES.replace("source, seed, ", "source, "), "has no parameters (source, seed, ...)"),
])
def test_a_file_of_readers_that_fails_is_told_by_its_line(
    workplace: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    Path("bad.py").write_text(text)
    Path("program.ab").write_text(FIT)
    assert main(["train", "program.ab", "--readers", "bad.py"]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "fault of Anabranch" not in error


@pytest.mark.parametrize(("broken", "message"), [
    ('return {"x": x}', "gives no 'y'"), ("return x", "'waves'"), ("return 1 / 0", "'waves'"),
])
def test_a_reader_that_fails_is_named(
    workplace: Path, capsys: pytest.CaptureFixture[str], broken: str, message: str
) -> None:
    start = WAVES.index('return {"x"')
    Path("waves.py").write_text(WAVES[:start] + broken + WAVES[WAVES.index("\n", start):])
    Path("program.ab").write_text(FIT)
    assert main(["train", "program.ab", "--readers", "waves.py"]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "fault of Anabranch" not in error


def refused(usual: str, given: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said, before any training, of a reader that gives this instead of the usual."""
    Path("waves.py").write_text(WAVES.replace(usual, given))
    Path("program.ab").write_text(FIT)
    assert main(["train", "program.ab", "--readers", "waves.py"]) == 1
    assert not Path("runs").exists()
    return capsys.readouterr().err


@pytest.mark.parametrize(("given", "message"), [
    ("yield self.batch(1)", "waves.py:15: validation() gives a dict\n"),
    ("yield self.rows", "waves.py:15: validation() gives an int\n"),
    ("yield self.rows, self.batch(1)", "waves.py:15: validation() gives a pair that begins with "
                                       "an int\n"),
    ("yield self.batch(1), 0.5", "gives a pair that ends with a float\n"),
    ("yield self.batch(1), 17", "gives a batch of 16 rows, of which 17 differ\n"),
    ("yield self.batch(1), 16, 1", "gives a tuple of 3\n"),
    ("return self.batch(1)", "waves.py:14: validation() gives a dict\n"),
    ("return self.batch(1), 16", "waves.py:14: validation() gives a dict\n"),
    ("pass", "waves.py:14: validation() gives None\n"),
])
def test_what_validation_gives_is_tried_before_training(
    workplace: Path, capsys: pytest.CaptureFixture[str], given: str, message: str
) -> None:
    error = refused("yield self.batch(1_000_000), self.rows", given, capsys)
    assert message in error
    assert error.endswith("how many of its rows differ, as in: yield batch, rows\n")


@pytest.mark.parametrize(("given", "message"), [
    ('{"x": self.batch(1)["x"]}, 16', "the program wants x, y: y is missing; y is f32[16]\n"),
    ("{n: a[:5] for n, a in self.batch(1).items()}, 5",
     "validation() gives does not fit: x is [5, 3] here"),
    ("self.batch(int('a')), 5", "the reader 'waves' failed at waves.py:15: ValueError: invalid"),
])
def test_a_held_out_batch_that_does_not_fit_is_told_before_training(
    workplace: Path, capsys: pytest.CaptureFixture[str], given: str, message: str
) -> None:
    assert message in refused("self.batch(1_000_000), self.rows", given, capsys)


def test_a_reader_may_hold_out_nothing(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = WAVES.replace("yield self.batch(1_000_000), self.rows", "return []")
    Path("waves.py").write_text(none)
    assert trained(capsys, FIT, "--readers", "waves.py", "--steps", "1")["val_loss"] is None


def test_a_reader_whose_batch_takes_no_step_is_told_of_its_own_function(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("waves.py").write_text(WAVES.replace("def batch(self, step)", "def batch(self)"))
    Path("program.ab").write_text(FIT)
    assert main(["train", "program.ab", "--readers", "waves.py"]) == 1
    error = capsys.readouterr().err
    assert "the reader 'waves' failed: TypeError: Waves.batch() takes 1 positional" in error


def test_a_reader_is_registered_from_python() -> None:
    @ab.register_reader("still")
    def make(source: object, seed: int, batch: int, **settings: float) -> Any:
        raise AssertionError("nothing is read when compiling")

    text = FIT.replace("waves(rows=16, frequency=1.2)", "still(batch=4, height=2.0)")
    plan = ab.compile(ab.loads(text).train, cached=False)
    with ab.Session(plan) as session:
        loss = session.step(x=np.zeros((4, 3), "f4"), y=np.full(4, 3, "f4"))
    assert loss == pytest.approx(9, abs=2)


def test_a_reader_that_hides_its_method_behind_a_number_is_told() -> None:
    made = WAVES.replace("self.seed,", "self.batch, self.seed,").replace("= seed,", "= rows, seed,")
    exec(compile(made, "waves.py", "exec"), {})
    with pytest.raises(FeedError, match=r"'waves' has no batch\(\.\.\.\); both methods are needed"):
        data.make_reader("waves", None, 0, {"rows": 4})


def test_needed_data_are_asked_for(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("program.ab").write_text(PICTURES)
    assert main(["train", "program.ab"]) == 1
    assert "the reader 'images' needs data: give --data PATH" in capsys.readouterr().err
