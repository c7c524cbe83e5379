"""A chain of launches, bound to memory and ready to run with one C call.

Which bytes an argument points to depends on the slot its register is in, so there is one table of
launches for each combination of slots and phase that occurs, made when it is first needed. Only
integers that follow the micro-batch or the step are written at each firing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.ir.plan import Actor, Arg, Launch, Loc, float_of
from anabranch.runtime.arrays import Bytes
from anabranch.runtime.errors import Aborted, OutOfRange, PlacedError
from anabranch.runtime.kernels import Loaded, NativeKernel, PythonKernel
from anabranch.runtime.native import LAUNCH, STATUS

COUNTED = "labels, tokens and other places count from 0 to one less than the size"
Slots = tuple[tuple[int, int], ...]
"""(register, slot) for every register a chain touches."""


@dataclass(frozen=True, slots=True)
class Binding:
    """What the arguments of one actor's launches mean in this session."""

    kernels: list[Loaded]
    registers: Mapping[int, list[Bytes]]
    scratch: Bytes
    seed: int
    locs: tuple[Loc, ...]


@dataclass(frozen=True, slots=True)
class _Follower:
    """An integer argument that changes with the firing: base + rate * (k or step)."""

    position: int
    base: int
    rate: int


@dataclass(frozen=True, slots=True)
class _Table:
    """Consecutive launches of one chain as C reads them. `keep` are the arrays it points into."""

    launches: tuple[Launch, ...]
    table: NDArray[Any]
    ints: NDArray[np.int64]
    status: NDArray[Any]
    by_micro: tuple[_Follower, ...]
    by_step: tuple[_Follower, ...]
    keep: tuple[NDArray[Any], ...]

    def set_ints(self, k: int, step: int) -> None:
        for follower in self.by_micro:
            self.ints[follower.position] = follower.base + follower.rate * k
        for follower in self.by_step:
            self.ints[follower.position] = follower.base + follower.rate * step


@dataclass(frozen=True, slots=True)
class _Call:
    """A launch of a Python kernel."""

    launch: Launch
    kernel: PythonKernel
    buffers: tuple[Bytes, ...]


