"""Every statement of a step of an optimizer of the library is right in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from anabranch.checking import wrong_parts
from anabranch.frontend import syntax as s
from anabranch.frontend.program import Training
from anabranch.ir.core import Function as IrFunction
from anabranch.ir.core import Module
from anabranch.lowering.differentiate import differentiate
from anabranch.lowering.simplify import simplify
from anabranch.trials import Trial, draw
from tests.frontend.running import program
from tests.library.ops import MODELS, model

Array = np.ndarray[Any, Any]
nn = torch.nn


def member(name: str, wanted: str) -> s.FuncDef | None:
    """A function of a model."""
    body = model(name).definition.body
    return next((m for m in body if isinstance(m, s.FuncDef) and m.name == wanted), None)


OPTIMIZERS = [name for name in MODELS if member(name, "update")]


def arguments_of(function: IrFunction, *, positive: bool = False) -> tuple[Array, ...]:
    random = np.random.default_rng(4)
    drawn = [draw(a.value.type, random, limit=2) for a in function.arguments]
    return tuple(np.abs(x) if positive else x for x in drawn)


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
