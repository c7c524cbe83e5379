"""Adapters of elementwise operators and reductions."""

from __future__ import annotations

from typing import Any

from benchmarks.oracles.contract import Operand, adapter, dtype_name, last

SAME = (
    "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "erf", "floor", "ceil", "trunc", "sign", "isnan", "isinf", "isfinite",
    "square", "reciprocal", "exp2", "log2", "log10", "sigmoid", "abs", "neg",
)
for _name in SAME:
    _ours = {"neg": "-{}"}.get(_name, _name + "({})")
    adapter(_name)(lambda x, ours=_ours: ours.format(x))

ACTIVATIONS = {
    "relu": "relu", "relu6": "relu6", "selu": "selu", "silu": "silu", "mish": "mish",
    "softsign": "softsign", "hardsigmoid": "hard_sigmoid", "hardswish": "hard_swish",
    "logsigmoid": "log_sigmoid",
}  # fmt: skip
for _name, _function in ACTIVATIONS.items():
    adapter(f"nn.functional.{_name}")(
        lambda x, inplace=False, function=_function: f"{function}({x})")

BINARY = {
    "mul": "*", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "true_divide": "/", "div.no_rounding_mode": "/", "floor_divide": "//", "remainder": "%",
    "pow": "**",
}  # fmt: skip
for _name, _sign in BINARY.items():
    adapter(_name)(lambda x, y, rounding_mode=None, sign=_sign: f"{x} {sign} {y}")


@adapter("add")
def _add(x: Any, y: Any, alpha: float = 1) -> str:
    return f"{x} + {y}" if alpha == 1 else f"{x} + {alpha} * {y}"


@adapter("sub")
def _sub(x: Any, y: Any, alpha: float = 1) -> str:
    return f"{x} - {y}" if alpha == 1 else f"{x} - {alpha} * {y}"


@adapter("maximum", "max.binary")
def _maximum(x: Operand, y: Operand) -> str:
    return f"max({x}, {y})"


@adapter("minimum", "min.binary")
def _minimum(x: Operand, y: Operand) -> str:
    return f"min({x}, {y})"


@adapter("hypot")
def _hypot(x: Operand, y: Operand) -> str:
    return f"hypot({x}, {y})"


@adapter("logaddexp")
def _logaddexp(x: Operand, y: Operand) -> str:
    return f"logaddexp({x}, {y})"


@adapter("where")
def _where(condition: Operand, x: Any, y: Any) -> str:
    return f"where({condition}, {x}, {y})"


@adapter("lerp")
def _lerp(a: Operand, b: Any, t: Any) -> str:
    return f"lerp({a}, {b}, {t})"


@adapter("clamp")
def _clamp(x: Operand, low: Any = None, high: Any = None, **named: Any) -> str:
    low, high = named.get("min", low), named.get("max", high)
    if high is None:
        return f"max({x}, {low})"
    return f"min({x}, {high})" if low is None else f"clamp({x}, {low}, {high})"


@adapter("nn.functional.gelu")
def _gelu(x: Operand, approximate: str = "none") -> str:
    return f"gelu({x})" if approximate == "none" else f"gelu_tanh({x})"


@adapter("nn.functional.leaky_relu")
def _leaky_relu(x: Operand, negative_slope: float = 0.01, inplace: bool = False) -> str:
    return f"leaky_relu({x}, {negative_slope})"


@adapter("nn.functional.elu")
def _elu(x: Operand, alpha: float = 1.0, inplace: bool = False) -> str:
    return f"elu({x}, {alpha})"


@adapter("nn.functional.softplus")
def _softplus(x: Operand, beta: float = 1, threshold: float = 20) -> str:
    if (beta, threshold) != (1, 20):
        return f"softplus({beta} * {x}) / {beta}"
    return f"softplus({x})"


@adapter("logit")
def _logit(x: Operand, eps: float | None = None) -> str:
    return f"logit({x})" if eps is None else f"logit(clamp({x}, {eps}, {1 - eps}))"


# ---- reductions


def _reduce(name: str) -> Any:
    def write(x: Operand, dim: Any = None, keepdim: bool = False, dtype: Any = None, **_: Any
              ) -> str:
        dim = None if isinstance(dim, list | tuple) and not dim else dim
        given = x if dtype is None else f"{dtype_name(dtype)}({x})"
        if x.ndim == 0:
            return f"{name}({given})"
        return f"{name}({given}, axis={dim}, keepdims={keepdim})"

    return write


for _theirs, _ours in {
    "sum": "sum", "mean": "mean", "amax": "max", "amin": "min", "any": "any", "all": "all",
    "prod": "prod", "argmax": "argmax", "argmin": "argmin", "logsumexp": "logsumexp",
    "max.reduction_no_dim": "max", "min.reduction_no_dim": "min",
}.items():  # fmt: skip
    adapter(_theirs)(_reduce(_ours))


@adapter("softmax")
def _softmax(x: Operand, dim: int, dtype: Any = None) -> str:
    return last(x, dim, "softmax({})")


@adapter("log_softmax")
def _log_softmax(x: Operand, dim: int, dtype: Any = None) -> str:
    return last(x, dim, "log_softmax({})")

