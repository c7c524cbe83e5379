"""Mathematics on elements: at random numbers, at special ones, and where dtypes meet."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from tests.library.example import Example

inf, nan = np.inf, np.nan
SPECIAL = [-inf, -2.5, -1, -0.5, 0, 0.3, 1, 1.5, 2.5, inf, nan]
PAIRS = {"x": [121], "y": [121]}
FIRST, SECOND = (np.array(a).ravel() for a in np.meshgrid(SPECIAL, SPECIAL))
BOTH = {"x": FIRST, "y": SECOND}


def special(op: str, function: object, **settings: object) -> Example:
    """A function of one number, at those that are no ordinary ones."""
    return Example(op, function, {"x": [11], **settings}, {"x": SPECIAL}, kink=True)


def pairs(op: str, function: object, dtype: str = "f32") -> Example:
    """A function of two numbers, at all pairs of such."""
    return Example(op, function, {**PAIRS, "T": dtype, "U": dtype},
                   BOTH if dtype == "f32" else whole(BOTH), kink=True, only_values=True)


def stepwise(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A function of steps, for which PyTorch has no gradient."""
    return lambda *given: function(*(x.detach() for x in given))


def whole(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {k: np.trunc(np.nan_to_num(v, nan=3, posinf=7, neginf=-7)) for k, v in given.items()}


def divisible(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Without divisors of 0, which PyTorch refuses."""
    return {**given, "y": np.where(given["y"] == 0, 5, given["y"])}


ARITHMETIC = [
    Example("add", lambda x, y, alpha: x + alpha * y),
    Example("sub", lambda x, y, alpha: x - alpha * y),
    Example("mul", torch.mul),
    Example("true_divide", torch.true_divide),
    Example("divide_to_zero", lambda x, y: torch.div(x, y, rounding_mode="trunc")),
    Example("quotient", torch.div),
    Example("floor_divide", stepwise(torch.floor_divide)),
    Example("floor_divide", stepwise(torch.floor_divide), {"x": [3], "y": [3]},
            {"x": [1.0, 0.5, 6.0], "y": [0.1, 0.1, 0.2]}, kink=True),
    Example("remainder", torch.remainder),
    Example("fmod", torch.fmod),
    *(Example(name, function, {**PAIRS, "T": "i64"}, divisible(whole(BOTH)))
      for name, function in {
          "floor_divide": torch.floor_divide, "remainder": torch.remainder, "fmod": torch.fmod,
          "divide_to_zero": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
          "true_divide": torch.true_divide}.items()),
    Example("neg", torch.neg),
    Example("reciprocal", torch.reciprocal),
    Example("square", torch.square),
    Example("pow", torch.pow, {"x": [5], "y": [5]}, {"x": [0.5, 1, 2, 3, 4],
                                                     "y": [3, -2, 0.5, 0, -1.5]}),
    Example("float_power", torch.float_power, {"x": [3], "y": [3]},
            {"x": [1, 2, 3], "y": [2, -1, 0.5]}),
    Example("hypot", torch.hypot),
    Example("hypot", torch.hypot, {"x": [3], "y": [3]}, {"x": [1e30, 3, 0], "y": [1e30, 4, 2]},
            kink=True),
    Example("addcmul", lambda x, a, b, value: x + value * a * b),
    Example("addcdiv", lambda x, a, b, value: x + value * a / b),
    Example("lerp", torch.lerp),
    Example("lerp", torch.lerp, {"a": [3], "b": [3], "t": [3]}, {"t": [0, 1, 0.75]}),
]

LOGARITHMS = [
    Example("exp2", torch.exp2),
    Example("log2", torch.log2),
    Example("log10", torch.log10),
    Example("xlogy", torch.xlogy, {"x": [4], "y": [4]}, {"x": [2, 0, 0.5, 1], "y": [3, 5, 4, 0.5]}),
    Example("xlogy", torch.xlogy, {"x": [5], "y": [5]}, {"x": [0, 0, 0, 0, nan],
                                                         "y": [0, -1, inf, nan, 1]},
            kink=True, only_values=True),
    Example("xlog1py", torch.special.xlog1py),
    Example("logaddexp", torch.logaddexp),
    Example("logaddexp", torch.logaddexp, {"a": [5], "b": [5]},
            {"a": [-inf, inf, 3, -inf, 200], "b": [-inf, inf, 3, 1, -200]}, kink=True,
            only_values=True),
    Example("logaddexp2", torch.logaddexp2),
    Example("logit", torch.logit),
    Example("logit", lambda x: torch.logit(x, 0.1), {"x": [4], "eps": 0.1},
            {"x": [0.05, 0.3, 0.5, 0.99]}),
    Example("sigmoid", torch.sigmoid, {"x": [6]}, {"x": [-100, -20, -0.5, 0, 3, 100]}),
]

ANGLES = [
    Example("deg2rad", torch.deg2rad),
    Example("rad2deg", torch.rad2deg),
    Example("sinc", torch.sinc, {"x": [5]}, {"x": [-1.3, -0.5, 0.25, 1, 2.5]}),
    Example("asinh", torch.asinh, {"x": [7]}, {"x": [-1e12, -2, -1e-3, 0, 0.5, 4, 1e20]}),
    Example("acosh", torch.acosh, {"x": [5]}, {"x": [1.0001, 1.5, 2, 10, 1e20]}),
    Example("atanh", torch.atanh, {"x": [5]}, {"x": [-0.999, -0.5, 1e-4, 0.3, 0.99]}),
    special("asinh", torch.asinh),
]

PROBABILITY = [
    Example("erfc", torch.erfc, {"x": [9]}, {"x": [-30, -3, -0.5, 0, 0.1, 1, 2.5, 5, 9]}),
    special("erfc", torch.erfc),
    Example("erfinv", torch.erfinv, {"I": [8]},
            {"x": [-0.999, -0.9, -0.2, 0, 0.1, 0.5, 0.99, 0.999]}),
    Example("erfinv", torch.erfinv, {"I": [2]}, {"x": [-0.99999, 0.999999]}, kink=True),
    Example("erfinv", torch.erfinv, {"I": [4]}, {"x": [-1, 1, 1.5, nan]}, kink=True,
            only_values=True),
    Example("lgamma", torch.lgamma, {"I": [9]},
            {"x": [-3.7, -0.5, 1e-3, 0.3, 1, 2, 3.5, 9, 200]}),
    Example("digamma", torch.digamma, {"I": [9]},
            {"x": [-3.7, -0.5, 1e-3, 0.3, 1, 1.46, 3.5, 9, 200]}),
]

ROUNDING = [
    Example("frac", torch.frac),
    Example("signbit", torch.signbit, {"x": [4]}, {"x": [-1, -0.0, 0, inf]}),
    Example("copysign", torch.copysign, {"x": [4], "y": [4]},
            {"x": [1, -2, 3, -4], "y": [-0.0, 0.0, -1, 2]}, kink=True),
    Example("heaviside", stepwise(torch.heaviside), {"x": [4], "at_zero": [4]},
            {"x": [-1, 0, 0, 2]}, kink=True, only_values=True),
]

EXTREMES = [
    *(pairs(name, getattr(torch, name)) for name in ("maximum", "minimum", "fmax", "fmin")),
    *(Example(name, getattr(torch, name), {"x": [4], "y": [4]}, {"x": [1, 2, 3, -1],
                                                                 "y": [2, 2, 1, -1]}, kink=True)
      for name in ("maximum", "minimum", "fmax", "fmin")),
    Example("maximum", torch.maximum, {**PAIRS, "T": "i64"}, whole(BOTH)),
    Example("clamp", torch.clamp),
    Example("clamp", lambda x, low, high: x.clamp(low, high), {"x": [5], "low": [], "high": []},
            {"x": [-2, -1, 0, 1, nan], "low": -1, "high": 1}, kink=True),
    Example("nan_to_num", torch.nan_to_num, {"x": [5]}, {"x": [1, -2.5, nan, 0, 3]}, kink=True),
    Example("nan_to_num", lambda x: torch.nan_to_num(x, 1, 5, -5),
            {"x": [11], "nan": 1.0, "posinf": 5.0, "neginf": -5.0}, {"x": SPECIAL}, kink=True),
]

TESTS = [
    *(pairs(name, getattr(torch, name), dtype) for dtype in ("f32", "i64") for name in (
        "eq", "ne", "lt", "le", "gt", "ge", "isclose", "logical_and", "logical_or",
        "logical_xor")),
    Example("isclose", lambda x, y: torch.isclose(x, y, 0.1, 0.2, equal_nan=True),
            {**PAIRS, "rtol": 0.1, "atol": 0.2, "equal_nan": True}, BOTH),
    *(special(name, getattr(torch, name))
      for name in ("isfinite", "isposinf", "isneginf", "logical_not")),
    Example("bitwise_not", torch.bitwise_not, {"x": [4], "T": "u8"}, {"x": [0, 1, 7, 255]}),
    Example("bitwise_not", torch.bitwise_not, {"x": [4], "T": "bool"}, {"x": [0, 1, 0, 1]}),
]

ELEMENTWISE = [*ARITHMETIC, *LOGARITHMS, *ANGLES, *PROBABILITY, *ROUNDING, *EXTREMES, *TESTS]
