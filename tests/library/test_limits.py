"""Functions at the limits of what they take, where formulas overflow, cancel or have nothing to
work on, give PyTorch's values and gradients, in the dtype of the program."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anabranch.driver import Options, compile_function
from anabranch.frontend.program import loads
from anabranch.ir.diagnostics import UserError
from anabranch.ir.mesh import Mesh
from anabranch.ir.reference import evaluate
from anabranch.ir.rewrite import clone_module
from anabranch.ir.sbp import S, layout_on
from anabranch.lowering.differentiate import differentiate
from anabranch.runtime.session import Session
from tests.frontend.running import DTYPES, call, module_of, program

inf, nan = np.inf, np.nan
Theirs = Callable[..., torch.Tensor]


def given(*numbers: Any, dtype: type = np.float32) -> np.ndarray[Any, Any]:
    return np.array(numbers, dtype)


def made(lines: str, order: int, arrays: dict[str, np.ndarray[Any, Any]]) -> list[Any]:
    """The value, or the gradient by x of its sum, or that of the sum of the squares of that."""
    typed = ", ".join(f"{name}: {DTYPES[str(a.dtype)]}{list(a.shape)}"
                      for name, a in arrays.items())
    text = f"def f({typed}):\n    y = {lines}\n"
    steps = ["    g = grad(sum(y), x)\n", "    h = grad(sum(g * g), x)\n"]
    text += "".join(steps[:order])
    text += f"    return {'ygh'[order]}\n"
    with np.errstate(all="ignore"):
        module = differentiate(module_of(program(text), "f", arrays))
        (found,) = evaluate(module.functions["f"], list(arrays.values()))
    return found


def theirs_made(function: Theirs, order: int, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    tensors = [torch.from_numpy(a.copy()) for a in arrays.values()]
    x = tensors[0].requires_grad_(order > 0)
    y = function(*tensors)
    if order == 0:
        return y.detach().numpy()
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=order > 1)
    return (g if order == 1 else torch.autograd.grad((g * g).sum(), x)[0]).numpy()


def turned(x: torch.Tensor) -> torch.Tensor:
    """The first of the features of ones, turned in halves."""
    angle = torch.arange(1000, 1000 + x.shape[1], dtype=torch.float64)
    return (torch.cos(angle) - torch.sin(angle))[None, :, None, None]


# By how often they are differentiated. Beside x there may be a y.
NUMBERS: list[tuple[str, Theirs, int, tuple[Any, ...]]] = [
    ("acosh(x)", torch.acosh, 0, (given(-20, -1e4, -3e38, 0.5, 1, 2),)),
    ("acosh(x)", torch.acosh, 1, (given(1, 2, 1e4, 1e20),)),
    ("erfinv(x)", torch.erfinv, 1, (given(-1, 1, 1.5, 0.3),)),
    ("erfinv(x)", torch.erfinv, 0, (1 - 2.0 ** -np.arange(1, 53, 3),)),
    ("erfinv(x)", torch.erfinv, 1, (1 - 2.0 ** -np.arange(1, 40, 3),)),
    ("erfinv(x)", torch.erfinv, 2, (given(0.1, -0.6, 0.99, dtype=np.float64),)),
    ("lgamma(x)", torch.lgamma, 0, (given(-inf, -3e38, 1e-40, -1e-40, 0, -3, 2e36),)),
    ("lgamma(x)", torch.lgamma, 1, (given(0, 1e6, 1e30, 3e38, -8388607.5, 8, 3.3),)),
    ("digamma(x)", torch.digamma, 1, (given(inf, 1e30, 1e6, 2.5),)),
    ("sinc(x)", torch.sinc, 1, (given(0, 1e-40, 1e-20, 0.1),)),
    ("hypot(x, y)", torch.hypot, 0, (given(inf, nan, -inf, 1e38), given(nan, inf, 3, 1e38))),
    ("logaddexp(x, y)", torch.logaddexp, 0, (given(3e38, -inf), given(3e38, -inf))),
    ("logaddexp2(x, y)", torch.logaddexp2, 0, (given(3e38, -inf), given(3e38, -inf))),
    ('smooth_l1(x, y, 4.0, "none")', partial(F.smooth_l1_loss, reduction="none", beta=4.0),
     0, (given(3e38, 2, 0), given(0, 3, 6))),
    ("norm(x, axis=1, p=0.5)", lambda x: torch.linalg.vector_norm(x, 0.5, 1), 1,
     (given([0, 0], [0, 2], [1, 3]),)),
    ("norm(x, axis=1, p=-1)", lambda x: torch.linalg.vector_norm(x, -1, 1), 0,
     (given([inf, -inf], [0, 2], [1, 3]),)),
    *((f"{name}(x)", function, 2, (given(0, 0.5, -2, dtype=np.float64),)) for name, function in {
        "softplus": F.softplus, "log_sigmoid": F.logsigmoid, "mish": F.mish}.items()),
    ("bce_with_logits(x, y)", F.binary_cross_entropy_with_logits, 2,
     (given(0, 0, 2, dtype=np.float64), given(0, 1, 0.5, dtype=np.float64))),
    ("logaddexp(x, y)", torch.logaddexp, 2,
     (given(0, 1, 2, dtype=np.float64), given(0, 1, 0.5, dtype=np.float64))),
    ("log_softmax(x)", partial(torch.log_softmax, dim=-1), 0, (given(1e6, 1e6 + 1, 1e6 - 2),)),
    ("cross_entropy(x, y)", F.cross_entropy, 0,
     (given([1e6, 1e6 + 1, 1e6 - 2], [-1e7, -1e7, -1e7]), np.array([1, 2]))),
    ("cross_entropy(x, y, smoothing=0.1)", partial(F.cross_entropy, label_smoothing=0.1), 0,
     (given([1e6, 1e6 + 1, 1e6 - 2], [-1e7, -1e7, -1e7]), np.array([1, 2]))),
    ("soft_cross_entropy(x[None], y[None])", lambda x, y: F.cross_entropy(x[None], y[None]), 0,
     (given(1e6, 1e6 + 1, 1e6 - 2), given(0.5, 0.25, 0.25))),
    ("rotary(x, start=1000)[..., :1]", turned, 0, (np.ones((1, 3, 1, 6)),)),
    ('interpolate(x, 7, mode="linear")', lambda x: F.interpolate(x, 7, mode="linear"), 0,
     (np.linspace(0, 1, 6).reshape(1, 2, 3),)),
    ("affine_grid(x, [3, 5])", lambda x: F.affine_grid(x, [1, 1, 3, 5], False), 0,
     (np.linspace(0, 1, 6).reshape(1, 2, 3),)),
]


def close(ours: Any, theirs: Any, exact: bool) -> None:
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours, theirs, *((1e-11, 1e-13) if exact else (2e-6, 1e-6)))


@pytest.mark.parametrize(("text", "theirs", "order", "numbers"), NUMBERS)
def test_extreme_numbers_give_what_pytorch_makes_of_them(
    text: str, theirs: Theirs, order: int, numbers: tuple[Any, ...]
) -> None:
    arrays = dict(zip("xy", numbers, strict=False))
    exact = numbers[0].dtype == np.float64
    close(made(text, order, arrays), theirs_made(theirs, order, arrays), exact and order < 1)


WITH_GRADIENTS: list[tuple[str, Theirs]] = [
    (f'grid_sample(x, y, "{mode}", "{padding}", {corners})',
     partial(F.grid_sample, mode=mode, padding_mode=padding, align_corners=corners))
    for mode in ("bilinear", "nearest") for padding in ("border", "reflection")
    for corners in (True, False)]


@pytest.mark.parametrize(("text", "theirs"), WITH_GRADIENTS)
def test_places_on_the_border_of_an_image_have_pytorchs_gradient(text: str, theirs: Theirs
                                                                 ) -> None:
    """The grid is that which changes nothing, if corners are aligned."""
    axis = np.linspace(-1, 1, 3, dtype=np.float32)
    grid = np.stack(np.meshgrid(axis, axis), -1)[None]
    image = np.random.default_rng(0).normal(size=(1, 2, 3, 3)).astype(np.float32)
    swapped = text.replace("(x, y,", "(y, x,")
    arrays = {"x": grid, "y": image}
    close(made(swapped, 1, arrays), theirs_made(lambda x, y: theirs(y, x), 1, arrays), False)


NOTHING = np.zeros(0, np.int64)
ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)
EMPTY: list[tuple[str, Theirs, tuple[Any, ...]]] = [
    ("cummax(x, 1)[0]", lambda x: torch.cummax(x, 1)[0], (ROWS[:, :0],)),
    ("cummin(x, 0)[1]", lambda x: torch.cummin(x, 0)[1], (ROWS[:0],)),
    ("index_copy(x, y, x[:0], 0)", lambda x, y: torch.index_copy(x, 0, y, x[:0]), (ROWS, NOTHING)),
    ("scatter(x, y[:, None], 2, 0)", lambda x, y: torch.scatter(x, 0, y[:, None], 2),
     (ROWS, NOTHING)),
    ('scatter_reduce(x, y[:, None], x[:0, :1], 0, "max")',
     lambda x, y: torch.scatter_reduce(x, 0, y[:, None], x[:0, :1], "amax"), (ROWS, NOTHING)),
    ('embedding_bag(y, x, y, 2, "max")',
     lambda x, y: F.embedding_bag(y, x, torch.tensor([0, 0]), mode="max"), (ROWS, NOTHING)),
    ("segment_max(x[:0], y, 2)", lambda x, y: torch.full((2, 2), -inf), (ROWS, NOTHING)),
    ("slice(x, 0, stop=2)", lambda x: x[:2], (ROWS,)),
    ("slice(x, 0, 1)", lambda x: x[1:], (ROWS,)),
    ("x[None:2]", lambda x: x[None:2], (ROWS,)),
]


@pytest.mark.parametrize(("text", "theirs", "arrays"), EMPTY)
def test_nothing_and_what_is_left_out_count_as_in_pytorch(
    text: str, theirs: Theirs, arrays: tuple[Any, ...]
) -> None:
    named = dict(zip("xy", arrays, strict=False))
    close(made(text, 0, named), theirs_made(theirs, 0, named), True)


@pytest.mark.parametrize("chosen", [False, True])
def test_a_place_in_a_tensor_without_places_is_refused_only_where_it_is_read(chosen: bool) -> None:
    least = 0 if chosen else 2
    source = f"""
        def f(x: f32[2], k: i64[2], t: f32[0]):
            y[n] = where(x[n] > {least}, t[k[n]], x[n])
            return y
    """
    arrays = {"x": np.ones(2, np.float32), "k": np.zeros(2, np.int64), "t": np.zeros(0, np.float32)}
    if not chosen:
        np.testing.assert_array_equal(call(program(source), "f", **arrays), [1, 1])
        return
    with pytest.raises(UserError, match="outside a dimension of 0"):
        call(program(source), "f", **arrays)


def test_places_of_a_tensor_without_places_are_refused_when_compiled() -> None:
    with pytest.raises(UserError, match="has no places to take"):
        made("x[:0][y]", 0, {"x": np.ones(2, np.float32), "y": np.zeros(2, np.int64)})


@pytest.mark.parametrize("rows", range(1, 6))
@pytest.mark.parametrize("settings", [(2, 2, 0, 1), (3, 5, 1, 1), (4, 3, 0, 1), (2, 4, 1, 2)])
def test_the_last_window_of_a_pool_may_be_the_only_one(rows: int, settings: tuple[int, ...]
                                                       ) -> None:
    x = np.random.default_rng(0).normal(size=(1, 2, rows)).astype(np.float32)
    if settings[3] > rows:  # PyTorch makes of a window without elements what it finds in memory
        with pytest.raises(UserError, match="a window has no element"):
            made(f"max_pool1d(x, {', '.join(map(str, settings))}, True)", 0, {"x": x})
        return
    size, stride, padding, dilation = settings
    text = f"max_pool1d(x, {size}, {stride}, {padding}, {dilation}, True)"
    theirs = partial(F.max_pool1d, kernel_size=size, stride=stride, padding=padding,
                     dilation=dilation, ceil_mode=True)
    try:
        wanted = theirs_made(theirs, 1, {"x": x})
    except RuntimeError:
        with pytest.raises(UserError):
            made(text, 1, {"x": x})
        return
    close(made(text, 1, {"x": x}), wanted, False)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_images_of_bytes_are_smoothed_to_bytes(mode: str) -> None:
    x = np.random.default_rng(3).integers(0, 256, (1, 3, 20, 7)).astype(np.uint8)
    ours = made(f'interpolate(x, [6, 9], mode="{mode}", antialias=True)', 0, {"x": x})
    theirs = F.interpolate(torch.from_numpy(x), [6, 9], mode=mode, antialias=True).numpy()
    assert ours.dtype == np.uint8
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("text", "wanted"), [
    ("full([-1], 2)", "a size is at least 0"),
    ("weight_norm(x, x, 5)", "axis 5 of a tensor of rank 2"),
    ("layer_norm(x, axes=3)", "are among those of x"),
    ("gumbel_softmax(x, temperature=0.0)", "the temperature is above 0"),
    ("rotary(x[None, :, None], base=-1.0)", "the base is above 0"),
    ("normal([2], std=-1.0)", "a standard deviation is at least 0"),
    ("trunc_normal([2], std=0.0)", "the standard deviation is above 0"),
    ("rrelu(x, lower=2.0, upper=1.0)", "is at most the upper"),
    ("pad(x, 1)", "a pair for each axis, as in"),
    ('pad(x[:0], [[1, 1], [0, 0]], 0, "replicate")', "there is nothing to replicate"),
])
def test_settings_without_a_meaning_are_refused_where_they_are_written(text: str, wanted: str
                                                                       ) -> None:
    with pytest.raises(UserError, match=wanted) as caught:
        made(text, 0, {"x": np.ones((3, 4), np.float32)})
    span = caught.value.diagnostics[0].span
    assert span is not None
    assert (span.file, span.line) == ("test.ab", 2)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_weights_have_their_lengths_along_any_axis(axis: int) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    lengths = np.linspace(1, 2, x.shape[axis], dtype=np.float32)
    lengths = lengths.reshape((-1, 1) if axis == 0 else (1, -1))
    ours = made(f"weight_norm(x, y, {axis})", 0, {"x": x, "y": lengths})
    theirs = torch._weight_norm(torch.from_numpy(x), torch.from_numpy(lengths), axis % 2)
    np.testing.assert_allclose(ours, theirs.numpy(), 1e-6)


@pytest.mark.parametrize("mesh", [Mesh(), Mesh.of(data=2)])
def test_neighbours_that_change_places_are_compiled(mesh: Mesh) -> None:
    """No read of it leaves its tensor, though the least of each of its terms would."""
    text = "def f(x: f32[2, 3, 2, 6]):\n    y = rotary(x, 500.0, interleaved=True)\n"
    made = loads(f"{text}    return y, grad(sum(y * y * y), x)\n", "test.ab").function("f")
    x = np.random.default_rng(0).normal(size=(2, 3, 2, 6)).astype(np.float32)
    wanted = evaluate(differentiate(clone_module(made)).functions["f"], [x])
    made.functions["f"].arguments[0].pin = layout_on(mesh, [S(0)] * len(mesh.axes))
    with Session(compile_function(made, Options(mesh)).plan, canaries=True) as session:
        for ours, theirs in zip(session.step("f", {"x": x}).values(), wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, 2e-4, 2e-5)


def test_a_list_of_numbers_that_is_cast_keeps_their_digits() -> None:
    x = np.ones(3)
    lines = "x\n    t = f64([0.1, 0.2, 0.3])\n    y[n] = x[n] * t[n]"
    lines = lines.replace("y[n]", "z[n]") + "\n    y = z"
    np.testing.assert_array_equal(made(lines, 0, {"x": x}), [0.1, 0.2, 0.3])
