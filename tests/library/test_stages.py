"""The library's ops, ops of every other kind and the examples at every stage of the compiler: the
text of a stage is the stage, and every stage computes the same, down to compiled C on two ranks.

All ops of a file are one program, each with its gradient, so that their kernels compile together.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anabranch.driver import Options, compile_function
from anabranch.frontend import syntax as s
from anabranch.frontend.program import load
from anabranch.ir.core import Module
from anabranch.ir.equal import difference
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Box
from anabranch.ir.parser import parse_module
from anabranch.ir.passes import name_of, run
from anabranch.ir.printer import print_module
from anabranch.ir.reference import evaluate
from anabranch.ir.rewrite import clone_module
from anabranch.ir.sbp import S, layout_on
from anabranch.lowering.boxing import lower_boxes
from anabranch.lowering.differentiate import differentiate
from anabranch.lowering.pipeline import Target, global_passes, local_passes
from anabranch.lowering.simulate_ranks import simulate
from anabranch.runtime.session import Session
from anabranch.trials import Trial, trial_with, usual
from tests.library.ops import FILES, library, stepped
from tests.lowering.random_plans import plan_at_random

Array = np.ndarray[Any, Any]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.ab")) if load(path).recipes]
KINDS = ROOT / "tests" / "frontend" / "ops.ab"
PROGRAMS = {**{name: library() for name in FILES}, KINDS.stem: load(KINDS)}
TREES = {**FILES, KINDS.stem: PROGRAMS[KINDS.stem].tree}
WITH_OPS = [file for file, tree in TREES.items()
            if any(isinstance(item, s.OpDef) for item in tree.items)]
MESHES = [Mesh(), Mesh.of(data=2)]
SEED = STEP = 3  # those of trials


@functools.cache
def steps(file: str) -> Mapping[str, Trial]:
    """Every op of a file with its gradient; who changes one of the functions clones it first."""
    names = (item.name for item in TREES[file].items if isinstance(item, s.OpDef))
    scope = PROGRAMS[file].scope
    trials = {name: usual(scope.find(name)) for name in names}
    return {name: stepped(found) for name, found in trials.items() if found is not None}


def program(file: str, mesh: Mesh) -> Module:
    """The ops of a file, their arguments split over the mesh wherever they have a dimension."""
    module = clone_module(Module({n: each.function for n, each in steps(file).items()}))
    for name, function in module.functions.items():
        function.name = name
        for place, argument in enumerate(function.arguments):
            rank = argument.value.type.rank
            if rank and mesh.axes:
                argument.pin = layout_on(mesh, [S(place % rank)])
    return module


@functools.cache
def expected(file: str) -> Mapping[str, list[Array]]:
    """What the reference gives, each op by itself."""
    module = program(file, Mesh())
    run(global_passes(Target(Mesh()))[:1], module)
    return {name: evaluate(module.functions[name], each.arguments)
            for name, each in steps(file).items()}


def agree(actual: list[Array], file: str, name: str) -> None:
    for ours, wanted in zip(actual, expected(file)[name], strict=True):
        np.testing.assert_allclose(ours, wanted, 2e-4, 2e-5, err_msg=name)


def stages(module: Module, mesh: Mesh) -> Iterator[tuple[str, Module]]:
    """The module after every pass; from `localise` on, for every rank."""
    yield "elaborate", module
    for step in global_passes(Target(mesh)):
        module = run([step], module)
        yield name_of(step), module
    for rank in range(mesh.ranks):
        local = module
        for step in local_passes(rank):
            local = run([step], local)
            yield name_of(step), local


def check_text(module: Module) -> None:
    """What a stage prints is the stage."""
    text = print_module(module)
    again = parse_module(text)
    assert difference(again, module) == ""
    assert print_module(again) == text


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("file", WITH_OPS)
def test_every_stage_of_an_op_parses_back_and_computes_the_same(
    file: str, mesh: Mesh
) -> None:
    for stage, module in stages(program(file, mesh), mesh):
        check_text(module)
        for name, function in module.functions.items():
            arguments = steps(file)[name].arguments
            if stage == "simplify":
                agree(evaluate(function, arguments), file, name)
            elif stage == "lower-boxes":
                agree(in_parts(module, file, name), file, name)


def in_parts(module: Module, file: str, name: str) -> list[Array]:
    """What all ranks give together."""
    names = (a.value.name for a in module.functions[name].arguments)
    return simulate(module, name, dict(zip(names, steps(file)[name].arguments, strict=True)))


@pytest.mark.parametrize("mesh", [Mesh.of(data=3), Mesh.of(data=2, model=2)], ids=str)
@pytest.mark.parametrize("file", WITH_OPS)
def test_any_legal_plan_of_an_op_computes_the_same(file: str, mesh: Mesh) -> None:
    """Layouts drawn at random, where a planner would choose by cost."""
    simple = run(global_passes(Target(Mesh()))[:2], program(file, Mesh()))
    planned = plan_at_random(simple, mesh, np.random.default_rng(0))
    boxed = run([lower_boxes], planned)
    transfers = 0
    for name in steps(file):
        agree(in_parts(boxed, file, name), file, name)
        transfers += sum(isinstance(op, Box) for op in boxed.functions[name].body)
    assert transfers or file == "init"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_every_stage_of_an_example_parses_back(path: Path, mesh: Mesh) -> None:
    train = load(path).training().module.functions["train"]
    for _, module in stages(Module({"train": train}), mesh):
        check_text(module)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("file", WITH_OPS)
def test_compiled_kernels_give_what_the_reference_gives(
    file: str, mesh: Mesh
) -> None:
    plan = compile_function(program(file, mesh), Options(mesh)).plan
    with Session(plan, seed=SEED, canaries=True) as session:
        for name, each in steps(file).items():
            agree(list(session.step(name, fed(each), STEP).values()), file, name)


SHORT = {"bf16": 2e-2, "f16": 4e-3}  # of the largest result, which is a sum of rounded terms


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("file", WITH_OPS)
def test_compiled_kernels_of_short_floats_give_what_the_reference_gives(
    file: str, dtype: str
) -> None:
    """Whichever ops take them."""
    scope = PROGRAMS[file].scope
    generic = dict.fromkeys(("T", "U", "Float"), dtype)
    tried = {name: trial_with(scope.find(name), {**each.sizes, **generic})
             for name, each in steps(file).items()}
    shortened = {name: stepped(each) for name, each in tried.items() if each is not None}
    module = Module({name: each.function for name, each in shortened.items()})
    for name, function in module.functions.items():
        function.name = name
    wanted = differentiate(clone_module(module))
    plan = compile_function(module, Options()).plan
    with Session(plan, seed=SEED, canaries=True) as session:
        for name, each in shortened.items():
            results = session.step(name, fed(each), STEP).values()
            expected = evaluate(wanted.functions[name], each.arguments)
            for ours, theirs in zip(results, expected, strict=True):
                size = SHORT[dtype] * max(1.0, float(np.abs(theirs).max(initial=0)))
                np.testing.assert_allclose(ours, theirs, SHORT[dtype], size, err_msg=name)


def fed(step: Trial) -> dict[str, Array]:
    """The arguments that are not the runtime's to give."""
    pairs = zip(step.function.arguments, step.arguments, strict=True)
    return {a.value.name: x for a, x in pairs if a.role == "input"}
