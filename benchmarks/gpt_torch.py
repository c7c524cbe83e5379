"""The GPT of `w1.ab` in plain torch, with the same parameter names: the peer of the benchmarks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, window, dim = x.shape
        qkv = self.qkv(x).view(batch, window, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, window, dim))


class MLP(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = MLP(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Logits f32[B, S, vocab] of tokens i64[B, S]; `loss` is the mean cross-entropy in nats."""

    def __init__(self, vocab: int, context: int, dim: int, depth: int, heads: int) -> None:
        super().__init__()
        self.tokens_table = nn.Parameter(0.02 * torch.randn(vocab, dim))
        self.position_table = nn.Parameter(0.02 * torch.randn(context, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = functional.embedding(tokens, self.tokens_table)
        x = x + self.position_table[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self(tokens).flatten(0, 1), targets.flatten())


def with_weights(model: GPT, weights: Mapping[str, np.ndarray]) -> GPT:
    """The model with its parameters set from arrays by dotted path."""
    model.load_state_dict({name: torch.from_numpy(w.copy()) for name, w in weights.items()})
    return model


def optimizer(model: GPT) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)


def step(model: GPT, updates: torch.optim.AdamW, tokens: Tensor, targets: Tensor) -> float:
    """One training step; the loss before the update."""
    updates.zero_grad(set_to_none=True)
    loss = model.loss(tokens, targets)
    loss.backward()
    updates.step()
    return loss.item()
