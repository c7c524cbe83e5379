"""One operator of an oracle, judged step by step in a process of a pool."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch

from benchmarks.oracles import judge, large, nodes, samples
from benchmarks.oracles.cases import Case, Refusal
from benchmarks.oracles.contract import ADAPTERS, NODES
from benchmarks.oracles.judge import Verdict
from benchmarks.oracles.placements import Placement, placements
from benchmarks.oracles.pool import TOGETHER, At, Job, Judged, Send

SECONDS = 30.0  # that a plan of a sample, or a run of one, may take
BAD = 1000  # bad calls are numbered from here

torch.set_num_threads(1)


@functools.cache
def infos() -> dict[str, Any]:
    return samples.entries()


def work(job: Job, send: Send) -> None:
    """Judge all samples of a job that are not known yet."""
    send(At(TOGETHER, 4 * SECONDS))
    if job.suite == "large":
        return _large(job, send)
    known = ADAPTERS if job.suite == "opinfo" else NODES
    if job.name not in known:
        return _missing(job, send)
    trials = []
    for number, (case, laid) in enumerate(_laid(job)):
        if number in job.known:
            continue
        begin = partial(send, At(number, SECONDS))
        begin()
        if isinstance(case, Refusal):
            send(Judged(number, Verdict("refused", f"{case.reason} -- {case.name}")))
            continue
        trial = judge.prepare(case, laid, begin)
        if job.apart:
            judge.compile_kernels([trial])
            send(Judged(number, _named(judge.conclude(trial, begin), case)))
        else:
            trials.append((number, trial))
    send(At(TOGETHER, SECONDS * max(1, len(trials))))
    judge.compile_kernels([trial for _, trial in trials])
    for number, trial in trials:
        begin = partial(send, At(number, SECONDS))
        begin()
        send(Judged(number, _named(judge.conclude(trial, begin), trial.case)))
    if job.suite == "opinfo":
        _bad(job, send)


def _large(job: Job, send: Send) -> None:
    """A case that may take minutes."""
    send(At(0, large.SECONDS))
    case, laid = large.embedding()
    trial = judge.prepare(case, laid)
    judge.compile_kernels([trial])
    send(Judged(0, _named(judge.conclude(trial), case)))


def _laid(job: Job) -> Iterator[tuple[Case | Refusal, list[Placement]]]:
    """The cases of a job, each with its placements."""
    if job.suite == "onnx":
        for case in islice(nodes.cases(job.name), job.samples):
            yield case, nodes.placements(case) if isinstance(case, Case) else []
        return
    for number, case in enumerate(samples.cases(job.name, infos()[job.name], job.samples)):
        yield case, (list(placements(case.operands, number, job.placements))
                     if isinstance(case, Case) else [])


def _missing(job: Job, send: Send) -> None:
    """Every sample of an operator that has no adapter."""
    count = (min(job.samples, len(nodes.tests()[job.name])) if job.suite == "onnx"
             else len(samples.chosen(infos()[job.name], job.samples)))
    for number in range(count):
        send(Judged(number, Verdict("refused", "there is no such operator in the library")))


def _bad(job: Job, send: Send) -> None:
    """The calls that torch refuses."""
    for number, case in enumerate(samples.bad_cases(job.name, infos()[job.name]), BAD):
        if number not in job.known:
            send(At(number, SECONDS))
            verdict = judge.refuses(case)
            taken = verdict.kind == "right"
            send(Judged(number, _named(
                Verdict("right", "torch refuses this") if taken else verdict, case)))


def _named(verdict: Verdict, case: Case) -> Verdict:
    """The message with the call it is about."""
    if not verdict.message:
        return verdict
    shown = "; ".join(case.text.splitlines())
    types = ", ".join(f"{o}: {o.dtype}{list(o.shape)}" for o in case.operands)
    return Verdict(verdict.kind, f"{verdict.message} -- {shown} with {types or 'nothing'}"
                                 f" ({case.name})")
