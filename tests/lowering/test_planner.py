"""Plans: none is cheaper, pins hold, micro-batches accumulate once, and layers choose together."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from anabranch.frontend.program import load
from anabranch.ir.core import Function, Module
from anabranch.ir.diagnostics import UserError
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Box, Compute
from anabranch.ir.parser import parse_module
from anabranch.ir.printer import print_module
from anabranch.ir.reference import evaluate
from anabranch.ir.sbp import B, Layout, P, S, layout_on
from anabranch.ir.types import tensor
from anabranch.ir.verifier import verify
from anabranch.lowering import planner
from anabranch.lowering.boxing import lower_boxes, route
from anabranch.lowering.cost import step_prices
from anabranch.lowering.differentiate import differentiate
from anabranch.lowering.machine import CPU2, H100, Machine
from anabranch.lowering.planner import decide, plan, state_layouts
from anabranch.lowering.prices import conversions, entries_of, layouts_of
from anabranch.lowering.simplify import simplify
from anabranch.lowering.simulate_ranks import simulate
from anabranch.lowering.stages import assign_stages
from tests.lowering.cases import data
from tests.lowering.programs import Search, program
from tests.measuring import cpu_seconds

MACHINES = (CPU2, H100)
ONE_D = (Mesh.of(data=2), Mesh.of(model=4))


def parsed(body: str) -> Module:
    return parse_module(f"module phase=global\n{body}")


def planned(body: str, mesh: Mesh, machine: Machine = H100, **pins: Layout) -> Function:
    """The function `f` in its layouts, verified."""
    module = plan(parsed(body), mesh, machine, pins)
    verify(module)
    return module.functions["f"]


def layout_of(function: Function, name: str) -> Layout:
    """Where a value is made."""
    values = [*function.body.args, *(op.result for op in function.body if isinstance(op, Compute))]
    (layout,) = [v.type.layout for v in values if v.name == name]
    assert layout is not None
    return layout


def boxes(function: Function) -> list[Box]:
    return [op for op in function.body if isinstance(op, Box)]


# --- the objective -------------------------------------------------------------------------------


def check_best(seed: int, mesh: Mesh) -> None:
    """A search that looks for something better, but for rounding, finds nothing; one that may find
    what the planner found does."""
    module, machine = program(seed), MACHINES[seed // 3 % 2]
    found = decide(module, mesh, machine)
    verify(found.module)
    seconds = found.decisions["f"].seconds
    best = Search(module.functions["f"], mesh, machine).best(seconds * 1.0001 + 1e-9)
    assert best == pytest.approx(seconds, rel=1e-9, abs=2e-10), print_module(found.module)
    assert found.decisions["f"].solution.gap < 1e-6


@pytest.mark.parametrize("first", range(0, 450, 90))
def test_no_plan_on_one_axis_is_cheaper(first: int) -> None:
    for seed in range(first, first + 90):
        check_best(seed, ONE_D[seed % 2])


@pytest.mark.parametrize("first", range(139, 195, 14))
def test_no_plan_on_two_axes_is_cheaper(first: int) -> None:
    """Programs on which the search, unlike the planner, ends within a second or two."""
    for seed in range(first, first + 14):
        check_best(seed, Mesh.of(data=2, model=2))


def test_plans_do_not_depend_on_the_run() -> None:
    """Equal costs are everywhere here: sizes are alike, and so are the axes."""
    code = ("from tests.lowering.programs import program\n"
            "from tests.lowering.test_planner import *\n"
            "for seed in range(40):\n"
            "    print(print_module(plan(program(seed), Mesh.of(data=2, model=2), CPU2)))")
    texts = {subprocess.run([sys.executable, "-c", code], capture_output=True, check=True,
                            env={**os.environ, "PYTHONHASHSEED": str(n)}).stdout for n in (1, 2)}
    assert len(texts) == 1


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("mesh", [Mesh.of(data=2, model=3), Mesh.of(micro=2, data=2)], ids=str)
def test_the_planner_pays_what_the_router_asks(rank: int, mesh: Mesh) -> None:
    type = tensor("f32", (6, 8, 12, 6)[:rank])
    layouts = layouts_of(mesh, [
        (B, P()) if axis == "micro" else entries_of(type, size, [P()]) for axis, size in mesh.axes])
    prices = step_prices(mesh, CPU2)
    draw = np.random.default_rng(rank)
    for moves in (False, True):
        wanted = [(at, moves) for at in layouts]
        table = conversions(type, layouts, wanted, mesh, prices, ["micro"])
        for i, j in draw.integers(0, len(layouts), (30, 2)):
            steps = route(type, layouts[i], layouts[j], mesh, prices, moves)
            if steps is None:
                assert np.isinf(table[i, j])
                continue
            before = (layouts[i], *(step.layout for step in steps))
            asked = sum(prices(type, at, step.layout, step.step, step.axis)
                        for at, step in zip(before, steps, strict=False))
            assert table[i, j] == pytest.approx(asked)


# --- what comes out ------------------------------------------------------------------------------

MLP = """
func @f(%x: f32[256, 8192], state %up: f32[8192, 32768], state %down: f32[32768, 8192]) {
  %h: f32[256, 32768] = [b, n] sum[k < 8192](%x[b, k] * %up[k, n])
  %g: f32[256, 32768] = [b, n] tanh(%h[b, n])
  %y: f32[256, 8192] = [b, n] sum[k < 32768](%g[b, k] * %down[k, n])
  return %y
}
"""


def test_an_mlp_becomes_column_and_row_parallel() -> None:
    f = planned(MLP, Mesh.of(model=8))
    assert layout_of(f, "up")["model"] == S(1)
    assert layout_of(f, "g")["model"] == S(1)
    assert layout_of(f, "down")["model"] == S(0)
    assert [(str(b.source), str(b.target)) for b in boxes(f)] == [("{model: P}", "{model: B}")]


CROSS_ENTROPY = """
func @f(%x: f32[512, 1024], %ids131072: i64[512], state %head: f32[131072, 1024]) {
  %z: f32[512, 131072] = [b, v] sum[k < 1024](%x[b, k] * %head[v, k])
  %m: f32[512] = [b] max[v < 131072](%z[b, v])
  %e: f32[512, 131072] = [b, v] exp(%z[b, v] - %m[b])
  %s: f32[512] = [b] sum[v < 131072](%e[b, v])
  %hit: f32[512] = [b] %z[b, check(%ids131072[b], 131072)]
  %loss: f32[] = [] sum[b < 512](log(%s[b]) + %m[b] - %hit[b])
  %p: f32[512, 131072] = [b, v] %e[b, v] / %s[b]
  %dhead: f32[131072, 1024] = [v, k] sum[b < 512](%p[b, v] * %x[b, k])
  return %loss; state "head": %dhead
}
"""


def test_cross_entropy_becomes_vocabulary_parallel() -> None:
    f = planned(CROSS_ENTROPY, Mesh.of(model=8))
    assert layout_of(f, "head")["model"] == S(0)
    assert layout_of(f, "z")["model"] == S(1)
    assert layout_of(f, "m")["model"] == P("max")
    assert layout_of(f, "s")["model"] == P()
    assert layout_of(f, "hit")["model"] == P()
    assert max(box.result.type.elements for box in boxes(f)) == 512, "logits never move"


UPDATE = """
func @f(%x: f32[65536, 1024] pin {data: S(0)},
      state %w: f32[1024, 1024], state %m: f32[1024, 1024]) {
  %y: f32[65536, 1024] = [b, n] sum[k < 1024](%x[b, k] * %w[k, n])
  %z: f32[65536, 1024] = [b, n] tanh(%y[b, n])
  %g: f32[1024, 1024] = [k, n] sum[b < 65536](%x[b, k] * %z[b, n])
  %m.1: f32[1024, 1024] = [k, n] 0.9 * %m[k, n] + 0.1 * %g[k, n]
  %w.1: f32[1024, 1024] = [k, n] %w[k, n] - 0.1 * %m.1[k, n] / (sqrt(abs(%m.1[k, n])) + 0.001)
  return; state "w": %w.1, "m": %m.1
}
"""


def test_moments_are_sharded_where_that_is_cheaper() -> None:
    f = planned(UPDATE, Mesh.of(data=8))
    assert layout_of(f, "y")["data"] == S(0)
    assert layout_of(f, "g")["data"] == P()
    assert layout_of(f, "m")["data"].kind == "S"
    assert layout_of(f, "m.1") == layout_of(f, "m")
    kinds = sorted((str(b.source["data"]), str(b.target["data"])[0]) for b in boxes(f))
    assert ("P", "S") in kinds, "gradients are reduced to the parts that the moments have"
    assert ("P", "B") not in kinds


def test_a_step_in_parts_gives_what_one_rank_gives() -> None:
    for seed in range(24):
        module, mesh = program(seed), (*ONE_D, Mesh.of(data=2, model=2))[seed % 3]
        function = module.functions["f"]
        if max(v.type.elements for v in function.body.args) > 5000:
            continue
        draw = np.random.default_rng(seed)
        given = {v.name: data(v.name, v.type, draw) for v in function.body.args}
        expected = evaluate(function, list(given.values()))
        pins = {a.value.name: layout_on(mesh, [S(0)] * len(mesh.axes)) for a in function.states()}
        boxed = lower_boxes(plan(module, mesh, CPU2, pins))
        actual = simulate(boxed, "f", given)
        for a, b in zip(actual, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


# --- micro-batches -------------------------------------------------------------------------------

ACCUMULATION = """
func @f(%x: f32[8, 64], %y: f32[8, 16], state %w: f32[64, 16], state %m: f32[64, 16]) {
  %p: f32[8, 16] = [b, n] sum[k < 64](%x[b, k] * %w[k, n])
  %e: f32[8, 16] = [b, n] %p[b, n] - %y[b, n]
  %l: f32[] = [] sum[b < 8, n < 16](%e[b, n] * %e[b, n])
  %g: f32[64, 16] = [k, n] sum[b < 8](%x[b, k] * %e[b, n])
  %h: f32[64, 16] = [k, n] %g[k, n] + 0.01 * %w[k, n]
  %s: f32[64, 16] = [k, n] %g[k, n] * 2.0
  %norm: f32[] = [] sum[k < 64, n < 16](%s[k, n] * %s[k, n])
  %m.1: f32[64, 16] = [k, n] 0.9 * %m[k, n] + %s[k, n] / sqrt(%norm[])
  %w.1: f32[64, 16] = [k, n] %w[k, n] - %m.1[k, n] - %h[k, n]
  return %l; state "w": %w.1, "m": %m.1
}
"""


def in_time(function: Function, name: str) -> str:
    return str(layout_of(function, name)["micro"])


def test_gradients_accumulate_once_and_only_where_the_sum_is_wanted() -> None:
    f = planned(ACCUMULATION, Mesh.of(data=2).with_micro(4), CPU2)
    assert [in_time(f, v) for v in ("x", "y", "w", "m")] == ["S(0)", "S(0)", "B", "B"]
    assert [in_time(f, v) for v in ("p", "e", "l", "g")] == ["S(0)", "S(0)", "P", "P"]
    assert [in_time(f, v) for v in ("h", "s", "norm", "m.1", "w.1")] == ["B"] * 5
    summed = [b.operands[0].name for b in boxes(f) if b.source["micro"] == P()]
    assert sorted(summed) == ["g", "l"]


def test_every_number_of_micro_batches_gives_one_result() -> None:
    draw = np.random.default_rng(0)
    function = parsed(ACCUMULATION).functions["f"]
    given = {v.name: data(v.name, v.type, draw) for v in function.body.args}
    expected = evaluate(function, list(given.values()))
    for mesh in (Mesh.of(data=2).with_micro(4), Mesh.of(data=2, model=2).with_micro(2)):
        boxed = lower_boxes(plan(parsed(ACCUMULATION), mesh, CPU2))
        for a, b in zip(simulate(boxed, "f", given), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3)


def test_random_masks_are_made_in_parts() -> None:
    f = planned("""
