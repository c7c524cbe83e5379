"""Kernels without a compiler: a NumPy interpreter over the serialised body of a kernel.

A body is JSON: every record of the kernel language (`codegen/kernel.py` says what each means) is
the list of its class and its fields, in order. `interpret` gives a function of the arguments that
the compiled kernel takes, which runs the whole grid.

All points of the grid and all steps of the loops around a statement are computed at once. A value
is an array with an axis for each axis of the grid, then one for each loop around it, of extent 1
where it is the same throughout; so what stands outside of a loop broadcasts over its steps. Both
the grid and loops are cut into pieces that fit the memory: points of the grid are independent,
and what a loop hands from step to step, its accumulators and what it combines into memory, goes
from piece to piece in order. Sums are taken in another order than in compiled code, so they agree
to rounding, and everything else does too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anabranch.runtime.arrays import STORAGE, Array, Bytes
from anabranch.runtime.errors import BuildError, OutOfRange
from anabranch.runtime.kernels import PythonFunction
from anabranch.runtime.reference_math import (
    CARRIED,
    COMBINE,
    PRIMITIVES,
    cast,
    draw,
    from_memory,
    identity,
    ordered,
    reduced,
    to_memory,
)

POINTS = 1 << 16  # of the grid at once
ELEMENTS = 1 << 20  # points times steps of loops at once
OUTER_STEPS = 32  # at once, of a loop with a loop inside

Node = Any
"""A record of the body, as JSON has it."""
Box = tuple[tuple[int, int], ...]
Mask = Array | None  # None: everywhere


def interpret(text: str) -> PythonFunction:
    """The function of ints, floats and buffers that a body describes."""
    _, _, tensors, int_names, grid, body, _ = json.loads(text)

    def run(ints: Sequence[int], floats: Sequence[float], buffers: Sequence[Bytes]) -> None:
        numbers = {name: np.asarray(i, np.int64)
                   for name, i in zip(int_names, ints, strict=False)}  # block sizes follow
        extents = [int(_Points((), numbers, {}).value(extent)) for _, _, extent, _ in grid]
        memory = _memory(tensors, buffers)
        with np.errstate(all="ignore"):
            for box in _boxes(tuple((0, n) for n in extents)):
                points = _on_grid(grid, box, numbers, memory)
                points.add_locals(tensors, grid)
                points.run(body)

    return run


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Memory as it is held. `base` is where the part of each point begins, of a local tensor."""

    held: Array
    dtype: str
    base: Array | None = None


