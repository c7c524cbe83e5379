"""Every stage of a program as text, or as JSON.

    dump(load("gpt.ab"), "sbp", Request(mesh=Mesh.of(data=2)))

`dump_text` is the same with everything in one label, as goldens write it:
`sbp mesh=data=2,model=2 function=loss set=dim=128`. Reading a stage never changes what another
shows: each dump compiles anew.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch import codegen, driver, plan_text
from anabranch.codegen import kernel as kernels
from anabranch.codegen.emit import TARGETS
from anabranch.codegen.library import library_launch
from anabranch.codegen.tile import clauses_of, tile
from anabranch.frontend import syntax as s
from anabranch.frontend.program import Program, loads
from anabranch.ir.core import Module, Op
from anabranch.ir.diagnostics import NOWHERE, UserError, fail, nearest
from anabranch.ir.mesh import Mesh
from anabranch.ir.mlir import print_mlir
from anabranch.ir.ops import Compute, Fused, Order, Scan
from anabranch.ir.printer import print_module, print_op
from anabranch.lowering import pipeline
from anabranch.subjects import Subject, mesh_of, overrides_of, subject_of

Json = Any


@dataclass(frozen=True, slots=True)
class Request:
    """What to dump: of which function, for which mesh and rank, and how. `timings` is filled."""

    mesh: Mesh = field(default_factory=Mesh)
    function: str = ""
    model: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    micro: int | None = None
    rank: int = 0
    form: str = "text"  # or mlir, or json
    print_after: Collection[str] = ()
    timings: dict[str, float] = field(default_factory=dict)

    @property
    def options(self) -> driver.Options:
        return driver.Options(self.mesh, print_after=self.print_after,
                              write=lambda text: print(text, end="", file=sys.stderr))


Dump = Callable[[Program, str, Request], str]


def dump(program: Program, stage: str, request: Request) -> str:
    """A program at a stage. Raises `UserError`."""
    if stage not in STAGES:
        raise fail(f"there is no stage '{stage}'",
                   help=nearest(stage, STAGES) or f"there are {', '.join(STAGES)}")
    if not 0 <= request.rank < request.mesh.ranks:
        raise fail(f"there is no rank {request.rank}: the mesh {request.mesh} has "
                   f"{request.mesh.ranks}")
    if request.form == "mlir" and stage not in OF_MODULES:
        raise fail(f"the stage '{stage}' has no MLIR form",
                   help=f"these have one: {', '.join(OF_MODULES)}")
    try:
        return STAGES[stage](program, stage, request)
    except UserError as error:
        raise UserError(*error.diagnostics, sources={**program.sources, **error.sources}) from None


def dump_text(source: str, label: str) -> str:
    """What a golden's label asks for of the program `source`."""
    stage, *words = label.split()
    if label == "text error":
        return _mistakes(source)
    given: dict[str, list[str]] = {}
    for word in words:
        name, _, value = word.partition("=")
        given.setdefault(name, []).append(value)
    request = Request(
        mesh=mesh_of(*given.pop("mesh", [""])), function=given.pop("function", [""])[0],
        settings=overrides_of(given.pop("set", [])), rank=int(given.pop("rank", ["0"])[0]),
        micro=int(given.pop("micro", ["0"])[0]) or None, form=given.pop("form", ["text"])[0])
    if given:
        raise fail(f"a label has no '{next(iter(given))}'")
    return dump(loads(source, "program.ab"), stage, request)


def _mistakes(source: str) -> str:
    """All diagnostics of a wrong program: of its definitions, then of its recipes."""
    try:
        program = loads(source, "program.ab")
        for name in program.recipes:
            program.training(name)
    except UserError as error:
        return error.render()
    return "no mistake was found"


def subject(program: Program, request: Request) -> Subject:
    """What is dumped."""
    return subject_of(program, function=request.function, model=request.model,
                      settings=request.settings, stages=request.mesh.stages,
                      micro=request.micro)


# ---- The syntax tree


def _ast(program: Program, _stage: str, request: Request) -> str:
    tree = _as_json(program.tree)
    return json.dumps(tree) if request.form == "json" else "\n".join(_outline("", tree, ""))


def _as_json(node: object) -> Json:
    """A tree as nested objects, with the kind of each node; where it stands is its last entry."""
    if isinstance(node, tuple):
        return [_as_json(each) for each in node]
    if not isinstance(node, s.Node):
        return node
    names: tuple[str, ...] = type(node).__match_args__
    parts = {name: _as_json(getattr(node, name)) for name in names}
    return {"kind": type(node).__name__, **parts, "at": f"{node.span.line}:{node.span.col}"}


