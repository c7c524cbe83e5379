"""Statements that read one another at earlier places: what they mean, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anabranch.ir.diagnostics import UserError
from anabranch.ir.ops import Scan
from tests.frontend.running import call, module_of, program

rng = np.random.default_rng(3)


def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


SUMS = program("""
    op forward(x: T[*I, N]) -> T[*I, N]:
        y[*i, n] = y[*i, n - 1, pad=0] + x[*i, n]
        return y

    op backward(x: T[*I, N]) -> T[*I, N]:
        y[*i, n] = y[*i, n + 1, pad=0] + x[*i, n]
        return y

    op either(x: T[N], reverse: bool = False) -> T[N]:
        step = -1 if reverse else 1
        y[n] = y[n - step, pad=0] + x[n]
        return y

    op in_twos(x: T[N]) -> T[N]:
        y[n] = y[n - 2, pad=0] + x[n]
        return y

    op exclusive(x: T[N]) -> T[N]:
        y[n] = y[n - 1, pad=0] + x[n]
        z[n] = y[n - 1, pad=0]
        return z
    """)


@pytest.mark.parametrize("shape", [(3, 5), (5,), (2, 0), (0, 3), (2, 1, 4)])
def test_a_cumulative_sum(shape):
    x = normal(*shape)
    close(call(SUMS, "forward", x=x), np.cumsum(x, -1))
    close(call(SUMS, "backward", x=x), np.cumsum(x[..., ::-1], -1)[..., ::-1])


def test_the_direction_may_be_chosen_when_compiling():
    x = normal(6)
    close(call(SUMS, "either", x=x, sizes={"reverse": False}), np.cumsum(x))
    close(call(SUMS, "either", x=x, sizes={"reverse": True}), np.cumsum(x[::-1])[::-1])


def test_a_distance_of_two_makes_two_sums():
    x = normal(7)
    expected = x.copy()
    for n in range(2, 7):
        expected[n] += expected[n - 2]
    close(call(SUMS, "in_twos", x=x), expected)


def test_what_reads_a_recurrence_from_outside_reads_all_of_it():
    x = normal(5)
    close(call(SUMS, "exclusive", x=x), np.cumsum(x) - x)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int64, np.int8])
def test_the_dtype_follows_from_the_statements(dtype):
    x = np.array([1, 0, 1, 1], dtype)
    y = call(SUMS, "forward", x=x)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, np.cumsum(x))


def test_a_weak_start_becomes_what_the_statement_gives():
    halves = program("""
        def halves(x: i64[N]):
            y[n] = (y[n - 1, pad=1] + x[n]) / 2
            return y
        """)
    y = call(halves, "halves", x=np.array([1, 3, 5]))
    assert y.dtype == np.float32
    close(y, [1.0, 2.0, 3.5])


PROVEN = program("""
    op sums(x: T[N]) -> T[N]:
        y[n] = where(n == 0, x[n], y[n - 1] + x[n])
        return y

    op ahead(x: T[N]) -> T[N]:
        y[n] = where(n < N - 1, y[n + 1], 0) + x[n]
        return y

    op fibonacci(x: T[N]) -> T[N]:
        y[n] = x[n] + (where(n >= 2, y[n - 1] + y[n - 2], where(n == 1, y[n - 1], 1)))
        return y

    op two(x: T[N]) -> T[N]:
        a[n] = where(n > 0, b[n - 1], 1) + x[n]
        b[n] = where(n > 0, a[n - 1], 0) + a[n]
        return b

    op ever(x: bool[N]) -> bool[N]:
        y[n] = where(n > 0, y[n - 1] or x[n], x[n])
        return y
    """)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.int8])
def test_a_condition_that_proves_an_earlier_place_needs_no_start(dtype):
    x = np.array([1, 2, 0, 1, 3], dtype)
    a, b, f = [], [], []
    for n, each in enumerate(x.tolist()):
        a.append((b[n - 1] if n else 1) + each)
        b.append((a[n - 1] if n else 0) + a[n])
        f.append(each + (f[n - 1] + f[n - 2] if n >= 2 else f[n - 1] if n else 1))
    for name, expected in {"sums": np.cumsum(x), "ahead": np.cumsum(x[::-1])[::-1],
                           "fibonacci": f, "two": b}.items():
        y = call(PROVEN, name, x=x)
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(call(PROVEN, "ever", x=x == 0), np.cumsum(x == 0) > 0)


@pytest.mark.parametrize("text", ["where(n > 1, y[n - 3], 0)", "where(x[n] > 0, y[n - 1], 0)",
                                  "where(n >= 0, y[n - 1], 0)"])
def test_a_condition_that_proves_nothing_is_no_start(text):
    with pytest.raises(UserError, match="'y' is read before it is known"):
        program(f"""
            op f(x: f32[N]) -> f32[N]:
                y[n] = {text} + x[n]
                return y
            """)


LSTM = program("""
    op lstm(x: T[B, S, I], w: T[G, I], u: T[G, H], h0: T[B, H], c0: T[B, H]
            ) -> T[B, S, H], T[B, S, H]:
        h[b, t, n]    = sigmoid(a[b, t, 3, n]) * tanh(c[b, t, n])
        a[b, t, q, n] = p[b, t, q, n] + sum[k](h[b, t - 1, k, pad=h0[b, k]] * u[(q, n), k])
        p[b, t, q, n] = sum[i](x[b, t, i] * w[(q < 4, n), i])
        c[b, t, n]    = (sigmoid(a[b, t, 1, n]) * c[b, t - 1, n, pad=c0[b, n]]
                         + sigmoid(a[b, t, 0, n]) * tanh(a[b, t, 2, n]))
        return h, c
    """)


def test_statements_in_any_order_that_read_one_another_are_one_recurrence():
    arrays = {"x": normal(2, 5, 3), "w": normal(16, 3), "u": normal(16, 4), "h0": normal(2, 4),
              "c0": normal(2, 4)}
    h, c = call(LSTM, "lstm", **arrays)
    oracle = torch.nn.LSTM(3, 4, batch_first=True, bias=False)
    oracle.weight_ih_l0.data = torch.tensor(arrays["w"])
    oracle.weight_hh_l0.data = torch.tensor(arrays["u"])
    start = (torch.tensor(arrays["h0"])[None], torch.tensor(arrays["c0"])[None])
    expected, (_, last) = oracle(torch.tensor(arrays["x"]), start)
    close(h, expected.detach().numpy())
    close(c[:, -1], last[0].detach().numpy())


def test_what_reads_no_earlier_place_is_computed_before_the_loop():
    arrays = {"x": normal(2, 5, 3), "w": normal(16, 3), "u": normal(16, 4), "h0": normal(2, 4),
              "c0": normal(2, 4)}
    ops = list(module_of(LSTM, "lstm", arrays).functions["lstm"].body)
    assert [op.kind for op in ops] == ["compute", "scan", "return"]
    assert ops[0].reduce == "sum"
    scan = ops[1]
    assert isinstance(scan, Scan)
    assert [op.reduce for op in scan.region if op.kind == "compute"] == ["sum", "", "", ""]


def test_a_recurrence_in_a_def_among_whole_tensors():
    source = program("""
        def decayed(x: f32[B, S], decay: float = 0.5):
            y = x * 2
            z[b, t] = decay * z[b, t - 1, pad=y[b, 0]] + y[b, t]
            return sum(z, axis=1)
        """)
    x = normal(3, 4)
    z, total = 2 * x[:, 0], 0
    for t in range(4):
        z = 0.5 * z + 2 * x[:, t]
        total = total + z
    close(call(source, "decayed", x=x, sizes={"decay": 0.5}), total)


def test_a_dynamic_programme_over_integers_looks_up_where_it_was():
    source = program("""
        def walk(next: i64[N, M], start: i64, steps: int):
            at[t < steps] = next[at[t - 1, pad=start], t % 2]
            return at
        """)
    table = np.array([[1, 2], [3, 0], [0, 3], [2, 1]])
    at, expected = 0, []
    for t in range(6):
        at = int(table[at, t % 2])
        expected.append(at)
    assert call(source, "walk", next=table, start=np.int64(0),
                sizes={"steps": 6}).tolist() == expected


def test_an_edit_distance_runs_along_rows_with_a_scan_for_each():
    """A read at the same row and an earlier column belongs to no single index."""
    with pytest.raises(UserError, match="read before it is known"):
        program("""
            op edit(same: bool[N, M]) -> i64[N, M]:
                d[i, j] = min(d[i - 1, j, pad=j + 1] + 1, d[i, j - 1, pad=i + 1] + 1)
                return d
            """)


def test_other_dimensions_may_be_shifted_too():
    source = program("""
        op pascal(rows: int, columns: int) -> i64[rows, columns]:
            p[i, j] = where(i == 0 and j == 0, 1, p[i - 1, j, pad=0] + p[i - 1, j - 1, pad=0])
            return p
        """)
    assert call(source, "pascal", sizes={"rows": 5, "columns": 5})[4].tolist() == [1, 4, 6, 4, 1]


def test_a_name_that_only_looks_like_a_circle_is_none():
    source = program("""
        op plain(x: T[N], again: bool = False) -> T[N]:
            y[n] = x[n] * 2 if not again else z[n - 1, pad=0]
            z[n] = y[n] + y[n - 1, pad=0]
            return z
        """)
    x = normal(4)
    close(call(source, "plain", x=x, sizes={"again": False}),
          2 * x + np.concatenate(([0], 2 * x[:-1])))


def test_an_index_of_which_only_padded_reads_speak_has_the_range_of_its_namesake():
    source = program("""
        op rnn(x: T[B, S, H], u: T[H, H]) -> T[B, S, H]:
            m[b, t, n] = sum[k](h[b, t - 1, k, pad=0] * u[n, k])
            h[b, t, n] = tanh(m[b, t, n] + x[b, t, n])
            return h
        """)
    x, u = normal(2, 3, 4), normal(4, 4)
    h = np.zeros((2, 4))
    for t in range(3):
        h = np.tanh(h @ u.T + x[:, t])
    close(call(source, "rnn", x=x, u=u)[:, -1], h)


ERRORS = [
    ("y[n] = y[n] + x[n]", "'y' is read before it is known"),
    ("y[n] = y[n - 1] + x[n]", "'y' is read before it is known"),
    ("y[n] = z[n] + x[n]\n    z[n] = y[n] * 2", "'y' is read before it is known"),
    ("y[n] = z[n, pad=0]\n    z[n] = y[n] * y[n - 1, pad=1]", "'z' is read before it is known"),
    ("y[n] = z[n] + y[n - 1, pad=0]\n    z[n] = y[n - 1] * 2", "'y' is read before it is known"),
    ("y[n] = y[n - 1, pad=0] + y[n + 1, pad=0]",
     "a recurrence looks back or ahead along 'n', and this does both"),
    ("y[n] = y[n // 2, pad=0] + x[n]",
     "'y' is read at a place of 'n' that is not a fixed number of places earlier"),
    ("y[n] = sum[k < 3](y[n - k, pad=0]) + x[n]",
     "'y' is read at a place of 'n' that is not a fixed number of places earlier"),
    ("y[n] = y[ids[n], pad=0] + x[n]",
     "'y' is read at a place of 'n' that is not a fixed number of places earlier"),
    ("y[n] = sum(y) + x[n]", "'y' is read whole, and only what came before is known"),
    ("y[n] = y[n - 1, pad=0.5] * x[n] + y", "'y' is read whole"),
    ("y[n] = y[n - 1, 0, pad=0] + x[n]", "2 subscripts for a tensor"),
    ("y[n] = y[n - 1, pads=0] + x[n]", "a read has no 'pads='"),
    ("y[n] = z[n] + x[n]\n    w = 3\n    z[n] = y[n - 1, pad=0]",
     "'z' is read before it is defined"),
    ("y[n] = z[n] + x[n]\n    z[n] = x[n]", "'z' is read before it is defined"),
    ("x[n] = x[n - 1, pad=0]\n    y[n] = x[n]", "'x' is defined already"),
    ("y[n] = h0[n] + y[n - 1, pad=ids]", "stands without subscripts"),
    ("y[n] = where(y[n - 1, pad=0], x[n], 1)", "the condition of 'where' has dtype"),
]


@pytest.mark.parametrize(("lines", "message"), ERRORS)
def test_a_recurrence_that_cannot_be_is_refused_where_it_stands(lines, message):
    with pytest.raises(UserError) as caught:
        program(f"""
op wrong(x: f32[N], ids: i64[N], h0: f32[N]) -> f32[N]:
    {lines}
    return y
""")
    assert message in str(caught.value)
    assert "^" in str(caught.value)
    assert all(d.span is not None for d in caught.value.diagnostics)


def test_the_index_of_a_recurrence_has_a_dimension_of_its_own():
    with pytest.raises(UserError, match="no index is on the left of all statements"):
        program("""
            op wrong(x: f32[6]) -> f32[6]:
                y[(g < 2, c)] = y[(g, c), pad=0] + x[(g, c)]
                return y
            """)


def test_such_an_error_looks_like_this():
    with pytest.raises(UserError) as caught:
        program("op wrong(x: f32[N]) -> f32[N]:\n    y[n] = y[n - 1] + x[n]\n    return y\n")
    assert str(caught.value) == """\
test.ab:2:12: error: 'y' is read before it is known
        y[n] = y[n - 1] + x[n]
               ^~~~~~~~
help: an earlier place is read with what stands before the first, as in y[t - 1, pad=0]; at one \
place no statement may read itself, and what a loop adds up elsewhere is a reduction here: \
sum[k](...)"""
