"""Adapters of ONNX's elementwise nodes, reductions and products."""

from __future__ import annotations

from typing import Any

from benchmarks.oracles.contract import Operand, Unsupported, node

UNARY = {
    "Abs": "abs({})", "Acos": "acos({})", "Asin": "asin({})", "Atan": "atan({})",
    "Ceil": "ceil({})", "Cos": "cos({})", "Cosh": "cosh({})", "Erf": "erf({})", "Exp": "exp({})",
    "Floor": "floor({})", "Identity": "{}", "IsNaN": "isnan({})", "Log": "log({})",
    "Mish": "mish({})", "Neg": "-{}", "Not": "not {}", "Reciprocal": "reciprocal({})",
    "Relu": "relu({})", "Round": "round({})", "Sigmoid": "sigmoid({})", "Sign": "sign({})",
    "Sin": "sin({})", "Sinh": "sinh({})", "Softplus": "softplus({})", "Softsign": "softsign({})",
    "Sqrt": "sqrt({})", "Tan": "tan({})", "Tanh": "tanh({})",
}  # fmt: skip
for _kind, _text in UNARY.items():
    node(_kind)(lambda x, text=_text: text.format(x))

BINARY = {
    "Add": "+", "Sub": "-", "Mul": "*", "Equal": "==", "Greater": ">",
    "GreaterOrEqual": ">=", "Less": "<", "LessOrEqual": "<=", "And": "and", "Or": "or",
    "Xor": "!=",
}  # fmt: skip
for _kind, _sign in BINARY.items():
    node(_kind)(lambda x, y, sign=_sign: f"{x} {sign} {y}")

DTYPES = {1: "f32", 2: "u8", 3: "i8", 4: "u16", 5: "i16", 6: "i32", 7: "i64", 9: "bool",
          10: "f16", 11: "f64", 12: "u32", 13: "u64", 16: "bf16"}
"""The dtypes that ONNX has numbers for."""


@node("Pow")
def _pow(x: Operand, y: Operand) -> str:
    return f"{x} ** {y}" if x.dtype == y.dtype else f"{x.dtype}({x} ** {y})"


@node("Div")
def _div(x: Operand, y: Operand) -> str:
    if x.is_float:
        return f"{x} / {y}"
    negative = f"({x} < 0) != ({y} < 0)"  # a quotient of integers goes towards 0
    return f"where({negative}, 0 - (0 - {x}) // {y}, {x} // {y})" if x.dtype[0] != "u" else (
        f"{x} // {y}")


@node("Mod")
def _mod(x: Operand, y: Operand, *, fmod: int = 0) -> str:
    return f"fmod({x}, {y})" if fmod else f"{x} % {y}"


@node("IsInf")
def _isinf(x: Operand, *, detect_positive: int = 1, detect_negative: int = 1) -> str:
    side = {(1, 1): "", (1, 0): f" and {x} > 0", (0, 1): f" and {x} < 0", (0, 0): " and False"}
    return f"isinf({x}){side[detect_positive, detect_negative]}"


@node("Max")
def _max(*xs: Operand) -> str:
    return f"max({', '.join(map(str, xs))})" if len(xs) > 1 else f"{xs[0]}"


@node("Min")
def _min(*xs: Operand) -> str:
    return f"min({', '.join(map(str, xs))})" if len(xs) > 1 else f"{xs[0]}"


@node("Sum")
def _sum(*xs: Operand) -> str:
    return " + ".join(map(str, xs))


@node("Mean")
def _mean(*xs: Operand) -> str:
    return f"({' + '.join(map(str, xs))}) / {len(xs)}"


@node("Where")
def _where(condition: Operand, x: Operand, y: Operand) -> str:
    return f"where({condition}, {x}, {y})"


@node("Clip")
def _clip(x: Operand, low: Operand | None = None, high: Operand | None = None) -> str:
    if low is None:
        return f"{x}" if high is None else f"min({x}, {high})"
    return f"max({x}, {low})" if high is None else f"clamp({x}, {low}, {high})"


@node("Elu")
def _elu(x: Operand, *, alpha: float = 1.0) -> str:
    return f"elu({x}, {alpha})"


@node("LeakyRelu")
def _leaky(x: Operand, *, alpha: float = 0.01) -> str:
    return f"leaky_relu({x}, {alpha})"