def _outline(name: str, node: Json, indent: str) -> Iterator[str]:
    """A line for each node, with what is a plain value on it."""
    label = f"{name}: " if name else ""
    if isinstance(node, list):
        for number, each in enumerate(node):
            yield from _outline(f"{name}[{number}]", each, indent)
        return
    if not isinstance(node, dict):
        yield f"{indent}{label}{node!r}"
        return
    plain = [f"{k}={v!r}" for k, v in node.items()
             if k not in ("kind", "at") and not isinstance(v, dict | list) and v is not None]
    yield f"{indent}{label}{' '.join([node['kind'], *plain])}  @{node['at']}"
    for key, value in node.items():
        if isinstance(value, dict | list):
            yield from _outline(key, value, indent + "  ")


# ---- Modules


def module_at(program: Program, stage: str, request: Request) -> Module:
    """The function that is meant at a stage of the IR; for a recipe, its training step."""
    found = subject(program, request)
    name = found.function or "train"
    if stage == "ir":
        return Module({name: found.module.functions[name]})
    micro = found.micro if request.micro is None else request.micro
    return driver.lower(found.module, name, request.options, stage=stage, micro=micro,
                        rank=request.rank, timings=request.timings)


def _module(program: Program, stage: str, request: Request) -> str:
    module = module_at(program, stage, request)
    match request.form:
        case "mlir":
            return print_mlir(module)
        case "json":
            return json.dumps(_module_as_json(module))
    return print_module(module)


def _module_as_json(module: Module) -> Json:
    axes = None if module.mesh is None else dict(module.mesh.axes)
    functions = {
        name: {
            "arguments": [{"name": a.value.name, "type": str(a.value.type), "role": a.role,
                           "stage": a.stage} for a in function.arguments],
            "ops": [_op_as_json(op) for op in function.body],
        }
        for name, function in module.functions.items()}
    return {"phase": module.phase, "mesh": axes, "functions": functions}


def _op_as_json(op: Op) -> Json:
    at = None if op.loc == NOWHERE else {
        "file": op.loc.file, "line": op.loc.line, "column": op.loc.col, "path": op.loc.path}
    return {"kind": op.kind, "types": [str(r.type) for r in op.results], "stage": op.stage,
            "loc": at, "text": print_op(op)}


# ---- Kernels


def _launching(program: Program, request: Request) -> Iterator[Op]:
    module = module_at(program, "fused", request)
    for function in module.functions.values():
        yield from (op for op in function.body if isinstance(op, Compute | Fused | Order | Scan))


def _kernels(program: Program, _stage: str, request: Request) -> str:
    """Each kernel once, in the order of their first launch."""
    found = dict.fromkeys(text for op in _launching(program, request) for text in _bodies(op))
    return json.dumps(list(found)) if request.form == "json" else "\n".join(found)


def _bodies(op: Op) -> Iterator[str]:
    clauses, _ = clauses_of(op)
    alone = len(clauses) == 1 and not isinstance(op, Scan)
    call = library_launch(clauses[0]) if alone else None
    if call is not None:
        yield f"library {call.kernel.symbol}({', '.join(str(i.base) for i in call.ints)})\n"
        return
    for piece in tile(op).pieces:
        yield kernels.text(piece.kernel)


def _texts(program: Program, target: str, request: Request) -> str:
    """The texts that are compiled for a target, each once; a call of a library has none."""
    launches = codegen.Launches(target)
    texts = {spec.kernel.digest: spec.kernel for op in _launching(program, request)
             for spec in launches(op)}
    if request.form == "json":
        return json.dumps([dataclasses.asdict(text) for text in texts.values()])
    return "\n".join(text.source or f"/* library: {text.symbol} */" for text in texts.values())


# ---- The plan


def _plan(program: Program, _stage: str, request: Request) -> str:
    plan = compiled(program, request).plan
    if request.form == "json":
        return json.dumps(dataclasses.asdict(plan))
    return plan_text.show(plan, request.rank)


def compiled(program: Program, request: Request) -> driver.Compiled:
    """The Plan of what is meant, with the seconds of its passes."""
    found = subject(program, request)
    micro = found.micro if request.micro is None else request.micro
    known = None if found.training is None else found.training.results
    made = driver.compile_module(found.alone(), request.options, micro, known)
    for name, seconds in made.timings.items():
        request.timings[name] = request.timings.get(name, 0.0) + seconds
    return made


OF_MODULES = ("ir", *pipeline.STAGES)
STAGES: dict[str, Dump] = {
    "ast": _ast,
    **dict.fromkeys(OF_MODULES, _module),
    "kernels": _kernels,
    **dict.fromkeys(TARGETS, _texts),
    "plan": _plan,
}
