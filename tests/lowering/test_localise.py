"""Whole functions in parts: any legal plan gives what one device gives."""

from __future__ import annotations

import re

import numpy as np
import pytest

from anabranch.ir.core import Module, Value
from anabranch.ir.diagnostics import CompilerBug
from anabranch.ir.expr import Expr, Origin, transform
from anabranch.ir.index import scatter_places
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Compute
from anabranch.ir.parser import parse_module
from anabranch.ir.printer import print_module, print_op
from anabranch.ir.reference import evaluate
from anabranch.ir.sbp import B, P, S, Sbp, layout_on
from anabranch.ir.verifier import verify
from anabranch.lowering.boxing import lower_boxes
from anabranch.lowering.local_compute import local_compute, local_type
from anabranch.lowering.localise import localise
from anabranch.lowering.signatures import options, signatures
from anabranch.lowering.simulate_ranks import simulate
from tests.lowering.cases import CASES, compute, data, function
from tests.lowering.random_plans import plan_at_random
from tests.measuring import cpu_seconds

CLASSIFIER = """
func @f(%x: f32[6, 5], state %w: f32[5, 7], state %b: f32[7], state %v: f32[7, 4], %ids4: i64[6]) {
  %a: f32[6, 7] = [n, h] sum[k < 5](%x[n, k] * %w[k, h])
  %c: f32[6, 7] = [n, h] %a[n, h] + %b[h]
  %t: f32[6, 7] = [n, h] tanh(%c[n, h])
  %z: f32[6, 4] = [n, o] sum[h < 7](%t[n, h] * %v[h, o])
  %m: f32[6] = [n] max[o < 4](%z[n, o])
  %e: f32[6, 4] = [n, o] exp(%z[n, o] - %m[n])
  %s: f32[6] = [n] sum[o < 4](%e[n, o])
  %l: f32[6] = [n] %z[n, check(%ids4[n], 4)]
  %d: f32[6] = [n] log(%s[n]) + %m[n] - %l[n]
  %loss: f32[] = [] sum[n < 6](%d[n] / 6.0)
  %p: f32[6, 4] = [n, o] %e[n, o] / %s[n] - where(%ids4[n] == o, 1.0, 0.0)
  %dv: f32[7, 4] = [h, o] sum[n < 6](%t[n, h] * %p[n, o])
  %dt: f32[6, 7] = [n, h] sum[o < 4](%p[n, o] * %v[h, o])
  %dc: f32[6, 7] = [n, h] %dt[n, h] * (1.0 - %t[n, h] * %t[n, h])
  %db: f32[7] = [h] sum[n < 6](%dc[n, h])
  return %loss, %dv, %db, %dc
}
"""

ATTENTION = """
func @f(%ids9: i64[2, 6], state %table: f32[9, 8], state %w: f32[8, 8],
      step %step: i64[], seed %seed: i64[]) {
  %x: f32[2, 6, 8] = [b, s, d] %table[check(%ids9[b, s], 9), d]
  %q: f32[2, 6, 8] = [b, s, n] sum[d < 8](%x[b, s, d] * %w[d, n])
  %a: f32[2, 4, 6, 6] = [b, h, i, j] sum[c < 2](%q[b, i, h * 2 + c] * %x[b, j, h * 2 + c])
  %m: f32[2, 4, 6] = [b, h, i] max[j < 6 if j <= i](%a[b, h, i, j])
  %e: f32[2, 4, 6, 6] = [b, h, i, j] where(j <= i, exp(%a[b, h, i, j] - %m[b, h, i]), 0.0)
  %k: f32[2, 4, 6, 6] = [b, h, i, j] where(rand(1, %seed[], %step[],
      ((b * 4 + h) * 6 + i) * 6 + j) >= 0.5, %e[b, h, i, j] * 2.0, 0.0)
  %s: f32[2, 4, 6] = [b, h, i] sum[j < 6](%e[b, h, i, j])
  %y: f32[2, 6, 8] = [b, i, (h < 4, c < 2)] sum[j < 6](%k[b, h, i, j] * %x[b, j, h * 2 + c])
  %g: f32[9, 8] = [v, d] sum[b < 2, s < 6 if %ids9[b, s] == v](%y[b, s, d])
  return %y, %s, %g
}
"""

SHORT_FLOATS = """
func @f(%x: bf16[6, 5], state %w: bf16[5, 8]) {
  %a: bf16[6, 8] = [n, h] sum[k < 5](%x[n, k] * %w[k, h])
  %b: bf16[6, 8] = [n, h] %a[n, h] + %a[n, h] * 0.5:bf16
  %c: f32[6, 8] = [n, h] f32(%b[n, h])
  %d: f32[8] = [h] sum[n < 6](%c[n, h])
  return %b, %d
}
"""

PROGRAMS = {"classifier": CLASSIFIER, "attention": ATTENTION, "short floats": SHORT_FLOATS}
MESHES = [
    Mesh.of(data=3), Mesh.of(data=2, model=2), Mesh.of(micro=2, data=3),
    Mesh.of(stage=2, data=2), Mesh.of(micro=2, stage=2, model=3),
]


def parsed(program: str) -> Module:
    text = re.sub(r"\n {6,}", " ", PROGRAMS[program]).strip()
    return parse_module("module phase=global\n" + text)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("draw", range(4))
