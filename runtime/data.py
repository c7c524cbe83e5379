"""Readers: where batches come from.

A reader is random-access: `batch(step)` depends on the data, the seed and the step only, not on
the mesh or on what was read before, so a run resumes in the middle of an epoch by asking for the
next step. `validation()` gives the held-out batches, in order. Readers are registered by name for
recipes (`data = text(window=128, batch=16)`); `register` adds one.
"""

from __future__ import annotations

import functools
import inspect
import sysconfig
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from anabranch.runtime.errors import FeedError

Batch = dict[str, Any]
HELD_OUT = 20  # every 20th file, or the last twentieth of a single one


class Reader(Protocol):
    """What a recipe trains on."""

    def batch(self, step: int) -> Batch:
        """The arguments of the loss by name."""
        ...

    def validation(self) -> Iterator[Batch]:
        """Held-out batches of the same shapes, each element once."""
        ...


Maker = Callable[..., Reader]
READERS: dict[str, Maker] = {}


def register(name: str) -> Callable[[Maker], Maker]:
    """Make a reader known to recipes by a name; its maker takes the source (a path or arrays, or
    None), the seed, and the keyword arguments that the recipe gives."""

    def add(maker: Maker) -> Maker:
        READERS[name] = maker
        return maker

    return add


def make_reader(name: str, source: Any, seed: int, settings: Mapping[str, Any]) -> Reader:
    """The reader of a recipe. Raises `FeedError` for an unknown name or unusable data."""
    if name not in READERS:
        raise FeedError(f"there is no reader {name!r}; there are {', '.join(sorted(READERS))}")
    maker = READERS[name]
    try:
        inspect.signature(maker).bind(source, seed, **settings)
    except TypeError as error:
        raise FeedError(f"the reader {name!r}: {error}") from None
    return maker(source, seed, **settings)


# ---- text ---------------------------------------------------------------------------------------


@register("text")
class TextReader:
    """Bytes of a text file or of all text files in a folder, in windows; without a source, the
    sources of Python's standard library. `tokens` and `targets` are i64[batch, window], targets
    one byte later. Each epoch cuts the text at another phase and shuffles the windows."""

    def __init__(self, source: str | Path | None, seed: int, *, window: int, batch: int) -> None:
        self._seed, self._window, self._batch = seed, window, batch
        paths = text_files(source)
        self._train, self._held = _split(paths, str(source or "the standard library"))
        for part, data in (("training", self._train), ("validation", self._held)):
            if len(data) < window + 2:
                raise FeedError(
                    f"{source or 'the text'} has {len(data)} bytes for {part}; a window of "
                    f"{window} needs at least {window + 2}"
                )

    def batch(self, step: int) -> Batch:
        windows = (len(self._train) - 1) // self._window
        places = range(step * self._batch, (step + 1) * self._batch)
        starts = [self._start(*divmod(place, max(1, windows - 1))) for place in places]
        return self._cut(self._train, starts)

    def _start(self, epoch: int, index: int) -> int:
        phase, order = _epoch(self._seed, epoch, len(self._train), self._window)
        return phase + int(order[index]) * self._window

    def validation(self) -> Iterator[Batch]:
        """Windows side by side; the last batch begins early enough to be full."""
        last = len(self._held) - self._window - 1
        starts = list(range(0, last + 1, self._window))
        for i in range(0, len(starts) - self._batch + 1, self._batch):
            yield self._cut(self._held, starts[i : i + self._batch])
        if len(starts) < self._batch:
            yield self._cut(self._held, [starts[i % len(starts)] for i in range(self._batch)])

    def _cut(self, data: NDArray[np.uint8], starts: Sequence[int]) -> Batch:
        rows = np.stack([data[s : s + self._window + 1] for s in starts]).astype(np.int64)
        return {"tokens": rows[:, :-1], "targets": rows[:, 1:]}


