"""`sort`, `argsort` and `topk` are PyTorch's, in values, places and gradients."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from anabranch.gradient_check import check_gradients
from anabranch.ir.diagnostics import UserError
from tests.codegen.orders import ODD
from tests.frontend.running import call, module_of, program

SHAPES = [(5,), (3, 7), (2, 5, 3), (0,), (0, 3), (3, 0), (1, 1), ()]
DTYPES = [np.float32, np.float64, np.float16, np.int64, np.int32, np.int16, np.int8, np.uint8,
          np.bool_]


def numbers(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    random = np.random.default_rng(0)
    found = random.integers(0, 5, shape)
    if not issubclass(dtype, np.floating):
        return np.asarray(found).astype(dtype)
    return np.where(random.random(shape) < 0.3, random.choice(ODD, shape), found).astype(dtype)


def run(expression: str, x: np.ndarray) -> list[np.ndarray]:
    found = call(program(f"def f(x: T[*I]):\n    return {expression}\n"), "f", x=x)
    return found if isinstance(found, list) else [found]


def same(actual: np.ndarray, expected: torch.Tensor) -> None:
    assert actual.shape == tuple(expected.shape)
    assert actual.dtype == expected.numpy().dtype
    np.testing.assert_array_equal(actual, expected.numpy())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sort_and_argsort_are_the_stable_ones_of_pytorch(shape, dtype) -> None:
    """Ties keep their order both ways; nan is the largest."""
    x = numbers(shape, dtype)
    for axis, down in itertools.product(range(-len(shape), len(shape)) or (-1, 0), (False, True)):
        values, places = torch.sort(torch.from_numpy(x), dim=axis, descending=down, stable=True)
        found = run(f"sort(x, axis={axis}, descending={down})", x)
        same(found[0], values)
        same(found[1], places)
        (only,) = run(f"argsort(x, {axis}, {down})", x)
        same(only, places)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_topk_gives_the_values_of_pytorch_and_the_first_places_of_equals(shape, dtype) -> None:
    x = numbers(shape, dtype)
    for axis, largest in itertools.product(range(-len(shape), len(shape)) or (-1,), (True, False)):
        most = shape[axis] if shape else 1
        for k in {min(1, most), most // 2, most} - ({0} if not shape else set()):
            expected = torch.topk(torch.from_numpy(x), k, dim=axis, largest=largest)
            values, places = run(f"topk(x, {k}, axis={axis}, largest={largest})", x)
            same(values, expected.values)
            order = torch.argsort(torch.from_numpy(x), dim=axis, descending=largest, stable=True)
            same(places, order if not shape else order.narrow(axis, 0, k))


@pytest.mark.parametrize("expression", [
    "sort(x)[0]", "sort(x, axis=0, descending=True)[0]", "topk(x, 2)[0]",
    "topk(x * x, 3, axis=0, largest=False)[0]", "sort(x.T)[0]"])
def test_the_gradient_goes_back_to_where_the_values_were(expression: str) -> None:
    x = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    body = f"v = {expression}\n    return sum(v * v)"
    source = program(f"def f(x: f32[A, B]):\n    {body}\n")
    assert check_gradients(module_of(source, "f", {"x": x}).functions["f"], [x]).fault is None


def test_a_view_is_ordered_along_its_own_axes() -> None:
    x = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    values, places = run("sort(x.T, axis=0)", x)
    same(values, torch.sort(torch.from_numpy(x).T, dim=0).values)
    same(places, torch.sort(torch.from_numpy(x).T, dim=0).indices)


@pytest.mark.parametrize(("expression", "message"), [
    ("topk(x, 6)", "the first 6 of 5 elements"), ("topk(x, -1)", "the first -1 of 5 elements"),
    ("sort(x, axis=2)", "axis 2 of a tensor of rank 2"),
    ("sort(x, descending=1)", "'descending' is true or false"), ("topk(x, x)", "'topk'"),
    ("argsort(x, 0, True, 3)", "takes 3 arguments, and here are 4"),
    ("topk(x[0, 0], 2)", "the first 2 of 1 elements"),
])
def test_mistakes(expression: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        run(expression, np.zeros((4, 5), np.float32))
    assert "^" in str(caught.value)
