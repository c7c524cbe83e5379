"""Attention and positions as PyTorch has them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.library.example import Example


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


def general(mask: bool, bias: bool, *, causal: bool = False, scale: float | None = None
            ) -> Callable[..., Tensor]:
    """PyTorch's function with a mask and a bias for each head; what sees nothing is 0."""
    def call(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> Tensor:
        group = q.shape[2] // k.shape[2]
        q, k, v = (x.transpose(1, 2) for x in (
            q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
        seen = torch.ones(q.shape[2], k.shape[2]).tril(k.shape[2] - q.shape[2]).bool()
        added = torch.zeros(1, 1, *seen.shape, dtype=q.dtype)
        if causal:
            added = added.masked_fill(~seen, -torch.inf)
        if mask:
            added = added.masked_fill(~more[0], -torch.inf)
        if bias:
            added = added + more[-1]
        return F.scaled_dot_product_attention(q, k, v, added, scale=scale).transpose(1, 2)
    return call


def rotate_neighbours(x: Tensor) -> Tensor:
    """Features 2d and 2d + 1 as one complex number."""
    half = torch.cat([x[..., 0::2], x[..., 1::2]], -1)
    turned = rotate(half)
    return torch.stack(turned.chunk(2, -1), -1).flatten(-2)


def rotate(x: Tensor) -> Tensor:
    """Features d and d + D/2 as one complex number."""
    half = x.shape[-1] // 2
    speed = 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None, None] * speed
    pairs = torch.complex(x[..., :half], x[..., half:])
    turned = pairs * torch.complex(angle.cos(), angle.sin())
    return torch.cat([turned.real, turned.imag], -1)


GROUPED = {"B": 2, "Q": 3, "H": 4, "D": 5, "K": 6, "G": 2, "E": 3}
BLIND = np.arange(18).reshape(3, 6) % 4 > np.array([[0], [1], [3]])
MASK = np.arange(36).reshape(2, 3, 6) % 5 != 0



def sinusoids() -> Tensor:
    """Vaswani et al. 2017: features 2i and 2i + 1 turn by 10000^(-2i / D) a place."""
    angle = torch.arange(5.0)[:, None] * 10000.0 ** (-torch.arange(0, 6, 2) / 6)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)


def alibi() -> Tensor:
    """Press et al. 2022: slopes are powers of 2^(-8 / heads)."""
    distance = (torch.arange(3)[:, None] - torch.arange(3)).abs()
    return -(2.0 ** -torch.arange(1, 9))[:, None, None] * distance


ATTENTION = [
    Example("sinusoids", sinusoids, {"places": 5, "dim": 6}),
    Example("alibi", alibi, {"heads": 8, "queries": 3, "keys": 3}),
    Example("rotary", rotate, {"B": 2, "S": 5, "H": 3, "D": 4}),
    Example("attention", attend),
    Example("attention", attend, GROUPED),
    Example("attention", general(True, False), {**GROUPED, "mask": True, "M": [3, 6]},
            {"mask": BLIND}, kink=True),
    Example("attention", general(True, True, causal=True, scale=0.3),
            {**GROUPED, "mask": True, "M": [2, 1, 3, 6], "bias": True, "A": [4, 3, 6],
             "causal": True, "scale": 0.3}, {"mask": MASK[:, None]}),
    Example("attention", general(False, False, causal=True), {**GROUPED, "Q": 8, "causal": True}),
    Example("attention", general(False, False, scale=0.0), {**GROUPED, "scale": 0.0}),
    Example("attention", attend, {**GROUPED, "K": 0}),
    Example("rotary", rotate_neighbours,
            {"B": 2, "S": 5, "H": 3, "D": 4, "interleaved": True}),
    Example("masked_attention", attend, GROUPED, {"mask": MASK}),
    Example("causal_attention", attend_causally),
    Example("causal_attention", attend_causally, GROUPED),
]
