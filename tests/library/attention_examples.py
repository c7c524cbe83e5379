"""Attention and positions as PyTorch has them."""

from __future__ import annotations

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


def rotate(x: Tensor) -> Tensor:
    """Features d and d + D/2 as one complex number."""
    half = x.shape[-1] // 2
    speed = 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None, None] * speed
    pairs = torch.complex(x[..., :half], x[..., half:])
    turned = pairs * torch.complex(angle.cos(), angle.sin())
    return torch.cat([turned.real, turned.imag], -1)


GROUPED = {"B": 2, "Q": 3, "H": 4, "D": 5, "K": 6, "G": 2, "E": 3}
MASK = np.arange(36).reshape(2, 3, 6) % 5 != 0

ATTENTION = [
    Example("rotary", rotate, {"B": 2, "S": 5, "H": 3, "D": 4}),
    Example("attention", attend),
    Example("attention", attend, GROUPED),
    Example("masked_attention", attend, GROUPED, {"mask": MASK}),
    Example("causal_attention", attend_causally),
    Example("causal_attention", attend_causally, GROUPED),
]
