"""Transfers between threads against whole arrays."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.ir.plan import Transfer
from anabranch.runtime.session import Session
from tests.runtime.collectives import channel, examples, expected, inputs, transfer_plan


def name(parts: list[Transfer]) -> str:
    first = parts[0]
    return f"{first.op}-{first.dtype}-{first.reduce}-{len(parts)}-{sum(first.counts)}"


@pytest.mark.parametrize(
    "parts",
    [*examples(1), *examples(2), *examples(3), *[channel("f32", n) for n in (0, 5)]],
    ids=name,
)
def test_a_transfer_gives_what_whole_arrays_give(parts: list[Transfer]) -> None:
    given = inputs(parts, seed=1)
    with Session(transfer_plan(parts)) as session:
        got = session.step("train", given)
    for key, value in expected(parts, given).items():
        np.testing.assert_array_equal(got[key], value, strict=parts[0].dtype != "bf16")


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("reduce", ["sum", "max", "min", "prod"])
def test_a_reduction_keeps_nan_whoever_has_it(dtype: str, reduce: str) -> None:
    for holder in range(3):
        parts = [Transfer(0, "all_reduce", 0, i, dtype, (6,), reduce=reduce) for i in range(3)]
        given = {f"in_{r}": np.ones(6, np.float32) for r in range(3)}
        given[f"in_{holder}"][4] = np.nan
        with Session(transfer_plan(parts)) as session:
            got = session.step("train", given)
        for rank in range(3):
            assert np.isnan(got[f"out_{rank}"]).tolist() == [False] * 4 + [True, False]


def test_short_floats_are_summed_in_f32_and_rounded_once() -> None:
    """256 + 1 + 1: in bf16 each 1 alone would be lost."""
    parts = [Transfer(0, "all_reduce", 0, i, "bf16", (1,), reduce="sum") for i in range(3)]
    given = {f"in_{r}": np.full(1, x, np.float32) for r, x in enumerate((256, 1, 1))}
    with Session(transfer_plan(parts)) as session:
        assert session.step("train", given)["out_0"].tolist() == [258]