@dataclass(slots=True)
class Chain:
    """The launches of one actor."""

    actor: Actor
    binding: Binding
    _variants: dict[tuple[Slots, bool, bool], list[_Table | _Call]] = field(default_factory=dict)

    def run(self, k: int, step: int, slots: Slots, abort_flag: int) -> None:
        key = (slots, k == 0, k == self.actor.fires - 1)
        if key not in self._variants:
            self._variants[key] = self._bind(*key)
        for part in self._variants[key]:
            if isinstance(part, _Call):
                self._call(part, k, step)
            else:
                self._run(part, k, step, abort_flag)

    def _run(self, part: _Table, k: int, step: int, abort_flag: int) -> None:
        part.set_ints(k, step)
        first = self.binding.kernels[part.launches[0].kernel]
        assert isinstance(first, NativeKernel)
        count = len(part.launches)
        done = first.pool.run_chain(
            part.table.ctypes.data, count, part.status.ctypes.data, abort_flag
        )
        if part.status["code"]:
            raise self._index_error(part)
        if done < count:
            raise Aborted

    def _call(self, part: _Call, k: int, step: int) -> None:
        arguments = part.launch.args
        ints = [self._int(a, k, step) for a in arguments if a.kind in ("int", "step", "seed")]
        floats = [float_of(a) for a in arguments if a.kind == "f64"]
        try:
            part.kernel.function(ints, floats, part.buffers)
        except OutOfRange as error:
            raise self._told(error, part.launch) from error

    def _index_error(self, part: _Table) -> PlacedError:
        status = part.status
        found = OutOfRange(int(status["value"]), int(status["bound"]))
        return self._told(found, part.launches[int(status["launch"])])

    def _told(self, found: OutOfRange, launch: Launch) -> PlacedError:
        """In words of the program: the checks of that size are where it can have been."""
        checks = [check for check in launch.checks if check.size == found.size]
        loc = checks[0].loc if len(checks) == 1 else launch.loc
        return PlacedError(found.told(checks), self.binding.locs[loc], COUNTED)

    def _int(self, arg: Arg, k: int, step: int) -> int:
        if arg.kind == "seed":
            return arg.a + self.binding.seed
        return arg.a + step if arg.kind == "step" else arg.a + arg.b * k

    def _bind(self, slots: Slots, first: bool, last: bool) -> list[_Table | _Call]:
        phases = {"all", "first" if first else "rest"} | ({"last"} if last else set())
        launches = [x for x in self.actor.launches if x.phase in phases and x.tiles]
        buffers = self.binding.registers
        at = {register: buffers[register][slot] for register, slot in slots if buffers[register]}
        parts: list[_Table | _Call] = []
        for native, group in groupby(launches, self._is_native):
            if native:
                parts.append(self._table(tuple(group), at))
            else:
                parts += [self._bind_call(launch, at) for launch in group]
        return parts

    def _is_native(self, launch: Launch) -> bool:
        return isinstance(self.binding.kernels[launch.kernel], NativeKernel)

    def _bind_call(self, launch: Launch, at: Mapping[int, Bytes]) -> _Call:
        kernel = self.binding.kernels[launch.kernel]
        assert isinstance(kernel, PythonKernel)
        pointers = [a for a in launch.args if a.kind in ("reg", "scratch")]
        return _Call(launch, kernel, tuple(self._buffer(a, at) for a in pointers))

    def _buffer(self, arg: Arg, at: Mapping[int, Bytes]) -> Bytes:
        return at[arg.a][arg.b :] if arg.kind == "reg" else self.binding.scratch[arg.a :]

    def _table(self, launches: tuple[Launch, ...], at: Mapping[int, Bytes]) -> _Table:
        ints, by_micro, by_step = _integers(launches, self._int)
        floats = _flat(launches, float_of, ("f64",), np.float64)
        buffers = _flat(
            launches, lambda a: self._buffer(a, at).ctypes.data, ("reg", "scratch"), np.uint64
        )
        table = np.zeros(len(launches), LAUNCH)
        at_int, at_float, at_pointer = (x.ctypes.data for x in (ints, floats, buffers))
        for i, launch in enumerate(launches):
            kernel = self.binding.kernels[launch.kernel]
            assert isinstance(kernel, NativeKernel)
            tiles = launch.tiles
            if tiles < 0:
                tiles = kernel.tiles(ints[(at_int - ints.ctypes.data) // 8 :])
            table[i] = (kernel.address, at_int, at_float, at_pointer, tiles, launch.tile_scratch)
            counts = _arity(launch)
            at_int += 8 * counts[0]
            at_float += 8 * counts[1]
            at_pointer += 8 * counts[2]
        status = np.zeros((), STATUS)
        return _Table(launches, table, ints, status, by_micro, by_step, (floats, buffers))


_INT_KINDS = ("int", "step", "seed")


def _arity(launch: Launch) -> tuple[int, int, int]:
    """How many integers, doubles and pointers a launch takes."""
    kinds = [arg.kind for arg in launch.args]
    ints = sum(kind in _INT_KINDS for kind in kinds)
    floats = kinds.count("f64")
    return ints, floats, len(kinds) - ints - floats


def _flat(
    launches: tuple[Launch, ...], value: Callable[[Arg], Any], kinds: tuple[str, ...], dtype: Any
) -> NDArray[Any]:
    """The arguments of some kinds of all launches, one after another."""
    values = [value(a) for launch in launches for a in launch.args if a.kind in kinds]
    return np.array(values, dtype)


def _integers(
    launches: tuple[Launch, ...], value: Callable[[Arg, int, int], int]
) -> tuple[NDArray[np.int64], tuple[_Follower, ...], tuple[_Follower, ...]]:
    """All integer arguments with k and step 0, and which of them follow k or the step."""
    found = [a for launch in launches for a in launch.args if a.kind in _INT_KINDS]
    ints = np.array([value(a, 0, 0) for a in found], np.int64)
    by_micro = [_Follower(i, a.a, a.b) for i, a in enumerate(found) if a.kind == "int" and a.b]
    by_step = [_Follower(i, a.a, 1) for i, a in enumerate(found) if a.kind == "step"]
    return ints, tuple(by_micro), tuple(by_step)
