"""One small program through every layer: compiled for two ranks, run, compared with the evaluator.

It has a matrix product, a reduction over what is split, a lookup and a random draw, so that kernels
of our own, the library, a transfer and the generator are all used.
"""

from __future__ import annotations

import numpy as np

from anabranch.api import Mesh, compile, loads
from anabranch.ir.reference import evaluate
from anabranch.session import Session

ROWS, INNER, COLUMNS = 37, 24, 50
PROGRAM = """
op scores(x: f32[N, K], w: f32[K, V] @ {ranks: S(1)}, target: i64[N], key: Key) -> f32[N]:
    s[n, v] = sum[k](x[n, k] * w[k, v])
    m[n]    = max[v](s[n, v])
    z[n]    = log(sum[v](exp(s[n, v] - m[n]))) + m[n]
    y[n]    = z[n] - s[n, target[n]] + rand(key)
    return y
"""


def deviation() -> float:
    """The largest difference between what runs and what the program means."""
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, INNER)).astype("f4")
    w = random.normal(size=(INNER, COLUMNS)).astype("f4")
    target = random.integers(0, COLUMNS, ROWS)
    program = loads(PROGRAM, "selftest.ab")
    plan = compile(program.scores, mesh=Mesh(ranks=2), cached=False, x=x, w=w, target=target)
    with Session(plan, seed=0) as session:
        found = session(x=x, w=w, target=target)
    module = program.source.function("scores", {"N": ROWS, "K": INNER, "V": COLUMNS})
    function = module.functions["scores"]
    given = {"x": x, "w": w, "target": target, "step": np.int64(0), "seed": np.int64(0)}
    (expected,) = evaluate(function, [given[a.value.name] for a in function.arguments])
    return float(np.max(np.abs(found - expected)))
