"""Any layout reaches any other, by steps that are each right, on uneven, empty and 0-d values."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from anabranch.ir.core import Function, Module
from anabranch.ir.diagnostics import Loc, UserError
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Box, Return, Transfer
from anabranch.ir.reference import round_bf16
from anabranch.ir.sbp import B, Layout, P, S, layout_on
from anabranch.ir.types import tensor
from anabranch.ir.verifier import verify
from anabranch.lowering.boxing import elements_moved, lower_boxes, route
from anabranch.lowering.localise import localise
from anabranch.lowering.simulate_ranks import gather, run_ranks, scatter, simulate

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


@pytest.mark.parametrize(("dtype", "op"), [
    ("bool", "max"), ("i64", "sum"), ("i32", "min"), ("bf16", "sum"), ("f16", "prod"),
    ("f32", "min"), ("f64", "prod"),
])
def test_every_dtype_survives(dtype: str, op: str) -> None:
    random, mesh = np.random.default_rng(3), Mesh.of(data=3, model=2)
    x = data(dtype, (5, 4), random)
    every = layouts(mesh, 2, op)
    for source in [every[i] for i in random.permutation(len(every))[:10]]:
        targets = [every[i] for i in random.permutation(len(every))[:4]]
        for result in run(boxed(dtype, (5, 4), source, targets, mesh), x, random):
            np.testing.assert_allclose(result, x, 1e-2, 1e-2)


def test_exact_dtypes_survive_exactly() -> None:
    random, mesh = np.random.default_rng(3), Mesh.of(data=3)
    for dtype in ("bool", "i64"):
        x = data(dtype, (5,), random)
        for source in layouts(mesh, 1, "max"):
            (result,) = run(boxed(dtype, (5,), source, [Layout((("data", B),))], mesh), x, random)
            np.testing.assert_array_equal(result, x)


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("target", [B, S(0), S(1)], ids=str)
def test_a_maximum_keeps_nan(op: str, target: object) -> None:
    """No library's maximum does, so no transfer may reduce floats by max or min."""
    mesh = Mesh.of(data=3)
    x = np.float32([[1, np.nan, 3], [np.nan, 0, -1]])
    module = boxed("f32", (2, 3), layout_on(mesh, [P(op)]), [layout_on(mesh, [target])], mesh)
    (result,) = run(module, x, np.random.default_rng(4))
    np.testing.assert_array_equal(result, x)
    for transfer in transfers(module, 0):
        assert transfer.reduce == ""


def transfers(module: Module, rank: int) -> list[Transfer]:
    body = localise(module, rank).functions["f"].body
    return [op for op in body if isinstance(op, Transfer)]


def test_a_split_of_a_split_is_not_gathered_from_outside() -> None:
    """(S0, S0) -> (B, S0) is not one gather along the first axis: the cuts are nested."""
    mesh = Mesh.of(data=2, model=2)
    source, target = layout_on(mesh, [S(0), S(0)]), layout_on(mesh, [B, S(0)])
    steps = route(tensor("f32", (6,)), source, target, mesh, elements_moved(mesh))
    assert [(s.step, s.axis) for s in steps] == [
        ("all_gather", "model"), ("all_gather", "data"), ("slice", "model")]


def test_the_cheapest_way_is_taken() -> None:
    mesh = Mesh.of(data=4)
    price, big = elements_moved(mesh), tensor("f32", (400, 400))

    def steps(source: object, target: object) -> list[str]:
        found = route(big, layout_on(mesh, [source]), layout_on(mesh, [target]), mesh, price)
        return [step.step for step in found]

    assert steps(S(0), S(1)) == ["all_to_all"]
    assert steps(P(), S(1)) == ["reduce_scatter"]
    assert steps(P(), P("max")) in (["all_reduce", "fill"], ["reduce_scatter", "fill"])
    assert steps(B, S(1)) == ["slice"]
    assert steps(S(1), S(1)) == []


