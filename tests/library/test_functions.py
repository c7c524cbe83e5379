"""What the library has beside ops: clipping, schedules, and initialisers by the statistics of their
draws; and that nothing is untried."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

from anabranch.frontend import syntax as s
from anabranch.ir.core import Module
from anabranch.ir.diagnostics import UserError
from anabranch.ir.reference import evaluate
from anabranch.lowering.differentiate import differentiate
from anabranch.trials import Trial
from tests.frontend.running import call, module_of, program
from tests.library.function_examples import FUNCTIONS
from tests.library.ops import DEFS, MODELS, OPS, defined, library, stepped


def test_the_norm_of_zeros_has_gradient_zero() -> None:
    zeros = np.zeros((2, 3, 4), np.float32)
    source = program("def f(x: f32[A, B, C]):\n    return norm(x, axis=1)\n")
    step = stepped(Trial(module_of(source, "f", {"x": zeros}).functions["f"], (zeros,), {}))
    differentiate(Module({"f": step.function}))
    value, gradient = evaluate(step.function, step.arguments)
    assert not value.any()
    assert not gradient.any()


def test_the_logarithm_of_a_sum_of_zeros_is_minus_infinity() -> None:
    low = call(program("def f(x: f32[A, B, C]):\n    return logsumexp(x, axis=-1)\n"), "f",
               x=np.full((2, 3, 4), -np.inf, np.float32))
    assert (low == -np.inf).all()


@pytest.mark.parametrize("right", [False, True])
def test_nan_is_sorted_behind_every_number(right: bool) -> None:
    """As NumPy has it, and PyTorch where the sorted numbers have none."""
    s = np.array([1, 2, 2, 3, np.nan, np.nan], np.float32)
    x = np.array([[np.nan, 2, -np.inf], [np.inf, -1, 3]], np.float32)
    text = "def f(s: f32[N], x: f32[A, B]):\n    return searchsorted(s, x, right={})\n"
    found = call(program(text.format(right)), "f", s=s, x=x)
    np.testing.assert_array_equal(found, np.searchsorted(s, x, "right" if right else "left"))


BIG = np.full((1, 8), 30000, np.float16)
ZEROS = np.zeros(8, np.int64)
WIDE: dict[str, float] = {
    "var(x / 300 * s)": 11432, "std(x / 300 * s)": 106.9, "logsumexp(x[:, :1] * zeros)": 11.156,
    "nanmean(x)": 30000, "segment_mean(x[0], k, 1)": 30000, "embedding_bag(k, x, bags, 1)": 30000,
    "nll(-x[:, :4], k[:1], w)": 30000, "avg_pool1d(x, 4, ceil=True)": 30000,
    "cosine_similarity(x, x)": 1, "lp_pool1d(x / 30, 2.0, 4)": 2000,
    "vector_length(x / 200)": 424.26, "pairwise_distance(x / 200, 0 * x)": 424.26,
    "attention(x[None, None], x[None, None], x[None, None])": 30000,
}


@pytest.mark.parametrize("call_", WIDE)
def test_sums_in_between_hold_what_half_precision_cannot(call_: str) -> None:
    """Of numbers and with a result that f16 holds, although their sum is more than that."""
    given = {"x": BIG, "s": np.tile([1, -1], 4).astype(np.float16), "k": ZEROS, "bags": ZEROS,
             "w": np.full(4, 3, np.float16), "zeros": np.zeros((70000, 1), np.float16)}
    types = "x: f16[A, N], s: f16[N], k: i64[N], bags: i64[N], w: f16[V], zeros: f16[M, L]"
    found = call(program(f"def f({types}):\n    return {call_}\n"), "f", **given)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found.astype(np.float64), WIDE[call_], 2e-3)


CLIPPED = """
def f(a: f32[N], b: f32[M, K]) -> f32[N], f32[M, K]:
    x, y = {call}
    return x, y
