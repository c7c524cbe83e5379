"""Places of values inside a chain."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.lowering.memory import ALIGNMENT, Lifetime, aligned, place

lifetimes = st.lists(
    st.builds(lambda size, first, span: Lifetime(size, first, first + span),
              st.integers(0, 1000), st.integers(0, 20), st.integers(0, 10)), max_size=30)


@given(lifetimes)
def test_values_that_live_together_never_share_a_byte(values: list[Lifetime]) -> None:
    offsets, total = place(values)
    for i, a in enumerate(values):
        assert offsets[i] % ALIGNMENT == 0
        assert offsets[i] + a.nbytes <= total
        for j, b in enumerate(values[:i]):
            meet = a.first <= b.last and b.first <= a.last
            apart = offsets[i] + a.nbytes <= offsets[j] or offsets[j] + b.nbytes <= offsets[i]
            assert apart or not meet or not a.nbytes or not b.nbytes


def test_bytes_are_used_again_when_a_value_is_dead() -> None:
    values = [Lifetime(640, k, k + 1) for k in range(10)]
    _, total = place(values)
    assert total == 2 * aligned(640)