func @f(%x: f32[8, 64], step %step: i64[], seed %seed: i64[]) {
  %r: f32[8, 64] = [b, n] rand(1, %seed[], %step[], b * 64 + n)
  %k: f32[8, 64] = [b, n] where(%r[b, n] >= 0.5, 2.0, 0.0)
  %y: f32[8, 64] = [b, n] %x[b, n] * %k[b, n]
  %l: f32[] = [] sum[b < 8, n < 64](%y[b, n])
  return %l
}
""", Mesh.of(data=2).with_micro(2))
    assert in_time(f, "r") == in_time(f, "k") == "S(0)"
    assert [b.operands[0].name for b in boxes(f)] == ["l"]


BATCH_NORM = """
func @f(%x: f32[8, 64]) {
  %s: f32[64] = [n] sum[b < 8](%x[b, n])
  %m: f32[64] = [n] %s[n] / 8.0
  %r: f32[8, 64] = [b, n] %x[7 - b, n] - %m[n]  // net.ab:12:5 norm
  %l: f32[] = [] sum[b < 8, n < 64](%r[b, n])
  return %l
}
"""


def test_what_needs_the_whole_batch_is_refused_with_its_line() -> None:
    with pytest.raises(UserError) as error:
        planned(BATCH_NORM, Mesh.of(data=2).with_micro(2))
    assert "net.ab:12:5" in str(error.value)
    assert "whole batch of 'x'" in str(error.value)
    assert "micro=1" in str(error.value)


def test_the_batch_must_divide() -> None:
    with pytest.raises(UserError, match="3 micro-batches cannot share a batch of 8"):
        planned(ACCUMULATION, Mesh.of(data=2).with_micro(3))


@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_axes_planned_in_turn_cost_little_more_than_together(
    machine: Machine, micro: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh, function = Mesh.of(data=2, model=2).with_micro(micro), layers(2)
    monkeypatch.setattr(planner, "SHORT_STEP", 0.0)
    exact = decide(Module({"train": function}), mesh, machine).decisions["train"]
    monkeypatch.setattr(planner, "SHORT_STEP", 1e3)
    found = decide(Module({"train": function}), mesh, machine)
    verify(found.module)
    turns = found.decisions["train"]
    assert any("in turn" in note for note in turns.notes)
    assert exact.seconds * (1 - 1e-9) <= turns.seconds <= exact.seconds * 1.01


def test_axes_beyond_two_are_planned_on_top_of_them() -> None:
    mesh = Mesh.of(a=2, b=2, c=2)
    module = plan(parsed(MLP), mesh, H100)
    verify(module)
    cuts = [layout_of(module.functions["f"], name) for name in ("h", "g")]
    assert all(cut[axis].kind == "S" for cut in cuts for axis in mesh.names)


# --- pins ----------------------------------------------------------------------------------------


def test_pins_hold_and_are_used_up() -> None:
    f = planned("""
