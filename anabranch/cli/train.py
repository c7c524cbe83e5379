"""Train a model by the recipe of its program.

Without --data, a recipe that reads text gets the sources of Python's standard library. A run
leaves a checkpoint, the curve of its loss and a trace of its last steps in runs/NAME/. The loss
shown for a step is of that step's batch alone; at the end stand the mean of the last 20 steps and,
of the held-out data, means of the loss and the metrics in which every row counts once. Under
torchrun every process is a rank: torchrun --nproc_per_node 2 -m anabranch train ... --mesh data=2
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from anabranch import cache, generation
from anabranch.cli.options import (
    add_program,
    add_rename,
    command,
    integer,
    mesh_of,
    overrides_of,
    renaming,
)
from anabranch.driver import Options, compile_training
from anabranch.frontend import values
from anabranch.frontend.program import Program, Training, load
from anabranch.ir.diagnostics import fail
from anabranch.ir.plan import Plan
from anabranch.runtime import checkpoint
from anabranch.runtime.arrays import Array
from anabranch.runtime.checkpoint import Progress, listed
from anabranch.runtime.data import Reader, make_reader
from anabranch.runtime.errors import FeedError
from anabranch.runtime.session import Session
from anabranch.runtime.world import FailedElsewhere, World, together, world_of_environment
from anabranch.subjects import recalled
from anabranch.training import CHECKPOINT, Report, Run, predicted_peak, train, try_validation
from anabranch.weights import Fit, in_a_table, load_weights

RUNS = Path("runs")
TEXT = "text"  # the reader of what a model can write
PROMPT, SAMPLE = "def ", 200


def configure(parser: argparse.ArgumentParser) -> None:
    add_program(parser)
    parser.set_defaults(seed=None)  # a resumed run keeps the one it has
    parser.add_argument("--data", metavar="PATH", help="what the reader of the recipe "
                        "reads: a text file or a folder of them, a folder of images, an .npz, a "
                        "table (.csv, .tsv)")
    parser.add_argument("--steps", type=integer(1), metavar="N",
                        help="how many steps in all (the recipe's; a resumed run first does those "
                        "it was asked for)")
    parser.add_argument("--slots", type=integer(1), default=2, metavar="N",
                        help="micro-batches a stage may be ahead of the next (2)")
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--resume", metavar="CHECKPOINT", help="go on where a run stood, with its "
                       f"data and settings. A {CHECKPOINT} goes on in its folder, where that file, "
                       "the curve and the trace are written anew; a file of another name begins a "
                       "new folder")
    start.add_argument("--init", metavar="WEIGHTS", help="begin with the weights of this file; "
                       "what it lacks begins as the program says")
    add_rename(parser)
    parser.add_argument("--checkpoint-every", type=integer(0), default=0, metavar="N",
                        help="save every N steps; the end and an interrupt always save")
    parser.add_argument("--name", help="the name of the run: its files go to runs/NAME/")
    parser.add_argument("--out", metavar="FOLDER", help="where its files go instead")
    parser.add_argument("--trace", type=integer(0), default=8, metavar="N",
                        help="how many of the last steps the trace shows (8; 0: no trace)")
    parser.add_argument("--no-check", action="store_true",
                        help="clamp indices that are out of range instead of reporting them")
    parser.add_argument("--time-passes", action="store_true",
                        help="compile afresh and print the seconds of each pass")
    parser.add_argument("--json", action="store_true",
                        help="end with one JSON object on a line of its own")


def run(args: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run(args, world_of_environment())
    except FailedElsewhere:
        return 1
    except FeedError as error:
        raise error.of(args.data) from error


def _run(args: argparse.Namespace, world: World) -> int:
    began = time.perf_counter()
    job, start = together(world, lambda: (prepare(args, world), _start(args)))
    make = _compiled_now if args.time_passes else _cached
    plan = world.first(lambda: make(job))
    with Session(plan, world=world, seed=job.seed, trace=args.trace) as session:
        together(world, lambda: try_validation(plan, job.reader))
        together(world, lambda: _set_states(session, args.resume, args.init, start))
        seconds = time.perf_counter() - began
        if world.process == 0:
            _say("".join(f"note: {hint}\n" for hint in plan.hints)
                 + f"ready after {seconds:.1f} s, {_memory(session)}")
        report, sample = _train(session, job, seconds)
    if world.process == 0:
        _finish(job, report, sample, as_json=args.json)
    return 0


def _interrupt(number: int, frame: object) -> NoReturn:
    """Being told to end is an interrupt: what was done is saved."""
    raise KeyboardInterrupt


@dataclass(slots=True)
class Data:
    """What a run reads, as soon as the recipe has said how."""

    source: str | None
    seed: int
    made: Reader | None = None

    def reader(self, wanted: values.Reader) -> Reader:
        if self.made is None:
            self.made = make_reader(wanted.name, self.source, self.seed, wanted.arguments)
        return self.made

    def shapes(self, wanted: values.Reader) -> dict[str, tuple[int, ...]]:
        return {name: np.shape(array) for name, array in self.reader(wanted).batch(0).items()}


@dataclass(frozen=True, slots=True)
class Job:
    """A command line, understood. `again` is the command that goes on with the run."""

    program: Program
    training: Training
    settings: dict[str, Any]
    options: Options
    seed: int
    reader: Reader
    run: Run
    again: str


def prepare(args: argparse.Namespace, world: World) -> Job:
    """Everything that can be wrong with a command line is found here. A checkpoint's notes say
    of what it is one; what is given now comes first."""
    mesh = mesh_of(args.mesh)
    if world.processes not in (1, mesh.ranks):
        raise fail(f"the mesh {mesh} has {mesh.ranks} ranks, and there are {world.processes} "
                   "processes", help="start as many processes as there are ranks, or one")
    done = checkpoint.read_progress(args.resume) if args.resume else Progress(0, 0)
    settings = _settings(args, done)
    program = load(args.file)
    micro = {} if args.micro is None else {"micro": args.micro}
    seed = done.seed if args.seed is None else args.seed
    data = Data(settings["data"], seed)
    training = program.training(settings["model"], {**settings["set"], **micro}, mesh.stages,
                                shapes=data.shapes)
    settings["set"] |= training.sizes
    run = Run(_folder(args), training.steps, done.step, seed, args.checkpoint_every,
              notes=json.dumps(settings),
              unit="tokens" if training.reader.name == TEXT else "targets")
    if run.first >= run.steps:
        raise fail(f"{args.resume} has done {run.first} of {run.steps} steps already",
                   help=f"ask for more, as in --steps {2 * run.first}")
    options = Options(mesh, args.micro, args.slots, checked=not args.no_check)
    return Job(program, training, settings, options, seed, data.reader(training.reader), run,
               _again(args, run))


def _settings(args: argparse.Namespace, done: Progress) -> dict[str, Any]:
    """What a run is of: the model, its overrides, its data. Steps that were asked for and are done
    say nothing about those that follow: they are the recipe's again."""
    known = json.loads(done.notes or "{}")
    before = recalled(known.get("set", {}))
    if isinstance(asked := before.get("steps"), int) and asked <= done.step:
        del before["steps"]
    steps = {} if args.steps is None else {"steps": args.steps}
    data = str(Path(args.data).resolve()) if args.data else known.get("data")
    return {"model": args.model or known.get("model"), "data": data,
            "set": {**before, **overrides_of(args.set), **steps}}


