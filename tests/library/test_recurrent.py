"""Cumulative sums of all dtypes and along split axes; recurrent layers with PyTorch's weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import anabranch as ab
from anabranch.driver import Options, compile_function
from anabranch.ir.mesh import Mesh
from anabranch.runtime.session import Session
from tests.frontend.running import call, module_of, program
from tests.library.ops import library

Array = np.ndarray[Any, Any]
random = np.random.default_rng(8)


def normal(*shape: int) -> Array:
    return random.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float16", "float64"])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_sums_and_products_have_the_dtypes_of_pytorch(name: str, dtype: str) -> None:
    types = {"bool": "bool", "int8": "i8", "int64": "i64", "float16": "f16", "float64": "f64"}
    source = program(f"def f(x: {types[dtype]}[N]):\n    return {name}(x)\n")
    x = np.array([1, 0, 1, 1]).astype(dtype)
    their = getattr(torch, name)(torch.from_numpy(x), 0).numpy()
    ours = call(source, "f", x=x)
    assert ours.dtype == their.dtype
    np.testing.assert_array_equal(ours, their)


def test_a_sum_of_short_floats_is_held_wide() -> None:
    source = program("def f(x: f16[N]):\n    return cumsum(x)\n")
    x = np.full(3000, 1, np.float16)
    assert call(source, "f", x=x)[-1] == 3000  # which steps of 1 do not reach in f16


LAYERS: dict[str, type[torch.nn.RNNBase]] = {
    "RNN": torch.nn.RNN, "GRU": torch.nn.GRU, "LSTM": torch.nn.LSTM}
KINDS = [(name, layers, both, bias) for name in LAYERS
         for layers, both, bias in [(1, False, True), (2, True, True), (2, False, False)]]


def renamed(theirs: torch.nn.RNNBase, ways: int) -> dict[str, Array]:
    """PyTorch's weights by the names that they have here."""
    found = {}
    for name, value in theirs.state_dict().items():
        kind, _, place = name.rpartition("_l")
        layer, _, back = place.partition("_")
        found[f"cells.{int(layer) * ways + bool(back)}.{kind}"] = value.numpy()
    return found


@pytest.mark.parametrize(("name", "layers", "both", "bias"), KINDS)
def test_a_recurrent_layer_is_that_of_pytorch(
    name: str, layers: int, both: bool, bias: bool
) -> None:
    theirs = LAYERS[name](3, 4, layers, bias=bias, batch_first=True, bidirectional=both)
    ways = 2 if both else 1
    x, start = normal(2, 5, 3), [normal(layers * ways, 2, 4) for _ in range(1 + (name == "LSTM"))]
    states = [torch.from_numpy(s) for s in start]
    expected, ends = theirs(torch.from_numpy(x), tuple(states) if name == "LSTM" else states[0])
    arguments = {"inputs": 3, "hidden": 4, "layers": layers, "bidirectional": both, "bias": bias}
    weights = renamed(theirs, ways)
    given = dict(zip(("h0", "c0"), start, strict=False))
    made = call(library(), f"{name}.run", model=arguments, states=weights, x=x, **given)
    wanted = (expected, *(ends if name == "LSTM" else (ends,)))
    for ours, their in zip(made, wanted, strict=True):
        np.testing.assert_allclose(ours, their.detach().numpy(), 1e-4, 1e-5)
    plain = call(library(), f"{name}.forward", model=arguments, states=weights, x=x)
    np.testing.assert_allclose(plain, theirs(torch.from_numpy(x))[0].detach().numpy(), 1e-4, 1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_sequences_of_several_lengths_are_those_that_pytorch_packs(name: str) -> None:
    theirs = LAYERS[name](3, 4, 2, batch_first=True, bidirectional=True)
    x, lengths = normal(3, 5, 3), np.array([2, 5, 1])
    packed = pack_padded_sequence(
        torch.from_numpy(x), torch.from_numpy(lengths), batch_first=True, enforce_sorted=False)
    states, ends = theirs(packed)
    arguments = {"inputs": 3, "hidden": 4, "layers": 2, "bidirectional": True}
    start = {key: np.zeros((4, 3, 4), np.float32) for key in ("h0", "c0")[:1 + (name == "LSTM")]}
    made = call(library(), f"{name}.run", model=arguments, states=renamed(theirs, 2), x=x,
                lengths=lengths, **start)
    padded, _ = pad_packed_sequence(states, batch_first=True)
    wanted = (padded, *(ends if name == "LSTM" else (ends,)))
    for ours, their in zip(made, wanted, strict=True):
        np.testing.assert_allclose(ours, their.detach().numpy(), 1e-4, 1e-5)


SUMS = """
def f(x: f32[A, N] @ {data: S(%d)}) -> f32[A, N], f32[A, N], f32[A, N], f32[A, N]:
    return cumsum(x, 1), cumsum(x, 1, reverse=True), cumsum(x, 1, exclusive=True), cumsum(x, 0)
"""


@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_cumulative_sum_along_a_split_axis_is_that_of_the_whole(ranks: int, split: int) -> None:
    x = normal(5, 7)
    module = module_of(program(SUMS % split), "f", {"x": x})
    with Session(compile_function(module, Options(Mesh.of(data=ranks))).plan) as session:
        made = list(session.step("f", {"x": x}, 0).values())
    sums = np.cumsum(x, 1)
    backward = np.cumsum(x[:, ::-1], 1)[:, ::-1]
    for ours, wanted in zip(made, [sums, backward, sums - x, np.cumsum(x, 0)], strict=True):
        np.testing.assert_allclose(ours, wanted, 1e-5, 1e-5)


TRAINED = """
model Tagger(inputs: int, hidden: int, classes: int):
    body: LSTM(inputs, hidden, layers=2, bidirectional=True)
    head: Linear(2 * hidden, classes)

    def loss(x: f32[B, S, inputs], label: i64[B, S]) -> f32[]:
        return cross_entropy(head(body(x)), label)

train Tagger(inputs=3, hidden=4, classes=5):
    steps     = 8
    data      = arrays(batch=4)
    optimizer = sgd(lr=0.5)
"""


def losses(micro: int = 1, **mesh: int) -> list[float]:
    fixed = np.random.default_rng(0)
    x = fixed.normal(size=(4, 6, 3)).astype(np.float32)
    label = (x.sum(2).cumsum(1) > 0).astype(np.int64)
    plan = ab.compile(ab.loads(TRAINED, "tagger.ab").train, mesh=ab.Mesh(**mesh), micro=micro,
                      x=x, label=label)
    with ab.Session(plan) as session:
        return [float(session.step(x=x, label=label)) for _ in range(8)]


def test_a_recurrent_model_trains_alike_on_any_mesh_and_in_micro_batches() -> None:
    alone = losses()
    assert alone[-1] < 0.8 * alone[0]
    for other in (losses(data=2), losses(model=2), losses(data=2, model=2), losses(micro=2)):
        np.testing.assert_allclose(other, alone, 1e-4)