@node("Selu")
def _selu(x: Operand, *, alpha: float = 1.67326319217681884765625,
          gamma: float = 1.05070102214813232421875) -> str:
    return f"{gamma} * elu({x}, {alpha})"


@node("HardSigmoid")
def _hard_sigmoid(x: Operand, *, alpha: float = 0.2, beta: float = 0.5) -> str:
    return f"clamp({alpha} * {x} + {beta}, 0, 1)"


@node("HardSwish")
def _hard_swish(x: Operand) -> str:
    return f"hard_swish({x})"


@node("Swish")
def _swish(x: Operand, *, alpha: float = 1.0) -> str:
    return f"{x} * sigmoid({alpha} * {x})"


@node("Gelu")
def _gelu(x: Operand, *, approximate: str = "none") -> str:
    return f"gelu({x})" if approximate == "none" else f"gelu_tanh({x})"


@node("ThresholdedRelu")
def _thresholded(x: Operand, *, alpha: float = 1.0) -> str:
    return f"where({x} > {alpha}, {x}, 0)"


@node("Shrink")
def _shrink(x: Operand, *, lambd: float = 0.5, bias: float = 0.0) -> str:
    return f"where({x} < -{lambd}, {x} + {bias}, where({x} > {lambd}, {x} - {bias}, 0))"


@node("PRelu")
def _prelu(x: Operand, slope: Operand) -> str:
    return f"where({x} < 0, {slope} * {x}, {x})"


@node("Cast")
def _cast(x: Operand, *, to: int, saturate: int = 1, round_mode: str = "up") -> str:
    if to not in DTYPES:
        raise Unsupported("there is no such dtype")
    return f"{DTYPES[to]}({x})"


@node("CastLike")
def _cast_like(x: Operand, other: Operand, *, saturate: int = 1, round_mode: str = "up") -> str:
    return f"{other.dtype}({x})"


# ---- reductions

REDUCTIONS = {
    "ReduceSum": "sum({x}, {w})", "ReduceMax": "max({x}, {w})", "ReduceMin": "min({x}, {w})",
    "ReduceMean": "mean({x}, {w})", "ReduceProd": "prod({x}, {w})",
    "ReduceL1": "sum(abs({x}), {w})", "ReduceL2": "sqrt(sum({x} * {x}, {w}))",
    "ReduceSumSquare": "sum({x} * {x}, {w})", "ReduceLogSum": "log(sum({x}, {w}))",
    "ReduceLogSumExp": "logsumexp({x}, {w})",
}  # fmt: skip


def _reduction(text: str) -> Any:
    def write(x: Operand, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
              ) -> str:
        given = axes if axes is None else [int(a) for a in axes.value]
        if not given:
            if noop_with_empty_axes:
                return text.format(x=f"{x}[None]", w="axis=0")
            given = None
        if x.ndim == 0:
            return text.format(x=f"{x}[None]", w="axis=0")
        if text.startswith(("max", "min")) and 0 in x.shape:
            raise Unsupported("of nothing there is no largest or smallest")
        return text.format(x=x, w=f"axis={given}, keepdims={bool(keepdims)}")

    return write


for _kind, _text in REDUCTIONS.items():
    node(_kind)(_reduction(_text))


@node("ArgMax")
def _argmax(x: Operand, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> str:
    return _arg("argmax", x, axis, keepdims, select_last_index)


@node("ArgMin")
def _argmin(x: Operand, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> str:
    return _arg("argmin", x, axis, keepdims, select_last_index)


def _arg(name: str, x: Operand, axis: int, keepdims: int, last: int) -> str:
    keep = f"axis={axis}, keepdims={bool(keepdims)}"
    if last:
        return f"{x.shape[axis] - 1} - {name}(flip({x}, axis={axis}), {keep})"
    return f"{name}({x}, {keep})"


# ---- products


@node("MatMul")
def _matmul(x: Operand, y: Operand) -> str:
    return f"{x} @ {y}"


@node("Gemm")
def _gemm(a: Operand, b: Operand, c: Operand | None = None, *, alpha: float = 1.0,
          beta: float = 1.0, transA: int = 0, transB: int = 0) -> str:
    product = f"{alpha} * ({a}{'.T' * transA} @ {b}{'.T' * transB})"
    return product if c is None else f"{product} + {beta} * {c}"
