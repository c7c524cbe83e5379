"""Convolutions, pools and images of other sizes, as PyTorch has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.library.example import Example

LINE = {"B": [2], "CI": 4, "L": 8, "O": 6, "C": 2, "K": 3, "groups": 2}
IMAGE = {"B": [2], "CI": 4, "H": 7, "W": 5, "O": 6, "KH": 3, "KW": 2}
VOLUME = {"B": [2], "CI": 2, "D": 5, "H": 4, "W": 3, "O": 3, "C": 2, "KD": 3, "KH": 2, "KW": 2}
NARROW = {"B": [2], "CI": 4, "L": 5, "O": 3, "K": 3}
SMALL = {"B": [2], "CI": 4, "H": 3, "W": 4, "O": 3, "KH": 3, "KW": 2}
CUBE = {"B": [2], "CI": 2, "D": 3, "H": 2, "W": 3, "O": 2, "KD": 2, "KH": 3, "KW": 2}


def convolution(name: str, sizes: dict[str, Any], **settings: Any) -> Example:
    """A convolution whose settings PyTorch calls the same."""
    function = getattr(F, name)
    return Example(name, lambda *tensors: function(*tensors, **settings), {**sizes, **settings})


CONVOLUTIONS = [
    convolution("conv1d", {**LINE, "C": 4}, groups=1),
    convolution("conv1d", {**LINE, "b": True}, stride=2, padding=2, dilation=2, groups=2),
    convolution("conv1d", {**LINE, "B": [], "K": 4}, padding="same", dilation=2, groups=2),
    convolution("conv2d", {**IMAGE, "C": 4}),
    convolution("conv2d", {**IMAGE, "C": 4, "b": True}, stride=[2, 1], padding=[1, 0]),
    convolution("conv2d", {**IMAGE, "C": 2}, padding=2, dilation=[2, 1], groups=2),
    convolution("conv2d", {**IMAGE, "O": 4, "C": 1}, padding="same", groups=4),
    convolution("conv2d", {**IMAGE, "B": [], "C": 4}, padding="valid"),
    convolution("conv2d", {**IMAGE, "C": 4, "KH": 1, "KW": 1, "b": True}),
    convolution("conv3d", {**VOLUME, "b": True}, stride=[2, 1, 1], padding=[1, 0, 1]),
    convolution("conv3d", {**VOLUME, "C": 1, "O": 4}, padding="same", groups=2),
    convolution("conv_transpose1d", {**NARROW, "b": True, "P": 3}),
    convolution("conv_transpose1d", {**NARROW, "B": []}, stride=3, padding=1, output_padding=2,
                groups=2, dilation=2),
    convolution("conv_transpose2d", {**SMALL, "b": True, "P": 3}, stride=2, padding=[1, 0]),
    convolution("conv_transpose2d", SMALL, stride=[1, 2], output_padding=[0, 1], groups=2,
                dilation=[2, 1]),
    convolution("conv_transpose2d", {**SMALL, "H": 4, "KH": 4, "KW": 5, "O": 2}, stride=[3, 2],
                padding=[1, 2], output_padding=[2, 3], groups=2, dilation=[4, 4]),
    convolution("conv_transpose3d", {**CUBE, "b": True, "P": 2}, stride=[1, 2, 1],
                padding=[0, 1, 0]),
    Example("im2col", lambda x: F.unfold(x, (3, 2), 1, (1, 0), (2, 1)),
            {"B": [2], "C": 2, "H": 5, "W": 4, "size": [3, 2], "padding": [1, 0],
             "stride": [2, 1]}),
    Example("im2col", lambda x: F.unfold(x, 2, 2, 1, 1),
            {"B": [2], "C": 2, "H": 4, "W": 3, "size": 2, "padding": 1, "dilation": 2}),
    Example("col2im", lambda x: F.fold(x, (5, 4), (3, 2), 1, (1, 0), (2, 1)),
            {"B": [2], "CK": 12, "L": 9, "shape": [5, 4], "size": [3, 2], "padding": [1, 0],
             "stride": [2, 1]}),
]


def pool(name: str, sizes: dict[str, Any], **settings: Any) -> Example:
    """A pool; PyTorch has other names for two settings."""
    theirs = {"size": "kernel_size", "ceil": "ceil_mode", "divisor": "divisor_override"}
    renamed = {theirs.get(key, key): value for key, value in settings.items()}
    function = getattr(F, name)
    return Example(name, lambda x: function(x, **renamed), {**sizes, **settings})


def spread(size: int, stride: int, padding: int, dilation: int, *, mean: bool = True) -> Any:
    """A pool of the last axis or the last two, by a convolution: means of what is no border, or
    sums."""
    def convolve(x: Tensor, axes: int) -> Tensor:
        kernel = torch.ones(1, 1, *[size] * axes, dtype=x.dtype)
        flat = x.reshape(-1, 1, *x.shape[x.ndim - axes:])
        function = F.conv1d if axes == 1 else F.conv2d
        made = function(flat, kernel, None, stride, padding, dilation)
        return made.reshape(*x.shape[:x.ndim - axes], *made.shape[2:])

    def run(x: Tensor) -> Tensor:
        axes = x.ndim - 2
        total = convolve(x, axes)
        return total / convolve(torch.ones_like(x), axes) if mean else total

    return run


LENGTH = {"I": [2, 2], "N": 8}
PLANE = {"I": [1, 2], "H": 7, "W": 8}
BODY = {"I": [2], "D": 4, "H": 5, "W": 3}
TIES = np.array([1, 3, 3, 0, 2, 2, 2, 1, -np.inf, -np.inf, -np.inf, -np.inf]).reshape(1, 1, 12)
GAPS = {"I": [2], "H": 7, "W": 5}

POOLS = [
    pool("max_pool1d", LENGTH, size=3, stride=2),
    pool("max_pool1d", LENGTH, size=3),
    pool("max_pool1d", LENGTH, size=3, stride=2, padding=1, dilation=2, ceil=True),
    Example("max_pool1d", lambda x: F.max_pool1d(x, 3, 2, 1),
            {"I": [1, 1], "N": 12, "size": 3, "stride": 2, "padding": 1}, {"x": TIES}, kink=True),
    pool("max_pool2d", PLANE, size=3, stride=2),
    pool("max_pool2d", PLANE, size=[3, 2], stride=[1, 2], padding=[1, 0], ceil=True),
    pool("max_pool3d", BODY, size=2, stride=[2, 1, 1], padding=1),
    pool("avg_pool1d", LENGTH, size=3, stride=2),
    pool("avg_pool1d", LENGTH, size=3, padding=1, ceil=True, count_include_pad=False),
    pool("avg_pool2d", PLANE, size=3, stride=2),
    pool("avg_pool2d", PLANE, size=[3, 2], stride=2, padding=1, ceil=True),
    pool("avg_pool2d", PLANE, size=3, padding=1, count_include_pad=False, divisor=5),
    pool("avg_pool3d", BODY, size=2, padding=1, ceil=True, count_include_pad=False),
    Example("avg_pool1d", spread(3, 2, 2, 3),
            {**LENGTH, "size": 3, "stride": 2, "padding": 2, "dilation": 3,
             "count_include_pad": False}),
    Example("avg_pool2d", spread(2, 1, 1, 2),
            {**PLANE, "size": 2, "stride": 1, "padding": 1, "dilation": 2,
             "count_include_pad": False}),
    Example("avg_pool2d", lambda x: spread(2, 2, 1, 2, mean=False)(x) / 4,
            {**PLANE, "size": 2, "padding": 1, "dilation": 2}),
    Example("lp_pool1d", lambda x: spread(2, 1, 0, 3, mean=False)(x ** 3) ** (1 / 3),
            {**LENGTH, "power": 3.0, "size": 2, "stride": 1, "dilation": 3},
            {"x": np.arange(32).reshape(2, 2, 8) + 0.5}),
    Example("lp_pool1d", lambda x: F.lp_pool1d(x, 3, 2, 1),
            {**LENGTH, "power": 3.0, "size": 2, "stride": 1},
            {"x": np.arange(32).reshape(2, 2, 8) + 0.5}),
    Example("lp_pool2d", lambda x: F.lp_pool2d(x, 2, 3, 2),
            {**PLANE, "power": 2.0, "size": 3, "stride": 2}),
    Example("lp_pool3d", lambda x: F.lp_pool3d(x, 2, 2), {**BODY, "power": 2.0, "size": 2}),
    Example("sum_pool1d", lambda x: 3 * F.avg_pool1d(x, 3, 2, 1),
            {**LENGTH, "size": 3, "stride": 2, "padding": 1}),
    Example("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 4), {**LENGTH, "size": 4}),
    Example("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 11), {**LENGTH, "size": 11}),
    Example("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (3, None)),
            {**GAPS, "size": [3, None]}),
    Example("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, 2), {**BODY, "size": 2}),
    Example("adaptive_max_pool1d", lambda x: F.adaptive_max_pool1d(x, 3), {**LENGTH, "size": 3}),
    Example("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, (3, 2)),
            {**GAPS, "size": [3, 2]}),
    Example("adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, 2), {**BODY, "size": 2}),
    Example("global_avg_pool", lambda x: x.mean((2, 3))),
    Example("global_max_pool", lambda x: F.adaptive_max_pool2d(x, 1).flatten(1)),
]

def resized(mode: str, size: int, corners: bool | None = None, scale: float | None = None) -> Any:
    """PyTorch's interpolation of the last axis."""
    def resize(x: Tensor) -> Tensor:
        flat = x.reshape(1, -1, x.shape[-1])
        if mode == "bicubic":  # which has no version for one axis: an axis of size 1 stays
            return F.interpolate(flat[:, :, None], None if scale else (1, size),
                                 (1, scale) if scale else None, mode, corners).reshape(
                                     *x.shape[:-1], size)
        return F.interpolate(flat, None if scale else size, scale, mode, corners).reshape(
            *x.shape[:-1], size)
    return resize


