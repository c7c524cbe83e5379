"""Activations, and values scaled by others along some axes, as PyTorch has them."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from tests.library.example import Example

ACTIVATIONS = [
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
]

NORMS = [
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
]
