"""One operator of an oracle, judged step by step in a process of a pool."""

from __future__ import annotations

import functools
from typing import Any

import torch

from benchmarks.oracles import judge, samples
from benchmarks.oracles.cases import Case, Refusal
from benchmarks.oracles.contract import ADAPTERS
from benchmarks.oracles.judge import Verdict
from benchmarks.oracles.pool import TOGETHER, At, Job, Judged, Send

LIMIT = 20  # samples of an operator
PLACEMENTS = 12  # of a sample
SECONDS = 30.0  # that a step of a sample may take
BAD = 1000  # bad calls are numbered from here

torch.set_num_threads(1)


@functools.cache
def infos() -> dict[str, Any]:
    return samples.entries()


def work(job: Job, send: Send) -> None:
    """Judge all samples of a job that are not known yet."""
    send(At(TOGETHER, 4 * SECONDS))
    if job.name not in ADAPTERS:
        return _missing(job, send)
    found = samples.cases(job.name, infos()[job.name], LIMIT)
    trials = []
    for number, case in enumerate(found):
        if number in job.known:
            continue
        send(At(number, SECONDS))
        if isinstance(case, Refusal):
            send(Judged(number, Verdict("refused", case.reason)))
            continue
        trial = judge.prepare(case, number, PLACEMENTS)
        if job.apart:
            judge.compile_kernels([trial])
            send(Judged(number, _named(judge.conclude(trial), case)))
        else:
            trials.append((number, trial))
    send(At(TOGETHER, SECONDS * max(1, len(trials))))
    judge.compile_kernels([trial for _, trial in trials])
    for number, trial in trials:
        send(At(number, SECONDS))
        send(Judged(number, _named(judge.conclude(trial), trial.case)))
    _bad(job, send)


def _missing(job: Job, send: Send) -> None:
    for number in range(len(samples.chosen(infos()[job.name], LIMIT))):
        send(Judged(number, Verdict("refused", "there is no such operator in the library")))


def _bad(job: Job, send: Send) -> None:
    """The calls that torch refuses."""
    for number, case in enumerate(samples.bad_cases(job.name, infos()[job.name]), BAD):
        if number not in job.known:
            send(At(number, SECONDS))
            send(Judged(number, _named(judge.refuses(case), case)))


def _named(verdict: Verdict, case: Case) -> Verdict:
    """The message with the call it is about."""
    if not verdict.message:
        return verdict
    shown = "; ".join(case.text.splitlines())
    types = ", ".join(f"{o}: {o.dtype}{list(o.shape)}" for o in case.operands)
    return Verdict(verdict.kind, f"{verdict.message} -- {shown} with {types}")
