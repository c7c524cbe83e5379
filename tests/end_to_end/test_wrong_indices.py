"""An index outside of its table is told by the names that the program has for the two."""

from __future__ import annotations

import numpy as np
import pytest

import anabranch as ab
from anabranch.runtime.errors import RunError

PROGRAM = """
model Net(words: int, dim: int):
    table: f32[words, dim] = normal()

    def loss(tokens: i64[B, S], label: i64[B]) -> f32[]:
        following = tokens + 1
        rows = table[following]
        return cross_entropy(mean(rows, axis=1) @ table.T, label)

train Net(words=10, dim=4):
    steps = 1
    data = arrays(batch=4)
    optimizer = sgd(lr=0.1)
"""
OUTSIDE = "error: index 10 is outside 0..9:"
TOKENS = f"7:9: {OUTSIDE} 'following' holds places along dimension 0 of 'table'"
LABEL = f"8:9: {OUTSIDE} 'label' holds places along a dimension of size 10"


@pytest.mark.parametrize("mesh", [{}, {"data": 2}, {"model": 2}], ids=["whole", "data", "model"])
@pytest.mark.parametrize(("token", "label", "told"), [(9, 9, TOKENS), (8, 10, LABEL)],
                         ids=["tokens", "label"])
def test_an_index_out_of_range_names_what_holds_it_and_the_table(
    mesh: dict[str, int], token: int, label: int, told: str
) -> None:
    plan = ab.compile(ab.loads(PROGRAM).train, mesh=ab.Mesh(**mesh), set={"S": 3, "micro": 2})
    tokens, labels = np.zeros((4, 3), np.int64), np.zeros(4, np.int64)
    tokens[3, 2], labels[3] = token, label
    with ab.Session(plan) as session, pytest.raises(RunError) as failure:
        session.step(tokens=tokens, label=labels)
    lines = str(failure.value).splitlines()
    assert told in lines[0]
    where = [f"note: in step 0, micro-batch 1, on rank {rank}" for rank in range(plan.ranks)]
    assert lines[-1] in where