"""


@pytest.mark.parametrize("limit", [0.5, 100.0])
@pytest.mark.parametrize(("name", "theirs"), [
    ("clip_by_norm", torch.nn.utils.clip_grad_norm_),
    ("clip_by_value", torch.nn.utils.clip_grad_value_),
])
def test_gradients_are_clipped_as_in_pytorch(
    name: str, theirs: Callable[..., object], limit: float
) -> None:
    random = np.random.default_rng(1)
    a, b = (random.normal(size=shape).astype(np.float32) for shape in [(5,), (2, 3)])
    parameters = [torch.nn.Parameter(torch.zeros(x.shape)) for x in (a, b)]
    for parameter, x in zip(parameters, (a, b), strict=True):
        parameter.grad = torch.from_numpy(x.copy())
    theirs(parameters, limit)
    ours = call(program(CLIPPED.format(call=f"{name}([a, b], {limit})")), "f", a=a, b=b)
    for x, parameter in zip(ours, parameters, strict=True):
        np.testing.assert_allclose(x, parameter.grad.numpy(), 1e-5)


def lifted(step: int, warmup: int) -> float:
    return min(1.0, (step + 1) / warmup)


def fraction(step: int, warmup: int, total: int) -> float:
    return min(1.0, max(0.0, (step - warmup) / (total - warmup)))


def one_cycle(peak: float, total: int) -> list[float]:
    """Rates as PyTorch's scheduler has them."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=total)
    rates = []
    for n in range(total):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        if n < total - 1:
            schedule.step()
    return rates


