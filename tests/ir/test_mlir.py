"""MLIR's generic form: one example in full, and a reader of MLIR where there is one."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from anabranch.ir.core import Function, Module
from anabranch.ir.expr import Const
from anabranch.ir.mlir import print_mlir
from anabranch.ir.ops import Compute
from anabranch.ir.parser import parse_module
from tests.strategies import PHASES, modules

EXAMPLE = """\
module phase=sbp mesh={data: 2}

func @f(%x: f32[8, 4] @ {data: S(0)}, state %w: u8[4] @ {data: B} pin {data: B}) {
  %y: f32[] @ {data: P} = [] sum[i < 8, k < 4 if k <= i](%x[i, k] + f32(%w[k, pad=1:u8]))  // a:3:4
  %z: f32[] @ {data: B} = box(%y) {stage=1}  // a.ab:4:5 blocks.0
  return %z; state "w": %w
}
"""
MLIR = """\
"builtin.module"() ({
  "anabranch.func"() ({
  ^bb0(%0: tensor<8x4xf32, {data = "S(0)"}>, %1: tensor<4xui8, {data = "B"}>):
    %2 = "anabranch.compute"(%0, %1) {ranges = [["i", 8], ["k", 4]], dims = [], reduce = "sum", \
reduced = ["i", "k"], guard = ["le", "k", "i"], body = ["add", ["read", 0, ["i", "k"]], \
["cast", f32, ["read", 1, ["k"], 1 : ui8]]]} : (tensor<8x4xf32, {data = "S(0)"}>, \
tensor<4xui8, {data = "B"}>) -> tensor<f32, {data = "P"}> loc("a":3:4)
    %3 = "anabranch.box"(%2) {step = "", axis = "", stage = 1} : (tensor<f32, {data = "P"}>) -> \
tensor<f32, {data = "B"}> loc("blocks.0"("a.ab":4:5))
    "anabranch.return"(%3, %1) {states = ["w"]} : (tensor<f32, {data = "B"}>, \
tensor<4xui8, {data = "B"}>) -> ()
  }) {sym_name = "f", arguments = [{name = "x", role = "input", stage = 0}, \
{name = "w", role = "state", stage = 0, pin = {data = "B"}}]} : () -> ()
}) {anabranch.phase = "sbp", anabranch.mesh = [["data", 2]]} : () -> ()
"""


def test_a_module_in_generic_form() -> None:
    assert print_mlir(parse_module(EXAMPLE)) == MLIR


def literal(value: float | bool, dtype: str) -> str:
    function = Function("f")
    function.body.append(Compute([], dtype, [], [], Const(value, dtype)))
    module = Module()
    module.add(function)
    return print_mlir(module).split("body = ")[1].split("}")[0]


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (True, "bool", "true"), (3, "i32", "3 : i32"), (-3, "i64", "-3 : i64"),
        (0.5, "f32", "0.5 : f32"), (1, "bf16", "1.0 : bf16"), (1e-05, "f64", "1.0e-05 : f64"),
        (2.5e20, "f32", "2.5e+20 : f32"), (math.inf, "f32", "0x7f800000 : f32"),
        (-math.inf, "f16", "0xfc00 : f16"), (math.inf, "bf16", "0x7f80 : bf16"),
        (-math.inf, "f64", "0xfff0000000000000 : f64"), (math.nan, "f32", "0x7fc00000 : f32"),
        (math.nan, "f16", "0x7e00 : f16"),
    ],
)
def test_literals_have_a_type_and_odd_floats_are_given_by_their_bits(
    value: float | bool, dtype: str, text: str
) -> None:
    assert literal(value, dtype) == text


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(PHASES).flatmap(modules))
def test_an_mlir_reader_accepts_every_module(module: Module) -> None:
    """Names of files are what it cannot read: it wants them in ASCII."""
    context = pytest.importorskip("xdsl.context", reason="an optional oracle")
    reader = pytest.importorskip("xdsl.parser")
    builtin = pytest.importorskip("xdsl.dialects.builtin")
    loaded = context.Context(allow_unregistered=True)
    loaded.load_dialect(builtin.Builtin)
    text = print_mlir(module)
    note(text)
    read = reader.Parser(loaded, text.replace("\\C3\\A9", "e")).parse_module()
    count = sum(1 + len(list(f.body)) for f in module.functions.values())
    assert sum(1 for _ in read.walk()) >= 1 + count