def _memory(tensors: Sequence[Node], buffers: Sequence[Bytes]) -> dict[str, _Tensor]:
    """What pointers point to: buffers begin there and go on to the end of what they are part of."""
    found = {}
    pointers = [t for t in tensors if t[3] != "local"]
    for (_, name, dtype, _, _), buffer in zip(pointers, buffers, strict=True):
        size = np.dtype(STORAGE[dtype]).itemsize
        found[name] = _Tensor(buffer[: len(buffer) // size * size].view(STORAGE[dtype]), dtype)
    return found


def _boxes(box: Box) -> Iterator[Box]:
    """The grid in pieces of at most POINTS, cut in two along the longest axis until they are."""
    sizes = [stop - start for start, stop in box]
    if math.prod(sizes) <= POINTS:
        if all(sizes):
            yield box
        return
    k = sizes.index(max(sizes))
    start, stop = box[k]
    middle = (start + stop) // 2
    yield from _boxes((*box[:k], (start, middle), *box[k + 1 :]))
    yield from _boxes((*box[:k], (middle, stop), *box[k + 1 :]))


def _on_grid(
    grid: Sequence[Node], box: Box, numbers: Mapping[str, Array], memory: Mapping[str, _Tensor]
) -> _Points:
    axes = {}
    for k, (_, name, _, _) in enumerate(grid):
        shape = [1] * len(grid)
        shape[k] = -1
        axes[name] = np.arange(*box[k], dtype=np.int64).reshape(shape)
    shape_ = tuple(stop - start for start, stop in box)
    return _Points(shape_, {**numbers, **axes}, dict(memory))


@dataclass(slots=True)
class _Accumulator:
    """`rank` is that of the points it has a value for; deeper axes are reduced by an update."""

    reduce: str
    start: Array
    rank: int
    places: Array | None = None  # of argmax and argmin; -1: none yet


@dataclass(slots=True)
class _Points:
    """A piece of the grid, and the steps of the loops that are being run. `shape` are the extents
    of both; `active` says where a step is within the bounds of its loop."""

    shape: tuple[int, ...]
    names: dict[str, Array]
    memory: dict[str, _Tensor]
    active: Mask = None
    accumulators: dict[str, _Accumulator] = field(default_factory=dict)

    def add_locals(self, tensors: Sequence[Node], grid: Sequence[Node]) -> None:
        """Memory of each point's own; lanes share it."""
        private = tuple(1 if lanes else n
                        for n, (_, _, _, lanes) in zip(self.shape, grid, strict=True))
        count = math.prod(private)
        for _, name, dtype, role, elements in tensors:
            if role == "local":
                size = int(self.value(elements))
                base = np.arange(0, count * size, max(1, size)).reshape(private)
                self.memory[name] = _Tensor(np.zeros(count * size, STORAGE[dtype]), dtype, base)

    # expressions

    def value(self, expr: Node) -> Array:
        match expr:
            case ["Ref", name, _]:
                return self._spread(self.names[name])
            case ["Const", number, dtype]:
                return np.asarray(number).astype(CARRIED[dtype])
            case ["Cast", dtype, arg]:
                return np.asarray(cast(self.value(arg), dtype))
            case ["Rand", kind, stream, seed, step, counter]:
                return draw(kind, stream, *(self.value(e) for e in (seed, step, counter)))
            case ["Call", fn, args] if fn in PRIMITIVES:
                return np.asarray(PRIMITIVES[fn](*(self.value(a) for a in args)))
        raise BuildError(f"the interpreter does not know the expression {expr}")

    def _spread(self, x: Array) -> Array:
        """With an axis for each loop that stands inside of where the value was made."""
        return x.reshape(x.shape + (1,) * (len(self.shape) - x.ndim)) if x.ndim else x

    def _whole(self, x: Array) -> Array:
        return np.broadcast_to(x, self.shape)

    def _where(self, mask: Node) -> Mask:
        """Where a statement with this mask does anything."""
        if mask is None or self.active is None:
            return self.active if mask is None else self.value(mask)
        return self.value(mask) & self.active

    # statements

    def run(self, body: Sequence[Node]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, statement: Node) -> None:
        match statement:
            case ["Let", name, value]:
                self.names[name] = self.value(value)
            case ["Load", name, tensor, index, mask, other]:
                self.names[name] = self._load(self.memory[tensor], index, mask, other)
            case ["Store", tensor, index, value, mask]:
                places, values = self._elements(self.memory[tensor], index, value, mask)
                self.memory[tensor].held[places] = to_memory(values, self.memory[tensor].dtype)
            case ["Combine", tensor, index, reduce, value, mask]:
                places, values = self._elements(self.memory[tensor], index, value, mask)
                COMBINE[reduce].at(self.memory[tensor].held, places, values)
            case ["Check", name, value, bound, mask]:
                self.names[name] = self._checked(value, bound, mask)
            case ["Sort", *walks, descending, _]:
                self._sort(walks[:4], walks[4:], descending)
            case ["Loop", axis, start, stop, body, _, ordered]:
                self._loop(axis, self.value(start), self.value(stop), body, ordered)
            case _:
                self._accumulate(statement)

    def _accumulate(self, statement: Node) -> None:
        match statement:
            case ["Start", name, reduce, dtype]:
                self._start(name, reduce, dtype)
            case ["Update", name, value, mask, None]:
                self._update(name, self.value(value), self._where(mask))
            case ["Update", name, value, mask, place]:
                self._update_place(name, value, mask, place)
            case ["Dot", name, left, right]:
                self._update(name, self.value(left) * self.value(right), self.active)
            case _:
                raise BuildError(f"the interpreter does not know the statement {statement}")

    def _places(self, tensor: _Tensor, index: Node) -> Array:
        places = self.value(index)
        return places if tensor.base is None else places + self._spread(tensor.base)

    def _load(self, tensor: _Tensor, index: Node, mask: Node, other: Node) -> Array:
        """A copy, since what is read may be overwritten; element 0 where the mask is false."""
        places, chosen = self._places(tensor, index), self._where(mask)
        held = tensor.held
        if chosen is not None:
            places = np.where(chosen, places, 0)
            held = held if held.size else np.zeros(1, held.dtype)
        found = from_memory(np.asarray(held.take(places)), tensor.dtype)
        if chosen is None or other is None:
            return found
        return np.where(chosen, found, self.value(other))

    def _elements(
        self, tensor: _Tensor, index: Node, value: Node, mask: Node
    ) -> tuple[Array, Array]:
        """Places and values of all elements that a statement writes, one after another in the order
        of the grid and of the loops."""
        places, values = (self._whole(x) for x in (self._places(tensor, index), self.value(value)))
        chosen = self._where(mask)
        if chosen is None:
            return places.reshape(-1), values.reshape(-1)
        chosen = self._whole(chosen)
        return places[chosen], values[chosen]

    def _sort(self, read: Sequence[Node], written: Sequence[Node], descending: bool) -> None:
        """The places in order along a walk over a tensor, at each point, put along another walk."""
        rows, target = self._walked(read), self._walked(written)
        source = self.memory[read[0]]
        found = ordered(from_memory(source.held[rows], source.dtype), descending)
        self.memory[written[0]].held[target] = found[:, : target.shape[1]]

    def _walked(self, walk: Sequence[Node]) -> Array:
        """The places of a walk (tensor, first place, step, count): a row for each point."""
        first, (step, count) = self.value(walk[1]), (int(self.value(e).flat[0]) for e in walk[2:])
        return self._whole(first).reshape(-1, 1) + step * np.arange(count)

    def _checked(self, value: Node, bound: Node, mask: Node) -> Array:
        index, size, chosen = self.value(value), self.value(bound), self._where(mask)
        wrong = np.asarray((index < 0) | (index >= size))
        fault = wrong if chosen is None else wrong & chosen
        if fault.any():
            first = np.argmax(fault)
            at, limit = (np.broadcast_to(x, fault.shape).flat[first] for x in (index, size))
            raise OutOfRange(int(at), int(limit))
        return np.where(wrong, 0, index)

    # accumulators: their values are in `names`

    def _start(self, name: str, reduce: str, dtype: str) -> None:
        start = identity(reduce, dtype)
        accumulator = _Accumulator(reduce, start, len(self.shape))
        self.names[name] = np.full(self.shape, start)
        if reduce in ("argmax", "argmin"):
            accumulator.places = np.full(self.shape, -1)
            self.names[f"{name} best"] = self.names[name]
            self.names[name] = np.zeros(self.shape, np.int64)
        self.accumulators[name] = accumulator

    def _update(self, name: str, value: Array, chosen: Mask) -> None:
        own = self.accumulators[name]
        values = value if chosen is None else np.where(chosen, value, own.start)
        axes = tuple(range(own.rank, len(self.shape)))
        total = reduced(own.reduce, self._whole(values), axes) if axes else values
        combined = COMBINE[own.reduce](self.names[name], total)
        self.names[name] = combined.astype(own.start.dtype, copy=False)

    def _update_place(self, name: str, value: Node, mask: Node, place: Node) -> None:
        """The first place that has the extremum of this piece, if it beats those before."""
        own, best = self.accumulators[name], self.names[f"{name} best"]
        assert own.places is not None
        chosen = self._where(mask)
        values, places, allowed = (
            self._whole(x).reshape((*self.shape[: own.rank], -1))
            for x in (self.value(value), self.value(place),
                      np.asarray(True) if chosen is None else chosen))
        new = reduced(own.reduce, np.where(allowed, values, own.start), (-1,))
        hit = allowed & _equal(values, new[..., None])
        at = np.take_along_axis(places, hit.argmax(-1)[..., None], -1)[..., 0]
        wins = (own.places < 0) | ~_equal(COMBINE[own.reduce](new, best), best)
        wins &= hit.any(-1)
        own.places = np.where(wins, at, own.places)
        self.names[f"{name} best"] = np.where(wins, new, best)
        self.names[name] = np.maximum(own.places, 0)

    # loops

    def _loop(self, axis: str, start: Array, stop: Array, body: Sequence[Node],
              ordered: bool) -> None:
        """Steps are counted from the start that each point has, and skipped from its stop on."""
        shape, active = self.shape, self.active
        steps = int(np.max(stop - start))
        most = ELEMENTS // math.prod(shape)
        if any(statement[0] == "Loop" for statement in body):
            most = min(most, OUTER_STEPS)
        if ordered:
            most = 1
        start, stop = (np.expand_dims(x, -1) if x.ndim else x for x in (start, stop))
        for first in range(0, steps, max(1, most)):
            count = min(max(1, most), steps - first)
            self.shape = (*shape, count)
            counted = np.arange(first, first + count).reshape((1,) * len(shape) + (-1,))
            self.names[axis] = start + counted
            beyond = self.names[axis] >= stop
            self.active = None if active is None else self._spread(active)
            if beyond.any():
                self.active = ~beyond if self.active is None else self.active & ~beyond
            self.run(body)
        self.shape, self.active = shape, active


def _equal(a: Array, b: Array) -> Array:
    """Equal, or both nan."""
    return np.asarray((a == b) | ((a != a) & (b != b)))
