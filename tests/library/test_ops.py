"""Every op of the library is what it says, in value and gradient, whole and in parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anabranch.checking import backward, check_op, check_program, wrong_parts
from anabranch.frontend import syntax as s
from anabranch.frontend.evaluate import LIBRARY
from anabranch.frontend.program import load
from anabranch.gradient_check import check_gradients, float_inputs
from anabranch.ir.core import Module
from anabranch.ir.diagnostics import UserError
from anabranch.ir.ops import Return
from anabranch.ir.reference import evaluate
from anabranch.ir.types import is_float
from anabranch.lowering.differentiate import differentiate
from anabranch.trials import small
from tests.library.example import Example
from tests.library.examples import EXAMPLES
from tests.library.ops import FILES, OPS, op, stepped, trial


def test_the_library_is_found() -> None:
    assert len(OPS) > 50
    assert len(set(OPS)) == len(OPS)


@pytest.mark.parametrize("file", FILES)
def test_a_file_of_the_library_has_no_mistakes(file: str) -> None:
    """Its definitions are loaded unchecked, because a start must be quick."""
    assert load(Path(LIBRARY, f"{file}.ab")).functions or file == "models"


@pytest.mark.parametrize("file", FILES)
def test_every_definition_says_in_a_sentence_what_it_is(file: str) -> None:
    for item in FILES[file].items:
        if isinstance(item, s.OpDef | s.FuncDef | s.ModelDef):
            assert item.doc is not None, item.name
            assert item.doc.endswith("."), item.name


def test_ops_of_every_other_kind_are_right_in_parts() -> None:
    """Transposed convolutions, routing, interpolation, constant tables, several results."""
    reports = list(check_program(load(Path(__file__).parents[1] / "frontend" / "ops.ab")))
    assert [mistake.message for report in reports for mistake in report.mistakes] == []
    assert all("right in parts" in " ".join(report.lines) for report in reports)


@pytest.mark.parametrize("name", OPS)
def test_an_op_is_right_in_parts_and_its_gradient_agrees_with_differences(name: str) -> None:
    """Every signature of every statement, forward and backward, on 2 and 3 ranks."""
    report = check_op(op(name), op(name).definition)
    assert [mistake.message for mistake in report.mistakes] == []
    assert any(line.startswith("right in parts") for line in report.lines), report.lines
    function = trial(name).function
    last = function.body.last
    assert last is not None
    if float_inputs(function) and any(is_float(v.type.dtype) for v in last.operands):
        assert any(line.startswith("gradient by") for line in report.lines), report.lines


def packs(name: str) -> set[str]:
    """The names that stand for any number of dimensions in the signature of an op."""
    types = (param.type for param in op(name).definition.params)
    return {star.value.id for type in types for star in s.walk(type) if isinstance(star, s.Star)}


@pytest.mark.parametrize("name", OPS)
def test_an_op_is_tried_with_empty_shards_and_without_dimensions(name: str) -> None:
    tried = list(small(op(name)))
    shapes = [v.type.shape for each in tried for v in (
        *each.function.body.args, *each.function.body.last.operands)]
    assert any(min(shape, default=3) < 3 for shape in shapes)
    for pack in packs(name):
        assert any(each.sizes[pack] == [] for each in tried)


def test_every_example_is_of_an_op() -> None:
    assert {example.op for example in EXAMPLES} - set(OPS) == set()


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_an_op_agrees_with_pytorch_in_value_and_gradient(example: Example) -> None:
    of = example.trial()
    step = stepped(of)
    differentiate(Module({"step": step.function}))
    exact = [x.astype(np.float64) if x.dtype == np.float32 else x for x in step.arguments]
    end = of.function.body.last
    assert isinstance(end, Return)
    made = evaluate(step.function, exact, double=True)
    values, gradients = made[: len(end.values)], made[len(end.values) :]
    tensors = [torch.from_numpy(np.array(x)) for x in exact[: len(of.arguments)]]
    names = [a.value.name for a in float_inputs(of.function)]
    by = [t.requires_grad_() for t, a in zip(tensors, of.function.arguments, strict=True)
          if a.value.name in names and a.value.name not in example.constant]
    given = example.torch(*tensors)
    expected = (given,) if isinstance(given, torch.Tensor) else tuple(given)
    for value, their in zip(values, expected, strict=True):
        assert value.shape == tuple(their.shape)
        np.testing.assert_allclose(value, their.detach().numpy(), 1e-6, 1e-7)
    floats = [their for their in expected if their.requires_grad]
    if gradients and not example.only_values:
        weights = [torch.from_numpy(x) for x in exact[len(of.arguments) :]]
        theirs = torch.autograd.grad(floats, by, weights, materialize_grads=True
                                     ) if floats else map(torch.zeros_like, by)
        ours = [gradient for gradient, name in zip(gradients, names, strict=True)
                if name not in example.constant]
        for gradient, their in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(gradient, their.numpy(), 1e-5, 1e-6)


WITH_SETTINGS = [example for example in EXAMPLES if example.settings]


@pytest.mark.parametrize("example", WITH_SETTINGS, ids=str)
def test_an_op_with_settings_is_right_in_parts_and_has_the_right_slope(example: Example) -> None:
    of = example.trial()
    for made in (of, *backward(of)):
        assert [wrong for wrong in wrong_parts(made) if wrong is not None] == []
    assert example.kink or check_gradients(of.function, of.arguments).fault is None


@pytest.mark.parametrize("name", ["cross_entropy", "nll"])
def test_a_target_that_is_no_class_is_an_error_unless_it_is_ignored(name: str) -> None:
    of = Example(name, F.cross_entropy, {"I": [3], "V": 4}, {"target": [1, -100, 4]}).trial()
    with pytest.raises(UserError, match="4"):
        evaluate(of.function, of.arguments)
