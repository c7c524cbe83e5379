"""Adapters of elementwise operators and reductions."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.oracles.contract import Operand, Unsupported, adapter, dtype_name, oracle

UNARY = (
    "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "floor", "ceil", "trunc",
    "sign", "isnan", "isinf", "isfinite", "square", "reciprocal", "exp2", "log2", "log10",
    "sigmoid", "abs", "deg2rad", "rad2deg", "sinc", "frac", "logical_not", "bitwise_not",
)
for _name in UNARY:
    adapter(_name)(lambda x, function=_name, **_: f"{function}({x})")

BINARY = {
    "mul": "{} * {}", "eq": "{} == {}", "ne": "{} != {}", "lt": "{} < {}", "le": "{} <= {}",
    "gt": "{} > {}", "ge": "{} >= {}", "true_divide": "{} / {}", "floor_divide": "{} // {}",
    "remainder": "{} % {}", "pow": "{} ** {}", "div.no_rounding_mode": "{} / {}",
    "div.floor_rounding": 'div({}, {}, "floor")', "div.trunc_rounding": 'div({}, {}, "trunc")',
    "max.binary": "maximum({}, {})", "min.binary": "minimum({}, {})",
}  # fmt: skip
BINARY |= {name: name + "({}, {})" for name in (
    "maximum", "minimum", "fmax", "fmin", "fmod", "hypot", "logaddexp", "logaddexp2", "atan2",
    "copysign", "heaviside", "xlogy", "float_power", "logical_and", "logical_or", "logical_xor",
    "bitwise_and", "bitwise_or", "bitwise_xor",
)}
for _name, _text in BINARY.items():
    adapter(_name)(lambda x, y, rounding_mode=None, text=_text: text.format(x, y))


@adapter("neg")
def _neg(x: Operand) -> str:
    return f"-{x}"


@adapter("add")
def _add(x: Any, y: Any, alpha: float = 1) -> str:
    return f"{x} + {y}" if alpha == 1 else f"add({x}, {y}, {alpha})"


@adapter("sub")
def _sub(x: Any, y: Any, alpha: float = 1) -> str:
    return f"{x} - {y}" if alpha == 1 else f"sub({x}, {y}, {alpha})"


@adapter("rsub")
def _rsub(x: Any, y: Any, alpha: float = 1) -> str:
    return f"{y} - {x}" if alpha == 1 else f"sub({y}, {x}, {alpha})"


@adapter("addcdiv")
def _addcdiv(x: Operand, a: Operand, b: Operand, *, value: Any = 1) -> str:
    return f"addcdiv({x}, {a}, {b}, {value})"


@adapter("addcmul")
def _addcmul(x: Operand, a: Operand, b: Operand, *, value: Any = 1) -> str:
    return f"addcmul({x}, {a}, {b}, {value})"


@adapter("round", "round.decimals_0", "round.decimals_3", "round.decimals_neg_3")
def _round(x: Operand, decimals: int = 0) -> str:
    return f"round({x}, {decimals})" if decimals else f"round({x})"


@adapter("where")
def _where(x: Any, condition: Operand, y: Any) -> str:
    return f"where({condition}, {x}, {y})"


@adapter("zeros_like")
def _zeros_like(x: Operand, dtype: Any = None, **_: Any) -> str:
    return f"zeros_like({x})" if dtype is None else f"zeros_like({dtype_name(dtype)}({x}))"


@adapter("ones_like")
def _ones_like(x: Operand, dtype: Any = None, **_: Any) -> str:
    return f"ones_like({x})" if dtype is None else f"ones_like({dtype_name(dtype)}({x}))"


@adapter("lerp")
def _lerp(a: Operand, b: Any, t: Any) -> str:
    return f"lerp({a}, {b}, {t})"


@adapter("clamp")
def _clamp(x: Operand, low: Any = None, high: Any = None, **named: Any) -> str:
    return f"clamp({x}, {named.get('min', low)}, {named.get('max', high)})"


@adapter("clamp_min")
def _clamp_min(x: Operand, low: Any) -> str:
    return f"clamp({x}, {low})"


@adapter("clamp_max")
def _clamp_max(x: Operand, high: Any) -> str:
    return f"clamp({x}, high={high})"


@adapter("nan_to_num")
def _nan_to_num(x: Operand, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> str:
    return f"nan_to_num({x}, {float(nan or 0)}, {posinf}, {neginf})"


@adapter("isclose")
def _isclose(x: Operand, y: Operand, rtol: float = 1e-5, atol: float = 1e-8,
             equal_nan: bool = False) -> str:
    return f"isclose({x}, {y}, {float(rtol)}, {float(atol)}, {equal_nan})"


@adapter("logit")
def _logit(x: Operand, eps: float | None = None) -> str:
    return f"logit({x}, {eps})"


@adapter("full_like")
def _full_like(x: Operand, value: Any, dtype: Any = None, **_: Any) -> str:
    made = f"full_like({x}, {value})"
    return made if dtype is None else f"full({list(x.shape)}, {value}, {dtype_name(dtype)})"


@adapter("frexp")
def _frexp(x: Operand) -> str:
    raise Unsupported("the bits of a float are not for programs: use log2 and floor")


# ---- reductions


def _axis(x: Operand, dim: Any) -> Any:
    """Torch's "all axes" is an empty list, too; a tensor without dimensions has axis 0 there."""
    if x.ndim == 0 or (isinstance(dim, list | tuple) and not dim):
        return None
    return list(dim) if isinstance(dim, tuple) else dim