func @f(%x: f32[8, 6], state %w: f32[6, 4] pin {model: S(1)}) {
  %y: f32[8, 4] = [b, n] sum[k < 6](%x[b, k] * %w[k, n])
  %z: f32[8, 4] = pin(%y, {model: S(1)})  // net.ab:3:9
  %t: f32[8, 4] = [b, n] tanh(%z[b, n])
  return %t
}
""", Mesh.of(data=2, model=2))
    assert layout_of(f, "w")["model"] == layout_of(f, "y")["model"] == S(1)
    assert all(argument.pin is None for argument in f.arguments)


def test_a_value_pinned_to_terms_is_whole_for_readers_that_need_it_so() -> None:
    f = planned("""
func @f(%x: f32[8, 6], state %w: f32[6, 4] pin {model: S(0)}) {
  %y: f32[8, 4] = [b, n] sum[k < 6](%x[b, k] * %w[k, n])
  %z: f32[8, 4] = pin(%y, {model: P})
  %t: f32[8, 4] = [b, n] tanh(%z[b, n])
  return %t
}
""", Mesh.of(model=2))
    assert layout_of(f, "y")["model"] == P()
    assert layout_of(f, "t")["model"].kind != "P"


def test_pinned_splits_may_leave_ranks_empty() -> None:
    f = planned("""
