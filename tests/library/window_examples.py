"""Convolutions, pools and images of other sizes, as PyTorch has them."""

from __future__ import annotations

import torch.nn.functional as F

from tests.library.example import Example

IMAGE = {"B": 2, "CI": 4, "H": 7, "W": 5, "O": 6, "KH": 3, "KW": 2}

WINDOWS = [
    Example("conv1d", F.conv1d, {"B": 2, "CI": 3, "L": 7, "O": 4, "C": 3, "K": 3}),
    Example("conv1d", lambda x, w: F.conv1d(x, w, None, 2, 2, 2, 2),
            {"B": 2, "CI": 4, "L": 8, "O": 6, "C": 2, "K": 3, "stride": 2, "padding": 2,
             "dilation": 2, "groups": 2}),
    Example("conv2d", F.conv2d, {**IMAGE, "C": 4}),
    Example("conv2d", lambda x, w: F.conv2d(x, w, None, 2, 1),
            {**IMAGE, "C": 4, "stride": 2, "padding": 1}),
    Example("conv2d", lambda x, w: F.conv2d(x, w, None, 1, 2, 2, 2),
            {**IMAGE, "C": 2, "padding": 2, "dilation": 2, "groups": 2}),
    Example("conv2d", lambda x, w: F.conv2d(x, w, None, 1, 1, 1, 4),
            {**IMAGE, "O": 4, "C": 1, "padding": 1, "groups": 4}),
    Example("max_pool1d", lambda x: F.max_pool1d(x, 3, 2), {"I": [4], "N": 8, "size": 3,
                                                           "stride": 2}),
    Example("max_pool2d", lambda x: F.max_pool2d(x, 3, 2),
            {"I": [2], "H": 7, "W": 8, "size": 3, "stride": 2}),
    Example("avg_pool1d", lambda x: F.avg_pool1d(x, 3, 2), {"I": [4], "N": 8, "size": 3,
                                                           "stride": 2}),
    Example("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2),
            {"I": [2], "H": 7, "W": 8, "size": 3, "stride": 2}),
    Example("upsample", lambda x: F.interpolate(x, scale_factor=3, mode="nearest"),
            {"I": [2, 3], "H": 2, "W": 4, "factor": 3}),
    Example("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2),
            {"I": [2], "C": 12, "H": 3, "W": 2, "factor": 2}),
]
