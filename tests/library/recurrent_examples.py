"""What runs along an axis, as PyTorch has it: cumulative sums, cells and recurrent layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def early_reset(x: Tensor, h: Tensor, *weights: Tensor) -> Tensor:
    """A gated recurrent unit as its authors have it: the reset scales the state."""
    w, u, b, c = (each.chunk(3) for each in weights)
    reset, update = (torch.sigmoid(x @ w[g].T + b[g] + h @ u[g].T + c[g]) for g in (0, 1))
    new = torch.tanh(x @ w[2].T + b[2] + (reset * h) @ u[2].T + c[2])
    return (1 - update) * new + update * h


def seeing(
    x: Tensor, states: tuple[Tensor, Tensor], w: Tensor, u: Tensor, b: Tensor, c: Tensor,
    peephole: Tensor,
) -> tuple[Tensor, Tensor]:
    """A long short-term memory with peepholes (Gers and Schmidhuber 2000)."""
    h, memory = states
    enter, forget, new, leave = (x @ w.T + b + h @ u.T + c).chunk(4, -1)
    kept = torch.sigmoid(forget + peephole[1] * memory) * memory
    made = kept + torch.sigmoid(enter + peephole[0] * memory) * new.tanh()
    return torch.sigmoid(leave + peephole[2] * made) * made.tanh(), made


CELLS = {"rnn_tanh": torch.rnn_tanh_cell, "rnn_relu": torch.rnn_relu_cell, "gru": torch.gru_cell,
         "lstm": torch.lstm_cell, "early reset": early_reset, "peephole lstm": seeing}


def layer(kind: str, *, reverse: bool = False, lengths: Sequence[int] = ()) -> Layer:
    """The states of all places, and the cells where there are any, place by place with PyTorch's
    cell: x is [..., place, channel], the states before it are [..., channel]. Past the end of a
    sequence they stay as they are."""
    cell = CELLS[kind]
    count = 2 if "lstm" in kind else 1

    def run(x: Tensor, *rest: Tensor) -> Tensor | tuple[Tensor, ...]:
        rest = rest[:-1] if lengths else rest
        batch = x.shape[:-2]
        flat = x.reshape(-1, *x.shape[-2:])
        state = tuple(h.reshape(-1, h.shape[-1]) for h in rest[:count])
        found: list[tuple[Tensor, ...]] = []
        places = range(x.shape[-2])
        for t in reversed(places) if reverse else places:
            made = cell(flat[:, t], state if count > 1 else state[0], *rest[count:])
            made = made if count > 1 else (made,)
            here = torch.tensor([t < n for n in lengths or [t + 1] * len(flat)])[:, None]
            state = tuple(torch.where(here, m, s) for m, s in zip(made, state, strict=True))
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


SMALL = {"I": [2], "S": 4, "K": 3, "H": 2}
RAGGED = {"I": [3], "S": 4, "K": 3, "H": 2, "lengths": True}
LENGTHS = [4, 1, 3]

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
    Example("rnn", layer("rnn_tanh", lengths=LENGTHS), RAGGED, {"lengths": LENGTHS}),
    Example("gru", layer("gru", reverse=True, lengths=LENGTHS), {**RAGGED, "reverse": True},
            {"lengths": LENGTHS}),
    Example("lstm", layer("lstm", lengths=LENGTHS), RAGGED, {"lengths": LENGTHS}),
    Example("lstm", layer("peephole lstm", reverse=True, lengths=LENGTHS),
            {**RAGGED, "reverse": True, "peephole": True}, {"lengths": LENGTHS}),
    Example("lstm", layer("peephole lstm"), {**SMALL, "peephole": True}),
    Example("gru", layer("early reset"), {**SMALL, "reset_after": False}),
    Example("gru", layer("early reset", reverse=True),
            {"I": [], "S": 5, "K": 2, "H": 3, "reverse": True, "reset_after": False}),
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