func @f(%x: f32[2, 6] pin {data: S(0)}) {
  %y: f32[2, 6] = [b, n] tanh(%x[b, n])
  %z: f32[2, 6] = pin(%y, {data: S(0)})
  return %z
}
""", Mesh.of(data=3))
    assert layout_of(f, "x")["data"] == layout_of(f, "y")["data"] == S(0)


def test_states_keep_the_layouts_of_the_program_that_places_them() -> None:
    mesh = Mesh.of(data=8)
    train = planned(UPDATE, mesh)
    kept = state_layouts(train)
    follow = planned("""
func @f(%x: f32[8, 1024], state %m: f32[1024, 1024]) {
  %y: f32[8, 1024] = [b, n] sum[k < 1024](%x[b, k] * %m[k, n])
  return %y
}
""", mesh, CPU2, **kept)
    assert kept["m"]["data"].kind == "S"
    assert layout_of(follow, "m") == kept["m"]


WRONG_PINS = {
    "S(3)": ("state %w: f32[8, 4] pin {model: S(3)}", "pinned to S(3) on 'model', but it has "
             "2 dimensions"),
    "a scalar": ("state %w: f32[] pin {model: S(0)}", "no dimensions"),
    "P of a parameter": ("state %w: f32[8, 4] pin {model: P}", "only what a program computes"),
    "stage": ("state %w: f32[8, 4] pin {stage: S(0)}", "which no layout speaks of"),
    "two kinds": ("state %w: f32[8, 4] pin {data: P, model: P(max)}", "one kind of P"),
}


@pytest.mark.parametrize("mistake", WRONG_PINS)
def test_pins_that_cannot_be_are_refused_where_they_stand(mistake: str) -> None:
    argument, message = WRONG_PINS[mistake]
    body = f"func @f(\n  {argument},  // net.ab:7:3-7:20\n) {{\n  return %w\n}}\n"
    with pytest.raises(UserError) as error:
        planned(body, Mesh.of(data=2, model=2))
    assert message in str(error.value)
    assert "net.ab:7:3" in str(error.value)


def test_axes_that_the_mesh_lacks_are_noted_once() -> None:
    body = """
