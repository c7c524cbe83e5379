"""The one module that sees every layer: from a program to a Plan, with everything in between.

`compile_training` and `compile_function` give a `Compiled`: the Plan, and the times of the passes.
`lower` stops anywhere on the way, for `dump`. Plans are cached by what they are made of: the
program, the settings, the mesh, the machine and the compiler itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from anabranch import codegen
from anabranch.frontend.program import Training
from anabranch.ir import passes
from anabranch.ir.core import Function, Module
from anabranch.ir.diagnostics import CompilerBug, fail
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Return
from anabranch.ir.plan import ADDED, Plan
from anabranch.ir.sbp import Layout
from anabranch.lowering import pipeline, planner
from anabranch.lowering.decisions import Decisions
from anabranch.lowering.machine import CPU2, Machine
from anabranch.lowering.pipeline import Target
from anabranch.lowering.schedule import schedule
from anabranch.lowering.stages import assign_stages, follow
from anabranch.lowering.tables import Prices, ProgramIR

ORDER = ("train", "eval", "init", "next")  # the first that has a state places it


@dataclass(frozen=True, slots=True)
class Options:
    """How to compile. `mesh` has the ranks; `micro` None takes the recipe's. Unless `checked`, an
    index out of range is clamped instead of reported."""

    mesh: Mesh = field(default_factory=Mesh)
    micro: int | None = None
    slots: int = 2
    machine: Machine = CPU2
    checked: bool = True
    verify: bool = True
    print_after: Collection[str] = ()
    write: Callable[[str], object] | None = None


@dataclass(slots=True)
class Compiled:
    """A Plan and how it came about: seconds by pass, and the modules before they became local."""

    plan: Plan
    timings: dict[str, float]
    boxed: dict[str, Module]


def compile_training(training: Training, options: Options) -> Compiled:
    """The Plan of a recipe: train, eval, init and, where the model has it, next."""
    micro = training.micro if options.micro is None else options.micro
    if micro != training.micro and training.by_micro:
        raise fail(f"the recipe was elaborated for micro={training.micro}, not {micro}, and says "
                   "'per_micro'", help="override the line: micro=...")
    return compile_module(training.module, options, micro, training.results)


def compile_function(module: Module, options: Options) -> Compiled:
    """The Plan of one function, whose states (if any) are filled by the caller."""
    return compile_module(module, options, 1)


def compile_module(
    module: Module, options: Options, micro: int, known: Mapping[str, tuple[str, ...]] | None = None
) -> Compiled:
    """The Plan of all functions of a module, which share its states. `known` names the results of
    some of them."""
    timings: dict[str, float] = {}
    programs, boxed = [], {}
    hints: dict[str, None] = {}
    layouts: dict[str, Layout] = {}
    for name, single in _separate(module, timings):
        results = (known or {}).get(name) or _result_names(single.functions[name])
        target = _target(name, options, micro, layouts)
        mesh = target.mesh
        lowered = _run(pipeline.global_passes(target), single, options, timings)
        boxed[name] = lowered
        hints |= dict.fromkeys(target.hints)
        function = lowered.functions[name]
        layouts = _state_layouts(function) | layouts
        ranks = [_run(pipeline.local_passes(rank, checked=options.checked), lowered, options,
                      timings) for rank in range(mesh.ranks)]
        functions = tuple(m.functions[name] for m in ranks)
        programs.append(ProgramIR(name, function, functions, mesh, results))
    start = time.perf_counter()
    plan = schedule(programs, codegen.Launches(), prices(options.machine, options.mesh),
                    prelude=codegen.PRELUDE, slots=options.slots, kinds=_kinds(programs),
                    profile=options.machine.name, hints=tuple(hints))
    timings["schedule"] = time.perf_counter() - start
    return Compiled(plan, timings, boxed)


def lower(
    module: Module, name: str, options: Options, *, stage: str, micro: int = 1, rank: int = 0,
    timings: dict[str, float] | None = None,
) -> Module:
    """The function `name` as it is at a stage of `pipeline.STAGES`; from `local` on, of one rank.

    The module is changed. A program that shares the states of another finds them where that one,
    planned before it, has put them.
    """
    clock: dict[str, float] = {} if timings is None else timings
    layouts: dict[str, Layout] = {}
    for each, single in _separate(module, clock):
        steps = pipeline.global_passes(_target(each, options, micro, layouts))
        if each == name:
            every = (*steps, *pipeline.local_passes(rank, checked=options.checked))
            wanted = [passes.name_of(step) for step in every].index(pipeline.STAGES[stage])
            return _run(every[: wanted + 1], single, options, clock)
        planned = _run(steps, single, options, clock).functions[each]
        layouts = _state_layouts(planned) | layouts
    raise CompilerBug(f"there is no function '{name}' to lower")


def decide(module: Module, name: str, options: Options, *, micro: int = 1) -> Decisions:
    """How the function `name` is laid out, and why. The module is changed."""
    clock: dict[str, float] = {}
    layouts: dict[str, Layout] = {}
    for each, single in _separate(module, clock):
        target = _target(each, options, micro, layouts)
        steps = pipeline.global_passes(target)
        until = [passes.name_of(step) for step in steps].index(pipeline.STAGES["sbp"])
        simple = _run(steps[:until], single, options, clock)
        planned = planner.decide(simple, target.mesh, target.machine, target.layouts)
        if each == name:
            return planned.decisions[name]
        layouts = _state_layouts(planned.module.functions[each]) | layouts
    raise CompilerBug(f"there is no function '{name}' to lay out")


def _target(name: str, options: Options, micro: int, layouts: dict[str, Layout]) -> Target:
    """Only training is cut into micro-batches."""
    mesh = options.mesh.with_micro(micro if name == "train" else 1)
    return Target(mesh, options.machine, layouts)


def _kinds(programs: Sequence[ProgramIR]) -> dict[str, str]:
    """The states that training adds; what is not named here is the model's."""
    states = {a.value.name for p in programs for a in p.boxed.states()}
    return {name: kind for name in states for root, kind in ADDED.items()
            if name.startswith(f"{root}.")}


