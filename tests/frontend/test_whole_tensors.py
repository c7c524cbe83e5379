"""Operators and functions on whole tensors agree with torch: values, shapes and dtypes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.ir.diagnostics import UserError
from anabranch.ir.reference import held
from anabranch.ir.types import DTYPES, category, promote
from tests.frontend.running import call, program

rng = np.random.default_rng(3)
NAMES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "i64": torch.int64,
         "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8,
         "bool": torch.bool}


def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)


def evaluated(expression, **arrays):
    """An expression on arrays."""
    params = ", ".join(f"{k}: T[*{k.upper()}]" if v.dtype == np.float32 else
                       f"{k}: U[*{k.upper()}]" for k, v in arrays.items())
    return call(program(f"def f({params}):\n    return {expression}\n"), "f", **arrays)


def same(actual, expected):
    expected = expected.numpy() if isinstance(expected, torch.Tensor) else np.asarray(expected)
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


SHAPES = ["x[1]", "x[-1]", "x[:, 1]", "x[1:]", "x[:, ::2]", "x[..., 0]", "x[..., None]",
          "x[:, None, 1:3]", "x[None]", "x[1:3, :, -1]", "x[:, :2][1]", "x[...]", "x[-2:]",
          "x[5:]", "x[:, 3:1]", "x[0, 1, 2]"]


@pytest.mark.parametrize("expression", SHAPES)
def test_slices_are_numpys(expression):
    x = normal(3, 4, 5)
    same(evaluated(expression, x=x), eval(expression, {"x": x, "None": None}))


def test_a_negative_step_turns_an_axis_round():
    x = normal(3, 4)
    same(evaluated("x[::-1, 1::2]", x=x), x[::-1, 1::2])


GATHERS = ["x[i]", "x[:, i]", "x[i, i]", "x[i, :, i]", "x[None, i]", "x[:, i, 1:3]", "x[0, i]",
           "x[0, :, i]", "x[:, 0, i]", "x[0, 1, i]"]


@pytest.mark.parametrize("expression", GATHERS)
@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_integer_tensors_gather_as_in_numpy(expression, shape):
    x, i = normal(3, 4, 5), rng.integers(0, 3, shape)
    expected = np.asarray(eval(expression, {"x": x, "i": i, "None": None}))
    same(evaluated(expression, x=x, i=i), expected)


LISTS = ["x[[1, 2]]", "x[[2, -1, 0, 0]]", "x[[[0, 1], [2, -3]]]", "x[:, [0, 3]]",
         "x[[0, 2], [1, 3]]", "x[[0, 2], :, [1, 3]]", "x[:, [0, 3], [[1], [4]]]", "x[0, :, [1, 3]]",
         "x[[2], 1, [1, 3]]", "x[[1, 2], None, 1:3]", "x[[1, 2], None, :, [3]]", "x[..., [4, 0]]",
         "x[[0, 1], ..., i]", "x[1, [0, 2], None, i]", "x[::-1, [0, 2], i]",
         "x[[], [0]]", "x[-1, ..., [2, 2]]"]


@pytest.mark.parametrize("expression", LISTS)
def test_a_list_of_integers_is_a_tensor_of_places(expression):
    x, i = normal(3, 4, 5), np.array([1, 3])
    names = {"x": x, "i": i, "None": None}
    found = evaluated(expression, x=x, **({"i": i} if "i" in expression else {}))
    same(found, eval(expression, names))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms())
@settings(max_examples=30)
def test_any_reshape_keeps_the_order(shape, random):
    x = np.arange(np.prod(shape)).reshape(shape).astype(np.float32)
    size, other = x.size, []
    while size > 1:
        factor = random.choice([d for d in range(2, size + 1) if size % d == 0])
        other.append(factor)
        size //= factor
    same(evaluated(f"reshape(x, {other})", x=x), x.reshape(other))


def test_reshape_infers_a_size():
    x = normal(4, 6)
    same(evaluated("x.reshape([3, -1])", x=x), x.reshape(3, -1))
    same(evaluated("reshape(x, -1)", x=x), x.reshape(-1))


LAYOUTS = {
    "transpose(x, 0, 2)": lambda x, y: x.transpose(2, 1, 0),
    "transpose(x, [2, 0, 1])": lambda x, y: x.transpose(2, 0, 1),
    "x.T": lambda x, y: x.swapaxes(-1, -2),
    "concat([x, y, x], axis=1)": lambda x, y: np.concatenate([x, y, x], 1),
    "stack([x, x], axis=-1)": lambda x, y: np.stack([x, x], -1),
    "split(x, 2, axis=1)[1]": lambda x, y: x[:, 2:],
    "split(x, [1, 2], axis=1)[1]": lambda x, y: x[:, 1:],
    "unbind(x, axis=2)[3]": lambda x, y: x[:, :, 3],
    "expand(y[:, 0], [5, 2, 4])": lambda x, y: np.broadcast_to(y[:, 0], (5, 2, 4)),
    "flip(x, axis=(0, 2))": lambda x, y: np.flip(x, (0, 2)),
    "pad(x, [(1, 0), (0, 2), (0, 0)], 7)": lambda x, y: np.pad(
        x, [(1, 0), (0, 2), (0, 0)], constant_values=7),
    "arange(2, 9, 3) + 0 * sum(i64(x))": lambda x, y: np.arange(2, 9, 3),
}


@pytest.mark.parametrize("expression", LAYOUTS)
def test_changes_of_layout(expression):
    x, y = normal(2, 3, 4), normal(2, 1, 4)
    same(evaluated(expression, x=x, y=y), LAYOUTS[expression](x, y))


@pytest.mark.parametrize(("a", "b"), [
    ((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 2)), ((3, 4), (4, 2)), ((5, 3, 4), (4, 2)),
    ((5, 3, 4), (5, 4, 2)), ((2, 1, 3, 4), (5, 4, 2)),
])
def test_matrix_products_as_in_numpy(a, b):
    x, y = normal(*a), normal(*b)
    same(evaluated("x @ y", x=x, y=y), x @ y)


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min", "prod", "argmax", "argmin"])
@pytest.mark.parametrize("arguments", ["", ", axis=1", ", axis=-1, keepdims=True"])
def test_reductions_of_floats(kind, arguments):
    x = normal(3, 4, 5)
    torch_names = {"max": "amax", "min": "amin"}
    given = arguments.replace("axis", "dim").replace("keepdims", "keepdim")
    tx = torch.tensor(x)
    expected = eval(f"torch.{torch_names.get(kind, kind)}(tx{given})", {"torch": torch, "tx": tx})
    same(evaluated(f"{kind}(x{arguments})", x=x), expected)


def test_a_reduction_over_several_axes():
    x = normal(3, 4, 5)
    same(evaluated("mean(x, axis=(0, 2), keepdims=True)", x=x), x.mean((0, 2), keepdims=True))


@pytest.mark.parametrize("kind", ["sum", "prod", "any", "all", "max", "mean"])
@pytest.mark.parametrize("dtype", ["bool", "u8", "i32"])
def test_reductions_of_other_dtypes(kind, dtype):
    x = torch.tensor(rng.integers(0, 2, (3, 4))).to(NAMES[dtype])
    if kind == "mean":
        expected = x.to(torch.float32).mean(1)
    elif kind == "max" and dtype == "bool":
        expected = x.any(1)
    else:
        expected = getattr(torch, "amax" if kind == "max" else kind)(x, dim=1)
    if kind in ("any", "all"):
        expected = expected.to(torch.bool)
    same(evaluated(f"{kind}(x, axis=1)", x=x.numpy()), expected)


INTEGERS = [name for name in DTYPES if category(name) == "int"]


@pytest.mark.parametrize("a", INTEGERS)
@pytest.mark.parametrize("b", INTEGERS)
def test_integers_of_two_dtypes_meet_in_the_narrowest_that_has_both(a, b):
    """As in NumPy; where that has only a float left, there is none."""
    common = np.promote_types(held(a), held(b))
    assert promote(a, b) == (None if common.kind == "f" else f"{common.kind}{8 * common.itemsize}")


OPERATORS = ["+", "-", "*", "/", "//", "%", "==", "<"]


@pytest.mark.parametrize("op", OPERATORS)
@given(a=st.sampled_from(sorted(NAMES)), b=st.sampled_from(sorted(NAMES)),
       shapes=st.sampled_from([((3,), (3,)), ((3,), ()), ((), (3,)), ((), ())]))
@settings(max_examples=15)
def test_promotion_is_torchs(op, a, b, shapes):
    left, right = (torch.tensor(np.asarray(rng.integers(1, 5, s))).to(NAMES[d])
                   for s, d in zip(shapes, (a, b), strict=True))
    if "bool" in (a, b) and op in ("-", "//", "%"):
        return  # not defined for bools in torch or here
    expected = eval(f"l {op} r", {"l": left, "r": right})
    if (a, b) == ("bool", "bool") and op == "/":
        expected = expected.to(torch.float32)
    source = program(f"def f(x: {a}[*X], y: {b}[*Y]):\n    return x {op} y\n")
    actual = call(source, "f", x=left.numpy(), y=right.numpy())
    assert str(actual.dtype) == str(expected.dtype).removeprefix("torch.")
    np.testing.assert_allclose(actual, expected.numpy(), rtol=1e-3)


@pytest.mark.parametrize("dtype", sorted(NAMES))
@pytest.mark.parametrize("literal", ["2", "2.5", "True"])
def test_literals_give_way(dtype, literal):
    x = torch.ones(3).to(NAMES[dtype])
    expected = x + eval(literal)
    actual = call(program(f"def f(x: {dtype}[N]):\n    return x + {literal}\n"), "f", x=x.numpy())
    assert str(actual.dtype) == str(expected.dtype).removeprefix("torch.")
    np.testing.assert_allclose(actual, expected.numpy())


@pytest.mark.parametrize("expression", [
    "x + 300", "x == -129", "where(x > 0, x, 300)", "i8(1e10) + x", "pad(x, [[1, 1]], 2.5)",
])
def test_a_literal_that_the_dtype_does_not_have_is_an_error(expression):
    source = program(f"def f(x: i8[N]):\n    return {expression}\n")
    with pytest.raises(UserError, match="is no number of i8"):
        call(source, "f", x=np.zeros(3, np.int8))


@pytest.mark.parametrize(("dtype", "value"), [("i64", "2.5"), ("bool", "3"), ("i64", "nan")])
def test_a_literal_is_not_cut_down_to_what_is_declared(dtype, value):
    """Neither as the result of a function nor in a statement."""
    with pytest.raises(UserError, match=rf"declares the result {dtype}\[\]"):
        call(program(f"def f(x: f32[N]) -> {dtype}[]:\n    return {value}\n"), "f", x=normal(3))
    with pytest.raises(UserError, match=rf"declares the result {dtype}\[5\]"):
        program(f"op f(x: f32[N]) -> {dtype}[N]:\n    y[n] = {value}\n    return y\n")


@pytest.mark.parametrize(("sizes", "place"), [
    ({"N": 2**49, "M": 1}, "test.ab:1:7"),
    ({"N": 2**30, "M": 2**30}, "test.ab:2:5"),
])
def test_sizes_whose_bytes_nobody_can_count_are_refused(sizes, place):
    source = program("def f(x: f32[N], y: f32[M]):\n    return x[:, None] * y\n")
    with pytest.raises(UserError) as error:
        source.function("f", sizes)
    assert str(error.value).startswith(f"{place}: error: the sizes [")


def test_scalar_ops_broadcast():
    a, b, t = normal(3, 1), normal(4), normal(2, 1, 1)
    same(evaluated("lerp(x, y, z)", x=a, y=b, z=t), a + t * (b - a))


def test_a_chain_of_operators_is_one_statement():
    source = program("def f(x: f32[N, M], b: f32[M]):\n    return 2 * exp(x + b) - x\n")
    module = source.function("f", {"N": 3, "M": 4})
    assert sum(op.kind == "compute" for op in module.functions["f"].body) == 1


def test_what_is_broadcast_is_computed_once():
    source = program("def f(x: f32[N, M], b: f32[M]) -> f32[N, M]:\n    return x + exp(b)\n")
    module = source.function("f", {"N": 3, "M": 4})
    sizes = [op.result.type.shape for op in module.functions["f"].body if op.kind == "compute"]
    assert sizes == [(4,), (3, 4)]


def test_lists_of_tensors_add_up():
    x = normal(40, 3)
    same(evaluated("sum([2 * r for r in unbind(x)])", x=x), 2 * x.sum(0))
    same(evaluated("max([r for r in unbind(x)])", x=x), x.max(0))


def test_compile_time_values_are_pythons():
    source = program('''
        def sizes(n):
            found = []
            for i in range(n):
                if i % 2 == 0 and i > 0:
                    found = found + [i]
            return found

        def f(x: f32[N]) -> f32[N]:
            a, (b, c) = 1, (2, 3)
            names = ["a", "b"]
            widths = [w * 2**i for i, w in enumerate(sizes(9))]
            assert widths == [2, 8, 24, 64] and widths[-1] == 64 and widths[:2] == [2, 8], "widths"
            assert max(a, b, c) == 3 and sum([a, b]) == 3 and len(names) == 2 and "a" in names
            assert -7 // 2 == -4 and 7 % 3 == 1 and 2**-1 == 0.5 and not None
            assert [p + q for p, q in zip([1, 2], reversed([10, 20]))] == [21, 12]
            return x * a
    ''')
    x = normal(3)
    same(call(source, "f", x=x), x)


def test_stop_and_its_gradient_keep_the_value():
    x = normal(4)
    same(evaluated("stop(x) + stop(x * 2, grad=x)", x=x), 3 * x)


@pytest.mark.parametrize(("expression", "message"), [
    ("x[i > 0]", "not known when compiling"), ("x[[0, 3]]", "place 3 of dimension 0"),
    ("x[[True, False, True]]", "truth values"), ("x[[[0], 1]]", "equal lists"),
    ("x[[0, 1.5]]", "a subscript"), ("x[[0, 'a']]", "of integers"),
    ("x[[0, 1], i]", "2 subscripts"), ("x[4]", "place 4"), ("x[0, 0]", "2 subscripts"),
    ("x + x[:2]", "cannot be broadcast"), ("concat([x, x[None]])", "differ"),
    ("reshape(x, [5])", "cannot take the shape"), ("f32(1) if x else 2", "steer control flow"),
    ("sum(x, axis=3)", "axis 3"), ("transpose(x, [0, 0])", "no order"), ("x.foo", "foo"),
    ("x and 1", "takes bools"), ("[1, 2] + 3", "not defined"), ("1 / 0", "division by zero"),
    ("exp(x, 2)", "takes 1 argument, and here are 2"), ("range(10**9)", "length"),
    ("x(1)", "cannot be called"),
    ("grad(x, x)", "of a 0-d float tensor"), ("report(x)", "by name"),
])
def test_mistakes_on_whole_tensors(expression, message):
    with pytest.raises(UserError, match=message) as caught:
        evaluated(expression, x=normal(3), i=np.array([1, 2, 0]))
    assert "^" in str(caught.value)


def test_sums_of_tensors_are_widened_and_sums_that_a_statement_writes_are_not() -> None:
    """As in PyTorch: `sum(x)` of i32 is i64, even of one number, and a product stays i32."""
    source = program("""
        op total(x: T[N]) -> T[]:
            y[] = sum[n](x[n])
            return y

        def f(x: i32[2, 2], one: i32[], truth: f32[]):
            return sum(x), sum(one), x @ x, total(x[0]), any(truth), sum(x > 1)
        """)
    x = np.array([[1, 2], [3, 4]], np.int32)
    found = call(source, "f", x=x, one=np.int32(7), truth=np.float32(0.5))
    assert [r.dtype.name for r in found] == ["int64", "int64", "int32", "int32", "bool", "int64"]
    assert [np.asarray(r).tolist() for r in found] == [10, 7, (x @ x).tolist(), 3, True, 3]
@pytest.mark.parametrize("mean", ["mean(x)", "mean[n](x[n])", "mean[n if x[n] > 0](x[n])"])
def test_a_mean_of_short_floats_is_right_where_their_sum_is_too_large(mean: str) -> None:
    source = program(f"""
        def f(x: T[N]) -> T[]:
            return {mean}

        def lost(x: T[N]) -> wide(T)[]:
            return wide(T)(sum(x))

        def wide(dtype):
            return f32 if dtype in [f16, bf16] else dtype
    """)
    ones = np.ones(70000, np.float16)
    assert call(source, "f", x=ones) == 1
    assert call(source, "f", x=ones).dtype == np.float16
    assert call(source, "lost", x=ones).dtype == np.float32
    assert call(source, "lost", x=ones.astype(np.float64)).dtype == np.float64


def test_what_a_scalar_op_gives_has_the_dtype_that_it_declares():
    """Declared by a name that stands for the dtype of an argument, too."""
    f = "op f(x: T, low: float = 0.5) -> T:\n    return where(x < low, low, x)\n"
    half = call(program(f + "def g(x: f16[N]):\n    return f(x)\n"), "g", x=np.ones(3, np.float16))
    assert half[0].dtype == np.float16
    with pytest.raises(UserError, match="'f' declares the result i64, and it is f32"):
        call(program(f + "def g(x: i64[N]):\n    return f(x)\n"), "g", x=np.ones(3, np.int64))


def test_a_def_of_numbers_is_for_others_and_cannot_be_called_from_outside():
    source = program("def rate():\n    return 0.25\n\ndef sizes(n: int = 2):\n    return [n, 3]\n\n"
                     "def f() -> f32[2, 3]:\n    return full(sizes(), rate())\n")
    same(call(source, "f"), np.full((2, 3), 0.25, np.float32))
    with pytest.raises(UserError, match="'rate' does not give tensors only"):
        call(source, "rate")
