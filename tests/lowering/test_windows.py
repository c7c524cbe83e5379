"""Sums of products over windows become matrix products, and give what the sums gave."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.driver import Options, compile_function
from anabranch.frontend.program import loads
from anabranch.ir.contraction import matrix_product
from anabranch.ir.core import Module
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Compute
from anabranch.ir.reference import evaluate, round_bf16
from anabranch.ir.rewrite import clone_module
from anabranch.ir.space import clause
from anabranch.lowering.differentiate import differentiate
from anabranch.lowering.simplify import simplify
from anabranch.lowering.windows import copy_windows
from anabranch.runtime.session import Session
from tests.library.example import Example
from tests.library.ops import stepped

CASES = {
    "strided": {"C": 12, "stride": 2, "padding": 1},
    "dense": {"C": 12, "padding": "same"},
    "grouped": {"C": 12, "CI": 24, "groups": 2, "dilation": 2, "O": 32},
}
SIZES = {"B": [3], "CI": 12, "H": 9, "W": 11, "O": 16, "KH": 3, "KW": 3}


def step(name: str, settings: dict[str, object]) -> tuple[Module, tuple[np.ndarray, ...]]:
    """An op with its gradients, simplified."""
    made = stepped(Example(name, lambda *_: None, settings).trial())
    module = differentiate(Module({made.function.name: made.function}))
    return simplify(module), made.arguments


def with_odd_numbers(arguments: tuple[np.ndarray, ...], which: int) -> tuple[np.ndarray, ...]:
    """An infinity of each sign and a nan in one of the arguments."""
    changed = arguments[which].copy()
    flat = changed.reshape(-1)
    flat[[0, flat.size // 2, flat.size - 1]] = np.inf, -np.inf, np.nan
    return (*arguments[:which], changed, *arguments[which + 1:])


def products(module: Module) -> int:
    (function,) = module.functions.values()
    return sum(isinstance(op, Compute) and matrix_product(clause(op)) is not None
               for op in function.body)


@pytest.mark.parametrize("case", CASES)
def test_a_convolution_and_its_gradients_are_three_matrix_products(case: str) -> None:
    module, arguments = step("conv2d", {**SIZES, **CASES[case]})
    expected = [evaluate(f, arguments) for f in module.functions.values()]
    assert products(module) == 0
    copied = copy_windows(clone_module(module))
    assert products(copied) == 3
    actual = [evaluate(f, arguments) for f in copied.functions.values()]
    for ours, theirs in zip(actual[0], expected[0], strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-4, 1e-4)


ODD = {
    "strided": ("conv2d", {**SIZES, **CASES["strided"]}),
    "dense": ("conv2d", {**SIZES, **CASES["dense"]}),
    "grouped": ("conv2d", {**SIZES, **CASES["grouped"]}),
    "pointwise": ("conv2d", {**SIZES, "C": 12, "KH": 1, "KW": 1, "stride": 2}),
    "transposed": ("conv_transpose2d", {**SIZES, "stride": 2, "padding": 1}),
    "transposed, dilated": ("conv_transpose2d", {**SIZES, "dilation": 2, "padding": 1}),
}


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("case", ODD)
def test_what_a_guard_leaves_out_is_not_multiplied_where_numbers_are_infinite(
    case: str, which: int
) -> None:
    module, arguments = step(*ODD[case])
    arguments = with_odd_numbers(arguments, which)
    (function,) = module.functions.values()
    with np.errstate(all="ignore"):
        expected = evaluate(function, arguments)
        (copied,) = copy_windows(clone_module(module)).functions.values()
        found = evaluate(copied, arguments)
    assert any(np.isfinite(value).any() and not np.isfinite(value).all() for value in expected)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-4, 1e-4)


@pytest.mark.parametrize("odd", [False, True])
def test_compiled_convolutions_on_two_ranks_give_what_the_reference_gives(odd: bool) -> None:
    module, arguments = step("conv2d", {**SIZES, **CASES["strided"]})
    arguments = with_odd_numbers(arguments, 1) if odd else arguments
    (function,) = module.functions.values()
    with np.errstate(all="ignore"):
        expected = evaluate(function, arguments)
    for mesh in (Mesh(), Mesh.of(data=2)):
        plan = compile_function(clone_module(module), Options(mesh)).plan
        assert any(kernel.kind == "library" for kernel in plan.kernels)
        given = dict(zip((a.value.name for a in function.arguments), arguments, strict=True))
        with Session(plan) as session:
            found = session.step(function.name, given, 0).values()
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, 1e-3, 1e-4)


def test_sums_keep_their_loops_where_copies_would_not_pay() -> None:
    """Each channel by itself: an element of a copy is read once."""
    module, _ = step("conv2d", {**SIZES, "C": 1, "groups": 12, "O": 12})
    (function,) = module.functions.values()
    before = len(list(function.body))
    copy_windows(module)
    assert len(list(function.body)) == before


MIXED = """
op f(x: T[N, K], w: T[M, K], keep: bool[N, K]) -> T[N, M]:
    y[n, m] = sum[k if keep[n, k]](x[n, k] * w[m, k])
    return y
