"""Readers: where batches come from.

A reader is random-access: `batch(step)` depends on the data, the seed and the step only, not on
the mesh or on what was read before, so a run resumes in the middle of an epoch by asking for the
next step. `validation()` gives the held-out part, in order. Readers are made by name for recipes
(`data = text(window=128, batch=16)`); `register` adds one.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from anabranch.runtime.errors import FeedError, RuntimeFailure
from anabranch.runtime.images import IMAGES, ImageReader
from anabranch.runtime.rows import ARRAYS, TABLES, ArrayReader, Batch, TableReader
from anabranch.runtime.text import TextReader


class Reader(Protocol):
    """What a recipe trains on."""

    def batch(self, step: int) -> Batch:
        """The arguments of the loss by name."""
        ...

    def validation(self) -> Iterator[tuple[Batch, int]]:
        """Held-out batches of the same shapes with the number of different rows in each. Rows
        that fill no batch are repeated evenly, so that a mean over rows remains theirs."""
        ...


BOTH = ("both methods are needed: batch(step), a dict of arrays by name, and validation(), which "
        "gives pairs of a held-out batch and how many of its rows differ")
Maker = Callable[..., Reader]
READERS: dict[str, Maker] = {
    "arrays": ArrayReader, "images": ImageReader, "table": TableReader, "text": TextReader}

NEED_SOURCE: dict[Maker, str] = {ArrayReader: ARRAYS, ImageReader: IMAGES, TableReader: TABLES}
"""And what that is."""


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
    if source is None and maker in NEED_SOURCE:
        raise FeedError(f"the reader {name!r} needs data: give --data PATH",
                        NEED_SOURCE[maker])
    try:
        inspect.signature(maker).bind(source, seed, **settings)
    except TypeError as error:
        raise FeedError(f"the reader {name!r}: {error}") from None
    with named(name, source):
        made = maker(source, seed, **settings)
    if missing := lacks(made):
        raise FeedError(f"the reader {name!r} has no {missing}; {BOTH}")
    return Named(name, source, made)


def lacks(reader: object) -> str:
    """What a reader, or a class of them, has not, or has not as a method; or nothing."""
    needed = ("batch", "validation")
    missing = [f"{m}(...)" for m in needed if not callable(getattr(reader, m, None))]
    return " and no ".join(missing)


@dataclass(frozen=True, slots=True)
class Named:
    """A reader whose failures say which one it is, as a user may have written it, and what of."""

    name: str
    source: Any
    reader: Reader

    def batch(self, step: int) -> Batch:
        with named(self.name, self.source):
            return self._checked(self.reader.batch(step))

    def validation(self) -> Iterator[tuple[Batch, int]]:
        with named(self.name, self.source):
            for batch, rows in self.reader.validation():
                yield self._checked(batch), rows

    def _checked(self, batch: object) -> Batch:
        if not isinstance(batch, dict):
            raise FeedError(f"the reader {self.name!r} gives a {type(batch).__name__}, and a "
                            "batch is a dict of arrays by name")
        return batch


@contextmanager
def named(reader: str, source: Any) -> Iterator[None]:
    """Failures in here are those of a reader of this source."""
    try:
        yield
    except FeedError as error:
        raise error.of(source) from error.__cause__
    except (RuntimeFailure, OSError):
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise FeedError(f"the reader {reader!r} failed at {last.filename}:{last.lineno}: "
                        f"{type(error).__name__}: {error}") from error
