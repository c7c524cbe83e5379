"""A case, judged: by the reference evaluator, and compiled on one rank and, laid out in many ways,
on two and four.

A sample is `right` if every one of these gives what the oracle gives, in value and gradient, on
every rank; `refused` if we say, in a message for users, that we do not do it; `wrong` if a number,
a shape or a dtype differs; `crash` if anything else is raised. A process that judges may also die
or never come back: `pool.py` sees to that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from anabranch.driver import Options, compile_module
from anabranch.ir.core import Function, Module
from anabranch.ir.diagnostics import UserError
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Return
from anabranch.ir.plan import Plan
from anabranch.ir.reference import evaluate
from anabranch.lowering.differentiate import differentiate
from anabranch.runtime.build import build, find_toolchain
from anabranch.runtime.errors import RunError
from anabranch.runtime.native import HEADER
from anabranch.runtime.session import Session
from benchmarks.oracles import programs
from benchmarks.oracles.cases import Array, Case, Wanted
from benchmarks.oracles.contract import Unlikely
from benchmarks.oracles.placements import ONE, Placement

KINDS = ("right", "refused", "wrong", "crash", "hang")
STALL = 20.0  # seconds without progress that end a run
LARGE = 1 << 17  # elements of the arguments of a case
FAILURES = {"no progress": "hang", "different copies": "wrong"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One of `KINDS`, and what there is to say."""

    kind: str
    message: str = ""


RIGHT = Verdict("right")

Begin = Callable[[], None]


class Wrong(Exception):
    """A result that differs."""


@dataclass(frozen=True, slots=True)
class Planned:
    """Programs of one case that share a mesh, as one plan. None is the case as it is."""

    plan: Plan
    members: tuple[tuple[str, Placement | None], ...]


@dataclass(slots=True)
class Trial:
    """A case on its way: its plans, or the verdict that was reached before them."""

    case: Case
    plans: list[Planned] = field(default_factory=list)
    verdict: Verdict | None = None


def idle() -> None:
    """For whom it is nothing that a step begins."""


def prepare(case: Case, laid: Iterable[Placement], begin: Begin = idle) -> Trial:
    """Judge a case by the reference evaluator, then compile it as it is and in placements. `begin`
    is called before every plan."""
    trial = Trial(case)
    trial.verdict = _guarded(partial(_settle, trial))
    if trial.verdict is RIGHT:
        trial.verdict = _guarded(partial(_by_reference, trial.case))
    if trial.verdict is RIGHT:
        trial.verdict = None
        for mesh, members in _together(case, [None, *laid]):
            begin()
            verdict = _guarded(partial(_compile, trial, mesh, members))
            if verdict is not RIGHT:
                trial.verdict = verdict
                break
    return trial


def conclude(trial: Trial, begin: Begin = idle) -> Verdict:
    """Run the plans of a trial, if nothing has been found yet, with `begin` before each."""
    if trial.verdict is None:
        for planned in trial.plans:
            begin()
            trial.verdict = _guarded(partial(_run, trial.case, planned))
            if trial.verdict is not RIGHT:
                break
    trial.plans.clear()
    return trial.verdict or RIGHT


def compile_kernels(trials: Sequence[Trial]) -> None:
    """All kernels of these trials, in as few compilations as there are cores."""
    toolchain = find_toolchain()
    plans = [planned.plan for trial in trials for planned in trial.plans]
    if toolchain is None or not plans:
        return
    texts = {plan.sources[k.source].text for plan in plans for k in plan.kernels if k.kind == "c"}
    build(toolchain, f"{HEADER}\n{plans[0].prelude}", sorted(texts))


def judge(case: Case, laid: Iterable[Placement]) -> Verdict:
    """All of it, for one case."""
    return conclude(prepare(case, laid))


def refuses(case: Case) -> Verdict:
    """`refused` for a bad call that ends in a message for users, `right` for one that is taken."""

    def run() -> None:
        with np.errstate(all="ignore"):
            evaluate(_alone(case), _given(case, _alone(case)))
        with Session(_planned(case, ONE, [None]).plan, stall_seconds=STALL) as session:
            session.step("f", programs.feeds(case))

    return _guarded(run)


def _guarded(run: Callable[[], None]) -> Verdict:
    """What came of it, as a verdict."""
    try:
        run()
    except UserError as error:
        return Verdict("refused", _short(error.diagnostics[0].message))
    except RunError as error:
        return Verdict(_kind_of(str(error)), _short(str(error)))
    except Wrong as error:
        return Verdict("wrong", str(error))
    except Exception as error:  # whatever it is, a user would see a traceback
        notes = " ".join(getattr(error, "__notes__", ()))
        return Verdict("crash", _short(f"{type(error).__name__}: {error} {notes}"))
    return RIGHT


