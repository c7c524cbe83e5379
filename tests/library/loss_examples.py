"""Losses and distances as PyTorch has them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from tests.library.example import Example


def class_first(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """PyTorch wants the classes on axis 1."""
    return lambda x, target: loss(x.reshape(-1, x.shape[-1]), target.reshape(-1))


TARGETS = np.array([[2, -100, 0], [5, 1, -100]])

LOSSES = [
    Example("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, -1)),
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
