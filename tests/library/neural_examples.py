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
    Example("softplus", lambda x: F.softplus(x, 2.0, 1.0),
            {"x": [6], "beta": 2.0, "threshold": 1.0}),
    Example("celu", F.celu),
    Example("celu", lambda x: F.celu(x, 0.5), {"x": [4, 3], "alpha": 0.5}),
    Example("prelu", F.prelu, {"I": [2, 4, 3], "C": [4]}),
    Example("prelu", F.prelu, {"I": [5], "C": [1]}),
    Example("tanhshrink", F.tanhshrink),
    Example("softshrink", F.softshrink, {"x": [6]}, {"x": [-2, -0.5, 0.1, 0.5, 2, np.nan]},
            kink=True),
    Example("hardshrink", F.hardshrink, {"x": [6]}, {"x": [-2, -0.5, 0.1, 0.5, 2, np.nan]},
            kink=True),
    Example("threshold", lambda x: F.threshold(x, 0.5, 3.0),
            {"x": [5], "bound": 0.5, "value": 3.0}, {"x": [-2, 0.5, 1, 2, np.nan]}, kink=True),
    Example("hard_tanh", F.hardtanh, {"x": [6]}, {"x": [-2, -1, 0.1, 1, 2, np.nan]}, kink=True),
    Example("glu", F.glu, {"I": [3], "N": 4}),
    Example("glu", lambda x: F.glu(x, 0), {"I": [4], "N": 3, "axis": 0}),
    Example("swiglu", lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
            {"I": [3], "N": 4}),
    Example("geglu", lambda x: x.chunk(2, -1)[0] * F.gelu(x.chunk(2, -1)[1]),
            {"I": [3], "N": 4}),
    Example("log_sigmoid", F.logsigmoid),
    Example("mish", F.mish),
    Example("softsign", F.softsign),
    Example("hard_sigmoid", F.hardsigmoid, {"x": [6]}, {"x": [-4, -3, -1, 2, 3, 5]},
            kink=True),
    Example("hard_swish", F.hardswish, {"x": [4]}, {"x": [-4, -1, 2, 5]}),
]

MASK = np.array([[True, False, True, True], [False, False, False, True], [False] * 4])

STARTS = [
    Example("identity", lambda: torch.eye(3, 4), {"shape": [3, 4]}),
    Example("dirac", lambda: torch.nn.init.dirac_(torch.empty(4, 2, 3, 4), 2),
            {"shape": [4, 2, 3, 4], "groups": 2}),
    Example("dirac", lambda: torch.nn.init.dirac_(torch.empty(2, 3, 4)), {"shape": [2, 3, 4]}),
]

NORMS = [
    Example("softmax", lambda x: x.softmax(-1)),
    Example("softmax", lambda x: x.softmax(-1), {"I": [], "N": 5}),
    Example("softmax", lambda x: x.softmax(0), {"I": [3, 4], "N": 2, "axis": 0}),
    Example("softmin", lambda x: F.softmin(x, 1), {"I": [3, 4], "N": 2, "axis": 1}),
    Example("log_softmax", lambda x: x.log_softmax(-1)),
    Example("log_softmax", lambda x: x.log_softmax(-2), {"I": [3, 4], "N": 2, "axis": -2}),
    Example("masked_softmax", lambda x, m: x.masked_fill(~m, -torch.inf).softmax(-1).nan_to_num(0),
            {"I": [3], "N": 4}, {"mask": MASK}),
    Example("layer_norm", lambda x: F.layer_norm(x, x.shape[-1:])),
    Example("layer_norm", lambda x, w, b: F.layer_norm(x, w.shape, w, b, 0.1),
            {"I": [], "N": 5, "M": [5], "w": True, "b": True, "eps": 0.1}),
    Example("layer_norm", lambda x, w, b: F.layer_norm(x, w.shape, w, b),
            {"I": [2, 3], "N": 4, "M": [3, 4], "w": True, "b": True}),
    Example("layer_norm", lambda x: F.layer_norm(x, x.shape[1:]),
            {"I": [2, 3], "N": 4, "axes": 2}),
    Example("rms_norm", lambda x: F.rms_norm(x, x.shape[-1:], None, 1e-6)),
    Example("rms_norm", lambda x, w: F.rms_norm(x, w.shape, w, 1e-6),
            {"I": [2, 3], "N": 4, "M": [3, 4], "w": True}),
    Example("group_norm", lambda x, w, b: F.group_norm(x, 3, w, b),
            {"N": 2, "C": 6, "I": [5, 2], "groups": 3, "w": True, "b": True}),
    Example("group_norm", lambda x: F.group_norm(x, 2),
            {"N": 2, "C": 4, "I": [], "groups": 2}),
    Example("instance_norm", F.instance_norm),
    Example("instance_norm", lambda x, w, b: F.instance_norm(x, None, None, w, b),
            {"N": 2, "C": 3, "I": [4, 2], "w": True, "b": True}),
    Example("batch_norm", lambda x: F.batch_norm(x, None, None, training=True)),
    Example("batch_norm", F.batch_norm,
            {"N": 2, "C": 3, "I": [4], "center": True, "spread": True, "w": True, "b": True},
            {"spread": [0.5, 1.5, 2]}, constant=frozenset({"center", "spread"})),
    Example("channel_moments", lambda x: (x.mean((0, 2)), x.var((0, 2), correction=0)),
            {"N": 2, "C": 3, "I": [4]}),
    Example("local_response_norm", lambda x: F.local_response_norm(x, 3, 0.1, 0.5, 2.0),
            {"N": 2, "C": 5, "I": [3], "size": 3, "alpha": 0.1, "beta": 0.5, "k": 2.0}),
    Example("local_response_norm", lambda x: F.local_response_norm(x, 2),
            {"N": 2, "C": 5, "I": [3], "size": 2}),
    Example("normalize", lambda x: F.normalize(x, dim=-1)),
    Example("normalize", lambda x: F.normalize(x, dim=-1), {"I": [2], "N": 3},
            {"x": [[0, 0, 0], [1, 2, 2]]}, kink=True),
    Example("normalize", lambda x: F.normalize(x, 3.0, 1),
            {"I": [2, 4], "N": 3, "p": 3.0, "axis": 1}),
]