def test_a_prefix_of_two_routes_is_walked_once() -> None:
    mesh = Mesh.of(data=2, model=2)
    whole = layout_on(mesh, [B, B])
    targets = [whole, layout_on(mesh, [B, S(1)]), whole]
    module = boxed("f32", (4, 6), layout_on(mesh, [P(), B]), targets, mesh)
    steps = [op.step for op in module.functions["f"].body if isinstance(op, Box)]
    assert sorted(steps) == ["all_reduce", "slice"]


def test_members_agree_on_numbers_order_and_counts() -> None:
    random, mesh = np.random.default_rng(5), Mesh.of(data=3, model=2)
    every = layouts(mesh, 2, "sum")
    targets = [every[i] for i in random.permutation(len(every))[:12]]
    module = boxed("f32", (7, 4), layout_on(mesh, [P(), S(1)]), targets, mesh)
    posted: dict[int, dict[int, Transfer]] = {}
    for rank in range(mesh.ranks):
        own = transfers(module, rank)
        assert [t.match for t in own] == sorted({t.match for t in own})
        for t in own:
            posted.setdefault(t.match, {})[rank] = t
    assert posted
    for members in posted.values():
        (ranks,) = {t.ranks for t in members.values()}
        assert set(ranks) == set(members)
        assert len({(t.step, t.reduce, t.loc) for t in members.values()}) == 1


def test_empty_shards_still_take_part() -> None:
    mesh = Mesh.of(data=3)
    module = boxed("f32", (1, 4), layout_on(mesh, [S(0)]), [layout_on(mesh, [B])], mesh)
    assert [t.counts for rank in range(3) for t in transfers(module, rank)] == [(4, 0, 0)] * 3


def test_a_stage_is_left_by_one_message_for_each_pair() -> None:
    mesh = Mesh.of(stage=2, data=2)
    random, inner = np.random.default_rng(6), mesh.inner
    x = data("f32", (5, 3), random)
    for source in layouts(inner, 2, "sum"):
        for target in layouts(inner, 2, "sum"):
            module = boxed("f32", (5, 3), source, [target], mesh, stage=1)
            (result,) = simulate(module, "f", {"x": x})
            np.testing.assert_allclose(result, x, 1e-5, 1e-5)
            pairs = [(t.step, t.ranks) for rank in range(4) for t in transfers(module, rank)
                     if t.step in ("send", "recv")]
            assert sorted(pairs) == [("recv", (0, 2)), ("recv", (1, 3)),
                                     ("send", (0, 2)), ("send", (1, 3))]


def test_terms_of_micro_batches_accumulate_and_whole_values_are_cut() -> None:
    mesh = Mesh.of(micro=2, data=3)
    random = np.random.default_rng(7)
    x = data("f32", (6, 4), random)
    for first, second in [(P(), B), (P(), P()), (B, S(0)), (B, P()), (B, S(1))]:
        for entry in (B, S(0), S(1), P()):
            source, target = layout_on(mesh, [first, entry]), layout_on(mesh, [second, entry])
            module = boxed("f32", (6, 4), source, [target], mesh)
            (result,) = simulate(module, "f", {"x": x})
            np.testing.assert_allclose(result, x, 1e-5, 1e-5)


def test_the_whole_batch_in_mid_program_is_refused_with_its_line() -> None:
    mesh = Mesh.of(micro=2, data=2)
    source, target = layout_on(mesh, [S(0), B]), layout_on(mesh, [B, B])
    with pytest.raises(UserError) as caught:
        boxed("f32", (6, 4), source, [target], mesh)
    text = str(caught.value)
    assert "a.ab:3:5" in text
    assert "whole batch of 'x'" in text
    assert "micro=1" in text


def test_micro_batches_that_are_not_equal_are_refused() -> None:
    mesh = Mesh.of(micro=4)
    split = layout_on(mesh, [S(0)])
    with pytest.raises(UserError, match="6 elements, which 4 micro-batches cannot share evenly"):
        boxed("f32", (6, 4), split, [split], mesh)


def test_an_axis_of_one_rank_costs_nothing() -> None:
    mesh = Mesh.of(data=1, model=2)
    module = boxed("f32", (4, 3), layout_on(mesh, [P(), B]), [layout_on(mesh, [S(0), B])], mesh)
    assert [op.kind for op in localise(module, 0).functions["f"].body] == ["return"]
