"""States that take over each other's values: every update sees what was there before the step."""

from __future__ import annotations

import numpy as np
import pytest

import anabranch as ab

PROGRAM = """
model Net():
    w: f32[3, 2] = zeros()
    v: f32[3, 2] = zeros()
    buffer a: f32[4] = constant(value=1)
    buffer b: f32[4] = constant(value=2)
    buffer c: f32[4] = constant(value=3)

    def loss(x: f32[B, 4]) -> f32[]:
        if training:
            {body}
        return sum(w[::-1] * v) + 0 * mean(x)

train Net():
    steps     = 3
    data      = arrays(batch=4)
    optimizer = sgd(lr=1.0)
"""
EXCHANGES = {
    "swap": ("t = a; a := b; b := t", [(2, 1, 3), (1, 2, 3), (2, 1, 3)]),
    "rotate": ("t = a; a := b; b := c; c := t", [(2, 3, 1), (3, 1, 2), (1, 2, 3)]),
    "shift": ("a := b[::-1]; b := c", [(2, 3, 3), (3, 3, 3), (3, 3, 3)]),
    "cross": ("t = a; a := 2 * b; b := 2 * t", [(4, 2, 3), (4, 8, 3), (16, 8, 3)]),
    "sum": ("t = a + b; a := b + t; b := t", [(5, 3, 3), (11, 8, 3), (27, 19, 3)]),
    "new": ("a := 2 * b; b := a", [(4, 4, 3), (8, 8, 3), (16, 16, 3)]),
}
X = {"x": np.zeros((4, 4), np.float32)}


@pytest.mark.parametrize("mesh", [{}, {"data": 2}, {"stage": 2}])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_states_exchange_their_values(exchange: str, mesh: dict[str, int]) -> None:
    body, expected = EXCHANGES[exchange]
    text = PROGRAM.format(body="\n            ".join(body.split("; ")))
    plan = ab.compile(ab.loads(text).train, mesh=ab.Mesh(**mesh), micro=2)
    found = []
    with ab.Session(plan) as session:
        for _ in expected:
            session.step(**X)
            states = session.state_dict()
            found.append(tuple(float(states[name][0]) for name in "abc"))
    assert found == expected


@pytest.mark.parametrize("mesh", [{}, {"data": 2}])
def test_two_weights_whose_gradients_are_each_other(mesh: dict[str, int]) -> None:
    plan = ab.compile(ab.loads(PROGRAM.format(body="pass")).train, mesh=ab.Mesh(**mesh))
    w, v = np.arange(6.0).reshape(3, 2), np.arange(6.0, 12).reshape(3, 2)
    with ab.Session(plan) as session:
        session.load_state_dict({"w": w, "v": v}, strict=False)
        session.step(**X)
        states = session.state_dict()
    np.testing.assert_array_equal(states["w"], w - v[::-1])
    np.testing.assert_array_equal(states["v"], v - w[::-1])