def _reduce(name: str) -> Any:
    def write(x: Operand, dim: Any = None, keepdim: bool = False, dtype: Any = None, **_: Any
              ) -> str:
        given = x if dtype is None else f"{dtype_name(dtype)}({x})"
        if x.ndim == 0:
            return f"{name}({given})"
        return f"{name}({given}, axis={_axis(x, dim)}, keepdims={keepdim})"

    return write


oracle("any")(lambda x, *args, **kwargs: torch.any(x != 0, *args, **kwargs))  # u8 gives u8 there
oracle("all")(lambda x, *args, **kwargs: torch.all(x != 0, *args, **kwargs))


for _theirs, _ours in {
    "sum": "sum", "mean": "mean", "amax": "max", "amin": "min", "any": "any", "all": "all",
    "prod": "prod", "argmax": "argmax", "argmin": "argmin", "logsumexp": "logsumexp",
    "max.reduction_no_dim": "max", "min.reduction_no_dim": "min",
    "count_nonzero": "count_nonzero",
}.items():  # fmt: skip
    adapter(_theirs)(_reduce(_ours))


def _extreme(name: str) -> Any:
    """The extremum whose gradient goes to one element, and its place."""

    def write(x: Operand, dim: int, keepdim: bool = False) -> str:
        place = f"k = arg{name}({x}, axis={dim}, keepdims=True)"
        kept = "" if keepdim else f", axis={dim}"
        if x.ndim == 0:
            return f"return {x}, i64(0 * {x})"
        shape = "v, k" if keepdim else f"squeeze(v{kept}), squeeze(k{kept})"
        return f"{place}\nv = gather({x}, k, {dim})\nreturn {shape}"

    return write


adapter("max.reduction_with_dim")(_extreme("max"))
adapter("min.reduction_with_dim")(_extreme("min"))


def _moments(name: str) -> Any:
    def write(x: Operand, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *,
              correction: Any = None) -> str:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        count = correction if correction is not None else 1 if unbiased in (None, True) else 0
        return f"{name}({x}, axis={_axis(x, dim)}, keepdims={keepdim}, correction={count})"

    return write


for _name in ("var", "std", "var_mean", "std_mean"):
    adapter(_name, f"{_name}.unbiased")(_moments(_name))


@adapter("norm", "linalg.vector_norm")
def _norm(x: Operand, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None,
          **named: Any) -> str:
    given = x if dtype is None else f"{dtype_name(dtype)}({x})"
    power = named.get("ord", p)
    if power in ("fro", None):
        power = 2
    if power == "nuc":
        raise Unsupported("a nuclear norm needs singular values")
    return f"norm({given}, axis={_axis(x, dim)}, keepdims={keepdim}, p={power})"


for _name in ("cumsum", "cumprod", "logcumsumexp"):
    def _running(x: Operand, dim: int, dtype: Any = None, function: str = _name) -> str:
        given = f"{x}" if dtype is None else f"{dtype_name(dtype)}({x})"
        if x.ndim == 0:
            return f"{function}({given}[None], axis=0)[0]"
        return f"{function}({given}, axis={dim})"

    adapter(_name)(_running)


for _name in ("cummax", "cummin"):
    def _extreme(x: Operand, dim: int, function: str = _name) -> str:
        if x.ndim == 0:
            return f"y, places = {function}({x}[None], axis=0)\nreturn y[0], places[0]"
        return f"{function}({x}, axis={dim})"

    adapter(_name)(_extreme)


# ---- by rank: the library gives no places of medians

for _name, _theirs in {"median": torch.median, "nanmedian": torch.nanmedian}.items():
    oracle(_name)(lambda x, *args, function=_theirs, **kwargs: (
        function(x, *args, **kwargs).values if args or kwargs else function(x)))


@adapter("median")
def _median(x: Operand, dim: Any = None, keepdim: bool = False) -> str:
    return f"median({x}, axis={_axis(x, dim)}, keepdims={keepdim})"


@adapter("nanmedian")
def _nanmedian(x: Operand, dim: Any = None, keepdim: bool = False) -> str:
    return f"nanmedian({x}, axis={_axis(x, dim)}, keepdims={keepdim})"


def _quantile(name: str) -> Any:
    def write(x: Operand, q: Any, dim: Any = None, keepdim: bool = False,
              interpolation: str = "linear") -> str:
        return f'{name}({x}, {q}, {_axis(x, dim)}, {keepdim}, "{interpolation}")'

    return write


for _name in ("quantile", "nanquantile"):
    adapter(_name)(_quantile(_name))
