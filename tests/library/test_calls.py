"""Functions of the library are PyTorch's in value and gradient, whole, in parts and compiled."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch

from anabranch.checking import backward, wrong_parts
from anabranch.driver import Options, compile_function
from anabranch.gradient_check import check_gradients, float_inputs
from anabranch.ir.core import Module
from anabranch.ir.diagnostics import UserError
from anabranch.ir.mesh import Mesh
from anabranch.ir.reference import evaluate
from anabranch.ir.rewrite import clone_module
from anabranch.ir.sbp import S, layout_on
from anabranch.lowering.differentiate import differentiate
from anabranch.runtime.session import Session
from tests.frontend.running import DTYPES, call, program
from tests.library.example import Called
from tests.library.function_examples import FUNCTIONS, GROUPS
from tests.library.ops import stepped


@pytest.mark.parametrize("example", FUNCTIONS, ids=str)
def test_a_function_agrees_with_pytorch_in_value_and_gradient(example: Called) -> None:
    of = example.trial()
    step = stepped(of)
    differentiate(Module({"step": step.function}))
    exact = [x.astype(np.float64) if x.dtype == np.float32 else x for x in step.arguments]
    value, *gradients = evaluate(step.function, exact, double=True)
    given = zip((a.value.name for a in of.function.arguments), exact, strict=False)
    tensors = {name: torch.from_numpy(np.array(x)) for name, x in given}
    by = [tensors[a.value.name].requires_grad_() for a in float_inputs(of.function)]
    everything = {name: torch.from_numpy(x) for name, x in example.arrays().items()}
    expected = example.torch(*(tensors.get(name, everything[name]) for name in example.given))
    assert value.shape == tuple(expected.shape)
    np.testing.assert_allclose(value, expected.detach().numpy(), 1e-6, 1e-7)
    if gradients and expected.requires_grad:
        weight = torch.from_numpy(exact[-1])
        theirs = torch.autograd.grad(expected, by, weight, materialize_grads=True)
        for gradient, their in zip(gradients, theirs, strict=True):
            np.testing.assert_allclose(gradient, their.numpy(), 1e-5, 1e-6)


@pytest.mark.parametrize("example", FUNCTIONS, ids=str)
def test_a_function_is_right_in_parts_and_has_the_right_slope(example: Called) -> None:
    of = example.trial()
    for made in (of, *backward(of)):
        assert [wrong for wrong in wrong_parts(made) if wrong is not None] == []
    assert example.kink or check_gradients(of.function, of.arguments).fault is None


@pytest.mark.parametrize("example", FUNCTIONS, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "int64", "uint8", "bool"])
def test_a_tensor_of_any_dtype_is_taken_or_refused_with_words(example: Called, dtype: str) -> None:
    """What is refused is the user's mistake; nothing else may be raised."""
    arrays = example.arrays()
    for name, array in arrays.items():
        given = {**arrays, name: np.clip(np.nan_to_num(array), -9, 9).astype(dtype)}
        params = ", ".join(f"{k}: {DTYPES[str(x.dtype)]}{list(x.shape)}" for k, x in given.items())
        with contextlib.suppress(UserError), np.errstate(all="ignore"):
            call(program(f"def f({params}):\n    return {example.call}\n"), "f", **given)


@pytest.mark.parametrize("group", GROUPS)
def test_compiled_functions_give_what_the_reference_gives(group: str) -> None:
    """With gradients, on two ranks; every argument is split along its first axis."""
    mesh = Mesh.of(data=2)
    steps = {f"f{n}": stepped(example.trial()) for n, example in enumerate(GROUPS[group])}
    module = Module({name: each.function for name, each in steps.items()})
    for name, function in module.functions.items():
        function.name = name
    whole = differentiate(clone_module(module))
    wanted = {name: evaluate(whole.functions[name], each.arguments)
              for name, each in steps.items()}
    for argument in (a for f in module.functions.values() for a in f.arguments):
        if argument.value.type.rank:
            argument.pin = layout_on(mesh, [S(0)])
    with Session(compile_function(module, Options(mesh)).plan, canaries=True) as session:
        for name, each in steps.items():
            fed = dict(zip((a.value.name for a in each.function.arguments), each.arguments,
                           strict=True))
            for ours, theirs in zip(session.step(name, fed).values(), wanted[name], strict=True):
                np.testing.assert_allclose(ours, theirs, 2e-4, 2e-5, err_msg=name)
