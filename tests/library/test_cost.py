"""Operations of the library's ops, counted by hand.

The counts are of the statements that run. `I` is the product of what a pack stands for; a division
or a root is 4 operations, an exponential or a logarithm 16, a tanh or an erf 20, a draw 40.
"""

from __future__ import annotations

import pytest
import sympy

from anabranch.ir.core import Module
from anabranch.ir.ops import Compute
from anabranch.ir.rewrite import clone_module
from anabranch.lowering.cost import symbolic
from anabranch.lowering.differentiate import differentiate
from anabranch.lowering.simplify import simplify
from anabranch.trials import Trial
from tests.library.ops import stepped, trial

COUNTS = {
    # products: a multiplication and an addition for each term
    "bmm": "2*b*m*n*k",
    "dot": "2*n",
    "outer": "m*n",
    "linear": "I*n*(2*k + 1)",
    "bilinear": "I*n*(3*k*l + 1)",
    "conv1d": "2*n0*n1*o*l*c*k",
    "conv2d": "2*n0*o*h*v*c*i*j",
    # scores, scaled; their maximum; exponentials, summed and divided; values, weighted
    "attention": "b*g*i*j*(2*d + 4) + b*h*i*j*(1 + 17) + b*h*i*j*(1 + 4) + b*g*i*c*2*j",
    # the same, with a test `j <= i` at the maximum and in a `where`
    "causal_attention": "b*g*i*j*(2*d + 4) + b*h*i*j*(2 + 19) + b*h*i*j*(1 + 4) + b*g*i*c*2*j",
    # rows
    "softmax": "I*n*(1 + 17) + I*k + I*n*4",
    "log_softmax": "I*n*(1 + 18) + I*16 + 2*I*n",
    "layer_norm": "I*(n + 4) + I*(2*n + 4) + 2*I*n + I*(2*n + 4) + I*n*(1 + 4 + 4)",
    "rms_norm": "I*(2*n + 4 + 1 + 4) + I*n",
    "normalize": "i*j*2*k + i*j*(2 + 4) + I*n*(1 + 4)",
    # losses: what is ignored is tested where it would be read, summed and counted; a mean divides
    "cross_entropy": "I*v*(1 + 18) + I*17 + I*(1 + 1) + I*(1 + 1 + 1) + I*(1 + 1) + 4",
    "nll": "I*(1 + 1) + I*(1 + 1 + 1) + I*(1 + 1) + 4",
    "mse": "3*i*j + 4",
    "l1": "3*i*j + 4",
    # places: nothing is computed, or one sum for each element that is read
    "embedding": "0",
    "upsample": "0",
    "pixel_shuffle": "0",
    "segment_sum": "n + I*n",  # places are checked
    "one_hot": "I + I*c",
    "max_pool1d": "I*n*j",
    "avg_pool1d": "I*n*(j + 4)",
    # elements, of a matrix
    "square": "i*j",
    "lerp": "i*j*(1 + 1 + 1 + 2 + 3)",  # a test and a choice; b - a once; from a, or from b
    "relu": "2*i*j",
    "gelu": "i*j*(1 + 1 + 20 + 4 + 1)",
    "sigmoid": "i*j*(1 + 16 + 1 + 4)",
    "dropout": "I*(40 + 1 + 1 + 4)",
    "uniform": "I*(40 + 1 + 1)",
}

# With gradients: each product has two more, of the same size.
STEPS = {
    "bmm": "3*2*b*m*n*k",
    "dot": "2*n + 2*n",
    "linear": "3*2*I*n*k + I*n + I*n",
}


def simple(of: Trial) -> list[Compute]:
    """The statements of a trial as they run."""
    module = clone_module(Module({"f": of.function}))
    function = simplify(differentiate(module)).functions["f"]
    return [op for op in function.body if isinstance(op, Compute)]


def counted(formula: str) -> sympy.Expr:
    """What is counted by hand, in the names of the op's own indices."""
    names = {name: symbol(name) for name in [*"bcdghijklmnov", "n0", "n1"]}
    return sympy.sympify(formula, locals={**names, "I": symbol("i0") * symbol("i1")})


def symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, positive=True, integer=True)


def derived(of: Trial) -> sympy.Expr:
    return sympy.Add(*(symbolic(op).flops for op in simple(of)))


@pytest.mark.parametrize("name", COUNTS)
def test_operations_are_those_counted_by_hand(name: str) -> None:
    found = derived(trial(name))
    assert sympy.expand(found - counted(COUNTS[name])) == 0, found


@pytest.mark.parametrize("name", STEPS)
def test_operations_of_gradients_are_those_counted_by_hand(name: str) -> None:
    found = derived(stepped(trial(name)))
    assert sympy.expand(found - counted(STEPS[name])) == 0, found