def _kind_of(message: str) -> str:
    """What a failed run is: a run without progress, ranks that differ, or a message for users."""
    found = [kind for words, kind in FAILURES.items() if words in message]
    return found[0] if found else "refused"


def _short(message: str) -> str:
    return " ".join(message.split())[:300]


# ---- the reference


def _alone(case: Case) -> Function:
    made = programs.function(case)
    return differentiate(Module({"f": made})).functions["f"]


def _given(case: Case, function: Function) -> list[Array]:
    given = programs.feeds(case)
    return [np.asarray(given[a.value.name]) if a.role == "input" else np.asarray(0)
            for a in function.arguments]


def settled(case: Case) -> Case:
    """What is right in a case with random draws is said for those of the reference evaluator,
    which all other runs then have to draw too."""
    if case.drawn is None:
        return case
    function = _alone(case)
    with np.errstate(all="ignore"):
        found = evaluate(function, _given(case, function))
    try:
        return case.drawn(found)
    except Unlikely as error:
        raise Wrong(str(error)) from error


def _settle(trial: Trial) -> None:
    trial.case = settled(trial.case)


def _by_reference(given: Case) -> None:
    case = settled(given)
    function = _alone(case)
    end = function.body.last
    assert isinstance(end, Return)
    if len(end.values) < len(case.results):
        raise Wrong(f"{len(end.values)} results instead of {len(case.results)}")
    for value, wanted in zip(end.values, case.results, strict=False):
        if value.type.dtype != wanted.dtype:
            raise Wrong(f"dtype {value.type.dtype} instead of {wanted.dtype}")
    with np.errstate(all="ignore"):
        found = evaluate(function, _given(case, function))
    _compare("reference", case, found, None)


def _compare(where: str, case: Case, found: Sequence[Array], placement: Placement | None) -> None:
    """Results, then gradients, which a case with terms has for each of them."""
    results, gradients = found[: len(case.results)], found[len(case.results):]
    for number, (actual, wanted) in enumerate(zip(results, case.results, strict=True)):
        _check(f"{where}: result {number}: ", np.asarray(actual), wanted)
    if gradients:
        for actual, (name, wanted) in zip(gradients, case.gradients.items(), strict=True):
            for part in _parts(np.asarray(actual), wanted):
                _check(f"{where}: gradient by {name}: ", part, wanted)


def _parts(gradient: Array, wanted: Wanted) -> Iterator[Array]:
    """The gradients of the terms of an argument, each of which is that of the argument."""
    extra = gradient.ndim - wanted.value.ndim
    if extra <= 0 or gradient.shape[extra:] != wanted.value.shape:
        yield gradient
    else:
        yield from gradient.reshape(math.prod(gradient.shape[:extra]), *gradient.shape[extra:])


def _check(where: str, actual: Array, wanted: Wanted) -> None:
    difference = wanted.differs(actual)
    if difference:
        raise Wrong(where + difference)


# ---- compiled


def _together(
    case: Case, laid: Sequence[Placement | None]
) -> list[tuple[Mesh, list[Placement | None]]]:
    """Placements that share a plan, because they share a mesh. The memory of a plan is that of all
    its programs: where the arguments are large, each has its own."""
    found: dict[Mesh, list[Placement | None]] = {}
    for placement in laid:
        found.setdefault(ONE if placement is None else placement.mesh, []).append(placement)
    if sum(math.prod(operand.shape) for operand in case.operands) < LARGE:
        return list(found.items())
    return [(mesh, [each]) for mesh, members in found.items() for each in members]


def _compile(trial: Trial, mesh: Mesh, laid: Sequence[Placement | None]) -> None:
    """One plan for the placements on a mesh. If it cannot be made, the first that is to blame is
    named."""
    try:
        trial.plans.append(_planned(trial.case, mesh, laid))
    except Exception:
        for placement in laid if len(laid) > 1 else ():
            try:
                _planned(trial.case, mesh, [placement])
            except Exception as error:
                error.add_note(str(placement))
                raise
        raise


def _planned(case: Case, mesh: Mesh, laid: Sequence[Placement | None]) -> Planned:
    members = []
    module = Module({})
    for number, placement in enumerate(laid):
        made = programs.function(case, placement)
        made.name = f"f{number}" if placement is not None else "f"
        module.add(made)
        members.append((made.name, placement))
    plan = compile_module(module, Options(mesh), 1).plan
    return Planned(plan, tuple(members))


def _run(case: Case, planned: Planned) -> None:
    with Session(planned.plan, canaries=True, stall_seconds=STALL) as session:
        for name, placement in planned.members:
            found = session.step(name, programs.feeds(case, placement))
            where = "compiled" if placement is None else str(placement)
            _compare(where, case, list(found.values()), placement)

