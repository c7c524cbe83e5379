"""Any layout reaches any other, by steps that are each right, on uneven, empty and 0-d values."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from anabranch.ir.core import Function, Module
from anabranch.ir.diagnostics import Loc
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Box, Return
from anabranch.ir.reference import round_bf16
from anabranch.ir.sbp import B, Layout, P, S, layout_on
from anabranch.ir.types import tensor
from anabranch.ir.verifier import verify
from anabranch.lowering.boxing import lower_boxes
from anabranch.lowering.localise import localise
from anabranch.lowering.simulate_ranks import gather, run_ranks, scatter

MESHES = [Mesh.of(data=3), Mesh.of(data=2, model=2), Mesh.of(data=3, model=2),
          Mesh.of(data=2, model=2, seq=2)]
SHAPES = [(), (5,), (1,), (0,), (7, 3), (4, 6), (3, 1)]
SAMPLE = 40  # pairs of layouts for each mesh, shape and kind of P


def layouts(mesh: Mesh, rank: int, op: str) -> list[Layout]:
    entries = [B, P(op), *map(S, range(rank))]
    return [layout_on(mesh, e) for e in itertools.product(entries, repeat=len(mesh.axes))]


def boxed(dtype: str, shape: tuple[int, ...], source: Layout, targets: list[Layout], mesh: Mesh,
          stage: int = 0) -> Module:
    """A function that gives its argument back in other layouts, on another stage."""
    function = Function("f")
    x = function.add_argument("x", tensor(dtype, shape, source))
    boxes = [function.body.append(Box(x, t, stage=stage, loc=Loc("a.ab", 3, 5))) for t in targets]
    function.body.append(Return([box.result for box in boxes], stage=stage))
    module = Module({"f": function}, "sbp", mesh)
    verify(module)
    lower_boxes(module)
    verify(module)
    return module


def data(dtype: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    if dtype == "bool":
        return random.integers(0, 2, shape) > 0
    if dtype.startswith("i"):
        return random.integers(-50, 50, shape)
    x = random.standard_normal(shape).astype(np.float32)
    return round_bf16(x) if dtype == "bf16" else x


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "op"), [("f32", "sum"), ("i64", "max"), ("f32", "max")])
def test_every_layout_reaches_every_other(
    mesh: Mesh, shape: tuple[int, ...], dtype: str, op: str
) -> None:
    random = np.random.default_rng(2)
    every = layouts(mesh, len(shape), op)
    x = data(dtype, shape, random)
    for source in [every[i] for i in random.permutation(len(every))[:8]]:
        targets = [every[i] for i in random.permutation(len(every))[: SAMPLE // 8]]
        module = boxed(dtype, shape, source, targets, mesh)
        results = run(module, x, random)
        for target, result in zip(targets, results, strict=True):
            np.testing.assert_allclose(result, x, 1e-5, 1e-5, err_msg=f"{source} -> {target}")


def run(module: Module, x: np.ndarray, random: np.random.Generator) -> list[np.ndarray]:
    """Like `simulate`, from arbitrary terms of a partial value."""
    mesh, function = module.mesh, module.functions["f"]
    parts = scatter(x, function.body.args[0].type, mesh, random)
    places = list(mesh.positions())
    functions = []
    for rank in range(mesh.ranks):
        local = localise(module, rank)
        verify(local)
        functions.append(local.functions["f"])
    outputs = run_ranks(functions, [[[parts[p]]] for p in places])
    return [
        gather({p: o[i][0] for p, o in zip(places, outputs, strict=True)}, v.type, mesh)
        for i, v in enumerate(function.body.last.operands)
    ]
