"""Windows as a program asks for them: images of other sizes, and settings that make no sense."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anabranch.ir.diagnostics import UserError
from tests.frontend.running import call, program

IMAGE = np.random.default_rng(0).normal(size=(2, 3, 5, 7)).astype(np.float32)

INTERPOLATIONS = [
    ("nearest", None), ("nearest-exact", None), ("bilinear", False), ("bilinear", True),
    ("bicubic", False), ("bicubic", True),
]
SIZES: list[tuple[str, dict[str, object]]] = [
    ("size=[3, 11]", {"size": (3, 11)}), ("size=4", {"size": 4}),
    ("scale=2", {"scale_factor": 2}), ("scale=[0.6, 1.5]", {"scale_factor": (0.6, 1.5)}),
]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: size[0])
@pytest.mark.parametrize(("mode", "corners"), INTERPOLATIONS)
def test_an_image_is_interpolated_as_in_pytorch(
    mode: str, corners: bool | None, size: tuple[str, dict[str, object]]
) -> None:
    ours, theirs = size
    source = program(f"""
        def f(x: f32[B, C, H, W]):
            return interpolate(x, {ours}, mode="{mode}", align_corners={bool(corners)})
    """)
    expected = F.interpolate(torch.from_numpy(IMAGE), mode=mode, align_corners=corners, **theirs)
    np.testing.assert_allclose(call(source, "f", x=IMAGE), expected.numpy(), 1e-4, 1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "trilinear"])
def test_sequences_and_volumes_are_interpolated_as_in_pytorch(mode: str) -> None:
    x = IMAGE.reshape(2, 15, 7) if mode == "linear" else IMAGE.reshape(2, 1, 3, 5, 7)
    expected = F.interpolate(torch.from_numpy(x), scale_factor=2, mode=mode)
    source = program(f"""
        def f(x):
            return interpolate(x, scale=2, mode="{mode}")
        def g(x: f32[*I]):
            return f(x)
    """)
    np.testing.assert_allclose(call(source, "g", x=x), expected.numpy(), 1e-4, 1e-5)


MISTAKES = {
    "conv2d(x, w, None, 0)": "the stride is at least 1",
    "conv2d(x, w, None, 1, -1)": "padding is at least 0",
    "conv2d(x, w, None, 1, 0, 0)": "the dilation is at least 1",
    "conv2d(x, w, None, 1, 0, 3)": "a window is wider than the padded input",
    "conv2d(x, w, None, 1, 0, 1, 2)": "x has `groups` times the channels of the weight",
    "conv2d(x, w, None, 2, 'same')": "padding 'same' has stride 1",
    "conv2d(x, w, None, 1, 'full')": "padding is a number of places, 'same' or 'valid'",
    "conv2d(x, w, None, [1, 2, 3])": "a setting is one number, or one for each axis",
    "conv2d(x, w, None, 1.5)": "'stride' of 'conv2d' is int or .int., not the number 1.5",
    "conv2d(x, w, zeros([7]))": "O is 4 in this call, and 7 in 'b'",
    "conv_transpose2d(x, transpose(w, 0, 1), None, 1, 0, 1)": "less than the stride",
    "conv_transpose2d(x, transpose(w, 0, 1), None, 1, 4)": "the padding takes everything away",
    "max_pool2d(x, 3, 0)": "the stride is at least 1",
    "max_pool2d(x, 0)": "a window is at least 1 place wide",
    "max_pool2d(x, 9)": "a window is wider than the padded input",
    "max_pool2d(x, 3, 1, 2)": "padding is at most half the window",
    "avg_pool2d(x, 3, 1, -1)": "padding is at least 0",
    "avg_pool2d(x, 2, divisor=0)": "the divisor is not 0",
    "adaptive_avg_pool2d(x, [1, 2, 3])": "a size is one number, or one for each axis",
    "pixel_shuffle(x, 2)": "the square of the factor divides the channels",
    "pixel_unshuffle(x, 2)": "the factor divides the height and the width",
    "channel_shuffle(x, 2)": "`groups` divides the channels",
    "col2im(x[0], [4, 4], 2)": "a column has all places of a window for each channel",
    "interpolate(x)": "either the size or the scale is given",
    "interpolate(x, 3, mode='cubic')": "this mode of interpolation is not known",
    "interpolate(x, [0, 3])": "a size is at least 1",
}


@pytest.mark.parametrize("written", MISTAKES)
def test_settings_that_make_no_sense_are_refused_where_they_are_written(written: str) -> None:
    quoted = written.replace("'", '"')
    with pytest.raises(UserError, match=MISTAKES[written]) as caught:
        program(f"""
            def f(x: f32[2, 3, 5, 7], w: f32[4, 3, 3, 3]):
                return {quoted}
        """).function("f")
    assert caught.value.diagnostics[0].span.line == 3


@pytest.mark.parametrize("kind", ["avg", "max"])
def test_an_adaptive_pool_may_have_no_places(kind: str) -> None:
    x = np.ones((2, 3, 7, 5), np.float32)
    text = f"def f(x: f32[*I]):\n    return adaptive_{kind}_pool2d(x, [4, 0])\n"
    assert call(program(text), "f", x=x).shape == (2, 3, 4, 0)
