"""What ops of the library mean, as functions of PyTorch: the oracle of values and gradients.

An example without settings uses the sizes of the op's trial, with settings those, which may also
set parameters that are known when compiling. `given` has arguments that must not be random; at a
`kink` among them no difference measures a slope, and what PyTorch says of it is a convention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from anabranch.trials import Trial, trial_with
from tests.library.ops import op, trial

Array = np.ndarray[Any, Any]
Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Example:
    """An op, and the same in PyTorch: a function of the op's tensors, in order."""

    op: str
    torch: Callable[..., Tensor]
    settings: Mapping[str, object] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    kink: bool = False

    def __str__(self) -> str:
        return " ".join([self.op, *(f"{k}={v}" for k, v in self.settings.items())])

    def trial(self) -> Trial:
        found = trial_with(op(self.op), self.settings) if self.settings else trial(self.op)
        assert found is not None, f"{self} has no meaning"
        arguments = tuple(
            np.asarray(self.given.get(a.value.name, x), x.dtype)
            for a, x in zip(found.function.arguments, found.arguments, strict=True))
        return Trial(found.function, arguments, found.sizes)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Places before heads; fewer key heads than query heads are repeated."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (
        q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
    mask = None if mask is None else mask[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)


def attend_causally(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The last query sees all keys."""
    mask = torch.ones(1, q.shape[1], k.shape[1]).tril(k.shape[1] - q.shape[1]).bool()
    return attend(q, k, v, mask.expand(q.shape[0], -1, -1))


def rotate(x: Tensor) -> Tensor:
    """Features d and d + D/2 as one complex number."""
    half = x.shape[-1] // 2
    speed = 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None, None] * speed
    pairs = torch.complex(x[..., :half], x[..., half:])
    turned = pairs * torch.complex(angle.cos(), angle.sin())
    return torch.cat([turned.real, turned.imag], -1)


def class_first(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """PyTorch wants the classes on axis 1."""
    return lambda x, target: loss(x.reshape(-1, x.shape[-1]), target.reshape(-1))


GROUPED = {"B": 2, "Q": 3, "H": 4, "D": 5, "K": 6, "G": 2, "E": 3}
IMAGE = {"B": 2, "CI": 4, "H": 7, "W": 5, "O": 6, "KH": 3, "KW": 2}
TARGETS = np.array([[2, -100, 0], [5, 1, -100]])
MASK = np.arange(36).reshape(2, 3, 6) % 5 != 0

EXAMPLES = [
    # scalar functions
    Example("clamp", torch.clamp),
    Example("clamp", lambda x, low, high: x.clamp(low, high), {"x": [5], "low": [], "high": []},
            {"x": [-2, -1, 0, 1, np.nan], "low": -1, "high": 1}, kink=True),
    Example("lerp", torch.lerp),
    Example("lerp", torch.lerp, {"a": [3], "b": [3], "t": [3]}, {"t": [0, 1, 0.75]}),
    Example("square", torch.square),
    Example("reciprocal", torch.reciprocal),
    Example("hypot", torch.hypot),
    Example("hypot", torch.hypot, {"x": [3], "y": [3]}, {"x": [1e30, 3, 0], "y": [1e30, 4, 2]},
            kink=True),
    Example("exp2", torch.exp2),
    Example("log2", torch.log2),
    Example("log10", torch.log10),
    Example("logit", torch.logit),
    Example("logaddexp", torch.logaddexp),
    Example("isfinite", torch.isfinite, {"x": [5]}, {"x": [1, np.inf, -np.inf, np.nan, 0]}),
    Example("relu", F.relu),
    Example("relu", F.relu, {"x": [4]}, {"x": [-1, 0, 2, np.nan]}, kink=True),
    Example("relu6", F.relu6, {"x": [7]}, {"x": [-1, 0, 2, 6, 6.5, 7, np.nan]}, kink=True),
    Example("leaky_relu", F.leaky_relu),
    Example("leaky_relu", lambda x: F.leaky_relu(x, 0.2), {"x": [4, 3], "slope": 0.2}),
    Example("elu", F.elu),
    Example("elu", lambda x: F.elu(x, 0.5), {"x": [4, 3], "alpha": 0.5}),
    Example("selu", F.selu),
    Example("sigmoid", torch.sigmoid),
    Example("silu", F.silu),
    Example("gelu", F.gelu),
    Example("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
    Example("softplus", F.softplus),
    Example("log_sigmoid", F.logsigmoid),
    Example("mish", F.mish),
    Example("softsign", F.softsign),
    Example("hard_sigmoid", F.hardsigmoid, {"x": [6]}, {"x": [-4, -3, -1, 2, 3, 5]},
            kink=True),
    Example("hard_swish", F.hardswish, {"x": [4]}, {"x": [-4, -1, 2, 5]}),
    # products
    Example("matmul", torch.matmul),
    Example("matmul", torch.matmul, {"I": [], "M": 3, "K": 4, "N": 5}),
    Example("dot", torch.dot),
    Example("outer", torch.outer),
    Example("linear", F.linear),
    Example("linear", F.linear, {"I": [], "K": 4, "N": 3}),
    Example("bilinear", F.bilinear),
    # along the last axis
    Example("softmax", lambda x: x.softmax(-1)),
    Example("softmax", lambda x: x.softmax(-1), {"I": [], "N": 5}),
    Example("log_softmax", lambda x: x.log_softmax(-1)),
    Example("layer_norm", lambda x, w, b: F.layer_norm(x, w.shape, w, b)),
    Example("layer_norm", lambda x, w, b: F.layer_norm(x, w.shape, w, b, 0.1),
            {"I": [], "N": 5, "eps": 0.1}),
    Example("rms_norm", lambda x, w: F.rms_norm(x, w.shape, w, 1e-6)),
    Example("group_norm", lambda x, w, b: F.group_norm(x, 3, w, b),
            {"N": 2, "C": 6, "I": [5, 2], "groups": 3}),
    Example("normalize", lambda x: F.normalize(x, dim=-1)),
    Example("normalize", lambda x: F.normalize(x, dim=-1), {"I": [2], "N": 3},
            {"x": [[0, 0, 0], [1, 2, 2]]}, kink=True),
    Example("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, -1)),
    # places
    Example("embedding", F.embedding),
    Example("one_hot", lambda ids: F.one_hot(ids, 4), {"I": [3, 2], "classes": 4}),
    Example("scatter_add", lambda ids, x: x.new_zeros(4, *x.shape[1:]).index_add(0, ids, x),
            {"N": 5, "I": [3], "rows": 4}),
    Example("rotary", rotate, {"B": 2, "S": 5, "H": 3, "D": 4}),
    # attention
    Example("attention", attend),
    Example("attention", attend, GROUPED),
    Example("masked_attention", attend, GROUPED, {"mask": MASK}),
    Example("causal_attention", attend_causally),
    Example("causal_attention", attend_causally, GROUPED),
    # windows
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
    # losses
    Example("cross_entropy", class_first(F.cross_entropy)),
    Example("cross_entropy", class_first(F.cross_entropy), {"I": [2, 3], "V": 6},
            {"target": TARGETS}),
    Example("cross_entropy", class_first(lambda x, t: F.cross_entropy(x, t, ignore_index=1)),
            {"I": [4], "V": 3, "ignore": 1}, {"target": [0, 1, 2, 1]}),
    Example("nll", class_first(F.nll_loss), {"I": [2, 3], "V": 6}, {"target": TARGETS}),
    Example("mse", F.mse_loss),
    Example("l1", F.l1_loss),
    Example("huber", F.huber_loss),
    Example("huber", lambda x, y: F.huber_loss(x, y, delta=0.3), {"I": [7], "delta": 0.3}),
    Example("bce", F.binary_cross_entropy),
    Example("bce_with_logits", F.binary_cross_entropy_with_logits),
    Example("kl_div", lambda x, y: F.kl_div(x, y, reduction="batchmean"), {"B": 4, "I": [3]},
            {"target": [[0.2, 0.3, 0.5], [0.1, 0.5, 0.4], [0.9, 0.05, 0.05], [0.1, 0.1, 0.8]]}),
]
