"""Functions of the library on integers and bools give PyTorch's values, of PyTorch's dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.frontend.running import call, program

WHOLE = ("i64", "i32", "u8")
TORCH = {"i64": torch.int64, "i32": torch.int32, "u8": torch.uint8, "bool": torch.bool}
Theirs = Callable[..., torch.Tensor]

VECTORS: list[tuple[str, Theirs, tuple[str, ...]]] = [
    ("poisson_nll(x, y, full=True)", lambda x, y, z: F.poisson_nll_loss(x, y, full=True), WHOLE),
    ("poisson_nll(x, y, log_input=False, reduction='sum')",
     lambda x, y, z: F.poisson_nll_loss(x, y, False, reduction="sum"), WHOLE),
    ("margin_ranking(x, y, z, 0.5)", lambda x, y, z: F.margin_ranking_loss(x, y, z, 0.5), WHOLE),
    ("margin_ranking(x, y, z, reduction='none')",
     lambda x, y, z: F.margin_ranking_loss(x, y, z, reduction="none"), WHOLE),
    ("cosine_embedding(x, y, z[:, 0], 0.1)",
     lambda x, y, z: F.cosine_embedding_loss(x, y, z[:, 0], 0.1), (*WHOLE, "bool")),
    ("pairwise_distance(x, y)", lambda x, y, z: F.pairwise_distance(x, y), WHOLE),
    ("triplet_margin(x, y, z, swap=True)",
     lambda x, y, z: F.triplet_margin_loss(x, y, z, swap=True), WHOLE),
    ("sign(x)", lambda x, y, z: torch.sign(x), (*WHOLE, "bool")),
    ("square(x)", lambda x, y, z: torch.square(x), (*WHOLE, "bool")),
    ("logsumexp(x, axis=1)", lambda x, y, z: torch.logsumexp(x, 1), (*WHOLE, "bool")),
    ("local_response_norm(x[None], 2, 0.5)",
     lambda x, y, z: F.local_response_norm(x[None], 2, 0.5), ("i64",)),
    ("avg_pool1d(x, 2, 1, 1, False, False)",
     lambda x, y, z: F.avg_pool1d(x, 2, 1, 1, False, False), ("i64",)),
    ("avg_pool2d(-x[None], 2, [], 1, True)",
     lambda x, y, z: F.avg_pool2d(-x[None], 2, [], 1, True), ("i64",)),
    ("avg_pool2d(x[None], 2, 1, 1, True, False)",
     lambda x, y, z: F.avg_pool2d(x[None], 2, 1, 1, True, False), ("i64",)),
    ("avg_pool2d(-x[None], 2, divisor=3)",
     lambda x, y, z: F.avg_pool2d(-x[None], 2, divisor_override=3), ("i64",)),
]


@pytest.mark.parametrize(("text", "theirs", "dtype"), [
    (text, theirs, dtype) for text, theirs, dtypes in VECTORS for dtype in dtypes])
def test_whole_numbers_give_what_pytorch_makes_of_them(text: str, theirs: Theirs, dtype: str
                                                       ) -> None:
    tensors = arguments(dtype)
    source = program(f"def f(x: {dtype}[4, 3], y: {dtype}[4, 3], z: {dtype}[4, 3]):\n"
                     f"    return {text}\n".replace("'", '"'))
    actual = call(source, "f", **{n: t.numpy() for n, t in zip("xyz", tensors, strict=True)})
    expected = theirs(*tensors).numpy()
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, 1e-5, 1e-6)


def arguments(dtype: str) -> list[torch.Tensor]:
    """The third has ones and, where the dtype has it, minus ones."""
    random = np.random.default_rng(5)
    numbers: list[Any] = [random.integers(0, 8, (4, 3)), random.integers(0, 8, (4, 3)),
                          1 - 2 * random.integers(0, 2, (4, 1)) + np.zeros((4, 3))]
    return [torch.from_numpy(np.asarray(n, np.int64)).to(TORCH[dtype]) for n in numbers]


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("size", [(3, 9), (40, 5)])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_images_of_bytes_are_resized_to_bytes(mode: str, size: tuple[int, int], corners: bool
                                              ) -> None:
    x = np.random.default_rng(3).integers(0, 256, (2, 3, 20, 7)).astype(np.uint8)
    text = f'interpolate(x, {list(size)}, mode="{mode}", align_corners={corners})'
    actual = call(program(f"def f(x: u8[2, 3, 20, 7]):\n    return {text}\n"), "f", x=x)
    expected = F.interpolate(torch.from_numpy(x), size, mode=mode, align_corners=corners)
    assert actual.dtype == np.uint8
    np.testing.assert_array_equal(actual, expected.numpy())


@pytest.mark.parametrize("dtype", WHOLE)
def test_large_whole_numbers_have_a_logarithm_of_their_sum_of_exponentials(dtype: str) -> None:
    """Their differences need not be numbers of the dtype."""
    x = np.array([0, 200, 3], {"i64": np.int64, "i32": np.int32, "u8": np.uint8}[dtype])
    x = x if dtype == "u8" else x * 2**22
    actual = call(program(f"def f(x: {dtype}[3]):\n    return logsumexp(x)\n"), "f", x=x)
    np.testing.assert_allclose(actual, torch.logsumexp(torch.from_numpy(x), 0).numpy(), 1e-6)


@pytest.mark.parametrize(("text", "theirs"), [
    ("sign(x)", torch.sign),
    ("heaviside(x, 0.5)", lambda x: torch.heaviside(x, torch.tensor(0.5))),
])
def test_what_is_no_number_has_no_sign(text: str, theirs: Theirs) -> None:
    x = torch.tensor([np.nan, -np.inf, -1.0, -0.0, 0.0, 2.0, np.inf])
    actual = call(program(f"def f(x: f32[7]):\n    return {text}\n"), "f", x=x.numpy())
    np.testing.assert_array_equal(actual, theirs(x).numpy())
