"""Recurrences beside torch on this machine: an LSTM, forward and with gradients, and running sums.

    python -m benchmarks.recurrences [--repeat 20] [--threads 2]

Ours and torch's take turns, and the least time of each counts. `kernels` are the launches alone,
`step` is a whole step of a session with its arguments and results.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from anabranch.driver import Options, compile_function
from anabranch.frontend.program import loads
from anabranch.gradient_check import gradient_of
from anabranch.ir.core import Module
from anabranch.ir.types import tensor
from anabranch.lowering.simplify import simplify
from anabranch.runtime.session import Session
from benchmarks.kernels import measure

PROGRAM = """
op lstm(x: f32[B, S, I], w: f32[G, I], u: f32[G, H]) -> f32[B, S, H]:
    a[b, t, q, n] = (sum[i](x[b, t, i] * w[(q < 4, n), i])
                     + sum[k](h[b, t - 1, k, pad=0] * u[(q, n), k]))
    c[b, t, n] = (sigmoid(a[b, t, 1, n]) * c[b, t - 1, n, pad=0]
                  + sigmoid(a[b, t, 0, n]) * tanh(a[b, t, 2, n]))
    h[b, t, n] = sigmoid(a[b, t, 3, n]) * tanh(c[b, t, n])
    return h

op lstm_loss(x: f32[B, S, I], w: f32[G, I], u: f32[G, H]) -> f32[]:
    h = lstm(x, w, u)
    total = sum[b, t, n](h[b, t, n] * h[b, t, n])
    return total

op running(x: f32[A, N, C]) -> f32[A, N, C]:
    y[i, n, c] = y[i, n - 1, c, pad=0] + x[i, n, c]
    return y
"""


@dataclass(frozen=True, slots=True)
class Case:
    """An op, or its gradients `by` some arguments, its arguments, and the same in torch."""

    name: str
    op: str
    shapes: dict[str, tuple[int, ...]]
    torch: Callable[..., Any]
    by: tuple[str, ...] = ()


def lstm(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    start = x.new_zeros(1, x.shape[0], u.shape[1])
    train = w.requires_grad
    return torch.lstm(x, (start, start), [w, u], False, 1, 0.0, train, False, True)[0]


def forward(*tensors: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return lstm(*tensors)


def backward(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The gradient by `u`; that by `w` is worked out with it."""
    weights = w.detach().requires_grad_(), u.detach().requires_grad_()
    total = (lstm(x, *weights) ** 2).sum()
    return torch.autograd.grad(total, weights)[1]


def _lstm(batch: int, steps: int, hidden: int) -> Iterator[Case]:
    shapes = {"x": (batch, steps, hidden), "w": (4 * hidden, hidden), "u": (4 * hidden, hidden)}
    name = f"lstm B={batch} T={steps} H={hidden}"
    yield Case(name, "lstm", shapes, forward)
    yield Case(f"{name}, gradients", "lstm_loss", shapes, backward, ("u", "w"))


def _running(*shape: int) -> Case:
    return Case(f"running sums {list(shape)}", "running", {"x": shape},
                lambda x: torch.cumsum(x, 1))


CASES = (*_lstm(8, 128, 128), *_lstm(1, 128, 128), *_lstm(32, 64, 256),
         _running(8, 4096, 64), _running(512, 4096, 1))


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compare(case: Case, repeat: int, threads: int) -> tuple[float, float, float]:
    """Seconds of our launches, of a step of ours, and of torch."""
    random = np.random.default_rng(0)
    arrays = {n: random.normal(size=s).astype(np.float32) / 10 for n, s in case.shapes.items()}
    tensors = [torch.from_numpy(x) for x in arrays.values()]
    module = loads(PROGRAM, "recurrences.ab").function(
        case.op, inputs={name: tensor("f32", x.shape) for name, x in arrays.items()})
    if case.by:
        function = gradient_of(module.functions[case.op], case.by)
        module = simplify(Module({case.op: function}))
    plan = compile_function(module, Options()).plan
    with Session(plan, cores=threads) as session:
        found = next(iter(session.step(case.op, arrays, 0).values()))
        np.testing.assert_allclose(found, case.torch(*tensors).numpy(), 1e-3, 1e-4)
        ours = theirs = kernels = float("inf")
        chains = list(session._engines[case.op]._chains.values())
        flag = session._failure.flag_address
        for _ in range(repeat):
            ours = min(ours, seconds(lambda: session.step(case.op, arrays, 0)))
            theirs = min(theirs, seconds(lambda: case.torch(*tensors)))
            timings = [t for chain in chains for t in measure(plan, chain, 1, flag)]
            kernels = min(kernels, sum(t.seconds for t in timings))
    return kernels, ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    table = Table(title=f"milliseconds, {options.threads} threads")
    for name in ("recurrence", "kernels", "step", "torch", "kernels / torch"):
        table.add_column(name, justify="left" if name == "recurrence" else "right")
    for case in CASES:
        kernels, ours, theirs = compare(case, options.repeat, options.threads)
        table.add_row(case.name, *(f"{1e3 * s:.2f}" for s in (kernels, ours, theirs)),
                      f"{kernels / theirs:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
