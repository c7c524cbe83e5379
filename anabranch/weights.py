"""Weights of other programs: files of named arrays, renamed and laid out as this program has them.

    weights = load_weights("model.safetensors", rename={
        "encoder.*": "*",
        "encoder.layer.*.attention.self.query.weight": Target("blocks.*.qkv.weight", part=0),
        "encoder.layer.*.attention.self.key.weight": Target("blocks.*.qkv.weight", part=1),
        "encoder.layer.*.attention.self.value.weight": Target("blocks.*.qkv.weight", part=2),
        "pooler.*": None,
    })
    session.load_state_dict(weights)

A row says where an array of the file goes: to a name, laid out anew (`Target`), to several places
(a list), or nowhere (None). A `*` stands for any text, and those of the new name are those of the
old one, in order. A name written out comes before patterns, a later pattern before earlier ones;
what no row mentions keeps its name. Nothing is guessed: a row that no array needs, two arrays for
one place, and a part that is lacking are reported, all at once.

Floats come in the file's own dtype, but for bf16, which NumPy has not and f32 holds exactly; with
`dtype` all of them are converted to that one. A session converts to the dtype of each state.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from anabranch.ir.diagnostics import closest, nearest
from anabranch.ir.plan import ADDED, Plan
from anabranch.runtime.arrays import STORAGE, Array, narrow, to_storage, widen
from anabranch.runtime.checkpoint import AVERAGE, listed, sources_of
from anabranch.runtime.errors import FeedError, WeightError
from anabranch.weight_files import read

FLOATS = ("f64", "f32", "f16", "bf16")
INDEX = re.compile(r"\s*(?:(-?\d+)|(-?\d+)?\s*:\s*(-?\d+)?)\s*")


@dataclass(frozen=True, slots=True)
class Target:
    """Where an array goes and what is done to it on the way, in the order of the fields.

    `index` is a subscript of integers and slices, as in "0, :512"; `axes` are the old axes in
    their new order; `shape` may have one -1; `order` says of which old block each block of axis 0
    comes, all of one size: (0, 2, 3, 1) makes the gates of PyTorch's LSTM of those of ONNX. The
    arrays that are `part` 0, 1, ... of one target are joined along `axis`.
    """

    name: str
    index: str = ""
    axes: tuple[int, ...] = ()
    shape: tuple[int, ...] | None = None
    order: tuple[int, ...] = ()
    part: int | None = None
    axis: int = 0

    def __post_init__(self) -> None:
        lists = (self.axes, self.order, self.shape or ())
        right = isinstance(self.name, str) and isinstance(self.index, str) and all(
            isinstance(each, tuple) and all(type(n) is int for n in each) for each in lists)
        right = right and all(size >= -1 for size in self.shape or ())
        if not right or type(self.axis) is not int or not _is_part(self.part):
            raise WeightError(f"{self} is no place for an array: 'index' is a text, 'axes', "
                              "'shape' and 'order' are tuples of integers, no size is below -1, "
                              "'part' counts from 0")

    def laid_out(self, array: Array) -> Array:
        """Raises `ValueError` or `IndexError` where the array does not allow it."""
        if self.index:
            array = np.asarray(array[_subscript(self.index)])
        if self.axes:
            array = array.transpose(self.axes)
        if self.shape is not None:
            array = array.reshape(self.shape)
        if self.order:
            array = _reordered(array, self.order)
        return np.ascontiguousarray(array).reshape(array.shape)  # which makes 0-d arrays 1-d


def _is_part(part: object) -> bool:
    return part is None or (type(part) is int and part >= 0)


Row: TypeAlias = "str | Target | Sequence[str | Target] | None"
Rows: TypeAlias = "Mapping[str, str | None]"
Rename: TypeAlias = "Mapping[str, Row] | Callable[[str], Row]"


def load_weights(
    path: str | PathLike[str], rename: Rename | None = None, *, dtype: str | None = None
) -> dict[str, Array]:
    """The arrays of a file by their new names. Reads safetensors (a file, or a folder of several),
    `.npz`, torch's files of tensors where torch is installed (or a folder of `pytorch_model*.bin`),
    and the initialisers and constants of ONNX files. Raises `WeightError`."""
    if dtype is not None and dtype not in FLOATS:
        raise WeightError(f"weights cannot be made '{dtype}'; there are {', '.join(FLOATS)}")
    found = dict(read(Path(path)))
    if not (rename is None or isinstance(rename, Mapping) or callable(rename)):
        raise WeightError(f"{rename!r} is no rename table: a mapping from old names to new ones, "
                          "or a function")
    problems: list[str] = []
    placed = list(_placed(found, rename, problems))
    arrays = {} if problems else dict(_joined(placed, problems))
    if problems:
        raise WeightError(f"{path} cannot be renamed as the table says:\n{listed(problems)}")
    return {name: _as_dtype(array, dtype) for name, array in arrays.items()}


def read_table(path: str | PathLike[str]) -> dict[str, Row]:
    """A rename table from a JSON file: rows as above, a `Target` as an object of its fields."""
    try:
        table = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise WeightError(f"{path} is no JSON: {error}") from error
    if not isinstance(table, dict):
        raise WeightError(f"{path} is no rename table: an object from old names to new ones")
    return {old: _row(row, f"{path}: '{old}'") for old, row in table.items()}


def _row(row: Any, place: str) -> Row:
    match row:
        case None | str():
            return row
        case list():
            return [_target(_row(each, place), place) for each in row]
        case dict():
            return _object(row, place)
    raise WeightError(f"{place} goes to {row!r}, which is no name, null, object or list of them")


def _object(row: Mapping[str, Any], place: str) -> Target:
    known = {field.name for field in fields(Target)}
    for key in row.keys() - known:
        raise WeightError(f"{place} has '{key}', which is none of {', '.join(sorted(known))}")
    if not isinstance(row.get("name"), str):
        raise WeightError(f"{place} has no 'name'")
    settings: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return Target(**settings)


# ---- renaming


@dataclass(frozen=True, slots=True)
class Placed:
    """An array of the file, laid out as its target says."""

    old: str
    target: Target
    array: Array


def _placed(
    found: Mapping[str, Array], rename: Rename | None, problems: list[str]
) -> Iterator[Placed]:
    """Where everything goes; what cannot be, and rows without a use, are added to `problems`."""
    table = Table.of(rename) if isinstance(rename, Mapping) else None
    for old, array in found.items():
        row = table.row(old) if table else rename(old) if callable(rename) else old
        for target in _targets(row, old):
            try:
                yield Placed(old, target, target.laid_out(array))
            except (ValueError, IndexError, TypeError) as error:
                problems.append(f"'{old}' {list(array.shape)} as '{target.name}': {error}")
    if table:
        problems += table.without_use(found)


def _targets(row: Row, old: str) -> list[Target]:
    if row is None:
        return []
    return [_target(each, old) for each in (row if isinstance(row, list | tuple) else [row])]


def _target(row: Any, old: str) -> Target:
    if isinstance(row, Target):
        return row
    if isinstance(row, str):
        return Target(row)
    raise WeightError(f"'{old}' goes to {row!r}, which is no name, Target or list of them")


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a rename table; those with a star, the last one first."""

    rows: Mapping[str, Row]
    patterns: Sequence[tuple[re.Pattern[str], str]]

    @staticmethod
    def of(rows: Mapping[str, Row]) -> Table:
        for old in rows:
            if not isinstance(old, str):
                raise WeightError(f"a rename table has names, and {old!r} is none")
        return Table(rows, [(_pattern(old), old) for old in reversed([*rows]) if "*" in old])

    def row(self, name: str) -> Row:
        if (old := next(self.matches(name), None)) is None:
            return name
        match = _pattern(old).fullmatch(name)
        assert match is not None
        return _filled(self.rows[old], old, match.groups())

    def matches(self, name: str) -> Iterator[str]:
        """The rows that an array of this name matches; it is renamed by the first."""
        if name in self.rows:
            yield name
        yield from (old for pattern, old in self.patterns
                    if old != name and pattern.fullmatch(name))

    def without_use(self, names: Iterable[str]) -> list[str]:
        """What is wrong with each row that renames no array. Leaving out what is not there does
        no harm."""
        used: set[str] = set()
        shadowed: dict[str, tuple[str, str]] = {}
        for name in names:
            rows = [*self.matches(name)]
            used |= {*rows[:1]}
            shadowed |= {old: (name, rows[0]) for old in rows[1:]}
        return [self._unused(old, shadowed.get(old), names) for old, row in self.rows.items()
                if row is not None and old not in used]

    def _unused(self, old: str, shadow: tuple[str, str] | None, names: Iterable[str]) -> str:
        if shadow is None:
            return f"no array is called '{old}'; {nearest(old, names)}".removesuffix("; ")
        name, by = shadow
        return f"'{old}' renames no array: '{name}' goes by '{by}', which comes before it"


