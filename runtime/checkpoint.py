"""Checkpoints: all states of a session and where it stood, in one safetensors file.

Tensors are whole (logical), by dotted path, so a checkpoint does not know a mesh: it resumes
bit for bit on the same one and to rounding on another. A file is written beside its final place
and renamed, so a reader sees a whole one or none. A truncated or foreign file is refused with what
is wrong with it, before any state is touched.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from anabranch.ir.plan import Plan
from anabranch.runtime.arrays import STORAGE, Array
from anabranch.runtime.errors import RuntimeFailure
from anabranch.runtime.session import Session

FORMAT = "anabranch checkpoint 1"


class CheckpointError(RuntimeFailure):
    """A checkpoint that cannot be read or does not fit the program."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stood: `step` is the next step to do."""

    step: int
    seed: int


def save(session: Session, path: str | Path, progress: Progress) -> None:
    """Write all states. Every process of a world calls it; process 0 writes."""
    arrays = {name: np.ascontiguousarray(session.state(name)) for name in session.states()}
    if session.process != 0:
        return
    facts = {"format": FORMAT, "step": str(progress.step), "seed": str(progress.seed)}
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    try:
        save_file(arrays, temporary, metadata=facts)
        _flush(temporary)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _flush(path: str) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def load(plan: Plan, path: str | Path) -> tuple[dict[str, Array], Progress]:
    """The states for a plan, checked, and where to go on. Raises `CheckpointError`."""
    try:
        with safe_open(str(path), framework="numpy") as file:
            facts = file.metadata() or {}
            names = file.keys()
            arrays = {name: file.get_tensor(name) for name in names}
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not a checkpoint, or it is truncated: {error}") from error
    if facts.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} was not written as '{FORMAT}'; load weights of other programs with "
            "`anabranch.load_weights`"
        )
    _compare(plan, arrays, str(path))
    return arrays, Progress(int(facts["step"]), int(facts["seed"]))


def _compare(plan: Plan, arrays: dict[str, Array], path: str) -> None:
    """Everything that does not fit, at once."""
    wanted = {s.name: plan.values[s.value] for s in plan.states}
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
    if problems:
        shown = "\n  ".join(sorted(problems)[:20])
        more = f"\n  and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise CheckpointError(f"{path} does not fit the program:\n  {shown}{more}")