"""


def test_a_guard_that_reads_is_left_alone() -> None:
    module = loads(MIXED, "f.ab").function("f", {"N": 40, "K": 50, "M": 30})
    (function,) = module.functions.values()
    before = len(list(function.body))
    copy_windows(module)
    assert len(list(function.body)) == before


FACTORS = """
op f(d: f32[B, N, G], h: f32[B, N, K]) -> f32[G, K]:
    y[g, k] = sum[b < B, t < N](BODY)
    return y
"""
LARGE = {"B": 4, "N": 20, "G": 24, "K": 18}


@pytest.mark.parametrize(("body", "count"), [
    ("d[b, t, g] * h[b, t - 1, k, pad=0.5]", 2),
    ("d[b, t + 2, g, pad=0] * h[b, t - 1, k, pad=0]", 3),
    ("d[b, t, g] * h[b, t, k]", 1),
    ("d[b, t, g] * h[b, t + k - 1, 0, pad=0]", 2),
])
def test_a_factor_read_with_a_pad_is_copied(body: str, count: int) -> None:
    """As in the gradient of a recurrence by its weight."""
    module = loads(FACTORS.replace("BODY", body), "f.ab").function("f", LARGE)
    draw = np.random.default_rng(0).normal
    args = [draw(size=(4, 20, 24)), draw(size=(4, 20, 18))]
    (expected,) = evaluate(clone_module(module).functions["f"], args)
    function = copy_windows(simplify(module)).functions["f"]
    (found,) = evaluate(function, args)
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5)
    assert products(module) == 1
    assert sum(isinstance(op, Compute) for op in function.body) == count


TWO = """
op f(d: f32[B, N, G], e: f32[B, N, M], h: f32[B, N, K]) -> (f32[G, K], f32[M, K]):
    y[g, k] = sum[b, t](d[b, t, g] * h[b, t - 1, k, pad=0.5])
    z[m, j] = sum[c, s](e[c, s, m] * h[c, s - 1, j, pad=0.5])
    return y, z
"""


def test_products_that_share_a_factor_share_its_copy() -> None:
    module = copy_windows(loads(TWO, "f.ab").function("f", {**LARGE, "M": 30}))
    (function,) = module.functions.values()
    copies = [op for op in function.body if isinstance(op, Compute) and not op.reduce]
    assert (products(module), len(copies)) == (2, 1)


NARROW = """
op f(x: bf16[B, C, H], w: bf16[O, C, K]) -> bf16[B, O, H]:
    y[b, o, h] = 0.5 * sum[c, k](x[b, c, h + k - 1, pad=PAD] * w[o, c, k])
    return y
"""


@pytest.mark.parametrize("pad", ["0", "3", "k", "h - k", "f16(0.5)"])
def test_sums_of_narrow_floats_are_products_of_wide_ones(pad: str) -> None:
    """Rounded once, as the language says, and not to less than sums of narrow floats."""
    program = loads(NARROW.replace("PAD", pad), "f.ab")
    module = simplify(program.function("f", {"B": 4, "C": 24, "H": 20, "O": 16, "K": 3}))
    (function,) = module.functions.values()
    random = np.random.default_rng(0)
    arguments = tuple(round_bf16(random.normal(size=a.value.type.shape).astype(np.float32))
                      for a in function.arguments)
    (expected,) = evaluate(function, arguments)
    copied = copy_windows(clone_module(module))
    assert products(copied) == 1
    (found,) = evaluate(copied.functions["f"], arguments)
    np.testing.assert_allclose(found, expected, 2**-7, 1e-3)
    assert np.mean(found == expected) > 0.99


PADDED = """
op f(x: T[N, K], w: T[M, K], start: T[N]) -> T[N, M]:
    y[n, m] = sum[k](x[n, k - 1, pad=start[n]] * w[m, k])
    return y
"""


def test_a_pad_that_is_read_is_no_factor() -> None:
    """It is a third read of a product of two; the gradient has such sums too."""
    module = loads(PADDED, "f.ab").function("f", {"N": 40, "K": 50, "M": 30})
    (function,) = module.functions.values()
    draw = np.random.default_rng(0).normal
    arguments = [draw(size=a.value.type.shape) for a in function.arguments]
    x, w, start = arguments
    expected = np.concatenate([start[:, None], x[:, :-1]], 1) @ w.T
    (copied,) = copy_windows(simplify(module)).functions.values()
    np.testing.assert_allclose(evaluate(copied, arguments)[0], expected, 1e-4, 1e-4)
