"""Run a definition of a program on arrays, with the reference evaluator."""

from __future__ import annotations

import textwrap

import numpy as np

from anabranch.frontend.program import Program, loads
from anabranch.ir.reference import evaluate
from anabranch.ir.types import tensor
from anabranch.ir.verifier import verify

DTYPES = {
    "float32": "f32", "float64": "f64", "float16": "f16", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "bool",
}


def program(text: str) -> Program:
    """A program from indented text."""
    return loads(textwrap.dedent(text), "test.ab")


def module_of(source, name, arrays, **options):
    inputs = {k: tensor(DTYPES[str(v.dtype)], v.shape) for k, v in arrays.items()}
    module = source.function(name, options.pop("sizes", {}), inputs=inputs, **options)
    verify(module)
    return module


def call(source, name, *, sizes=None, model=None, training=False, states=None, step=0, seed=0,
         **arrays):
    """The results of `name` on these arrays; one result stands alone."""
    arrays = {k: np.asarray(v) for k, v in arrays.items()}
    module = module_of(source, name, arrays, sizes=sizes or {}, model=model, training=training)
    function = module.functions[name.rsplit(".", 1)[-1]]
    given = {**arrays, **(states or {}), "step": np.int64(step), "seed": np.int64(seed)}
    results = evaluate(function, [given[a.value.name] for a in function.arguments])
    return results[0] if len(results) == 1 else results