ROW = {"I": [2, 2], "N": 7}

IMAGES = [
    *(Example("resize_nearest1d", resized("nearest", n), {**ROW, "size": n}) for n in (3, 12)),
    Example("resize_nearest1d", resized("nearest-exact", 4),
            {**ROW, "size": 4, "exact": True}),
    Example("resize_nearest1d", resized("nearest", 11, scale=1.6),
            {**ROW, "size": 11, "scale": 1.6}),
    *(Example("resize_linear1d", resized("linear", n, corners),
              {**ROW, "size": n, "corners": corners}) for n in (1, 4, 12)
      for corners in (False, True)),
    Example("resize_linear1d", resized("linear", 11, False, 1.6),
            {**ROW, "size": 11, "scale": 1.6}),
    *(Example("resize_cubic1d", resized("bicubic", n, corners),
              {**ROW, "size": n, "corners": corners}) for n in (4, 12)
      for corners in (False, True)),
    Example("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2),
            {"I": [2], "C": 3, "H": 4, "W": 6, "factor": 2}),
    Example("channel_shuffle", lambda x: F.channel_shuffle(x, 3),
            {"B": 2, "C": 6, "I": [4, 2], "groups": 3}),
    Example("upsample", lambda x: F.interpolate(x, scale_factor=3, mode="nearest"),
            {"I": [2, 3], "H": 2, "W": 4, "factor": 3}),
    Example("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2),
            {"I": [2], "C": 12, "H": 3, "W": 2, "factor": 2}),
]

WINDOWS = [*CONVOLUTIONS, *POOLS, *IMAGES]