def _run(steps: Sequence[passes.Pass], module: Module, options: Options,
         timings: dict[str, float]) -> Module:
    extra = {} if options.write is None else {"write": options.write}
    return passes.run(steps, module, verify=options.verify, timings=timings,
                      print_after=options.print_after, **extra)


def _separate(module: Module, timings: dict[str, float]) -> list[tuple[str, Module]]:
    """A module per function, in the order in which they are planned, with stages assigned."""
    start = time.perf_counter()
    names = [n for n in ORDER if n in module.functions]
    names += [n for n in module.functions if n not in names]
    assign_stages(module)
    states = [a for name in reversed(names) for a in module.functions[name].states()]
    homes = {a.value.name: a.stage for a in states}
    pins = {a.value.name: a.pin for a in states}
    separate = []
    for name in names:
        function = module.functions[name]
        _add_written_states(function, pins)
        single = Module({name: function}, module.phase, module.mesh)
        separate.append((name, follow(single, homes)))
    timings["stages"] = time.perf_counter() - start
    return separate


def _add_written_states(function: Function, pins: Mapping[str, Layout | None]) -> None:
    """A program that only writes a state (init) has it as an argument all the same, to say where
    it is."""
    known = {a.value.name for a in function.states()}
    last = function.body.last
    assert isinstance(last, Return)
    for name, value in last.updates.items():
        if name not in known:
            type = value.type.with_layout(None)
            function.add_argument(name, type, role="state", pin=pins.get(name))


def _result_names(function: Function) -> tuple[str, ...]:
    """What each result is called, made unique."""
    last = function.body.last
    assert isinstance(last, Return)
    names: list[str] = []
    for value in last.values:
        name = value.name or "result"
        names.append(name if name not in names else f"{name}.{len(names)}")
    return tuple(names)


def _state_layouts(function: Function) -> dict[str, Layout]:
    """Where a planned program keeps its states, without the axis of time."""
    return {
        a.value.name: Layout(tuple(e for e in a.value.type.layout.entries if e[0] != "micro"))
        for a in function.states() if a.value.type.layout is not None
    }


def prices(machine: Machine, mesh: Mesh) -> Prices:
    """Predicted seconds of launches and transfers on this machine and mesh."""
    share = machine.shared_by(mesh.ranks)

    def launch(spec: codegen.LaunchSpec) -> float:
        contraction = spec.kernel.kind == "library"
        return share.work_seconds(spec.flops, spec.bytes, contraction=contraction)

    def transfer(nbytes: int, members: int) -> float:
        link = machine.inner if members <= machine.node else machine.outer
        return link.latency * max(1, members - 1) + nbytes / link.bandwidth

    return Prices(launch, transfer)
