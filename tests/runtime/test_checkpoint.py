"""A checkpoint is what was saved or is refused: whole, cut short, longer, any byte changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anabranch.runtime import checkpoint
from anabranch.runtime.checkpoint import CheckpointError, Progress
from anabranch.runtime.session import Session
from tests.runtime.models import WIDTH, counter

PLAN = counter(1)
PROGRESS = Progress(7, 3, '{"model": "Net"}')
W = np.arange(WIDTH) + 0.5


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "checkpoint.safetensors"
    path.parent.mkdir()
    with Session(PLAN) as session:
        session.set_state("w", W)
        checkpoint.save(session, path, PROGRESS)
    return path


def test_what_was_saved_is_loaded(saved: Path) -> None:
    arrays, progress = checkpoint.load(PLAN, saved)
    assert progress == PROGRESS == checkpoint.read_progress(saved)
    np.testing.assert_array_equal(arrays["w"], W)
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


def test_what_cannot_be_written_is_an_error_of_ours_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with Session(PLAN) as session:
        for place, reason in [
            ("folder", "Is a directory"), ("file/c", "Not a directory"),
            ("none/c", "No such file or directory"), ("x" * 300, "File name too long"),
        ]:
            with pytest.raises(CheckpointError) as failure:
                checkpoint.save(session, tmp_path / place, PROGRESS)
            assert str(failure.value) == f"{tmp_path / place} cannot be written: {reason}"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


def test_no_changed_byte_goes_unnoticed(saved: Path) -> None:
    whole = saved.read_bytes()
    for place in range(len(whole)):
        for bit in (0, 5):
            changed = bytearray(whole)
            changed[place] ^= 1 << bit
            saved.write_bytes(changed)
            with pytest.raises(CheckpointError):
                checkpoint.load(PLAN, saved)


def test_nothing_cut_off_or_added_goes_unnoticed(saved: Path) -> None:
    whole = saved.read_bytes()
    for changed in [*(whole[:n] for n in range(len(whole))), whole + b"\0"]:
        saved.write_bytes(changed)
        with pytest.raises(CheckpointError):
            checkpoint.load(PLAN, saved)
