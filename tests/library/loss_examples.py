"""Losses and distances as PyTorch has them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.library.example import Example


def class_first(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """PyTorch wants the classes on axis 1."""
    return lambda x, target: loss(x.reshape(-1, x.shape[-1]), target.reshape(-1))


TARGETS = np.array([[2, -100, 0], [5, 1, -100]])

WEIGHTS = np.array([0.5, 1, 2, 0.1, 1, 3])
SCORES = {"I": [2, 3], "V": 6}
CONSTANT = frozenset({"weight", "positive", "sign"})
SIGNS = np.array([1, -1, -1, 1, 1, -1, 1])
PROBABILITIES = np.array([[0.2, 0.3, 0.5], [0.1, 0.5, 0.4], [0.9, 0.05, 0.05], [0, 0.2, 0.8]])
SPOKEN = np.log(np.random.default_rng(0).dirichlet([1, 1, 1], (6, 4)))
NAMED = np.array([[3, 0, -1, 1], [0, 1, 2, 3], [-1, 2, 1, 0]])


def weighted(loss: Callable[..., Tensor], **settings: object) -> Callable[..., Tensor]:
    """Classes first, and a weight for each as the third tensor."""
    def call(x: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        found = loss(x.reshape(-1, x.shape[-1]), target.reshape(-1), weight, **settings)
        return found.reshape(target.shape) if settings.get("reduction") == "none" else found
    return call


def reductions(
    op: str, loss: Callable[..., Tensor], settings: dict[str, object],
    given: dict[str, object] | None = None, kink: bool = False,
    constant: frozenset[str] = CONSTANT,
) -> list[Example]:
    """A loss with each reduction, which PyTorch calls the same."""
    return [Example(op, lambda *tensors, how=how: loss(*tensors, reduction=how),
                    {**settings, "reduction": how}, given or {}, kink=kink, constant=constant)
            for how in ("mean", "sum", "none")]


CLASSES = [
    Example("cross_entropy", class_first(F.cross_entropy)),
    Example("cross_entropy", class_first(F.cross_entropy), SCORES, {"target": TARGETS}),
    Example("cross_entropy", class_first(lambda x, t: F.cross_entropy(x, t, ignore_index=1)),
            {"I": [4], "V": 3, "ignore": 1}, {"target": [0, 1, 2, 1]}),
    *(Example("cross_entropy", weighted(F.cross_entropy, reduction=how, label_smoothing=smooth),
              {**SCORES, "weight": weight, "reduction": how, "smoothing": smooth},
              {"target": TARGETS, "weight": WEIGHTS}, constant=CONSTANT)
      for how in ("mean", "sum", "none") for weight in (False, True) for smooth in (0.0, 0.2)
      if how != "mean" or weight or smooth),
    *(Example("soft_cross_entropy", weighted_soft, {"I": [4], "V": 3, "weight": True,
                                                    "reduction": "mean", "smoothing": 0.1},
              {"target": PROBABILITIES, "weight": [0.5, 1, 2]}, constant=CONSTANT)
      for weighted_soft in [lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.1)]),
    *reductions("soft_cross_entropy", F.cross_entropy, {"I": [4], "V": 3},
                {"target": PROBABILITIES}),
    Example("nll", class_first(F.nll_loss), SCORES, {"target": TARGETS}),
    *(Example("nll", weighted(F.nll_loss, reduction=how),
              {**SCORES, "weight": True, "reduction": how},
              {"target": TARGETS, "weight": WEIGHTS}, constant=CONSTANT)
      for how in ("mean", "sum", "none")),
    *reductions("multi_margin", lambda x, t, w, **how: F.multi_margin_loss(x, t, 2, 0.5, w, **how),
                {"B": 3, "C": 4, "weight": True, "p": 2, "margin": 0.5},
                {"target": [1, 0, 3], "weight": [0.5, 1, 2, 1]}),
    Example("multi_margin", F.multi_margin_loss, {"B": 3, "C": 4}, {"target": [1, 0, 3]}),
    *reductions("multilabel_margin", F.multilabel_margin_loss, {"I": [3], "C": 4},
                {"target": NAMED}),
    *(Example("ctc", lambda x, *rest, how=how: F.ctc_loss(
                  x.log_softmax(-1), *rest, blank=1, zero_infinity=True, **how).to(x.dtype),
              {"S": 6, "B": 4, "C": 3, "L": 3, "blank": 1, "zero_infinity": True, **how},
              {"x": SPOKEN, "target": [[0, 2, 2], [2, 2, 0], [0, 0, 0], [2, 0, 2]],
               "lengths": [6, 3, 0, 5], "targets": [3, 2, 0, 0]}, only_values=True)
      for how in ({"reduction": "mean"}, {"reduction": "sum"}, {"reduction": "none"})),
    *reductions("multilabel_soft_margin", F.multilabel_soft_margin_loss, {"I": [3], "C": 4},
                {"y": NAMED > 0}),
]


def pair(settings: dict[str, object] | None = None) -> dict[str, object]:
    return {"I": [7], **(settings or {})}


def focal(x: Tensor, y: Tensor) -> Tensor:
    """Lin et al. 2017, which PyTorch does not have."""
    p = x.sigmoid() * y + (1 - x.sigmoid()) * (1 - y)
    share = 0.25 * y + 0.75 * (1 - y)
    return (-share * (1 - p) ** 2 * p.log()).mean()


NUMBERS = [
    *reductions("mse", F.mse_loss, pair()),
    *reductions("l1", F.l1_loss, pair()),
    *reductions("huber", lambda x, y, **how: F.huber_loss(x, y, delta=0.3, **how),
                pair({"delta": 0.3})),
    *reductions("smooth_l1", lambda x, y, **how: F.smooth_l1_loss(x, y, beta=0.3, **how),
                pair({"beta": 0.3})),
    Example("smooth_l1", F.l1_loss, pair({"beta": 0.0})),
    *reductions("bce", lambda x, y, w, **how: F.binary_cross_entropy(x, y, w, **how),
                pair({"weight": True, "J": [7]}), {"x": np.linspace(0.05, 0.9, 7)}),
    Example("bce", F.binary_cross_entropy),
    *reductions("bce_with_logits",
                lambda x, y, w, p, **how: F.binary_cross_entropy_with_logits(
                    x, y, w, pos_weight=p, **how),
                {"I": [3, 2], "weight": True, "J": [2], "positive": True, "K": [2]}),
    Example("bce_with_logits", F.binary_cross_entropy_with_logits),
    Example("focal", focal, pair(), {"y": np.arange(7) % 2}, constant=frozenset({"y"})),
    *reductions("kl_div", F.kl_div, {"I": [4, 3]}, {"target": PROBABILITIES}, kink=True,
                constant=frozenset({"target"})),
    *reductions("kl_div", lambda x, y, **how: F.kl_div(x, y, log_target=True, **how),
                {"I": [4, 3], "log_target": True}),
    Example("kl_div", lambda x, y: F.kl_div(x, y, reduction="batchmean"), {"I": [4, 3]},
            {"target": PROBABILITIES}, kink=True, constant=frozenset({"target"})),
    *reductions("poisson_nll", F.poisson_nll_loss, pair(), {"y": np.arange(7)}),
    Example("poisson_nll", lambda x, y: F.poisson_nll_loss(x, y, False, True),
            pair({"log_input": False, "full": True}),
            {"x": np.arange(7) + 0.5, "y": np.arange(7)}, kink=True, constant=frozenset({"y"})),
    *reductions("gaussian_nll", F.gaussian_nll_loss, pair({"J": [7], "K": [7]}),
                {"var": np.linspace(0.3, 2, 7)}),
    Example("gaussian_nll", lambda x, y, var: F.gaussian_nll_loss(x, y, var, full=True),
            {"I": [3, 4], "J": [3, 4], "K": [3], "full": True}, {"var": [1.0, 2.0, 0.3]}),
    Example("gaussian_nll", F.gaussian_nll_loss, {"I": [3, 4], "J": [4], "K": [3, 1]},
            {"var": [[1.0], [0.2], [0.3]]}),
    *reductions("margin_ranking", lambda x, y, s, **how: F.margin_ranking_loss(x, y, s, 0.3, **how),
                pair({"margin": 0.3}), {"sign": SIGNS}),
    *reductions("hinge_embedding", F.hinge_embedding_loss, pair(), {"sign": SIGNS}, kink=True),
    *reductions("soft_margin", F.soft_margin_loss, pair(), {"sign": SIGNS}),
]

VECTORS = [
    Example("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, -1)),
    Example("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, 0),
            {"I": [3], "N": 4, "J": [3], "axis": 0}),
    Example("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, 1),
            {"I": [2, 3], "N": 4, "J": [1], "axis": 1}),
    Example("vector_length", lambda x: x.norm(dim=-1)),
    Example("vector_length", lambda x: x.norm(3, dim=-1), {"I": [2], "N": 5, "p": 3.0}),
    Example("vector_length", lambda x: x.abs().amax(-1), {"I": [2], "N": 5, "p": np.inf}),
    Example("pairwise_distance", F.pairwise_distance, {"I": [3], "N": 4}),
    *(Example("pairwise_distance", lambda x, y, p=p: F.pairwise_distance(x, y, p),
              {"I": [3], "N": 4, "p": p}, kink=p == 0) for p in (1.0, 0.0, -1.0, -np.inf)),
    *(Example("cdist", lambda x, y, p=p: torch.cdist(x, y, p),
              {"I": [2], "M": 3, "K": 4, "J": [1], "N": 5, "p": p}, kink=p == 0)
      for p in (0.0, 1.0, 2.0, 2.5, np.inf)),
    Example("cdist", torch.cdist, {"I": [], "M": 3, "K": 2, "J": [], "N": 3},
            {"x": np.eye(3, 2), "y": np.eye(3, 2)}, kink=True),
    *reductions("cosine_embedding",
                lambda x, y, s, **how: F.cosine_embedding_loss(x, y, s, 0.1, **how),
                {"I": [7], "N": 3, "margin": 0.1}, {"sign": SIGNS}, kink=True),
    *reductions("triplet_margin",
                lambda a, p, n, **how: F.triplet_margin_loss(a, p, n, swap=True, **how),
                {"I": [4], "N": 3, "swap": True}),
    Example("triplet_margin", lambda a, p, n: F.triplet_margin_loss(a, p, n, 2.0, 1.0),
            {"I": [4], "N": 3, "margin": 2.0, "p": 1.0}),
]

LOSSES = [*CLASSES, *NUMBERS, *VECTORS]