def _pattern(old: str) -> re.Pattern[str]:
    return re.compile("(.*?)".join(map(re.escape, old.split("*"))), re.DOTALL)


def _filled(row: Row, old: str, texts: Sequence[str]) -> Row:
    """A row with what the stars of its old name stand for."""
    filled = []
    for target in _targets(row, old):
        first, *more = target.name.split("*")
        if len(more) > len(texts):
            raise WeightError(f"'{target.name}' has more stars than '{old}'")
        name = first + "".join(text + rest for text, rest in zip(texts, more, strict=False))
        filled.append(replace(target, name=name))
    return filled


# ---- layouts


def _subscript(text: str) -> tuple[int | slice, ...]:
    found: list[int | slice] = []
    for part in text.strip("[]").split(","):
        match = INDEX.fullmatch(part)
        if match is None:
            raise ValueError(f"'{part.strip()}' is neither an integer nor a slice")
        place, *ends = match.groups()
        found.append(int(place) if place else slice(*(int(e) if e else None for e in ends)))
    return tuple(found)


def _reordered(array: Array, order: Sequence[int]) -> Array:
    rows = array.shape[0] if array.ndim else 0
    if sorted(order) != list(range(len(order))) or rows % len(order):
        raise ValueError(f"{rows} rows are not {len(order)} blocks in the order {tuple(order)}")
    blocks = array.reshape(len(order), rows // len(order), *array.shape[1:])
    return blocks[list(order)].reshape(array.shape)


def _joined(placed: Sequence[Placed], problems: list[str]) -> Iterator[tuple[str, Array]]:
    """What goes to each name: one whole array, or all parts of one."""
    by_name: dict[str, list[Placed]] = {}
    for each in placed:
        by_name.setdefault(each.target.name, []).append(each)
    for name, group in by_name.items():
        parts = sorted(group, key=lambda each: each.target.part or 0)
        numbers = [each.target.part for each in parts]
        if numbers == [None]:
            yield name, parts[0].array
        elif numbers != list(range(len(parts))) or len({e.target.axis for e in parts}) > 1:
            problems.append(f"'{name}' would be {_sources(parts)}; an array has one source, or "
                            "parts 0, 1, ... along one axis")
        else:
            try:
                yield name, np.concatenate([e.array for e in parts], parts[0].target.axis)
            except ValueError as error:  # AxisError is one
                problems.append(f"'{name}' cannot be joined of {_sources(parts)}: {error}")


def _sources(parts: Sequence[Placed]) -> str:
    return ", ".join(
        f"'{e.old}' {list(e.array.shape)}" + ("" if e.target.part is None else
                                             f" as part {e.target.part}") for e in parts)


def _as_dtype(array: Array, dtype: str | None) -> Array:
    if dtype is None or array.dtype.kind != "f":
        return array
    if dtype == "bf16":
        return widen(narrow(array))
    return array.astype(STORAGE[dtype], copy=False)


# ---- into a session


@dataclass(frozen=True, slots=True)
class Fit:
    """Weights held against the states of a plan: those that fit, and everything by which the
    others do not. An optimizer's states may be lacking, and averages, which begin anew at what
    they are the average of. Where nothing is trained they are not wanted (`sources_of`)."""

    ready: dict[str, Array]
    misshapen: tuple[str, ...]
    missing: tuple[str, ...]
    unknown: Mapping[str, str | None]  # with what may be meant, which is missing and as large

    @staticmethod
    def of(plan: Plan, arrays: Mapping[str, Any]) -> Fit:
        ready, misshapen = {}, []
        arrays = {name: arrays[source] for name, source in sources_of(plan, arrays).items()}
        averages = {s.name for s in plan.states if s.kind == "average"} - arrays.keys()
        for state in plan.states:
            value = plan.values[state.value]
            if state.name in arrays:
                try:
                    to_storage(arrays[state.name], value.dtype, value.shape, state.name)
                    ready[state.name] = arrays[state.name]
                    if (average := f"{AVERAGE}{state.name}") in averages:
                        ready[average] = arrays[state.name]
                except FeedError as error:
                    misshapen.append(str(error))
        needed = {s.name for s in plan.states if s.kind not in ADDED.values()}
        known = {s.name for s in plan.states}
        missing = {s.name: plan.values[s.value].shape for s in plan.states
                   if s.name in needed - arrays.keys()}
        unknown = {name: getattr(arrays[name], "shape", None)
                   for name in sorted(arrays.keys() - known)}
        return Fit(ready, tuple(misshapen), tuple(sorted(missing)), _meant(unknown, missing))

    def check(
        self, *, missing: bool = True, unknown: bool = True,
        shown: Callable[[Rows], str] | None = None,
    ) -> None:
        """Raises `WeightError` with everything that is wrong, as far as it matters. `shown` is how
        the rows that would help are given: in Python, or to the command line (`in_a_table`)."""
        problems = list(self.misshapen)
        problems += [f"missing: {name}" for name in self.missing if missing]
        problems += [f"unknown: {name}" + (f"; did you mean '{meant}'?" if meant else "")
                     for name, meant in self.unknown.items() if unknown]
        if problems:
            named = (missing and self.missing) or (unknown and self.unknown)
            help = f"\nhelp: {(shown or _in_python)(self._rows(missing))}" if named else ""
            raise WeightError(f"these weights do not fit the program:\n{listed(problems)}{help}")

    def _rows(self, missing: bool) -> Rows:
        """Of a rename table: what is unknown goes to what may be meant, else nowhere."""
        nowhere = _patterns([name for name, new in self.unknown.items() if not new],
                            (*self.ready, *self.missing))
        rows = {nowhere.get(name, name): new for name, new in self.unknown.items()}
        left = [name for name in self.missing if missing and name not in rows.values()]
        return rows | ({"...": left[0]} if left else {})


def _patterns(names: Sequence[str], own: Sequence[str]) -> dict[str, str]:
    """For each name itself, or a pattern for several that begin or end alike, if no own does."""
    found = {name: name for name in names}
    for pattern in (_begins, _ends):
        counts, taken = Counter(map(pattern, names)), {*map(pattern, own)}
        found |= {name: pattern(name) for name in names if found[name] == name
                  and counts[pattern(name)] > 1 and pattern(name) not in taken}
    return found


def _begins(name: str) -> str:
    return f"{name.partition('.')[0]}.*"


def _ends(name: str) -> str:
    return f"*.{name.rpartition('.')[2]}"


def _meant(
    unknown: Mapping[str, tuple[int, ...] | None], missing: Mapping[str, tuple[int, ...]]
) -> dict[str, str | None]:
    """For each unknown name a missing one of this shape that is close to it, or the only one."""
    left, found = dict(missing), dict[str, str | None]()
    for name, shape in unknown.items():
        alike = [each for each in left if left[each] == shape]
        found[name] = closest(name, alike) or (alike[0] if len(alike) == 1 else None)
        left.pop(found[name] or "", None)
    return found


def _in_python(rows: Rows) -> str:
    shown = _first(f"{json.dumps(old)}: {json.dumps(new) if new else None}"
                   for old, new in rows.items())
    return (f"load_weights(path, rename={{{shown}}}) takes the names of a file for those of the "
            "program; None leaves an array out")


def in_a_table(rows: Rows) -> str:
    shown = _first(f"{json.dumps(old)}: {json.dumps(new)}" for old, new in rows.items())
    return (f"--rename FILE, in which is {{{shown}}}, takes the names of the weights for those of "
            "the program; null leaves an array out")


def _first(rows: Iterable[str], most: int = 4) -> str:
    shown = [*rows]
    return ", ".join([*shown[:most], *(["..."] if len(shown) > most else [])])
