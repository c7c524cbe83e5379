"""What ops of the library mean, as functions of PyTorch: the oracle of values and gradients."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from tests.library.attention_examples import ATTENTION
from tests.library.example import Example
from tests.library.loss_examples import LOSSES
from tests.library.neural_examples import ACTIVATIONS, NORMS
from tests.library.window_examples import WINDOWS

ELEMENTS = [
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
]

PRODUCTS = [
    Example("matmul", torch.matmul),
    Example("matmul", torch.matmul, {"I": [], "M": 3, "K": 4, "N": 5}),
    Example("dot", torch.dot),
    Example("outer", torch.outer),
    Example("linear", F.linear),
    Example("linear", F.linear, {"I": [], "K": 4, "N": 3}),
    Example("bilinear", F.bilinear),
]

PLACES = [
    Example("embedding", F.embedding),
    Example("one_hot", lambda ids: F.one_hot(ids, 4), {"I": [3, 2], "classes": 4}),
    Example("scatter_add", lambda ids, x: x.new_zeros(4, *x.shape[1:]).index_add(0, ids, x),
            {"N": 5, "I": [3], "rows": 4}),
]

EXAMPLES = [*ELEMENTS, *ACTIVATIONS, *PRODUCTS, *NORMS, *PLACES, *ATTENTION, *WINDOWS, *LOSSES]
