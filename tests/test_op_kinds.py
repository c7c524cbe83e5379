"""No table of the compiler may forget an op kind: one small program for each goes through them all.

A new subclass of `Op` fails here until it has a program below, and the program fails until the
printer, the parser, the comparison, the verifier and `clone` know the kind.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anabranch.ir import ops  # noqa: F401  (defines the subclasses)
from anabranch.ir.core import Block, Module, Op
from anabranch.ir.diagnostics import CompilerBug
from anabranch.ir.equal import same
from anabranch.ir.parser import parse_module
from anabranch.ir.printer import print_module
from anabranch.ir.verifier import verify

PHASES = ("global", "sbp", "boxed", "local", "fused")

# kind -> the phases it may stand in, and a program of the first of them.
PROGRAMS: dict[str, tuple[set[str], str]] = {
    "compute": (
        {"global", "sbp", "boxed", "local", "fused"},
        """\
module phase=global

func @f(%x: f32[8, 16], %w: f32[16, 4]) {
  %y: f32[8, 4] = [i, j] sum[k < 16 if k <= i](%x[i, k] * %w[k, j]) {stage=1, recompute=2}
  return %y
}
""",
    ),
    "order": (
        {"global", "sbp", "boxed", "local", "fused"},
        """\
module phase=global

func @f(%x: f32[8, 16]) {
  %y: i64[8, 3] = order(%x) {axis=1, descending=true, stage=1}
  %z: i64[0, 16] = order(%x) {axis=0}
  return %y, %z
}
""",
    ),
    "pin": (
        {"global"},
        """\
module phase=global

func @f(%x: f32[8, 16]) {
  %y: f32[8, 16] = pin(%x, {data: S(0)})
  return %y
}
""",
    ),
    "gradient": (
        {"global"},
        """\
module phase=global

func @f(%x: f32[]) {
  %y: f32[] = [] %x[] * %x[]
  %d.x: f32[] = gradient(%y, %x)
  return %d.x
}
""",
    ),
    "box": (
        {"sbp", "boxed"},
        """\
module phase=sbp mesh={data: 2}

func @f(%x: f32[8, 16] @ {data: S(0)}) {
  %y: f32[8, 16] @ {data: B} = box(%x) {step=all_gather, axis=data}
  return %y
}
""",
    ),
    "transfer": (
        {"local", "fused"},
        """\
module phase=local mesh={data: 2}

func @f(%x: f32[128]) {
  %y: f32[256] = transfer(%x) {step=all_gather, match=3, ranks=[0, 1], counts=[128, 128]}
  return %y
}
""",
    ),
    "fused": (
        {"fused"},
        """\
module phase=fused mesh={data: 1}

func @f(%x: f32[8]) {
  %y: f32[8] = fused(%a = %x) {
    %b: f32[8] = [i] %a[i] + 1.0
    %y.1: f32[8] = [i] %b[i] * %b[i]
    return %y.1
  }
  return %y
}
""",
    ),
    "scan": (
        {"global", "sbp", "boxed", "local", "fused"},
        """\
module phase=global

func @f(%x: f32[8, 16], %w: f32[16, 16]) {
  %h: f32[8, 16], %c: f32[8, 16] = scan[t < 8, reverse](%a = %x, %b = %w; %h.1, %c.1) {stage=1} {
    %p: f32[8, 16] = [t, i] sum[k < 16](%h.1[t + 1, k, pad=0.0] * %b[k, i]) {stage=1}
    %c.2: f32[8, 16] = [t, i] %p[t, i] + %c.1[t + 2, i, pad=1.0] {stage=1}
    %h.2: f32[8, 16] = [t, i] %a[t, i] + %c.2[t, i] {stage=1}
    return %h.2, %c.2 {stage=1}
  }
  return %h, %c
}
""",
    ),
    "return": (
        {"global", "sbp", "boxed", "local", "fused"},
        """\
module phase=global

func @f(%x: f32[8], state %w: f32[4]) {
  return %x; state "w": %w
}
""",
    ),
}
KINDS = list(PROGRAMS)


def subclasses(base: type[Op]) -> Iterator[type[Op]]:
    for kind in base.__subclasses__():
        yield kind
        yield from subclasses(kind)


def ops_of(block: Block) -> Iterator[Op]:
    for op in block:
        yield op
        if region := getattr(op, "region", None):
            yield from ops_of(region)


def example(kind: str) -> tuple[Module, Op]:
    """The program of a kind, and the op of that kind in it."""
    module = parse_module(PROGRAMS[kind][1])
    (function,) = module.functions.values()
    return module, next(op for op in ops_of(function.body) if op.kind == kind)


def test_every_op_kind_has_a_program_here() -> None:
    defined = {kind.kind for kind in subclasses(Op) if kind.__module__.startswith("anabranch.")}
    assert defined == set(PROGRAMS)


@pytest.mark.parametrize("kind", KINDS)
def test_an_op_kind_prints_and_parses_back(kind: str) -> None:
    module, _ = example(kind)
    assert print_module(module) == PROGRAMS[kind][1]
    assert same(parse_module(print_module(module)), module)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_op_kind_is_legal_in_its_phases_alone(kind: str, phase: str) -> None:
    """The programs of legal phases verify; elsewhere the verifier names the kind it refuses."""
    module, _ = example(kind)
    legal = PROGRAMS[kind][0]
    if phase == module.phase:
        verify(module)
    elif phase not in legal:
        module.phase = phase
        with pytest.raises(CompilerBug):
            verify(module)


@pytest.mark.parametrize("kind", KINDS)
def test_a_clone_keeps_everything_but_the_place(kind: str) -> None:
    _, op = example(kind)
    clone = op.clone(op.operands)
    assert type(clone) is type(op)
    assert [r.type for r in clone.results] == [r.type for r in op.results]
    assert (clone.loc, clone.stage, clone.recompute) == (op.loc, op.stage, op.recompute)
    plain = [name for name in op.attributes if name != "region"]
    assert [getattr(clone, name) for name in plain] == [getattr(op, name) for name in plain]
    assert clone.block is None
