"""Checkpoints: all states of a session and where it stood, in one safetensors file.

Tensors are whole (logical), by dotted path, so a checkpoint does not know a mesh: it resumes
bit for bit on the same one and to rounding on another. A file is written beside its final place
and renamed, so a reader sees a whole one or none. A truncated, damaged or foreign file is refused
with what is wrong with it, before any state is touched: every tensor has a checksum, and so have
the facts about the run.
"""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from anabranch.ir.plan import ADDED, Plan, Value
from anabranch.runtime.arrays import STORAGE, Array
from anabranch.runtime.errors import RuntimeFailure
from anabranch.runtime.session import Session

FORMAT = "anabranch checkpoint 1"
AVERAGE = "ema."  # the place of the average of a parameter
OTHERS = ("weights of another program, or a part of these, are set by session.load_state_dict("
          "load_weights(path, rename)), or by --init with --rename")


class CheckpointError(RuntimeFailure):
    """A checkpoint that cannot be read or does not fit the program."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stood: `step` is the next step to do. `notes` is whatever its writer wants to
    know about the program later."""

    step: int
    seed: int
    notes: str = ""


def save(session: Session, path: str | Path, progress: Progress) -> None:
    """Write all states, in a folder that is there. Every process of a world calls it; process 0
    writes. Raises `CheckpointError`."""
    arrays = {name: session.state(name) for name in session.states()}
    if session.process != 0:
        return
    facts = {
        "format": FORMAT,
        "step": str(progress.step),
        "seed": str(progress.seed),
        "notes": progress.notes,
        "checksums": json.dumps({name: zlib.crc32(array.data) for name, array in arrays.items()}),
    }
    facts["checksum"] = _checksum(facts)
    try:
        _write(arrays, facts, Path(path))
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{path} cannot be written: {reason}") from error


def _write(arrays: Mapping[str, Array], facts: dict[str, str], target: Path) -> None:
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    try:
        save_file(dict(arrays), temporary, metadata=facts)
        _flush(temporary)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _checksum(facts: Mapping[str, str]) -> str:
    """Of all facts about a run but this one."""
    return str(zlib.crc32(repr(sorted(facts.items())).encode()))


def _flush(path: str) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def restore(session: Session, path: str | Path) -> Progress:
    """Set all states. A program that does not train leaves out what training added. Every process
    of a world calls it and reads for itself; what one of them cannot read none goes on from. Raises
    `CheckpointError` on all."""
    problem, states, facts = "", dict[str, Array](), dict[str, str]()
    try:
        states, facts = _read(session.plan, path, more=False)
    except CheckpointError as error:
        problem = str(error)
    problems, others = zip(*session.exchange((problem, facts)), strict=True)
    if any(problems):
        first = next(number for number, each in enumerate(problems) if each)
        raise CheckpointError(problem or f"process {first} cannot go on: {problems[first]}")
    if any(each != facts for each in others):
        raise CheckpointError(f"{path} is not the same checkpoint for all processes")
    session.load_states(states)
    return _progress(facts)


def load(plan: Plan, path: str | Path, *, more: bool = False) -> tuple[dict[str, Array], Progress]:
    """The states for a plan, checked, and where to go on. With `more`, the file may have states
    that the plan lacks, of parts of the model that it does not use. Raises `CheckpointError`."""
    states, facts = _read(plan, path, more=more)
    return states, _progress(facts)


def _read(plan: Plan, path: str | Path, *, more: bool) -> tuple[dict[str, Array], dict[str, str]]:
    """The states, checked, and what the file says about its run."""
    wanted = {s.name: plan.values[s.value] for s in plan.states}
    with _opened(path) as file:
        sources = {name: source for name, source in sources_of(plan, file.keys()).items()
                   if name in wanted or not more}
        arrays = {name: file.get_tensor(source) for name, source in sources.items()}
        facts = _facts(file, path)
    problems = misfits(wanted, arrays)
    if problems:
        raise CheckpointError(f"{path} does not fit the program:\n{listed(problems)}"
                              f"\nhelp: {OTHERS}")
    checksums = json.loads(facts["checksums"])
    damaged = [source for name, source in sources.items()
               if zlib.crc32(arrays[name].data) != checksums.get(source)]
    if damaged:
        raise CheckpointError(f"{path} is damaged:\n{listed(damaged)}")
    return arrays, facts


def sources_of(plan: Plan, names: Iterable[str]) -> dict[str, str]:
    """By its name here, the name of what becomes a state, or is unknown. Where nothing is trained,
    a parameter is its average if there is one, and the rest of what training added is left out."""
    left = {*names}
    if plan.trains:
        return {name: name for name in left}
    found, own = dict[str, str](), set[str]()
    for state in plan.states:
        bare = state.name.removeprefix(AVERAGE) if state.kind == "average" else state.name
        source = next((name for name in (f"{AVERAGE}{bare}", bare) if name in left), None)
        found |= {state.name: source} if source else {}
        own |= {bare, state.name}
    return found | {name: name for name in left - own if name.partition(".")[0] not in ADDED}


def read_progress(path: str | Path) -> Progress:
    """Where the run stood, without reading states. Raises `CheckpointError`."""
    with _opened(path) as file:
        return _progress(_facts(file, path))


@contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    try:
        with safe_open(str(path), framework="numpy") as file:
            yield file
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not a checkpoint, or it is truncated: {error}") from error


def _facts(file: Any, path: str | Path) -> dict[str, str]:
    """What the file says about its run, the checksum put aside."""
    facts: dict[str, str] = file.metadata() or {}
    if facts.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} was not written as '{FORMAT}'; load weights of other programs with "
            "`anabranch.load_weights`"
        )
    if facts.pop("checksum", "") != _checksum(facts):
        raise CheckpointError(f"{path} is damaged: what it says about its run does not add up")
    return facts


def _progress(facts: Mapping[str, str]) -> Progress:
    return Progress(int(facts["step"]), int(facts["seed"]), facts["notes"])


def misfits(wanted: Mapping[str, Value], arrays: Mapping[str, Any]) -> list[str]:
    """Everything by which arrays differ from the states that are wanted, in words."""
    problems = [f"missing: {name}" for name in wanted.keys() - arrays.keys()]
    problems += [f"not in the program: {name}" for name in arrays.keys() - wanted.keys()]
    for name in wanted.keys() & arrays.keys():
        value, array = wanted[name], arrays[name]
        dtype = np.dtype(np.float32 if value.dtype == "bf16" else STORAGE[value.dtype])
        if array.shape != value.shape or array.dtype != dtype:
            problems.append(
                f"{name} is {array.dtype}{list(array.shape)}, "
                f"the program has {value.dtype}{list(value.shape)}"
            )
    return sorted(problems)


def listed(problems: Sequence[str], most: int = 20) -> str:
    """One a line, so many at most."""
    more = [f"and {len(problems) - most} more"] if len(problems) > most else []
    return "\n".join(f"  {problem}" for problem in [*problems[:most], *more])
