"""Index notation means what the language says: forward results against torch and NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anabranch.frontend.program import load
from anabranch.ir.diagnostics import UserError
from anabranch.ir.expr import Call, Read, reads
from anabranch.ir.ops import Compute
from tests.frontend.running import call, module_of, program

rng = np.random.default_rng(7)


def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)


def close(actual, expected, tolerance=2e-5):
    expected = expected.numpy() if isinstance(expected, torch.Tensor) else np.asarray(expected)
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


OPS = load(Path(__file__).with_name("ops.ab"))


def test_linear_with_a_pack_of_leading_axes():
    x, w, b = normal(2, 3, 5), normal(4, 5), normal(4)
    close(call(OPS, "linear_", x=x, w=w, b=b), F.linear(*map(torch.tensor, (x, w, b))))


def test_linear_with_an_empty_pack():
    x, w, b = normal(5), normal(4, 5), normal(4)
    close(call(OPS, "linear_", x=x, w=w, b=b), F.linear(*map(torch.tensor, (x, w, b))))


@pytest.mark.parametrize(("name", "x", "expected"), [
    ("average", 3.0, 4.0), ("average_of_some", 3.0, 3.0), ("average_of_some", -3.0, np.nan),
    ("largest_of_some", 3.0, 3.0), ("largest_of_some", -3.0, -np.inf), ("count", 3.0, 1),
])
def test_a_reduction_over_an_empty_pack_has_one_element_or_none(name, x, expected):
    ops = program("""
        op average(x: T[*I]) -> T[]:
            z[] = mean[*i]((x[*i] - 1) ** 2)
            return z

        op average_of_some(x: T[*I]) -> T[]:
            z[] = mean[*i if x[*i] > 0](x[*i])
            return z

        op largest_of_some(x: T[*I]) -> T[]:
            z[] = max[*i if x[*i] > 0](x[*i])
            return z

        op count(x: T[*I]) -> i64[]:
            z[] = sum[*i](x[*i] > 0)
            return z
        """)
    np.testing.assert_equal(call(ops, name, x=np.float32(x)), expected)


CONVOLUTIONS = [(1, 0, 1), (2, 1, 1), (1, 2, 2), (3, 1, 4)]


@pytest.mark.parametrize(("stride", "padding", "groups"), CONVOLUTIONS)
def test_convolution(stride, padding, groups):
    x, w = normal(2, 4, 9, 8), normal(8, 4 // groups, 3, 2)
    sizes = {"stride": stride, "padding": padding, "groups": groups}
    expected = F.conv2d(torch.tensor(x), torch.tensor(w), **sizes)
    close(call(OPS, "conv2d", x=x, w=w, sizes=sizes), expected)


def test_transposed_convolution_is_a_guarded_sum():
    x, w = normal(2, 3, 4, 5), normal(3, 2, 3, 3)
    expected = F.conv_transpose2d(torch.tensor(x), torch.tensor(w), stride=2)
    close(call(OPS, "conv_transpose", x=x, w=w, sizes={"stride": 2}), expected)


def test_pooling():
    x = normal(2, 3, 10)
    expected = F.max_pool1d(torch.tensor(x), 3, 2)
    close(call(OPS, "max_pool", x=x, sizes={"k": 3, "stride": 2}), expected)
    expected = F.avg_pool1d(torch.tensor(x), 3, 2, 1, count_include_pad=False)
    close(call(OPS, "avg_pool", x=x, sizes={"k": 3, "stride": 2, "padding": 1}), expected)


def test_scatter_add_leaves_out_what_points_nowhere():
    ids, x = np.array([3, 0, 3, 7, -1]), normal(5, 2)
    expected = np.zeros((5, 2), np.float32)
    for n in (0, 1, 2):
        expected[ids[n]] += x[n]
    close(call(OPS, "scatter_add", ids=ids, x=x, sizes={"rows": 5}), expected)


def test_the_mean_of_no_elements_is_nan():
    ids, bag, table = np.array([1, 2, 0, 1]), np.array([0, 0, 2, 2]), normal(3, 2)
    y = call(OPS, "embedding_bag", ids=ids, bag=bag, table=table, sizes={"bags": 3})
    close(y[[0, 2]], np.stack([table[[1, 2]].mean(0), table[[0, 1]].mean(0)]))
    assert np.isnan(y[1]).all()


def test_several_results_and_a_reduction_over_a_pack():
    x = normal(3, 4, 5, 2)
    mean, variance = call(OPS, "moments", x=x)
    close(mean, x.mean((0, 2, 3)), 1e-5)
    close(variance, x.var((0, 2, 3)), 1e-5)


def test_lists_of_numbers_are_constant_tensors():
    x = normal(2, 5, 3)
    z = np.einsum("bid,bjd->bij", x, x)
    i, j = np.tril_indices(5, -1)
    close(call(OPS, "interact", x=x), z[:, i, j])


def test_a_read_with_pad_does_not_speak_about_ranges():
    a, b = normal(3, 2), normal(4, 2)
    close(call(OPS, "concat2", a=a, b=b), np.concatenate([a, b]))


def test_merged_indices_on_either_side():
    x = normal(2, 3, 4, 6)
    patches = torch.tensor(x).unfold(2, 2, 2).unfold(3, 2, 2)
    expected = patches.permute(0, 2, 3, 1, 4, 5).reshape(2, 6, 12)
    close(call(OPS, "patchify", x=x, sizes={"p": 2}), expected)
    x = normal(2, 12, 3, 2)
    close(call(OPS, "pixel_shuffle_", x=x, sizes={"r": 2}), F.pixel_shuffle(torch.tensor(x), 2))


def test_rotary_positions():
    x = normal(2, 5, 3, 8)
    a = np.arange(5)[:, None] * 10000.0 ** (-2 * np.arange(4) / 8)
    cos, sin = (np.concatenate([f(a), f(a)], 1)[None, :, None].astype(np.float32)
                for f in (np.cos, np.sin))
    turned = np.concatenate([-x[..., 4:], x[..., :4]], -1)
    close(call(OPS, "rotary", x=x), x * cos + turned * sin)


def test_interpolation_reads_at_computed_places():
    x = normal(2, 3, 4, 5)
    expected = F.interpolate(torch.tensor(x), (7, 3), mode="bilinear", align_corners=False)
    close(call(OPS, "interpolate", x=x, sizes={"oh": 7, "ow": 3}), expected)


def test_grouped_attention_with_and_without_a_bias():
    q, k, v = normal(2, 3, 4, 8), normal(2, 5, 2, 8), normal(2, 5, 2, 6)
    bias = normal(4, 3, 5)
    tq, tk, tv = (torch.tensor(t).transpose(1, 2) for t in (q, k, v))
    tk, tv = tk.repeat_interleave(2, 1), tv.repeat_interleave(2, 1)
    late = torch.arange(5)[None, :] > torch.arange(3)[:, None] + 2

    def attend(added):
        mask = added.masked_fill(late, -torch.inf)
        return F.scaled_dot_product_attention(tq, tk, tv, attn_mask=mask).transpose(1, 2)

    close(call(OPS, "gqa", q=q, k=k, v=v, bias=bias), attend(torch.tensor(bias)))
    slope = 2.0 ** (-8 * (torch.arange(4) + 1) / 4)
    back = torch.arange(3)[:, None] + 2 - torch.arange(5)[None, :]
    alibi = -slope[:, None, None] * back
    close(call(OPS, "gqa", q=q, k=k, v=v, sizes={"alibi": True}), attend(alibi))


def test_a_loss_with_ignored_targets_weights_and_smoothing():
    x, weight = normal(4, 6), np.abs(normal(6))
    target = np.array([2, -100, 0, 5])
    options = {"weight": torch.tensor(weight), "ignore_index": -100, "reduction": "sum"}
    expected = F.cross_entropy(torch.tensor(x), torch.tensor(target), **options)
    total, count = call(OPS, "weighted_loss", x=x, target=target, weight=weight)
    close(total, expected)
    close(count, weight[[2, 0, 5]].sum())


def test_a_guard_protects_an_indirect_read():
    """Where place is beyond the capacity nothing is read: no check may fail there."""
    out, w = normal(2, 3, 4), normal(5, 2)
    e, place = rng.integers(0, 2, (5, 2)), rng.integers(0, 9, (5, 2))
    expected = np.zeros((5, 4), np.float32)
    for n in range(5):
        for j in range(2):
            if place[n, j] < 3:
                expected[n] += w[n, j] * out[e[n, j], place[n, j]]
    close(call(OPS, "combine", out=out, w=w, e=e, place=place), expected)


def test_index_values_are_numbers():
    angle = np.arange(5)[:, None] * 10000.0 ** (-np.arange(4) / 3)
    expected = np.concatenate([np.sin(angle), np.cos(angle)], 1).astype(np.float32)
    close(call(OPS, "sinusoid", sizes={"n": 5, "d": 8}), expected)


def test_an_integer_element_outside_is_named_when_it_runs():
    source = program('''
        op pick(ids: Int[N], t: T[V]) -> T[N]:
            y[n] = t[ids[n]]
            return y
    ''')
    close(call(source, "pick", ids=np.array([2, 0]), t=normal(3) * 0 + 1), np.ones(2, np.float32))
    with pytest.raises(UserError, match="3"):
        call(source, "pick", ids=np.array([3, 0]), t=normal(3))


def test_each_compute_has_one_reduction_and_each_indirect_read_its_own():
    x, target = normal(4, 6), np.array([2, -100, 0, 5])
    module = module_of(OPS, "weighted_loss", {"x": x, "target": target})
    def is_indirect(read):
        return any(reads(i) for i in read.subscripts)

    for op in module.functions["weighted_loss"].body:
        if isinstance(op, Compute) and any(map(is_indirect, reads(op.body))):
            assert isinstance(op.body, Read)
            assert not op.reduce
            assert all(isinstance(i, Call | Read) or not reads(i) for i in op.body.subscripts)


def test_a_reduction_under_where_is_lazy():
    """The branch that is not chosen would read outside; it is neither refused nor evaluated."""
    source = program('''
        op tails(x: T[N], k: int) -> T[N]:
            y[n] = where(n + k <= N, sum[j < k](x[n + j]), 0)
            return y
    ''')
    x = normal(6)
    expected = [x[n:n + 3].sum() if n <= 3 else 0 for n in range(6)]
    close(call(source, "tails", x=x, sizes={"k": 3}), np.array(expected, np.float32))


def test_a_branch_of_whole_values_is_evaluated_where_the_condition_is_known_to_choose_it():
    source = program("""
        def f(x: f32[N], n: int = 0):
            return x * where(n > 0, 1 / n, 2) * sinc(0.0), where(x > 0, x, xlogy(0, 0.0))
    """)
    doubled, kept = call(source, "f", x=np.array([-1, 3], np.float32))
    close(doubled, np.array([-2, 6], np.float32))
    close(kept, np.array([0, 3], np.float32))


def test_a_branch_that_is_named_is_as_lazy():
    source = program("""
        def f(x: f32[N]):
            y[n < N] = where(n > 0, no=0, yes=x[n - 1])
            return y
    """)
    close(call(source, "f", x=np.array([4, 5, 6], np.float32)), np.array([0, 4, 5], np.float32))


def test_shadowed_and_repeated_index_names_stay_apart():
    source = program('''
        op f(x: T[N], y: T[M]) -> T[N]:
            z[n] = x[n] / sum[n](y[n]) + sum[k](x[k]) * sum[k](y[k])
            return z
    ''')
    x, y = normal(4), normal(3)
    close(call(source, "f", x=x, y=y), x / y.sum() + x.sum() * y.sum())


def test_argmax_gives_the_first_place_and_selects_with_it():
    source = program('''
        op best(x: T[B, N]) -> i64[B], T[B]:
            a[b] = argmax[n](x[b, n])
            y[b] = x[b, a[b]]
            return a, y
    ''')
    x = np.array([[1, 3, 3], [2, 2, 0]], np.float32)
    place, value = call(source, "best", x=x)
    assert place.tolist() == [1, 0]
    assert value.tolist() == [3, 2]


@pytest.mark.parametrize("kind", ["max", "argmax"])
def test_the_extreme_of_an_empty_range_is_an_error(kind):
    source = program(f'''
        op f(x: T[B, N]) -> {"i64" if kind == "argmax" else "T"}[B]:
            y[b] = {kind}[n](x[b, n])
            return y
    ''')
    with pytest.raises(UserError, match="range of size 0"):
        call(source, "f", x=np.zeros((2, 0), np.float32))


def test_random_draws_follow_the_seed_and_the_step_and_differ_by_occurrence():
    source = program('''
        op two(x: T[*I], key: Key) -> T[*I], T[*I]:
            a[*i] = x[*i] + rand(key)
            b[*i] = x[*i] + rand(key)
            return a, b

        def four(x: f32[N]) -> f32[N], f32[N], f32[N], f32[N]:
            a, b = two(x)
            c, d = two(x)
            return a, b, c, d
    ''')
    x = np.zeros(50, np.float32)
    draws = call(source, "four", x=x)
    assert all(((d >= 0) & (d < 1)).all() for d in draws)
    assert len({d.tobytes() for d in draws}) == 4
    assert draws[0].tobytes() == call(source, "four", x=x)[0].tobytes()
    assert draws[0].tobytes() != call(source, "four", x=x, step=1)[0].tobytes()
    assert draws[0].tobytes() != call(source, "four", x=x, seed=1)[0].tobytes()


def test_a_key_that_is_passed_on_gives_the_same_draws():
    source = program('''
        op noise(x: T[*I], key: Key) -> T[*I]:
            y[*i] = x[*i] + randn(key)
            return y

        def twice(x: f32[N], key: Key) -> f32[N], f32[N]:
            return noise(x, key), noise(x, key)
    ''')
    a, b = call(source, "twice", x=np.zeros(8, np.float32))
    assert a.tobytes() == b.tobytes()
    assert a.std() > 0.1
