"""Readers: what they give depends on the step alone, and what they cannot read they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anabranch.runtime.data import make_reader
from anabranch.runtime.errors import FeedError
from anabranch.runtime.rows import whole_batches

X, Y = np.arange(200.0).reshape(100, 2), np.arange(100)


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path / "data.npz", **arrays)
    return path / "data.npz"


def rows(batches: list[dict[str, Any]]) -> list[int]:
    return [int(y) for batch in batches for y in batch["y"]]


def test_an_epoch_of_arrays_has_every_training_row_once_and_none_that_is_held_out() -> None:
    reader = make_reader("arrays", {"x": X, "y": Y}, 3, {"batch": 19})
    first, second = ([reader.batch(5 * epoch + i) for i in range(5)] for epoch in range(2))
    held = [int(y) for batch, number in reader.validation() for y in batch["y"][:number]]
    assert sorted(rows(first)) == sorted(rows(second)) == sorted({*range(100)} - {*held})
    assert len(held) == 5
    assert rows(first) != rows(second)
    assert all((batch["x"][:, 0] == 2 * batch["y"]).all() for batch in first)


def test_no_row_is_left_out_where_batches_do_not_fill_an_epoch() -> None:
    reader = make_reader("arrays", {"x": X, "y": Y}, 0, {"batch": 32, "held": 0.2})
    batches = rows([reader.batch(step) for step in range(5)])
    assert sorted(batches[:80]) == sorted(batches[80:])
    assert len({*batches}) == 80


def test_which_rows_are_held_out_does_not_depend_on_the_seed_and_they_are_drawn() -> None:
    held = [{*rows([b for b, _ in make_reader("arrays", {"y": Y}, seed, {"batch": 4, "held": 0.3})
                    .validation()])} for seed in (0, 1, -7)]
    assert held[0] == held[1] == held[2]
    assert held[0] != {*range(70, 100)}


@pytest.mark.parametrize(("count", "batch"), [(5, 19), (40, 64), (100, 7), (64, 64), (1, 12)])
def test_a_mean_over_ragged_batches_is_the_mean_of_the_rows(count: int, batch: int) -> None:
    values = np.random.default_rng(0).normal(size=count)
    parts = [(values[numbers].mean(), number) for numbers, number in whole_batches(count, batch)]
    assert all(len(numbers) == batch for numbers, _ in whole_batches(count, batch))
    assert sum(number for _, number in parts) == count
    np.testing.assert_allclose(sum(m * n for m, n in parts) / count, values.mean())


def test_arrays_are_read_from_a_file(tmp_path: Path) -> None:
    reader = make_reader("arrays", npz(tmp_path, x=X, y=Y), 3, {"batch": 19})
    again = make_reader("arrays", {"x": X, "y": Y}, 3, {"batch": 19})
    np.testing.assert_array_equal(reader.batch(7)["x"], again.batch(7)["x"])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X, "y": Y[:50]}, "one length; these have {'x': 100, 'y': 50}"),
        ({"x": X, "y": 3}, "one length; these have {'x': 100, 'y': None}"),
        ({"x": 2, "y": 3}, "one length"), ({}, "there are no arrays"),
        ({"x": X[:4]}, "a batch of 4 does not fit 3 training rows"),
        ({"x": X[:0]}, "a batch of 4 does not fit 0 training rows"),
        ({"x": np.array([object()] * 9)}, "cannot read arrays"),
    ],
)
def test_arrays_that_make_no_batches_are_refused(
    tmp_path: Path, arrays: dict[str, Any], message: str
) -> None:
    with pytest.raises(FeedError) as refused:
        make_reader("arrays", npz(tmp_path, **arrays), 0, {"batch": 4})
    assert message in str(refused.value)


def test_files_that_hold_no_arrays_are_refused(tmp_path: Path) -> None:
    whole = npz(tmp_path, x=X, y=Y)
    spoiled = {"cut": whole.read_bytes()[:500], "text": b"hello", "empty": b""}
    for name, data in spoiled.items():
        (tmp_path / name).write_bytes(data)
    np.save(tmp_path / "one.npy", X)
    for name in (*spoiled, "one.npy", "nowhere", "."):
        with pytest.raises(FeedError, match="cannot read arrays from"):
            make_reader("arrays", tmp_path / name, 0, {"batch": 4})


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"batch": 4, "foo": 3}, "'foo'"), ({}, "'batch'"), ({"batch": 0}, "at least one row"),
     ({"batch": 4, "held": 1.5}, "not a part of the rows")],
)
def test_a_reader_that_is_called_wrongly_says_so(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(FeedError, match=message):
        make_reader("arrays", {"x": X}, 0, settings)


def test_an_epoch_of_text_has_windows_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(bytes(range(250)))
    reader = make_reader("text", path, 1, {"window": 10, "batch": 3})
    batch = reader.batch(0)
    np.testing.assert_array_equal(batch["tokens"] + 1, batch["targets"])
    epoch = np.concatenate([reader.batch(step)["tokens"] for step in range(8)])[:22]
    starts = np.sort(epoch[:, 0])
    assert (np.diff(starts) == 10).all()
    assert epoch.max() < 238
    held = [batch["tokens"] for batch, _ in reader.validation()]
    assert min(tokens.min() for tokens in held) >= 238


@pytest.mark.parametrize("size", [0, 1, 20, 239])
def test_a_text_that_is_too_short_says_what_is_needed(tmp_path: Path, size: int) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"x" * size)
    with pytest.raises(FeedError, match="a window of 10 needs at least 12"):
        make_reader("text", path, 1, {"window": 10, "batch": 3})


def test_a_file_that_holds_objects_says_which_array_has_them(tmp_path: Path) -> None:
    path = npz(tmp_path, x=X, label=np.array([object()] * len(X)))
    with pytest.raises(FeedError, match=r"'label' is an array of Python objects; save numbers"):
        make_reader("arrays", path, 0, {"batch": 4})
    path.write_text("no archive")
    with pytest.raises(FeedError, match=r"it is not an \.npz file, which names its arrays"):
        make_reader("arrays", path, 0, {"batch": 4})