def test_any_legal_plan_gives_what_one_device_gives(program: str, mesh: Mesh, draw: int) -> None:
    random = np.random.default_rng(draw)
    module = parsed(program)
    function = module.functions["f"]
    args = {v.name: data(v.name, v.type, random) for v in function.body.args}
    expected = evaluate(function, list(args.values()))
    planned = plan_at_random(module, mesh, random)
    verify(planned)
    boxed = lower_boxes(planned)
    verify(boxed)
    for rank in range(mesh.ranks):
        verify(localise(boxed, rank))
    close = 3e-2 if program == "short floats" else 1e-4
    for actual, wanted in zip(simulate(boxed, "f", args), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, close, close)


def test_the_logical_module_stays_as_it_is() -> None:
    boxed = lower_boxes(plan_at_random(parsed("classifier"), Mesh.of(data=2), rng(0)))
    before = print_module(boxed)
    for rank in range(2):
        localise(boxed, rank)
    assert print_module(boxed) == before


@pytest.mark.parametrize("case", CASES)
def test_all_ranks_have_one_text(case: str) -> None:
    """Ranks differ in extents and origins, which kernels take as arguments."""
    op, mesh = compute(case), Mesh.of(data=3, model=2)
    every = options(op, mesh, small=True)
    for i in rng(1).permutation(len(every))[:10]:
        layouts, result = every[i]
        operands = [Value(v.type.with_layout(layout), v.name)
                    for v, layout in zip(op.operands, layouts, strict=True)]
        laid = Compute(operands, op.result.type.dtype, op.ranges, op.dims, op.body,
                       reduce=op.reduce, reduced=op.reduced, guard=op.guard, layout=result)
        texts = set()
        for place in mesh.positions():
            local = [Value(local_type(v.type, mesh, place)) for v in operands]
            part = local_compute(laid, local, mesh, place)
            texts.add((without_origins(part.body), part.guard and without_origins(part.guard)))
        assert len(texts) == 1


def without_origins(expr: Expr) -> Expr:
    return transform(expr, lambda e: Origin(0) if isinstance(e, Origin) else None)


def test_origins_cancel_where_variable_and_shard_are_one_cut() -> None:
    mesh = Mesh.of(data=2)
    local = part_of("matmul", [S(0), B], S(0), mesh, 1)
    assert print_op(local).count("origin") == 0
    local = part_of("max pool", [B], S(2), mesh, 1)
    assert "h * 2 + i + origin(4)" in print_op(local)


def test_a_split_table_reads_its_own_rows_and_zero_elsewhere() -> None:
    local = part_of("embedding", [B, S(0)], P(), Mesh.of(data=2), 1)
    assert "[check(%ids7[i], 7) - origin(4), d, pad=0.0]" in print_op(local)


def test_a_split_scatter_keeps_its_guard() -> None:
    local = part_of("scatter", [B, B], S(0), Mesh.of(data=2), 1)
    assert "if %ids7[n] - origin(4) == v" in print_op(local)
    assert set(scatter_places(local)[0]) == {"v"}


def test_partial_sums_of_short_floats_are_held_in_f32() -> None:
    local = part_of("matmul of bf16", [S(1), S(0)], P(), Mesh.of(data=2), 0)
    assert local.result.type.dtype == "f32"
    local = part_of("sum in bf16", [P(), P()], P(), Mesh.of(data=2), 0)
    assert {v.type.dtype for v in (*local.operands, local.result)} == {"f32"}
    assert "bf16" not in print_op(local)


def part_of(case: str, entries: list[Sbp], result: Sbp, mesh: Mesh, rank: int) -> Compute:
    """What a rank does of a case; entries are given in the order of the arguments."""
    written = function(case)
    by_name = dict(zip((v.name for v in written.body.args), entries, strict=True))
    op = written.body.first
    for v in op.operands:
        v.type = v.type.with_layout(layout_on(mesh, [by_name[v.name]]))
    op.result.type = op.result.type.with_layout(layout_on(mesh, [result]))
    local = [Value(local_type(v.type, mesh, (rank,)), v.name) for v in op.operands]
    return local_compute(op, local, mesh, (rank,))


def test_layouts_without_a_signature_are_a_bug() -> None:
    with pytest.raises(CompilerBug, match="no signature"):
        part_of("matmul", [P(), P()], P(), Mesh.of(data=2), 0)


def test_three_thousand_ops_are_localised_in_time() -> None:
    boxed = lower_boxes(plan_at_random(parsed("attention"), Mesh.of(data=2, model=2), rng(2)))
    function = boxed.functions["f"]
    count = sum(1 for _ in function.body)
    boxed.functions = {f"f{i}": function for i in range(3000 // count + 1)}
    assert len(boxed.functions) * count >= 3000
    assert cpu_seconds(lambda: localise(boxed, 1)) < 1.5


def test_three_thousand_ops_have_their_signatures_in_time() -> None:
    ops = [op for op in parsed("classifier").functions["f"].body if isinstance(op, Compute)]
    found: list[object] = []
    seconds = cpu_seconds(lambda: found.extend(signatures(ops[i % len(ops)], 2)
                                               for i in range(3000)))
    assert seconds < 1.5
    assert all(found)


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)
