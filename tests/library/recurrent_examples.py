"""What runs along an axis, as PyTorch has it: cumulative sums, cells and recurrent layers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from tests.library.example import Called, Example

Tensor = torch.Tensor
Layer = Callable[..., Tensor | tuple[Tensor, ...]]


def flipped(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x.flip(-1)).flip(-1)


def before(function: Callable[[Tensor], Tensor], start: float) -> Callable[[Tensor], Tensor]:
    """Without the place's own element."""
    return lambda x: torch.cat([torch.full_like(x[..., :1], start), function(x)[..., :-1]], -1)


def sums(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def products(x: Tensor) -> Tensor:
    return x.cumprod(-1)


def layer(kind: str, *, reverse: bool = False) -> Layer:
    """The states of all places, and the cells where there are any, place by place with PyTorch's
    cell: x is [..., place, channel], the states before it are [..., channel]."""
    cell = getattr(torch, f"{kind}_cell")
    count = 2 if kind == "lstm" else 1

    def run(x: Tensor, *rest: Tensor) -> Tensor | tuple[Tensor, ...]:
        batch = x.shape[:-2]
        flat = x.reshape(-1, *x.shape[-2:])
        state = tuple(h.reshape(-1, h.shape[-1]) for h in rest[:count])
        found: list[tuple[Tensor, ...]] = []
        places = range(x.shape[-2])
        for t in reversed(places) if reverse else places:
            made = cell(flat[:, t], state if count > 1 else state[0], *rest[count:])
            state = made if count > 1 else (made,)
            found.append(state)
        ordered = found[::-1] if reverse else found
        stacked = tuple(torch.stack([s[n] for s in ordered], 1).reshape(*batch, len(places), -1)
                        for n in range(count))
        return stacked if count > 1 else stacked[0]

    return run


def cell(kind: str) -> Layer:
    """One step, with any dimensions in front."""
    whole = layer(kind)

    def run(x: Tensor, *rest: Tensor) -> Tensor | tuple[Tensor, ...]:
        made = whole(x.unsqueeze(-2), *rest)
        return tuple(m.squeeze(-2) for m in made) if isinstance(made, tuple) else made.squeeze(-2)

    return run


def state_space(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    h, found = torch.zeros_like(a[..., 0, :, :]), []
    for t in range(x.shape[-2]):
        h = a[..., t, :, :] * h + b[..., t, :, :] * x[..., t, :, None]
        found.append((h * c[..., t, None, :]).sum(-1))
    return torch.stack(found, -2)


RECURRENT = [
    Example("running_sum", sums),
    Example("running_sum", flipped(sums), {"I": [3], "N": 4, "reverse": True}),
    Example("running_sum", before(sums, 0), {"I": [], "N": 4, "exclusive": True}),
    Example("running_sum", flipped(before(sums, 0)),
            {"I": [2, 3], "N": 4, "reverse": True, "exclusive": True}),
    Example("running_product", products),
    Example("running_product", products, {"I": [], "N": 5}, {"x": [2, 0, 3, 0, 0.5]}),
    Example("running_product", flipped(before(products, 1)),
            {"I": [2], "N": 4, "reverse": True, "exclusive": True}),
    Example("running_max", lambda x: x.cummax(-1)),
    Example("running_max", lambda x: x.cummax(-1), {"I": [], "N": 6},
            {"x": [-np.inf, 2, 2, np.nan, 5, np.nan]}, kink=True),
    Example("running_min", lambda x: x.cummin(-1)),
    Example("running_logsumexp", lambda x: x.logcumsumexp(-1)),
    Example("running_logsumexp", lambda x: x.logcumsumexp(-1), {"I": [], "N": 4},
            {"x": [-200, 300, 301, -50]}),
    Example("rnn_cell", cell("rnn_tanh")),
    Example("rnn_cell", cell("rnn_relu"), {"I": [2], "K": 3, "H": 4, "activation": "relu"}),
    Example("gru_cell", cell("gru")),
    Example("lstm_cell", cell("lstm")),
    Example("rnn", layer("rnn_tanh")),
    Example("rnn", layer("rnn_relu", reverse=True),
            {"I": [2], "S": 4, "K": 3, "H": 2, "activation": "relu", "reverse": True}),
    Example("gru", layer("gru")),
    Example("gru", layer("gru", reverse=True), {"I": [], "S": 5, "K": 2, "H": 3, "reverse": True}),
    Example("lstm", layer("lstm")),
    Example("lstm", layer("lstm", reverse=True),
            {"I": [2, 2], "S": 3, "K": 2, "H": 3, "reverse": True}),
    Example("ssm", state_space),
]

BOX = {"x": (3, 4, 2)}
ALONG = [
    *(Called(f"{name}(x, {axis})", lambda x, name=name, axis=axis: getattr(torch, name)(x, axis),
             BOX)
      for name in ("cumsum", "cumprod", "logcumsumexp") for axis in (-1, 0, -2)),
    Called("cumsum(x)", lambda x: x.cumsum(0), {"x": (5,)}),
    Called("cumsum(x, 0)", lambda x: x.cumsum(0), {"x": (0, 3)}),
    Called("cumsum(x, 1, reverse=True)", lambda x: x.flip(1).cumsum(1).flip(1), BOX),
    Called("cumsum(x, 1, exclusive=True)", lambda x: x.cumsum(1) - x, BOX),
    Called("cumsum(x, 0, reverse=True, exclusive=True)",
           lambda x: x.flip(0).cumsum(0).flip(0) - x, BOX),
    Called("cumsum(x)", lambda x: x.cumsum(0), {"x": np.array([3, -1, 4])}),
    Called("cumprod(x, 1)", lambda x: x.cumprod(1),
           {"x": np.array([[2, 0, 3], [0, 0, 1]], np.float32)}),
    *(Called(f"{name}(x, 1)[{n}]", lambda x, name=name, n=n: getattr(torch, name)(x, 1)[n], BOX)
      for name in ("cummax", "cummin") for n in (0, 1)),
]