def _again(args: argparse.Namespace, run: Run) -> str:
    options = {"--mesh": args.mesh, "--micro": args.micro}
    given = "".join(f" --readers {path}" for path in args.readers)
    given += "".join(f" {name} {value}" for name, value in options.items() if value)
    return f"{command()} train {args.file}{given} --resume {run.checkpoint}"


def _folder(args: argparse.Namespace) -> Path:
    """Where the files of the run go: a resumed one goes on where it is; a new one without a name
    takes the next that is free, and so does what goes on from a copy, beside which there may be
    another run's files."""
    if args.out:
        return Path(str(args.out))
    if args.name:
        return RUNS / str(args.name)
    if args.resume and Path(args.resume).name == CHECKPOINT:
        return Path(args.resume).parent
    stem = Path(args.file).stem
    names = itertools.chain([stem], (f"{stem}-{i}" for i in itertools.count(2)))
    return next(RUNS / name for name in names if not (RUNS / name / CHECKPOINT).exists())


def _cached(job: Job) -> Plan:
    began = time.perf_counter()
    about = (job.settings["model"], sorted(job.settings["set"].items()), job.options)
    name = cache.key(job.program.sources, "train", *about)
    plan, there = cache.plan(name, lambda: compile_training(job.training, job.options).plan)
    how = "planned before" if there else f"planned in {time.perf_counter() - began:.1f} s"
    _say(f"{job.program.path}, mesh {job.options.mesh}: {how}")
    return plan


