"""Whole functions in parts: any legal plan gives what one device gives."""

from __future__ import annotations

import re

import numpy as np
import pytest

from anabranch.ir.core import Module
from anabranch.ir.mesh import Mesh
from anabranch.ir.parser import parse_module
from anabranch.ir.reference import evaluate
from anabranch.ir.verifier import verify
from anabranch.lowering.boxing import lower_boxes
from anabranch.lowering.localise import localise
from anabranch.lowering.simulate_ranks import simulate
from tests.lowering.cases import data
from tests.lowering.random_plans import plan_at_random

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
