"""`anabranch generate` writes with what `anabranch train` left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import anabranch as ab
from anabranch.cli import main
from tests.end_to_end.conftest import TINY, Train


@pytest.fixture
def checkpoint(trained: Train) -> str:
    return str(trained("--steps", "300", "--set", "dim=32", "--mesh", "data=2")["checkpoint"])


def generated(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["generate", str(TINY), "--json", *arguments]) == 0, capsys.readouterr().err
    return str(json.loads(capsys.readouterr().out)["text"])


def test_what_is_written_comes_from_the_weights_and_the_seed(
    checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings come from the checkpoint, and the text is longer than the window."""
    text = generated(capsys, "--checkpoint", checkpoint, "--prompt", "1 bot", "--length", "60")
    assert text == generated(capsys, "--checkpoint", checkpoint, "--prompt", "1 bot", "--length",
                             "60")
    assert text != generated(capsys, "--checkpoint", checkpoint, "--prompt", "1 bot", "--length",
                             "60", "--seed", "1")
    plan = ab.compile(ab.load(TINY).train, set={"dim": 32})
    with ab.Session(plan) as session:
        session.resume(checkpoint)
        assert session.generate("1 bot", 60) == text


def test_a_low_temperature_takes_the_likeliest(
    checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def cold(seed: str) -> str:
        return generated(capsys, "--checkpoint", checkpoint, "--temperature", "0.001", "--seed",
                         seed, "--length", "20")

    assert cold("1") == cold("2")


def test_text_is_shown_behind_the_prompt(
    checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["generate", str(TINY), "--checkpoint", checkpoint, "--prompt", "on the", "--length", "9"])
    shown = capsys.readouterr().out
    assert shown.startswith("on the")
    assert shown.endswith("\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", ""], "--prompt: it is empty"),
        (["--length", "0"], "--length: 0 is less than 1"),
        (["--temperature", "0"], "--temperature: 0 is not positive"),
        (["--temperature", "nan"], "--temperature: nan is not positive"),
    ],
)
def test_a_wrong_argument_is_a_clear_message(
    checkpoint: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["generate", str(TINY), "--checkpoint", checkpoint, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_checkpoint_of_other_sizes_is_refused(
    checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(TINY), "--checkpoint", checkpoint, "--set", "dim=16"]) == 1
    error = capsys.readouterr().err
    assert "table is float32[256, 32], the program has f32[256, 16]" in error


def test_a_model_that_cannot_write_says_what_is_missing(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = tmp_path / "silent.ab"
    silent.write_text(TINY.read_text().replace("def next(", "def following("))
    assert main(["generate", str(silent), "--checkpoint", checkpoint]) == 1
    assert "has no function 'next'" in capsys.readouterr().err
