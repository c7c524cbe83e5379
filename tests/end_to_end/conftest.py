"""A tiny program, a text to train it on, and a folder to do it in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anabranch.cli import main

TINY = Path(__file__).with_name("tiny.ab")

Train = Callable[..., dict[str, Any]]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{i} bottles of beer on the wall\n" for i in range(2000)))
    return path


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command line is used: what it leaves is left there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trained(
    workplace: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> Train:
    """Runs `anabranch train` with these arguments more; the value is its JSON object."""

    def train(*arguments: str) -> dict[str, Any]:
        command = ["train", str(TINY), "--data", str(corpus), "--json", *arguments]
        assert main(command) == 0, capsys.readouterr().err
        report: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return report

    return train