SCHEDULES: dict[str, Callable[[int], float]] = {
    "warmup(peak=0.5, steps=4)": lambda n: 0.5 * lifted(n, 4),
    "progress(4, 10)": lambda n: fraction(n, 4, 10),
    "linear_decay(peak=0.5, warmup=4, total=10, floor=0.1)":
        lambda n: 0.5 * lifted(n, 4) if n < 4 else 0.5 - 0.4 * fraction(n, 4, 10),
    "cosine(peak=0.5, warmup=4, total=10, floor=0.1)":
        lambda n: 0.5 * lifted(n, 4) if n < 4
        else 0.3 + 0.2 * math.cos(math.pi * fraction(n, 4, 10)),
    "exponential(peak=0.5, warmup=4, total=10, floor=0.05)":
        lambda n: 0.5 * lifted(n, 4) if n < 4 else 0.5 * 0.1 ** fraction(n, 4, 10),
    "inverse_sqrt(peak=0.5, warmup=4)":
        lambda n: 0.5 * lifted(n, 4) if n < 4 else 0.5 * (4 / (n + 1)) ** 0.5,
    "warmed(step_decay(0.5, 5), 4)": lambda n: 0.5 * 0.1 ** (n // 5) * lifted(n, 4),
    "step_decay(0.5, every=3, factor=0.5)": lambda n: 0.5 * 0.5 ** (n // 3),
    "multi_step(0.5, [3, 7])": lambda n: 0.5 * 0.1 ** ((n >= 3) + (n >= 7)),
    "exponential_decay(0.5, 0.9)": lambda n: 0.5 * 0.9 ** n,
    "polynomial(0.5, total=10, power=2.0)": lambda n: 0.5 * (1 - min(n, 10) / 10) ** 2,
    "cosine_restarts(0.5, period=5, floor=0.1)":
        lambda n: 0.3 + 0.2 * math.cos(math.pi * (n % 5) / 5),
    "one_cycle(0.5, total=13)": lambda n: one_cycle(0.5, 13)[n],
    "cosine(peak=1.0, warmup=0, total=0)": lambda n: 1.0 if n == 0 else 0.0,
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_gives_a_number_for_every_step(schedule: str) -> None:
    source = program(f"def f() -> f32[]:\n    return f32({schedule})\n")
    for step in range(13):
        expected = SCHEDULES[schedule](step)
        assert call(source, "f", step=step) == pytest.approx(expected, rel=1e-5, abs=1e-7)


SHAPE = [300, 40, 3]
FAN_IN, FAN_OUT = 40 * 3, 300 * 3
VARIANCES: dict[str, float] = {
    "normal": 1.0,
    "normal(std=0.02)": 0.02 ** 2,
    "uniform": 1 / 3,
    "uniform(bound=2.0)": 4 / 3,
    "kaiming_normal": 2 / FAN_IN,
    "kaiming_normal(slope=1.0)": 1 / FAN_IN,
    'kaiming_normal(mode="fan_out")': 2 / FAN_OUT,
    "xavier_normal(gain=2.0)": 8 / (FAN_IN + FAN_OUT),
    "trunc_normal": 0.7737,
    "trunc_normal(std=0.5, low=-1.0, high=1.0)": 0.25 * 0.7737,
    "kaiming_uniform": 1 / (3 * FAN_IN),
    "xavier_normal": 2 / (FAN_IN + FAN_OUT),
    "xavier_uniform": 2 / (FAN_IN + FAN_OUT),
}


@pytest.mark.parametrize("initialiser", VARIANCES)
def test_draws_have_the_variance_of_their_initialiser(initialiser: str) -> None:
    name, _, more = initialiser.rstrip(")").partition("(")
    arguments = ", ".join(filter(None, [str(SHAPE), more]))
    drawn = call(program(f"def f() -> f32{SHAPE}:\n    return {name}({arguments})\n"), "f")
    assert drawn.var() == pytest.approx(VARIANCES[initialiser], rel=0.03)
    assert drawn.mean() == pytest.approx(0, abs=0.02 * float(drawn.std()))
    if "uniform" in name:
        assert np.abs(drawn).max() <= (3 * VARIANCES[initialiser]) ** 0.5 * 1.0001


def test_constants_are_constant() -> None:
    for name, sizes, value in [("zeros", {}, 0), ("ones", {}, 1), ("constant", {"value": 2}, 2)]:
        made = call(library(), name, sizes={"shape": [2, 3], **sizes})
        np.testing.assert_array_equal(made, np.full((2, 3), value, np.float32))


REFUSED: dict[str, str] = {
    "split(x, 0)": "fewer than one part",
    "chunk(x, 0)": "one chunk at least",
    "split_every(x, 0)": "one place at least",
    "split(x, [3, 2])": "do not add up to axis 0",
    "reshape(x, [7])": "12 elements and cannot take the shape [7]",
    "sum(x, axis=2)": "axis 2 of a tensor of rank 2",
    "movedim(x, 0, 5)": "axis 5 of a tensor of rank 2",
    "pad(x, [[-5, 0], [0, 0]])": "no more away than an axis has",
    "pad(x, [[-1, 0]], mode='circular')": "a pair of widths for each axis",
    "pad(x, [[0, 4], [0, 0]], mode='reflect')": "narrower than the axis",
    "pad(x, [[0, 0]])": "each of the 2 axes",
    "repeat(x, [1, -1])": "0 times or more",
    "repeat(x, [2])": "a number for each axis",
    "repeat_interleave(x, -1)": "0 times or more",
    "repeat_interleave(x, [1, -1, 2], 0)": "0 times or more",
    "repeat_interleave(x, [1, 2], 0)": "a number for each element",
    "unfold(x, 0, 9, 1)": "no longer than the axis",
    "unfold(x, 0, 2, 0)": "at least one further on",
    "narrow(x, 1, 2, 9)": "inside of the axis",
    "select(x, 0, 5)": "inside of the axis",
    "expand(x, [3, 5])": "only axes of size 1",
    "max(x[:0], axis=0)": "a range of size 0",
    "argmin(x[:, :0], axis=1)": "a range of size 0",
    "full([2], 1, f31)": "f31",
    "masked_select(x, x > 0)": "not known when compiling",
    "unflatten(x, 0, [2, 2])": "multiply to that of the old one",
    'einsum("ij,jk->ik", x, x)': "the subscript 'j' has the sizes 4 and 3",
    'einsum("ijk->i", x)': "it has 2 axes",
    'einsum("ij->ik", x)': "'k', and no operand has",
    'einsum("ij->ii", x)': "'i' twice",
    'einsum("ij,j", x)': "2 lists of subscripts for 1 tensors",
    'einsum("i;->i", x)': "';' in the subscripts",
    "einsum(x, [0, [1]], [0])": "a subscript of 'einsum' is an integer, not a list of 1",
    'einsum(x, [0, "a"])': "a subscript of 'einsum' is an integer, not 'a'",
    'div(x, x, "up")': "'floor' or 'trunc'",
    "isinstance(x, f32)": "'isinstance' takes",
    "bitwise_and(x, x)": "bits of integers",
    "check(7, 7)": "places 0 to 6",
    "gather(x, x, axis=0)": "a subscript is an integer",
    "check(x, 3)": "places are integers, and these have dtype f32",
    "scatter(x, x, x, 0)": "places are integers",
    "scatter_add(x[0, 0], 0.5, x[0, 0], 0)": "places are integers",
    "softmax(x[0, 0])": "'x' of 'softmax' has at least 1 dimension, and",
    "cross_entropy(x, i64(x[:, 0]), smoothing=2.0)": "smoothing is from 0 to 1",
}


@pytest.mark.parametrize("call_", REFUSED)
def test_what_has_no_meaning_is_refused_with_its_reason(call_: str) -> None:
    """With numbers of the call and what would be legal, at the place of the call."""
    with pytest.raises(UserError) as caught:
        call(program(f"def f(x: f32[A, B]):\n    return {call_}\n"), "f",
             x=np.ones((3, 4), np.float32))
    assert REFUSED[call_] in str(caught.value)
    assert "test.ab:2" in str(caught.value)


@pytest.mark.parametrize("place", [-1, 3, -5])
@pytest.mark.parametrize("call_", [
    "gather(x, k[:, None], axis=0)", "scatter(x, k[:, None], 1, axis=0)", "take(x[:, 0], k)",
    "scatter_add(x, k[:, None], x, axis=0)", "index_select(x, k, axis=0)", "embedding(k, x)",
    "index_add(x, k, x[:2], axis=0)", "index_copy(x, k, x[:2], axis=0)", "one_hot(k, 3)",
    "index_fill(x, k, 1, axis=0)", "segment_sum(x[:2], k, 3)", "bincount(k, 3)", "x[k]",
    "embedding_bag(k, x, k, 3)", "take_along_axis(x, k[:, None], axis=0)",
])
def test_a_place_outside_of_an_axis_is_an_error_that_names_it(call_: str, place: int) -> None:
    source = program(f"def f(x: f32[A, B], k: i64[N]):\n    return {call_}\n")
    with pytest.raises(UserError, match=f"{place}.* 3"):
        call(source, "f", x=np.ones((3, 4), np.float32), k=np.array([0, place]))


def test_no_function_of_the_library_is_left_out() -> None:
    """Helpers are tried through those that use them."""
    calls = (example.call for example in FUNCTIONS)
    tried = " ".join([*OPS, *MODELS, *REFUSED, *SCHEDULES, *VARIANCES, *calls,
                      "clip_by_norm clip_by_value moving_average"])
    bodies = {item.name: {each.id for each in s.walk(item) if isinstance(each, s.Name)}
              for kind in (s.OpDef, s.FuncDef, s.ModelDef) for _, item in defined(kind)}
    reached, waiting = set[str](), set(re.findall(r"\w+", tried))
    while waiting:
        reached |= waiting
        waiting = set().union(*(bodies.get(name, set()) for name in waiting)) - reached
    assert set(DEFS) - reached == set()
