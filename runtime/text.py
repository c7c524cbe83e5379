"""A reader of text: bytes in windows, each target one byte after its token."""

from __future__ import annotations

import functools
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anabranch.runtime.errors import FeedError
from anabranch.runtime.rows import Batch, beside, whole_batches

HELD_OUT = 20  # every 20th file, or the last twentieth of a single one

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

    def validation(self) -> Iterator[tuple[Batch, int]]:
        """Windows side by side; bytes at the end that fill none are left out."""
        windows = (len(self._held) - 1) // self._window
        for places, number in whole_batches(windows, self._batch):
            yield self._cut(self._held, [int(place) * self._window for place in places]), number

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
        raise FeedError(f"{path} is neither a file nor a folder", beside(path))
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