func @f(state %w: f32[8, 4] pin {model: S(0)}, state %v: f32[8, 4] pin {model: S(1)}) {
  %x: f32[8, 4] = [i, j] %w[i, j] + %v[i, j]
  return %x
}
"""
    notes = decide(parsed(body), Mesh.of(data=2), CPU2).decisions["f"].notes
    assert notes == ("the mesh data=2 has no axis 'model': pins on it have no effect",)


def test_contradicting_pins_are_named_together() -> None:
    body = "func @f(\n  state %w: f32[8, 4] pin {data: S(0), model: S(1)},  // net.ab:7:3-7:20\n" \
        ") {\n  return %w\n}\n"
    with pytest.raises(UserError) as error:
        planned(body, Mesh.of(data=2, model=2), w=Layout((("model", S(0)),)))
    assert "the source wants 'w' in {data: S(0), model: S(1)}" in str(error.value)
    assert "the program that shares the state wants 'w' in {model: S(0)}" in str(error.value)


# --- stages and layers ---------------------------------------------------------------------------


def test_values_move_between_stages_at_their_own_rate() -> None:
    module = plan(parsed("""
func @f(%x: f32[8, 64], state %w: f32[64, 64]) {
  %y: f32[8, 64] = [b, n] sum[k < 64](%x[b, k] * %w[k, n])
  %z: f32[8, 64] = [b, n] sum[k < 64](%y[b, k] * %w[k, n])  {stage=1}
  %l: f32[] = [] sum[b < 8, n < 64](%z[b, n])  {stage=1}
  return %l
}
"""), Mesh.of(stage=2, data=2).with_micro(2), CPU2)
    verify(module)
    moved = {b.operands[0].name: b for b in boxes(module.functions["f"]) if b.stage == 1}
    assert str(moved["y"].target["micro"]) == "S(0)", "an activation moves in every micro-batch"
    assert str(moved["w"].target["micro"]) == "B", "a parameter moves once"


def layers(depth: int, **settings: object) -> Function:
    """The training step of a GPT, ready to be planned."""
    training = load("benchmarks/w1.ab").training(None, {"depth": depth, **settings})
    module = assign_stages(Module({"train": training.module.functions["train"]}))
    return simplify(differentiate(module)).functions["train"]


def test_repeated_layers_choose_together() -> None:
    mesh, small = Mesh.of(data=2), {"dim": 32, "heads": 2}
    counts = []
    for depth in (2, 5):
        decided = decide(Module({"train": layers(depth, **small)}), mesh, CPU2)
        counts.append(len(decided.decisions["train"].choices.nodes))
    assert counts[0] == counts[1]


def test_a_pin_in_one_layer_leaves_the_others_alone() -> None:
    function, mesh = layers(3, dim=32, heads=2), Mesh.of(data=2)
    names = [f"blocks.{n}.mlp.up.weight" for n in range(3)]
    free = decide(Module({"train": function}), mesh, CPU2).module.functions["train"]
    before = [layout_of(free, name)["data"] for name in names]
    assert len(set(before)) == 1
    other = S(0) if before[1] != S(0) else S(1)
    for argument in function.arguments:
        if argument.value.name == names[1]:
            argument.pin = Layout((("data", other),))
    f = decide(Module({"train": function}), mesh, CPU2).module.functions["train"]
    assert [layout_of(f, name)["data"] for name in names] == [before[0], other, before[2]]


def test_a_gpt2_is_planned_in_seconds() -> None:
    function = layers(12, dim=768, heads=12, vocab=50257, context=1024)
    module, mesh = Module({"train": function}), Mesh.of(data=2, model=2)
    seconds = cpu_seconds(lambda: decide(module, mesh, CPU2))
    assert seconds < 12, "it takes three on an idle core"


MEGATRON = {
    "attn.qkv.weight": S(0), "attn.qkv.bias": S(0), "attn.proj.weight": S(1),
    "mlp.up.weight": S(0), "mlp.up.bias": S(0), "mlp.down.weight": S(1),
}


def test_a_stack_of_blocks_beats_the_layouts_people_pin() -> None:
    """12 blocks of dim 4096 on 64 H100s, a batch of 8."""
    mesh = Mesh.of(data=8, model=8)
    function = layers(12, dim=4096, heads=32, vocab=256)
    module = Module({"train": function})
    states = [a.value.name for a in function.states()]
    best = decide(module, mesh, H100).decisions["train"]
    assert any(sbp.kind == "S" for v in function.body.args for sbp in best.layout(v).sbps())

    whole = layout_on(mesh, [B, B])
    megatron = {name: layout_on(mesh, [B, next(
        (s for part, s in MEGATRON.items() if name.endswith(part)), B)]) for name in states}
    for pins in (dict.fromkeys(states, whole), megatron):
        for argument in function.arguments:
            if argument.role == "input":
                argument.pin = layout_on(mesh, [S(0), B])
        by_hand = decide(module, mesh, H100, pins).decisions["train"]
        assert best.seconds <= by_hand.seconds * (1 + 1e-9)
