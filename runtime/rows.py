"""Rows of data in batches: how they are ordered and held out, and readers of arrays and tables.

Training rows form one endless sequence, epoch after epoch, each shuffled by the seed and its own
number; a batch is the next piece of it, so no row is ever left out, whatever the batch size. The
held-out rows are the same for every seed.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import functools
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.runtime.errors import FeedError

Batch = dict[str, Any]
Rows = NDArray[np.int64]
HELD = 0.05  # of the rows, unless a recipe says otherwise
ARRAYS = "arrays are read from an .npz, as numpy.savez('rows.npz', x=x, label=label) writes it"
TABLES = "a table has its names in the first line; a .csv has commas between them, others have tabs"


class Order:
    """Which rows of `count` are trained on when, and which are held out."""

    def __init__(self, count: int, seed: int, batch: int, held: float) -> None:
        if batch < 1:
            raise FeedError(f"a batch has at least one row, not {batch}")
        if not 0 < held < 1:
            raise FeedError(f"held={held} is not a part of the rows, between 0 and 1")
        number = max(1, round(count * held))
        if count - number < batch:
            raise FeedError(
                f"a batch of {batch} does not fit {max(0, count - number)} training rows",
                f"{count} rows, {min(number, count)} of them held out (held={held}): take a "
                "smaller batch")
        rows = permutation(0, 0, count)
        self._train, self._held = np.sort(rows[number:]), np.sort(rows[:number])
        self._seed, self._batch = seed, batch

    def training(self, step: int) -> Rows:
        places = range(step * self._batch, (step + 1) * self._batch)
        return np.array([self._row(*divmod(place, len(self._train))) for place in places])

    def _row(self, epoch: int, index: int) -> int:
        return int(self._train[permutation(self._seed, epoch + 1, len(self._train))[index]])

    def held_out(self) -> Iterator[tuple[Rows, int]]:
        for places, number in whole_batches(len(self._held), self._batch):
            yield self._held[places], number


@functools.lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, rows: int) -> Rows:
    return np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), epoch])).permutation(rows)


def whole_batches(count: int, batch: int) -> Iterator[tuple[Rows, int]]:
    """(the numbers of a batch, how many of them differ) until each number below `count` was in
    one batch. What is left over is repeated to fill batches, a divisor of the batch at a time."""
    start = 0
    while start < count:
        fitting = min(batch, count - start)
        number = next(n for n in range(fitting, 0, -1) if batch % n == 0)
        yield start + np.arange(batch) % number, number
        start += number


class RowReader:
    """Batches of rows, which `rows` gives by their numbers."""

    def __init__(self, rows: Callable[[Rows], Batch], order: Order) -> None:
        self._rows, self._order = rows, order

    def batch(self, step: int) -> Batch:
        return self._rows(self._order.training(step))

    def validation(self) -> Iterator[tuple[Batch, int]]:
        for rows, number in self._order.held_out():
            yield self._rows(rows), number


# ---- arrays -------------------------------------------------------------------------------------


class ArrayReader(RowReader):
    """Rows of arrays of equal length, from a mapping of names to arrays or an `.npz` file."""

    def __init__(self, source: Any, seed: int, *, batch: int, held: float = HELD) -> None:
        arrays = load_arrays(source)
        order = Order(_common_length(arrays), seed, batch, held)
        super().__init__(lambda rows: {n: array[rows] for n, array in arrays.items()}, order)


def _common_length(arrays: Mapping[str, Any]) -> int:
    lengths = {name: len(array) if array.ndim else None for name, array in arrays.items()}
    count, *others = {*lengths.values()}
    if others or count is None:
        raise FeedError(f"arrays must have one length; these have {lengths}",
                        "a row is what stands at one place of the first axis of all")
    return count


def load_arrays(source: Any) -> dict[str, Any]:
    if isinstance(source, Mapping):
        arrays = {name: np.asarray(array) for name, array in source.items()}
    else:
        arrays = _read_npz(source)
    if not arrays:
        raise FeedError(f"there are no arrays in {source}", ARRAYS)
    return arrays


def _read_npz(source: Any) -> dict[str, Any]:
    try:
        file = _loaded(source)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("it is not an .npz file, which names its arrays")
        with file:
            return {name: _numbers(file, name) for name in file.files}
    except (OSError, EOFError, ValueError, TypeError, zipfile.BadZipFile) as error:
        raise unreadable("arrays", source, error, ARRAYS) from error


def unreadable(what: str, source: Any, error: Exception, kind: str) -> FeedError:
    """Why a file cannot be read, and what could: the nearest one, or one of another kind."""
    path = Path(source) if isinstance(source, str | Path) else None
    if path is not None and not path.exists():
        return FeedError(f"cannot read {what} from {path}: there is no such file", beside(path))
    reason = "it is a folder" if path is not None and path.is_dir() else _reason(error)
    return FeedError(f"cannot read {what} from {source}: {reason}", kind)


def _reason(error: Exception) -> str:
    match error:
        case OSError(strerror=str(reason)):
            return reason
        case UnicodeDecodeError():
            return "it is not text in UTF-8"
        case zipfile.BadZipFile() | EOFError():
            return "it is damaged or cut off"
    return str(error)


def beside(path: Path) -> str:
    """What there is where a file is not."""
    if not path.parent.is_dir():
        return f"there is no folder {path.parent} either"
    close = difflib.get_close_matches(path.name, [each.name for each in path.parent.iterdir()], n=1)
    return f"did you mean {path.parent / close[0]}?" if close else ""


def _loaded(source: Any) -> Any:
    try:
        return np.load(source, allow_pickle=False)
    except ValueError as error:  # what NumPy says of anything that is none of its files
        if "pickle" not in str(error):
            raise
        raise ValueError("it is not an .npz file, which names its arrays") from error


def _numbers(file: np.lib.npyio.NpzFile, name: str) -> Any:
    try:
        return file[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise ValueError(f"'{name}' is an array of Python objects; save numbers, as in "
                         f"numpy.asarray({name}, numpy.float32)") from error


# ---- tables -------------------------------------------------------------------------------------


class TableReader(ArrayReader):
    """Columns of a text file with a line of names: `.csv`, or separated by tabs. Numbers come as
    i64 or f32, words as their numbers in sorted order. `columns` chooses some."""

    def __init__(self, source: str | Path, seed: int, *, batch: int, held: float = HELD,
                 columns: Sequence[str] | None = None) -> None:
        super().__init__(read_table(Path(source), columns), seed, batch=batch, held=held)


def read_table(path: Path, columns: Sequence[str] | None = None) -> dict[str, Any]:
    """The columns of a table by name."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            found = [*csv.reader(file, delimiter="," if path.suffix == ".csv" else "\t")]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise unreadable("a table", path, error, TABLES) from error
    head, lines = found[0] if found else [], found[1:]
    if not _are_names(head):
        why = f"its first line names no columns: {', '.join(head)}" if head else "it is empty"
        raise FeedError(f"cannot read a table from {path}: {why}", TABLES)
    for number, line in enumerate(lines, 2):
        if len(line) != len(head):
            raise FeedError(f"{path}:{number} has {len(line)} entries, and there are {len(head)} "
                            f"columns: {', '.join(head)}")
    if missing := [name for name in columns or () if name not in head]:
        close = difflib.get_close_matches(missing[0], head, n=1)
        raise FeedError(f"{path} has no column {missing[0]!r}; it has {', '.join(head)}",
                        f"did you mean {close[0]!r}?" if close else "")
    entries = list(zip(*lines, strict=True)) or [()] * len(head)
    return {name: _column(path, name, words) for name, words in zip(head, entries, strict=True)
            if columns is None or name in columns}


def _are_names(head: Sequence[str]) -> bool:
    """Not where it holds numbers, or is one name with what may stand between several."""
    one = len(head) == 1 and re.search(r"[,;|\t]", head[0])
    return bool(head) and not any(map(_is_number, head)) and not one


def _column(path: Path, name: str, words: Sequence[str]) -> NDArray[Any]:
    """Integers if all words are some, numbers if the first is one, else the words' numbers."""
    array = np.array(words)
    for dtype in (np.int64, np.float32):
        with contextlib.suppress(ValueError, OverflowError):
            return array.astype(dtype)
    if _is_number(words[0]):
        number, word = next((i, w) for i, w in enumerate(words, 2) if not _is_number(w))
        raise FeedError(f"{path}:{number}: {word!r} is no number, and the column {name!r} has some",
                        "what is not known is written nan; a column of words begins with one")
    return np.unique(array, return_inverse=True)[1].astype(np.int64)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