def _compiled_now(job: Job) -> Plan:
    compiled = compile_training(job.training, job.options)
    for name, seconds in compiled.timings.items():
        _say(f"{seconds:8.3f} s  {name}")
    _say(f"{sum(compiled.timings.values()):8.3f} s  in all")
    return compiled.plan


def _start(args: argparse.Namespace) -> dict[str, Array]:
    """The weights to begin with, as far as they are given."""
    if args.rename and not args.init:
        raise fail("--rename says what the names in a file of weights are here", help="add --init")
    return load_weights(args.init, renaming(args)) if args.init else {}


def _set_states(
    session: Session, resume: str | None, init: str | None, start: dict[str, Array]
) -> None:
    if resume is not None:
        checkpoint.restore(session, resume)
        return
    session.run("init", 1)
    fit = Fit.of(session.plan, start)
    fit.check(missing=False, shown=in_a_table)
    session.load_states(fit.ready)
    if init is None or session.process:
        return
    _say(f"arrays taken from {init}: {len(start)}")
    if fit.missing:
        _say(f"{len(fit.missing)} parameters are not in the file and begin as the program says:\n"
             f"{listed(fit.missing)}")


def _train(session: Session, job: Job, seconds: float) -> tuple[Report, str]:
    """The report, and a sample of what the model writes, if it does."""
    try:
        report = train(session, job.reader, job.run, seconds)
    except KeyboardInterrupt:
        if session.process == 0:
            _say(f"\nsaved; go on with: {job.again}")
        raise
    programs = {p.name for p in session.plan.programs}
    writes = job.training.reader.name == TEXT and generation.PROGRAM in programs
    return report, generation.text(session, PROMPT, SAMPLE) if writes else ""


# ---- What is said


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _memory(session: Session) -> str:
    predicted = predicted_peak(session.plan, session.ranks) / 1e6
    count = len(session.ranks)
    ranks = "1 rank" if count == 1 else f"{count} ranks"
    return f"{session.allocated_bytes / 1e6:.1f} MB for {ranks} ({predicted:.1f} MB predicted)"


def _finish(job: Job, report: Report, sample: str, *, as_json: bool) -> None:
    text = "\n".join(_summary(job, report, sample))
    if as_json:
        _say(text)
        print(json.dumps(report.as_dict()))
    else:
        print(text)


def _summary(job: Job, report: Report, sample: str) -> Iterator[str]:
    held = f"({report.scored_targets:,} held-out targets)"
    scores = {} if report.val_loss is None else {"loss": report.val_loss}
    scores |= report.metrics
    shown = ", ".join(f"{name} {value:.5g}" for name, value in scores.items())
    validation = f"validation {shown} {held}, " if shown else ""
    last = "last step" if report.averaged == 1 else f"mean of the last {report.averaged} steps"
    yield f"\n{validation}training loss {report.train_loss:.5g} ({last})"
    yield (f"{report.steps} steps, {report.tokens_per_second:,.0f} {job.run.unit}/s, "
           f"{report.peak_bytes / 1e6:.1f} MB ({report.predicted_peak_bytes / 1e6:.1f} predicted)")
    if sample:
        yield f"\nit writes:\n{PROMPT}{sample}"
    yield f"\ncheckpoint  {report.checkpoint}\nloss curve  {report.loss_curve}"
    if report.trace:
        yield f"trace       {report.trace} (open it in Perfetto)"
    yield "\ntry next:"
    if sample:
        yield (f"  {command()} generate {job.program.path} --checkpoint {report.checkpoint} "
               f"--prompt '{PROMPT}'")
    yield f"  {job.again} --steps {2 * report.steps}"
