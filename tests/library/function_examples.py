"""Functions of the library as PyTorch's: reductions, products, places and layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tests.library.example import Called
from tests.library.recurrent_examples import ALONG

X: dict[str, Any] = {"x": (3, 4, 5)}
GAPS = np.array([[1, np.nan, 2], [np.nan, 3, -1], [0, 0, 5]], np.float32)
COUNTS = np.array([[0, 1, 0], [2, 0, 3]])
XY = {"x": (3, 4), "y": (4, 5)}
BATCH = {"m": (2, 3, 5), "x": (2, 3, 4), "y": (2, 4, 5)}


def over(name: str, theirs: Any, more: str = "", **settings: Any) -> list[Called]:
    """A reduction over one axis, several and all, with and without them in the result."""
    found = []
    for axis, keep in [(None, False), (1, True), (-1, False), ((0, 2), False)]:
        call = f"{name}(x, axis={axis}, keepdims={keep}{more})"
        found.append(Called(call, lambda x, axis=axis, keep=keep: theirs(
            x, dim=axis, keepdim=keep, **settings), X))
    return found


REDUCED = [
    *over("amax", torch.amax), *over("amin", torch.amin),
    *over("var", torch.var), *over("var", torch.var, ", correction=0", correction=0),
    *over("std", torch.std), *over("norm", torch.linalg.vector_norm),
    *over("norm", torch.linalg.vector_norm, ", p=1", ord=1),
    *over("norm", torch.linalg.vector_norm, ", p=inf", ord=np.inf),
    *over("norm", torch.linalg.vector_norm, ", p=3", ord=3),
    Called("norm(x, p=0)", lambda x: torch.linalg.vector_norm(x, 0), {"x": GAPS}, kink=True),
    Called("count_nonzero(x, axis=1)", lambda x: x.count_nonzero(1), {"x": COUNTS}),
    Called("nansum(x, axis=0)", lambda x: x.nansum(0), {"x": GAPS}, kink=True),
    Called("nanmean(x, axis=1)", lambda x: x.nanmean(1), {"x": GAPS}, kink=True),
    Called("aminmax(x, axis=1)[1]", lambda x: x.aminmax(dim=1).max, {"x": (3, 4)}),
    Called("var_mean(x, axis=1)[0]", lambda x: torch.var_mean(x, 1)[0], {"x": (3, 4)}),
    Called("std_mean(x, axis=1)[1]", lambda x: torch.std_mean(x, 1)[1], {"x": (3, 4)}),
    Called("logsumexp(x, axis=0)", lambda x: x.logsumexp(0), {"x": (0, 3)}, kink=True),
]

PARTS = np.array([0.1, 0.5, 0.83], np.float32)
ANY: dict[str, Any] = {"x": (4, 5)}
RANKED = [
    Called("kthvalue(x, 2, axis=0)[0]", lambda x: x.kthvalue(2, 0).values, ANY),
    Called("kthvalue(x, 3, keepdims=True)[1]", lambda x: x.kthvalue(3, keepdim=True).indices, ANY),
    Called("median(x)", torch.median, ANY),
    Called("nanmedian(x)", torch.nanmedian, {"x": GAPS}, kink=True),
    *(Called(f"{name}(x, axis=1, keepdims=True)", lambda x, name=name: getattr(torch, name)(
        x, 1, True).values, {"x": x}, kink=x is GAPS)
      for name in ("median", "nanmedian") for x in ((3, 4), GAPS)),
    *(Called(f'{name}(x, q, axis=1, interpolation="{how}")',
             lambda x, q, name=name, how=how: getattr(torch, name)(x, q, 1, interpolation=how),
             {"x": x, "q": PARTS}, kink=True)
      for name, x in (("quantile", (3, 4)), ("nanquantile", GAPS))
      for how in ("linear", "lower", "higher", "midpoint", "nearest")),
    Called("quantile(x, 0.3, keepdims=True)", lambda x: x.quantile(0.3, keepdim=True), ANY),
    Called("quantile(x, 0.3, axis=1)", lambda x: x.quantile(0.3, 1), {"x": GAPS}, kink=True),
]

MULTIPLIED = [
    *(Called("matmul(x, y)", torch.matmul, {"x": x, "y": y}) for x, y in [
        ((4,), (4,)), ((3, 4), (4,)), ((4,), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)),
        ((3, 0), (0, 2))]),
    Called("vecdot(x, y)", torch.linalg.vecdot, {"x": (3, 4), "y": (4,)}),
    Called("inner(x, y)", torch.inner, {"x": (2, 3, 4), "y": (5, 4)}),
    Called("tensordot(x, y)", torch.tensordot, {"x": (2, 3, 4), "y": (3, 4, 5)}),
    Called("tensordot(x, y, [[2, 0], [1, -1]])", lambda x, y: torch.tensordot(
        x, y, ([2, 0], [1, -1])), {"x": (2, 3, 4), "y": (5, 4, 2)}),
    Called("kron(x, y)", torch.kron, {"x": (2, 3), "y": (4,)}),
    Called("cross(x, y, axis=0)", lambda x, y: torch.linalg.cross(x, y, dim=0),
           {"x": (3, 4), "y": (3, 1)}),
    Called("addmm(m, x, y, beta=0.5, alpha=2)", lambda m, x, y: torch.addmm(
        m, x, y, beta=0.5, alpha=2), {"m": (5,), **XY}),
    Called("addmm(m, x, y, beta=0)", lambda m, x, y: torch.addmm(m, x, y, beta=0),
           {"m": np.full((3, 5), np.nan, np.float32), **XY}, kink=True),
    Called("addmv(m, x, y)", torch.addmv, {"m": (3,), "x": (3, 4), "y": (4,)}),
    Called("addr(m, x, y, alpha=3)", lambda m, x, y: torch.addr(m, x, y, alpha=3),
           {"m": (3, 4), "x": (3,), "y": (4,)}),
    Called("baddbmm(m, x, y)", torch.baddbmm, BATCH),
    Called("addbmm(m, x, y)", torch.addbmm, {**BATCH, "m": (3, 5)}),
    *(Called(f"diagonal(x, {k}, 0, 2)", lambda x, k=k: x.diagonal(k, 0, 2), {"x": (3, 2, 5)})
      for k in (0, 3, -1, 7)),
    Called("trace(x)", torch.trace, {"x": (3, 4)}),
    *(Called(f"diag(x, {k})", lambda x, k=k: x.diag(k), {"x": s})
      for k in (0, 2, -1) for s in ((3,), (3, 4))),
    Called("diag_embed(x, 1, 0, 2)", lambda x: torch.diag_embed(x, 1, 0, 2), {"x": (2, 3)}),
]

SUMS = [
    *(Called(f'einsum("{text}", x, y)', lambda x, y, text=text: torch.einsum(text, x, y),
             {"x": x, "y": y}) for text, x, y in [
        ("ij,jk->ik", (3, 4), (4, 5)), ("ij, kj", (3, 4), (5, 4)), ("bij,bjk->", (2, 3, 4),
                                                                     (2, 4, 5)),
        ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2)), ("i,j->ji", (3,), (4,)),
        ("ij,k->k", (3, 4), (5,)), ("iij,j->i", (3, 3, 4), (4,)), (",i", (), (3,)),
        ("ij,ij->ij", (3, 1), (3, 4))]),
    *(Called(f'einsum("{text}", x)', lambda x, text=text: torch.einsum(text, x), {"x": x})
      for text, x in [("ii", (3, 3)), ("ii->i", (3, 3)), ("ba", (2, 3)), ("...a->a...", (2, 3, 4)),
                      ("iji->j", (3, 2, 3)), ("ab->", (2, 0))]),
    Called('einsum("ij,jk,kl->il", x, y, z)',
           lambda x, y, z: torch.einsum("ij,jk,kl->il", x, y, z),
           {"x": (2, 3), "y": (3, 4), "z": (4, 5)}),
    Called("einsum(x, [10, 2])", lambda x: torch.einsum(x, [10, 2]), {"x": XY["x"]}),
    Called("einsum(x, [0, 1], y, [1, 2], [0, 2])",
           lambda x, y: torch.einsum(x, [0, 1], y, [1, 2], [0, 2]), XY),
]

KNOWN = [
    Called("eye(3, 4)", lambda: torch.eye(3, 4), {}),
    Called("full([2, 3], 1.5)", lambda: torch.full((2, 3), 1.5), {}),
    Called("full_like(x, 2)", lambda x: torch.full_like(x, 2), {"x": (2, 3)}),
    Called("zeros_like(x)", torch.zeros_like, {"x": np.array([1, 2])}),
    Called("ones_like(x)", torch.ones_like, {"x": (0, 3)}),
    Called("linspace(-1, 2, 7)", lambda: torch.linspace(-1, 2, 7), {}),
    Called("linspace(-1, 2, 1)", lambda: torch.linspace(-1, 2, 1), {}),
    Called("logspace(0, 2, 5)", lambda: torch.logspace(0, 2, 5), {}),
    Called("arange(7, -3, -2)", lambda: torch.arange(7, -3, -2), {}),
    Called("arange(0, 1, 0.1)", lambda: torch.arange(0, 1, 0.1), {}),
    Called('meshgrid([x, y])[1]', lambda x, y: torch.meshgrid(x, y, indexing="ij")[1],
           {"x": (3,), "y": (4,)}),
    Called('meshgrid([x, y], "xy")[0]', lambda x, y: torch.meshgrid(x, y, indexing="xy")[0],
           {"x": (3,), "y": (4,)}),
]

IDS = np.array([[0, 2, 2], [1, 0, 3]])
ROWS = np.array([2, 0, 2, 1])
BAGS = np.array([0, 0, 2, 2, 2])

PLACED = [
    Called("gather(x, k, axis=0)", lambda x, k: x.gather(0, k), {"x": (4, 3), "k": IDS}),
    Called("gather(x, k, axis=1)", lambda x, k: x.gather(1, k), {"x": (3, 4), "k": IDS}),
    Called("take_along_axis(x, k, axis=0)", lambda x, k: x.take_along_dim(k, 0),
           {"x": (4, 3), "k": IDS[:, :1]}),
    Called("take_along_axis(x, k)", lambda x, k: x.take_along_dim(k), {"x": (4, 3), "k": IDS}),
    Called("scatter(x, k, y, axis=0)", lambda x, k, y: x.scatter(0, k, y),
           {"x": (4, 5), "k": np.array([[0, 2, 1], [1, 0, 3]]), "y": (2, 3)}),
    Called("scatter(x, k, 2.5, axis=1)", lambda x, k: x.scatter(1, k, 2.5),
           {"x": (3, 4), "k": IDS}),
    Called("scatter_add(x, k, y, axis=0)", lambda x, k, y: x.scatter_add(0, k, y),
           {"x": (4, 5), "k": IDS, "y": (2, 3)}),
    *(Called(f'scatter_reduce(x, k, y, 1, "{ours}", {own})',
             lambda x, k, y, theirs=theirs, own=own: x.scatter_reduce(
                 1, k, y, theirs, include_self=own), {"x": (3, 5), "k": IDS, "y": (2, 3)})
      for ours, theirs in [("sum", "sum"), ("prod", "prod"), ("max", "amax"), ("min", "amin")]
      for own in (True, False)),
    Called("index_select(x, k, axis=1)", lambda x, k: x.index_select(1, k),
           {"x": (2, 3, 4), "k": ROWS}),
    Called("index_add(x, k, y, axis=0, alpha=-2)", lambda x, k, y: x.index_add(0, k, y, alpha=-2),
           {"x": np.uint8([3, 250]), "k": np.array([1, 1]), "y": np.uint8([3, 200])}),
    Called("index_add(x, k, y, axis=1, alpha=2)", lambda x, k, y: x.index_add(1, k, y, alpha=2),
           {"x": (2, 3, 4), "k": ROWS, "y": (2, 4, 4)}),
    Called("index_copy(x, k, y, axis=0)", lambda x, k, y: x.index_copy(0, k, y),
           {"x": (4, 3), "k": np.array([2, 0]), "y": (2, 3)}),
    Called("index_fill(x, k, 3, axis=0)", lambda x, k: x.index_fill(0, k, 3),
           {"x": (4, 3), "k": ROWS}),
    Called("take(x, k)", torch.take, {"x": (4, 3), "k": IDS}),
    Called("masked_fill(x, x > 0, -1)", lambda x: x.masked_fill(x > 0, -1), {"x": (3, 4)}),
    Called("embedding(k, x, padding=2)", lambda k, x: F.embedding(k, x, 2),
           {"k": IDS, "x": (4, 3)}, kink=True),
    *(Called(f'embedding_bag(k, x, b, 3, "{mode}")', lambda k, x, b, mode=mode: F.embedding_bag(
        k, x, torch.tensor([0, 2, 2]), mode=mode),
             {"k": np.array([0, 3, 1, 1, 2]), "x": (4, 3), "b": BAGS})
      for mode in ("sum", "mean", "max")),
    *(Called(f'embedding_bag(k, x, b, 3, "{mode}", padding=1)',
             lambda k, x, b, mode=mode: F.embedding_bag(
                 k, x, torch.tensor([0, 2, 2]), mode=mode, padding_idx=1),
             {"k": np.array([0, 3, 1, 1, 2]), "x": (4, 3), "b": BAGS}, kink=True)
      for mode in ("sum", "mean", "max")),
    Called("bag_ids(k, 5)", lambda k: torch.tensor(BAGS), {"k": np.array([0, 2, 2])}),
    Called("bincount(k, 5)", lambda k: torch.bincount(k, minlength=5), {"k": ROWS}),
    Called("bincount(k, 5, x)", lambda k, x: torch.bincount(k, x.detach(), 5),
           {"k": ROWS, "x": (4,)}, kink=True),
    Called("searchsorted(s, x)", torch.searchsorted,
           {"s": np.array([-1, 0, 0.5, 0.5, 2], np.float32), "x": (3, 4)}),
    Called("searchsorted(s, x, right=True)", lambda s, x: torch.searchsorted(s, x, right=True),
           {"s": np.array([[1, 3, 5], [2, 2, 4]]), "x": np.array([[3, 0, 9], [2, 4, 3]])}),
    *(Called(f"max_pool_with_places(x, 2, 3, 2, 1, {dilation}, True)[{n}]",
             lambda x, d=dilation, n=n: F.max_pool2d(x, 3, 2, 1, d, True, return_indices=True)[n],
             {"x": (2, 2, 7, 6)}) for dilation in (1, 2) for n in (0, 1)),
    Called("max_pool_with_places(x, 1, 3)[1]",
           lambda x: F.max_pool1d(x, 3, return_indices=True)[1],
           {"x": np.array([[1, 3, 3, -np.inf, -np.inf, -np.inf]], np.float32)}, kink=True),
    Called("max_pool_with_places(x, 3, 2)[1]",
           lambda x: F.max_pool3d(x, 2, return_indices=True)[1], {"x": (2, 4, 2, 5)}),
    Called("max_unpool(x, k, [4, 4])", lambda x, k: F.max_unpool2d(x, k, 2),
           {"x": (1, 2, 2, 2), "k": np.array([[[[0, 3], [9, 14]], [[5, 2], [8, 11]]]])}),
    Called("bucketize(x, s)", torch.bucketize,
           {"x": (3, 4), "s": np.array([-1, 0, 0.5], np.float32)}),
]

GRID = np.random.default_rng(1).uniform(-1.6, 1.6, (2, 3, 4, 2)).astype(np.float32)
LAID = [
    Called("permute(x, [2, 0, -2])", lambda x: x.permute(2, 0, 1), X),
    Called("swapaxes(x, 0, -1)", lambda x: x.swapaxes(0, -1), X),
    Called("movedim(x, 0, -1)", lambda x: x.movedim(0, -1), X),
    Called("movedim(x, [0, 2], [1, 0])", lambda x: x.movedim((0, 2), (1, 0)), X),
    *(Called(f"rot90(x, {k}, [2, 0])", lambda x, k=k: x.rot90(k, (2, 0)), X)
      for k in range(-1, 3)),
    Called("fliplr(x)", torch.fliplr, X), Called("flipud(x)", torch.flipud, X),
    Called("flatten(x)", torch.flatten, X), Called("flatten(x)", torch.flatten, {"x": ()}),
    Called("flatten(x, 1, -1)", lambda x: x.flatten(1, -1), X),
    Called("unflatten(x, 1, [2, -1])", lambda x: x.unflatten(1, (2, -1)), X),
    Called("squeeze(x)", torch.squeeze, {"x": (1, 3, 1)}),
    Called("squeeze(x, [0, 1])", lambda x: x.squeeze((0, 1)), {"x": (1, 3, 1)}),
    Called("unsqueeze(x, -1)", lambda x: x.unsqueeze(-1), X),
    *(Called(f"atleast_{n}d(x)", getattr(torch, f"atleast_{n}d"), {"x": s})
      for n in (1, 2, 3) for s in ((), (3,), (3, 4))),
    Called("interpolate(x, scale=2)", lambda x: F.interpolate(x, scale_factor=2),
           {"x": (2, 3, 4, 3)}),
    *(Called(f'interpolate(x, {size}, {scale}, "{mode}", antialias=True)',
             lambda x, size=size, scale=scale, mode=mode: F.interpolate(
                 x, size, scale, mode, antialias=True), {"x": (1, 2, 7, 5)})
      for mode in ("bilinear", "bicubic") for size, scale in (([3, 8], None), (None, 0.6))),
    *(Called(f'grid_sample(x, g, "{mode}", "{padding}", {corners})',
             lambda x, g, a=(mode, padding, corners): F.grid_sample(x, g, *a),
             {"x": (2, 2, 4, 5), "g": GRID})
      for mode in ("bilinear", "nearest", "bicubic")
      for padding in ("zeros", "border", "reflection") for corners in (True, False)),
    *(Called(f'grid_sample(x, g, "{mode}", "reflection")',
             lambda x, g, mode=mode: F.grid_sample(x, g, mode, "reflection", False),
             {"x": (1, 2, 4, 5, 3), "g": (1, 2, 3, 2, 3)}) for mode in ("bilinear", "nearest")),
    *(Called(f"affine_grid(t, {size}, {corners})",
             lambda t, size=size, c=corners: F.affine_grid(t, (2, 1, *size), c),
             {"t": (2, len(size), len(size) + 1)})
      for size in ([3, 4], [2, 3, 4]) for corners in (True, False)),
    Called("weight_norm(v, g)", lambda v, g: torch._weight_norm(v, g), {"v": (3, 4), "g": (3, 1)}),
    Called("narrow(x, 1, -3, 2)", lambda x: x.narrow(1, -3, 2), X),
    Called("select(x, 1, -2)", lambda x: x.select(1, -2), X),
    Called("slice(x, 2, 1, 5, 2)", lambda x: x[:, :, 1:5:2], X),
    *(Called(f"chunk(x, {n}, 2)[-1]", lambda x, n=n: x.chunk(n, 2)[-1], X) for n in (1, 2, 4, 9)),
    Called("split_every(x, 2, 2)[2]", lambda x: x.split(2, 2)[2], X),
    Called("tensor_split(x, 3, 2)[1]", lambda x: x.tensor_split(3, 2)[1], X),
    Called("tensor_split(x, [1, 3, 2], 2)[2]", lambda x: x.tensor_split((1, 3, 2), 2)[2], X),
    *(Called(f"{name}([x, y])", lambda x, y, name=name: getattr(torch, name)((x, y)),
             {"x": s, "y": s}) for name in ("hstack", "vstack", "dstack", "column_stack")
      for s in ((), (3,), (3, 4))),
    Called("broadcast_to(x, [2, 3, 4])", lambda x: x.broadcast_to(2, 3, 4), {"x": (3, 1)}),
    *(Called(f"repeat(x, {list(n)})", lambda x, n=n: x.repeat(n), {"x": (3, 2)})
      for n in ((2, 3), (2, 1, 4), (0, 2))),
    Called("tile(x, 2)", lambda x: x.tile(2), {"x": (3, 2)}),
    Called("tile(x, [3, 1, 2])", lambda x: x.tile(3, 1, 2), {"x": (3, 2)}),
    Called("repeat_interleave(x, 3)", lambda x: x.repeat_interleave(3), {"x": (3, 2)}),
    Called("repeat_interleave(x, [2, 0, 1], 0)", lambda x: x.repeat_interleave(
        torch.tensor([2, 0, 1]), 0), {"x": (3, 2)}),
    Called("repeat_interleave(x, 2, 1)", lambda x: x.repeat_interleave(2, 1), {"x": (3, 2)}),
    Called("roll(x, 3)", lambda x: x.roll(3), X),
    Called("roll(x, [1, -7], [0, 2])", lambda x: x.roll((1, -7), (0, 2)), X),
    Called("roll(x, [1, 2], [-1, -1])", lambda x: x.roll((1, 2), (-1, -1)), X),
    Called("roll(x, 1, 0)", lambda x: x.roll(1, 0), {"x": (0, 3)}),
    Called("unfold(x, 1, 2, 1)", lambda x: x.unfold(1, 2, 1), X),
    Called("unfold(x, -1, 3, 2)", lambda x: x.unfold(-1, 3, 2), X),
    *(Called(f'pad(x, [[0, 0], [1, 2], [3, 0]], mode="{mode}")',
             lambda x, mode=mode: F.pad(x, (3, 0, 1, 2), mode), X)
      for mode in ("reflect", "replicate", "circular")),
    *(Called(f'pad(x, [[0, 0], [-2, 1], [1, -2]], 0.5, "{mode}")',
             lambda x, mode=mode: F.pad(x, (1, -2, -2, 1), mode), X)
      for mode in ("reflect", "replicate", "circular")),
    Called("pad(x, [[0, 0], [-2, 1], [1, -2]], 0.5)",
           lambda x: F.pad(x, (1, -2, -2, 1), value=0.5), X),
    Called("pad(x, [[0, 0], [1, 2], [3, 0]], 0.5)",
           lambda x: F.pad(x, (3, 0, 1, 2), value=0.5), X),
]

DIVIDED = [
    Called(f"div(x, y, {mode!r})", lambda x, y, mode=mode: torch.div(x, y, rounding_mode=mode),
           {"x": (3, 4), "y": np.array([0.5, -2, 3, -0.7], np.float32)}, kink=mode is not None)
    for mode in (None, "floor", "trunc")
]

GROUPS = {"reduced": REDUCED, "ranked": RANKED, "multiplied": [*MULTIPLIED, *SUMS],
          "known": [*KNOWN, *DIVIDED], "placed": PLACED, "laid": LAID, "along": ALONG}
FUNCTIONS = [example for group in GROUPS.values() for example in group]