@functools.lru_cache(maxsize=2)
def _epoch(seed: int, epoch: int, length: int, window: int) -> tuple[int, NDArray[np.int64]]:
    """The phase at which an epoch cuts the text, and the order of its windows."""
    random = np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), epoch]))
    windows = max(1, (length - 1) // window - 1)
    phase = int(random.integers(0, max(1, length - 1 - windows * window)))
    return phase, random.permutation(windows)


def text_files(source: str | Path | None) -> list[Path]:
    """The files of a corpus, in a fixed order."""
    if source is None:
        root = Path(sysconfig.get_paths()["stdlib"])
        return [p for p in sorted(root.rglob("*.py")) if "site-packages" not in p.parts]
    path = Path(source)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FeedError(f"{path} is neither a file nor a folder")
    return sorted(p for p in path.rglob("*") if p.is_file() and _is_text(p))


def _is_text(path: Path) -> bool:
    """No zero byte at its beginning, and not hidden."""
    if path.name.startswith("."):
        return False
    with path.open("rb") as file:
        return b"\0" not in file.read(1024)


def _split(paths: Sequence[Path], what: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """(training bytes, held-out bytes)."""
    if not paths:
        raise FeedError(f"there is no text in {what}")
    texts = [path.read_bytes() for path in paths]
    if len(texts) < HELD_OUT:
        whole = np.frombuffer(b"".join(texts), np.uint8)
        cut = len(whole) - len(whole) // HELD_OUT
        return whole[:cut], whole[cut:]
    held = b"".join(texts[HELD_OUT - 1 :: HELD_OUT])
    train = b"".join(t for i, t in enumerate(texts) if i % HELD_OUT != HELD_OUT - 1)
    return np.frombuffer(train, np.uint8), np.frombuffer(held, np.uint8)


# ---- arrays -------------------------------------------------------------------------------------


@register("arrays")
class ArrayReader:
    """Rows of arrays of equal length, from a mapping of names to arrays or an `.npz` file; the
    last twentieth is held out. Each epoch shuffles the rows."""

    def __init__(self, source: Any, seed: int, *, batch: int) -> None:
        self._seed, self._batch = seed, batch
        arrays = _load_arrays(source)
        lengths = {name: len(array) if array.ndim else None for name, array in arrays.items()}
        count, *others = {*lengths.values()}
        if others or count is None:
            raise FeedError(f"arrays must have one length; these have {lengths}")
        cut = max(0, count - max(1, count // HELD_OUT))
        if cut < batch:
            raise FeedError(f"a batch of {batch} does not fit {cut} training rows")
        self._train = {name: array[:cut] for name, array in arrays.items()}
        self._held = {name: array[cut:] for name, array in arrays.items()}
        self._per_epoch = cut // batch
        self._rows = cut

    def batch(self, step: int) -> Batch:
        epoch, index = divmod(step, self._per_epoch)
        order = _row_order(self._seed, epoch, self._rows)
        rows = order[index * self._batch : (index + 1) * self._batch]
        return {name: array[rows] for name, array in self._train.items()}

    def validation(self) -> Iterator[Batch]:
        count = len(next(iter(self._held.values())))
        for i in range(0, max(1, count - self._batch + 1), self._batch):
            rows = np.arange(i, i + self._batch) % count
            yield {name: array[rows] for name, array in self._held.items()}


@functools.lru_cache(maxsize=2)
def _row_order(seed: int, epoch: int, rows: int) -> NDArray[np.int64]:
    return np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), epoch])).permutation(rows)


def _read_npz(source: Any) -> dict[str, Any]:
    try:
        file = np.load(source, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("it is not an .npz file, which names its arrays")
        with file:
            return {name: file[name] for name in file.files}
    except (OSError, EOFError, ValueError, TypeError, zipfile.BadZipFile) as error:
        raise FeedError(f"cannot read arrays from {source}: {error}") from error


def _load_arrays(source: Any) -> dict[str, Any]:
    if isinstance(source, Mapping):
        arrays = {name: np.asarray(array) for name, array in source.items()}
    else:
        arrays = _read_npz(source)
    if not arrays:
        raise FeedError(f"there are no arrays in {source}")
    return arrays
