"""Small programs with recipes, and what they are judged by: the same written by hand in torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

Batch = dict[str, Any]

NET = """
model Net(inputs: int, hidden: int, outputs: int):
    up:   Linear(inputs, hidden)
    down: Linear(hidden, outputs)

    def forward(x: f32[B, inputs]) -> f32[B, outputs]:
        return down(tanh(up(x)))
"""

GAN = NET + """
model GAN(size: int, latent: int):
    critic:    Net(size, 8, 1)
    generator: Net(latent, 8, size)

    def critic_loss(images: f32[B, size], noise: f32[B, latent]) -> f32[]:
        fake = generator(noise)
        mixed = 0.5 * images + 0.5 * fake
        slope = grad(sum(critic(mixed)), mixed)
        penalty = mean((sqrt(sum(slope ** 2, axis=1)) - 1) ** 2)
        return mean(softplus(critic(fake))) + mean(softplus(-critic(images))) + 0.1 * penalty

    def generator_loss(noise: f32[B, latent]) -> f32[]:
        return mean(softplus(-critic(generator(noise))))

train GAN(size=4, latent=3):
    steps = 10
    data  = arrays(batch=8)
    clip  = 0.5
    optimizer["critic.*"]    = adamw(lr=4e-3, betas=(0.0, 0.9), eps=1e-4)
    optimizer["generator.*"] = adamw(lr=1e-3, betas=(0.0, 0.9), eps=1e-4)

    def update(images, noise):
        for _ in range(2):
            loss = critic_loss(images, noise)
            minimize(loss, "critic.*")
        minimize(generator_loss(noise), "generator.*")
        report(critic=loss)
"""

CLASSIFIER = NET + """
model Classifier():
    body: Net(4, 8, 6)
    head: Linear(6, 3)

    def forward(x: f32[B, 4]) -> f32[B, 3]:
        return head(relu(body(x)))

    def loss(x: f32[B, 4], label: i64[B]) -> f32[]:
        logits = forward(x)
        report(largest=max(logits))
        return cross_entropy(logits, label)

    def accuracy(x: f32[B, 4], label: i64[B]) -> f32[]:
        return mean(argmax(forward(x), axis=1) == label)

train Classifier():
    steps     = 10
    data      = arrays(batch=8)
    optimizer = sgd(lr=0.1, momentum=0.9)
"""


def gan_batches(count: int) -> list[Batch]:
    random = np.random.default_rng(0)
    return [{"images": random.normal(size=(8, 4)).astype("f4"),
             "noise": random.normal(size=(8, 3)).astype("f4")} for _ in range(count)]


def classifier_batches(count: int, rows: int = 8) -> list[Batch]:
    random = np.random.default_rng(1)
    return [{"x": random.normal(size=(rows, 4)).astype("f4"),
             "label": random.integers(0, 3, rows)} for _ in range(count)]


Weights = dict[str, torch.Tensor]


def tensors(states: dict[str, Any]) -> Weights:
    return {name: torch.tensor(value, requires_grad=True) for name, value in states.items()}


def net(p: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    hidden = torch.tanh(F.linear(x, p[f"{name}.up.weight"], p[f"{name}.up.bias"]))
    return F.linear(hidden, p[f"{name}.down.weight"], p[f"{name}.down.bias"])


def logits(p: Weights, x: Any) -> torch.Tensor:
    hidden = torch.relu(net(p, "body", torch.as_tensor(x)))
    return F.linear(hidden, p["head.weight"], p["head.bias"])


def group(p: Weights, name: str) -> list[torch.Tensor]:
    return [value for path, value in p.items() if path.startswith(f"{name}.")]


def descend(loss: torch.Tensor, p: Weights, by: Sequence[torch.Tensor],
            optimizer: torch.optim.Optimizer, clip: float) -> float:
    for value in p.values():
        value.grad = None
    loss.backward()
    torch.nn.utils.clip_grad_norm_(by, clip)
    optimizer.step()
    return loss.item()


def gan_by_hand(p: Weights, batches: Sequence[Batch]) -> Iterator[tuple[float, float]]:
    """(generator's loss, critic's last) of every step."""
    critic, generator = group(p, "critic"), group(p, "generator")
    settings: dict[str, Any] = {"betas": (0.0, 0.9), "eps": 1e-4}
    of_critic = torch.optim.AdamW(critic, lr=4e-3, **settings)
    of_generator = torch.optim.AdamW(generator, lr=1e-3, **settings)
    for batch in batches:
        images, noise = torch.tensor(batch["images"]), torch.tensor(batch["noise"])
        for _ in range(2):
            fake = net(p, "generator", noise)
            mixed = 0.5 * images + 0.5 * fake
            (slope,) = torch.autograd.grad(net(p, "critic", mixed).sum(), mixed, create_graph=True)
            penalty = ((slope.square().sum(1).sqrt() - 1) ** 2).mean()
            loss = F.softplus(net(p, "critic", fake)).mean() + F.softplus(
                -net(p, "critic", images)).mean() + 0.1 * penalty
            last = descend(loss, p, critic, of_critic, 0.5)
        loss = F.softplus(-net(p, "critic", net(p, "generator", noise))).mean()
        yield descend(loss, p, generator, of_generator, 0.5), last
