"""Readers: where batches come from.

A reader is random-access: `batch(step)` depends on the data, the seed and the step only, not on
the mesh or on what was read before, so a run resumes in the middle of an epoch by asking for the
next step. `validation()` gives the held-out part, in order. Readers are made by name for recipes
(`data = text(window=128, batch=16)`); `register` adds one.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

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
PAIRS = ("validation() gives pairs of a held-out batch and how many of its rows differ, as in: "
         "yield batch, rows")
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
            held: Any = self.reader.validation()
            several = isinstance(held, Iterable) and not isinstance(held, Mapping)
            for given in held if several else (held,):
                if wrong := _no_pair(given):
                    raise FeedError(f"the reader {self.name!r}, {_place(self.reader, held)}: "
                                    f"validation() gives {wrong}", PAIRS)
                yield given

    def _checked(self, batch: object) -> Batch:
        if not isinstance(batch, dict):
            raise FeedError(f"the reader {self.name!r} gives {_kind(batch)}, and a batch is a "
                            "dict of arrays by name")
        return batch


def _no_pair(given: object) -> str:
    """What is wrong with one item of a validation, or nothing."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        return _kind(given)
    batch, rows = given
    if not isinstance(batch, dict):
        return f"a pair that begins with {_kind(batch)}"
    if isinstance(rows, bool) or not isinstance(rows, int | np.integer):
        return f"a pair that ends with {_kind(rows)}"
    most = max((np.shape(array)[0] for array in batch.values() if np.ndim(array)), default=1)
    return "" if 1 <= rows <= most else f"a batch of {most} rows, of which {rows} differ"


def _kind(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _place(reader: Reader, held: object) -> str:
    """Where a generator stands, else where the function begins that gave something else."""
    if inspect.isgenerator(held) and held.gi_frame:
        return f"{held.gi_code.co_filename}:{held.gi_frame.f_lineno}"
    code = getattr(inspect.unwrap(reader.validation), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else type(reader).__name__


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
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
        own = [f for f in frames if f.filename == frames[0].filename]
        place = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
        raise FeedError(f"the reader {reader!r} failed{place}: "
                        f"{type(error).__name__}: {error}") from error
