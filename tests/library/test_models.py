"""The library's models: layers are those of PyTorch, and every statement of a layer or an optimizer
is right in parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from anabranch.checking import backward, wrong_parts
from anabranch.frontend import syntax as s
from anabranch.frontend.check import sample
from anabranch.frontend.program import Training
from anabranch.frontend.values import Function
from anabranch.ir.core import Function as IrFunction
from anabranch.ir.core import Module
from anabranch.ir.diagnostics import UserError
from anabranch.lowering.differentiate import differentiate
from anabranch.lowering.simplify import simplify
from anabranch.trials import Trial, draw
from tests.frontend.running import call, program
from tests.library.ops import MODELS, library, model

Array = np.ndarray[Any, Any]
nn = torch.nn


def member(name: str, wanted: str) -> s.FuncDef | None:
    """A function of a model."""
    body = model(name).definition.body
    return next((m for m in body if isinstance(m, s.FuncDef) and m.name == wanted), None)


LAYERS = [name for name in MODELS if member(name, "forward")]
OPTIMIZERS = [name for name in MODELS if member(name, "update")]


# ---- layers


def arguments_of(function: IrFunction, *, positive: bool = False) -> tuple[Array, ...]:
    random = np.random.default_rng(4)
    drawn = [draw(a.value.type, random, limit=2) for a in function.arguments]
    return tuple(np.abs(x) if positive else x for x in drawn)


def layers(name: str) -> Iterator[Trial]:
    """The forward function of a model with sizes made up for it."""
    definition, forward = model(name).definition, member(name, "forward")
    assert forward is not None
    fixed = {p.name for p in definition.params}
    needed = [p.name for p in definition.params if p.default is None]
    for numbers in [(7, 5, 3), (2, 4, 3), (5, 7, 2, 3)]:
        arguments = dict(zip(needed, numbers, strict=False))
        sizes = sample(Function(forward, model(name).scope), (5, *numbers), 1)
        sizes = {size: n for size, n in sizes.items() if size not in fixed}
        try:
            module = library().function(f"{name}.forward", sizes, model=arguments)
        except UserError:
            continue
        function = module.functions["forward"]
        yield Trial(function, arguments_of(function), arguments)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_right_in_parts(name: str) -> None:
    tried = list(layers(name))
    assert tried
    for each in tried:
        for made in (each, *backward(each)):
            assert [wrong for wrong in wrong_parts(made) if wrong] == []


TORCH: dict[str, tuple[dict[str, object], nn.Module, tuple[int, ...]]] = {
    "Linear": ({"inputs": 5, "outputs": 3}, nn.Linear(5, 3), (2, 4, 5)),
    "Linear without bias": (
        {"inputs": 5, "outputs": 3, "bias": False}, nn.Linear(5, 3, bias=False), (5,)),
    "LayerNorm": ({"dim": 5}, nn.LayerNorm(5), (2, 5)),
    "RMSNorm": ({"dim": 5, "eps": 0.1}, nn.RMSNorm(5, 0.1), (2, 5)),
    "GroupNorm": ({"groups": 2, "channels": 4}, nn.GroupNorm(2, 4), (3, 4, 5)),
    "Conv1d": ({"inputs": 2, "outputs": 4, "size": 3}, nn.Conv1d(2, 4, 3), (3, 2, 7)),
    "Conv2d": (
        {"inputs": 4, "outputs": 6, "size": 3, "stride": 2, "padding": 1, "groups": 2},
        nn.Conv2d(4, 6, 3, 2, 1, groups=2), (2, 4, 7, 6)),
    "Conv2d without bias": (
        {"inputs": 2, "outputs": 3, "size": 2, "dilation": 2, "bias": False},
        nn.Conv2d(2, 3, 2, dilation=2, bias=False), (2, 2, 7, 6)),
    "Embedding": ({"count": 6, "dim": 3}, nn.Embedding(6, 3), ()),
}


@pytest.mark.parametrize("case", TORCH)
def test_a_layer_is_that_of_pytorch_with_its_weights_by_name(case: str) -> None:
    arguments, theirs, shape = TORCH[case]
    random = np.random.default_rng(0)
    x = random.normal(size=shape).astype(np.float32) if shape else random.integers(0, 6, (2, 3))
    weights = {k: random.normal(size=tuple(v.shape)).astype(np.float32)
               for k, v in theirs.state_dict().items()}
    theirs.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()})
    given = {"x" if shape else "ids": x}
    name = case.split()[0]
    ours = call(library(), f"{name}.forward", model=arguments, states=weights, **given)
    np.testing.assert_allclose(ours, theirs(torch.from_numpy(x)).detach().numpy(), 1e-4, 1e-5)


# ---- optimizers

NET = """
model Net(inputs: int, outputs: int):
    weight: f32[outputs, inputs] = normal()
    bias:   f32[outputs] = normal()

    def loss(x: f32[B, inputs], y: f32[B, outputs]) -> f32[]:
        return mse(linear(x, weight, bias), y)

train Net(inputs=5, outputs=7):
    steps     = 6
    data      = arrays(batch=11)
    optimizer = {optimizer}
"""


def training(optimizer: str) -> Training:
    call = optimizer if "(" in optimizer else f"{optimizer}()"
    made = program(NET.format(optimizer=call)).training()
    differentiate(made.module)
    return made


def with_a_rate(name: str) -> str:
    """A call of an optimizer, told a learning rate if it has none."""
    needed = [p.name for p in model(name).definition.params[1:] if p.default is None]
    return f"{name}({', '.join(f'{p}=0.1' for p in needed)})"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_of_an_optimizer_is_right_in_parts(name: str) -> None:
    """What it keeps may be a sum of squares: all numbers are positive."""
    function = training(with_a_rate(name)).module.functions["train"]
    simplify(Module({"train": function}))
    step = Trial(function, arguments_of(function, positive=True), {})
    assert [wrong for wrong in wrong_parts(step) if wrong] == []
