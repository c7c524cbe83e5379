"""The trained examples in plain torch: functions of a dictionary of weights, named as ours.

Each gives what the program's `forward` gives; a loss and an optimizer complete it. Written with
torch.nn.functional, so that our weights are theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Weights = dict[str, Tensor]
Forward = Callable[..., Tensor]


def linear(w: Weights, path: str, x: Tensor) -> Tensor:
    return F.linear(x, w[f"{path}.weight"], w.get(f"{path}.bias"))


def layer_norm(w: Weights, path: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{path}.weight"], w[f"{path}.bias"])


def mlp(w: Weights, x: Tensor) -> Tensor:
    return linear(w, "second", F.relu(linear(w, "first", x.flatten(1))))


def conv(w: Weights, path: str, x: Tensor, stride: int = 1) -> Tensor:
    """Places at the border are kept."""
    weight = w[f"{path}.weight"]
    return F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)


def batch_norm(w: Weights, path: str, x: Tensor) -> Tensor:
    """By the batch, whose statistics are kept, while there are gradients."""
    names = ("running_mean", "running_var", "weight", "bias")
    return F.batch_norm(x, *(w[f"{path}.{n}"] for n in names), training=torch.is_grad_enabled())


def resnet(w: Weights, x: Tensor) -> Tensor:
    x = F.relu(batch_norm(w, "norm", conv(w, "stem", x[:, None])))
    for i in range(depth(w)):
        path = f"blocks.{i}"
        stride = w[f"{path}.conv1.weight"].shape[0] // x.shape[1]
        y = F.relu(batch_norm(w, f"{path}.norm1", conv(w, f"{path}.conv1", x, stride)))
        y = batch_norm(w, f"{path}.norm2", conv(w, f"{path}.conv2", y))
        if f"{path}.short.weight" in w:
            x = batch_norm(w, f"{path}.norm3", conv(w, f"{path}.short", x, stride))
        x = F.relu(x + y)
    return linear(w, "head", x.mean((2, 3)))


def block(w: Weights, path: str, x: Tensor, heads: int, *, causal: bool) -> Tensor:
    """A pre-norm transformer block."""
    batch, length, dim = x.shape
    h = linear(w, f"{path}.attn.qkv", layer_norm(w, f"{path}.norm1", x))
    q, k, v = h.view(batch, length, 3, heads, dim // heads).permute(2, 0, 3, 1, 4)
    h = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    x = x + linear(w, f"{path}.attn.proj", h.transpose(1, 2).reshape(batch, length, dim))
    h = F.gelu(linear(w, f"{path}.mlp.up", layer_norm(w, f"{path}.norm2", x)))
    return x + linear(w, f"{path}.mlp.down", h)


def depth(w: Weights) -> int:
    return len({name.split(".")[1] for name in w if name.startswith("blocks.")})


def gpt(w: Weights, tokens: Tensor) -> Tensor:
    x = w["tokens_table"][tokens] + w["position_table"][: tokens.shape[1]]
    for i in range(depth(w)):
        x = block(w, f"blocks.{i}", x, 4, causal=True)
    return layer_norm(w, "norm", x) @ w["tokens_table"].T


def vit(w: Weights, x: Tensor) -> Tensor:
    side = math.isqrt(w["project.weight"].shape[1])
    x = F.unfold(x[:, None], side, stride=side).transpose(1, 2)
    x = linear(w, "project", x) + w["places"]
    for i in range(depth(w)):
        x = block(w, f"blocks.{i}", x, 4, causal=False)
    return linear(w, "head", layer_norm(w, "norm", x).mean(dim=1))


def wide_and_deep(w: Weights, known: Tensor, genres: Tensor) -> Tensor:
    wide, deep = (
        torch.stack([*(w[f"{part}.tables.{i}"][ids] for i, ids in enumerate(known.unbind(1))),
                     genres @ w[f"{part}.genre"]], dim=1) for part in ("wide", "deep"))
    h = F.relu(linear(w, "second", F.relu(linear(w, "first", deep.flatten(1)))))
    taste = (deep[:, 0] * deep[:, 1]).sum(-1)
    return w["center"] + wide.sum((1, 2)) + taste + linear(w, "last", h)[:, 0]


def faces(w: Weights, x: Tensor) -> Tensor:
    return F.normalize(linear(w, "body", x), dim=-1) @ F.normalize(w["people_table"], dim=-1).T


# ---- losses: of what `forward` gives, and the target


def cross_entropy(scores: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, -2), target.flatten())


def with_margin(cosine: Tensor, person: Tensor) -> Tensor:
    return F.cross_entropy(32 * (cosine - 0.2 * F.one_hot(person, cosine.shape[1])), person)


# ---- training


class Trainer:
    """A model in training: `step` gives the loss before its update."""

    def __init__(
        self, weights: Weights, forward: Forward, loss: Forward,
        optimizer: torch.optim.Optimizer, rate: Callable[[int], float], clip: float | None = None,
    ) -> None:  # fmt: skip
        self.weights, self._forward, self._loss = weights, forward, loss
        self._optimizer, self._rate, self._clip = optimizer, rate, clip

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        *inputs, target = batch.values()
        return self._loss(self._forward(self.weights, *inputs), target)

    def step(self, number: int, batch: dict[str, Tensor]) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate(number)
        self._optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        if self._clip is not None:
            torch.nn.utils.clip_grad_norm_(list(self.weights.values()), self._clip)
        self._optimizer.step()
        return loss.item()


def cosine(peak: float, warmup: int, total: int) -> Callable[[int], float]:
    """The schedule of the same name."""

    def rate(step: int) -> float:
        if step < warmup:
            return peak * (step + 1) / warmup
        return 0.5 * peak * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))

    return rate
