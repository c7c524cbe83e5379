"""A plan that does one transfer on every rank, and what NumPy says must come out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.ir.plan import Plan, Port, Transfer, Use
from anabranch.runtime.arrays import STORAGE
from anabranch.runtime.transport import source_count, target_count
from tests.runtime.hand import Builder

Array = NDArray[Any]


def transfer_plan(parts: list[Transfer]) -> Plan:
    """Feed, transfer, fetch on every rank: input `in_r`, output `out_r` of rank r."""
    b = Builder(len(parts))
    channel = parts[0].op in ("send", "recv")
    b.comm(*range(len(parts)), kind="channel" if channel else "group")
    for rank, part in enumerate(parts):
        io, comm, back = b.stream(rank, "io"), b.stream(rank, "comm"), b.stream(rank, "io")
        feed = b.actor("feed", io, "feed")
        move = b.actor(part.op, comm, "comm")
        fetch = b.actor("fetch", back, "fetch")
        b.sequence(comm, (move, 0))
        given = b.value(f"in_{rank}", source_count(part), dtype=part.dtype)
        taken = b.value(f"out_{rank}", target_count(part), dtype=part.dtype)
        source = b.register(given, feed, Use(move))
        target = b.register(taken, move, Use(fetch))
        b.feeds.append(Port(f"in_{rank}", given, (source,)))
        b.fetches.append(Port(f"out_{rank}", taken, (target,)))
        filled = Transfer(
            part.match, part.op, part.comm, part.member, part.dtype, part.counts,
            source, target, part.reduce, part.counts_back,
        )  # fmt: skip
        b.transfer(move, filled)
    return b.plan()


def inputs(parts: list[Transfer], seed: int) -> dict[str, Array]:
    """Random values for every rank, few enough bits that every order of adding is exact."""
    random = np.random.default_rng(seed)
    return {f"in_{r}": _random(random, p.dtype, source_count(p)) for r, p in enumerate(parts)}


def _random(random: np.random.Generator, dtype: str, count: int) -> Array:
    storage = np.dtype(STORAGE[dtype])
    if dtype == "bf16":
        return random.integers(-8, 8, count).astype(np.float32) / 4
    if storage.kind == "f":
        return (random.integers(-8, 8, count) / 4).astype(storage)
    if storage.kind == "b":
        return random.integers(0, 2, count).astype(bool)
    return random.integers(0, 100, count).astype(storage)


COMBINE = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def expected(parts: list[Transfer], given: dict[str, Array]) -> dict[str, Array]:
    """By whole arrays: cut, reduce, join."""
    sources = [given[f"in_{r}"] for r in range(len(parts))]
    return {f"out_{r}": _expected(parts, sources, r) for r in range(len(parts))}


def _expected(parts: list[Transfer], sources: list[Array], rank: int) -> Array:
    op, own = parts[rank].op, parts[rank]
    if op == "send":
        return sources[0][:0]
    if op == "recv":
        return sources[0]
    if op == "all_gather":
        return np.concatenate(sources)
    if op == "all_to_all":
        cuts = [np.split(s, np.cumsum(p.counts)[:-1]) for s, p in zip(sources, parts, strict=True)]
        return np.concatenate([cut[rank] for cut in cuts])
    total = sources[0]
    for other in sources[1:]:
        total = COMBINE[own.reduce](total, other).astype(total.dtype)
    return total if op == "all_reduce" else np.split(total, np.cumsum(own.counts)[:-1])[rank]


def examples(ranks: int) -> list[list[Transfer]]:
    """Every operation, dtype and reduction once, with uneven and zero counts."""
    uneven = [(3, 0, 2, 5)[i % 4] for i in range(ranks)]
    found = []
    for dtype in STORAGE:
        found.append(_all("all_gather", dtype, uneven))
        found.append(_all("all_gather", dtype, [0] * ranks))
        found.append(_all_to_all(dtype, ranks))
    for dtype in ("f64", "f32", "f16", "bf16", "i64", "i32", "u64", "u32", "u16", "u8", "bool"):
        reductions = ("max", "min") if dtype == "bool" else ("sum", "prod", "max", "min")
        for reduce in reductions:
            found.append(_all("reduce_scatter", dtype, uneven, reduce))
            found.append(_all("all_reduce", dtype, [7], reduce, members=ranks))
    found.append(_all("all_reduce", "f32", [20001], "sum", members=ranks))
    found.append(_all("all_reduce", "f32", [0], "sum", members=ranks))
    return found


def _all(
    op: str, dtype: str, counts: list[int], reduce: str = "", members: int | None = None
) -> list[Transfer]:
    return [
        Transfer(0, op, 0, member, dtype, tuple(counts), reduce=reduce)
        for member in range(members or len(counts))
    ]


def _all_to_all(dtype: str, ranks: int) -> list[Transfer]:
    counts = [[(i + 2 * j) % 3 for j in range(ranks)] for i in range(ranks)]
    back = [[counts[i][j] for i in range(ranks)] for j in range(ranks)]
    return [
        Transfer(0, "all_to_all", 0, i, dtype, tuple(counts[i]), counts_back=tuple(back[i]))
        for i in range(ranks)
    ]


def channel(dtype: str, count: int) -> list[Transfer]:
    return [Transfer(0, op, 0, i, dtype, (count,)) for i, op in enumerate(("send", "recv"))]
