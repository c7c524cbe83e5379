"""Computes of every kind as text, with sizes that neither 2 nor 3 divides, and data for them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from anabranch.ir.core import Function
from anabranch.ir.ops import Compute
from anabranch.ir.parser import parse_module
from anabranch.ir.reference import NUMPY
from anabranch.ir.types import TensorType, category

Array = np.ndarray[Any, Any]

CASES = {
    "matmul": "(%x: f32[5, 7], %w: f32[7, 4]) f32[5, 4] = [i, j] sum[k < 7](%x[i, k] * %w[k, j])",
    "batched matmul": "(%x: f32[3, 5, 7], %w: f32[3, 7, 2]) f32[3, 5, 2] ="
                      " [b, i, j] sum[k < 7](%x[b, i, k] * %w[b, k, j])",
    "matmul of bf16": "(%x: bf16[5, 7], %w: bf16[7, 4]) bf16[5, 4] ="
                      " [i, j] sum[k < 7](%x[i, k] * %w[k, j])",
    "bias": "(%x: f32[5, 4], %b: f32[4]) f32[5, 4] = [i, j] %x[i, j] + %b[j]",
    "weighted sum of three": "(%x: f32[5], %w: f32[5], %b: f32[5]) f32[5] ="
                             " [i] %x[i] * %w[i] + %b[i] / 2.0 - where(%w[i] > 0.0, %x[i], 0.0)",
    "transpose": "(%x: f32[5, 4]) f32[4, 5] = [j, i] %x[i, j]",
    "broadcast": "(%x: f32[5]) f32[3, 5] = [j, i] %x[i]",
    "scalar": "(%x: f32[], %y: f32[]) f32[] = [] %x[] * 3.0 + %y[]",
    "sum to a scalar": "(%x: f32[5, 4]) f32[] = [] sum[i < 5, j < 4](%x[i, j])",
    "softmax maximum": "(%x: f32[5, 7]) f32[5] = [i] max[j < 7](%x[i, j])",
    "softmax exponential": "(%x: f32[5, 7], %m: f32[5]) f32[5, 7] = [i, j] exp(%x[i, j] - %m[i])",
    "softmax quotient": "(%e: f32[5, 7], %s: f32[5]) f32[5, 7] ="
                        " [i, j] %e[i, j] / (1.0 + abs(%s[i]))",
    "minimum of negatives": "(%x: f32[5, 7]) f32[5] = [i] min[j < 7](-%x[i, j] * 2.0)",
    "product": "(%x: f32[5, 7]) f32[5] = [i] prod[j < 7](%x[i, j])",
    "product of products": "(%x: f32[5], %y: f32[5]) f32[5] = [i] %x[i] * abs(%y[i])",
    "any": "(%x: bool[5, 7]) bool[5] = [i] any[j < 7](%x[i, j])",
    "all": "(%x: bool[5, 7]) bool[5] = [i] all[j < 7](%x[i, j])",
    "argmax": "(%x: f32[5, 7]) i64[5] = [i] argmax[j < 7](%x[i, j])",
    "count": "(%x: i64[5, 7]) i64[5] = [i] sum[j < 7 if %x[i, j] > 2](1)",
    "integer maximum": "(%x: i32[5, 7], %y: i32[7]) i32[5] = [i] max[j < 7](max(%x[i, j], %y[j]))",
    "narrowing": "(%x: i64[5]) i8[5] = [i] i8(%x[i])",
    "layer norm mean": "(%x: f32[5, 7]) f32[5] = [i] sum[j < 7](%x[i, j] / 7.0)",
    "layer norm variance": "(%x: f32[5, 7], %m: f32[5]) f32[5] ="
                           " [i] sum[j < 7]((%x[i, j] - %m[i]) * (%x[i, j] - %m[i]))",
    "layer norm scale": "(%x: f32[5, 7], %m: f32[5], %v: f32[5], %g: f32[7]) f32[5, 7] ="
                        " [i, j] (%x[i, j] - %m[i]) * rsqrt(abs(%v[i]) + 1.0) * %g[j]",
    "label": "(%x: f32[5, 7], %ids7: i64[5]) f32[5] = [i] %x[i, check(%ids7[i], 7)]",
    "label share": "(%x: f32[5, 7], %ids7: i64[5], %z: f32[5]) f32[5] ="
                   " [i] %x[i, check(%ids7[i], 7)] / exp(%z[i]) * 3.0",
    "weighted rows": "(%ids7: i64[5, 3], %t: f32[7, 4], %w: f32[3]) f32[5, 4] = [i, d]"
                     " sum[n < 3](%t[check(%ids7[i, n], 7), d] * %w[n])",
    "embedding": "(%ids7: i64[5], %t: f32[7, 4]) f32[5, 4] = [i, d] %t[check(%ids7[i], 7), d]",
    "embedding with pad": "(%ids9: i64[5], %t: f32[7, 4]) f32[5, 4] ="
                          " [i, d] %t[%ids9[i] - 1, d, pad=0.0]",
    "embedding with another pad": "(%ids9: i64[5], %t: f32[7, 4]) f32[5, 4] ="
                                  " [i, d] %t[%ids9[i] - 1, d, pad=2.0]",
    "embedding of bf16": "(%ids7: i64[5], %t: bf16[7, 4]) bf16[5, 4] ="
                         " [i, d] %t[check(%ids7[i], 7), d]",
    "bag": "(%ids7: i64[5, 3], %t: f32[7, 4]) f32[5, 4] ="
           " [i, d] sum[n < 3](%t[check(%ids7[i, n], 7), d])",
    "two indirections": "(%ids7: i64[5], %ids4: i64[5], %t: f32[7, 4]) f32[5] ="
                        " [i] %t[check(%ids7[i], 7), check(%ids4[i], 4)]",
    "scatter": "(%ids7: i64[5], %x: f32[5, 4]) f32[7, 4] ="
               " [v, d] sum[n < 5 if %ids7[n] == v](%x[n, d])",
    "scatter of some": "(%ids7: i64[5], %ids4: i64[5], %x: f32[5, 4]) f32[7, 4] ="
                       " [v, d] sum[n < 5 if v == %ids7[n] and %ids4[n] > 1](%x[n, d])",
    "scatter maximum": "(%ids7: i64[5], %x: f32[5]) f32[7] ="
                       " [v] max[n < 5 if %ids7[n] == v](%x[n])",
    "convolution": "(%x: f32[2, 4, 8], %w: f32[3, 4, 3]) f32[2, 3, 8] = [b, o, h]"
                   " sum[c < 4, i < 3](%x[b, c, h + i - 1, pad=0.0] * %w[o, c, i])",
    "grouped convolution": "(%x: f32[2, 6, 8], %w: f32[4, 3, 2]) f32[2, 4, 4] ="
                           " [b, (g < 2, o < 2), h] sum[c < 3, i < 2]("
                           "%x[b, g * 3 + c, h * 2 + i] * %w[g * 2 + o, c, i])",
    "max pool": "(%x: f32[2, 5, 9]) f32[2, 5, 4] = [b, c, h] max[i < 3](%x[b, c, h * 2 + i])",
    "disjoint windows": "(%x: f32[3, 12]) f32[3, 6] = [b, h] sum[i < 2](%x[b, h * 2 + i])",
    "scores of merged heads": "(%q: f32[2, 5, 12], %k: f32[2, 5, 6]) f32[2, 4, 5, 5] ="
                              " [b, (g < 2, r < 2), i, j] sum[d < 3]("
                              "%q[b, i, (g * 2 + r) * 3 + d] * %k[b, j, g * 3 + d])",
    "causal maximum": "(%s: f32[2, 5, 5]) f32[2, 5] ="
                      " [b, i] max[j < 5 if j <= i](%s[b, i, j])",
    "causal exponential": "(%s: f32[2, 5, 5], %m: f32[2, 5]) f32[2, 5, 5] ="
                          " [b, i, j] where(j <= i, exp(%s[b, i, j] - %m[b, i]), 0.0)",
    "dropout": "(%x: f32[5, 7], %step: i64[], %seed: i64[]) f32[5, 7] = [i, j]"
               " where(rand(3, %seed[], %step[], i * 7 + j) >= 0.5, %x[i, j] / 0.5, 0.0)",
    "noisy sum": "(%x: f32[5, 7], %step: i64[], %seed: i64[]) f32[5] = [i]"
                 " sum[j < 7](%x[i, j] * randn(1, %seed[], %step[], i * 7 + j))",
    "split heads": "(%x: f32[5, 6]) f32[2, 5, 3] = [h, s, d] %x[s, h * 3 + d]",
    "merge heads": "(%x: f32[2, 5, 3]) f32[5, 6] = [s, (h < 2, d < 3)] %x[h, s, d]",
    "flatten": "(%x: f32[4, 3, 2]) f32[24] = [(a < 4, b < 3, c < 2)] %x[a, b, c]",
    "flatten unevenly": "(%x: f32[5, 3]) f32[15] = [(a < 5, b < 3)] %x[a, b]",
    "unit dimension": "(%x: f32[5]) f32[1, 5] = [(), i] %x[i]",
    "concatenate": "(%x: f32[5, 3], %y: f32[2, 3]) f32[7, 3] ="
                   " [i, j] where(i < 5, %x[i, j], %y[i - 5, j])",
    "concatenate bf16": "(%x: bf16[5], %y: bf16[2]) bf16[7] = [i] where(i < 5, %x[i], %y[i - 5])",
    "slice": "(%x: f32[9, 3]) f32[4, 3] = [i, j] %x[i + 4, j]",
    "stride": "(%x: f32[8, 3]) f32[4, 3] = [i, j] %x[i * 2 + 1, j]",
    "pad": "(%x: f32[5, 3]) f32[8, 3] = [i, j] %x[i - 2, j, pad=0.0]",
    "pad with seven": "(%x: f32[5, 3]) f32[8, 3] = [i, j] %x[i - 2, j, pad=7.0]",
    "flip": "(%x: f32[5, 3]) f32[5, 3] = [i, j] %x[4 - i, j]",
    "rotate": "(%x: f32[5, 6]) f32[5, 6] = [i, d] %x[i, (d + 3) % 6]",
    "repeat": "(%x: f32[3, 2]) f32[6, 2] = [i, j] %x[i // 2, j]",
    "tile": "(%x: f32[3, 2]) f32[6, 2] = [i, j] %x[i % 3, j]",
    "diagonal": "(%x: f32[5, 5]) f32[5] = [i] %x[i, i]",
    "difference": "(%x: f32[6]) f32[5] = [i] %x[i + 1] - %x[i]",
    "index value": "(%x: f32[5, 4]) f32[5, 4] = [i, j] %x[i, j] * f32(i * 4 + j)",
    "mask": "(%x: f32[5, 5]) f32[5, 5] = [i, j] where(i == j, 0.0, %x[i, j])",
    "clamp": "(%x: f32[5]) f32[5] = [i] min(max(%x[i], -1.0), 1.0)",
    "negated exponential": "(%x: f32[5]) f32[5] = [i] 1.0 - exp(-%x[i])",
    "shifted": "(%x: f32[5]) f32[5] = [i] (%x[i] - 1.5) * 1e-40",
    "scaled to nothing": "(%x: f32[5]) f32[5] = [i] %x[i] * 1e-50",
    "logarithm": "(%x: f32[5]) f32[5] = [i] log(%x[i])",
    "logic": "(%x: bool[5], %y: bool[5]) bool[5] = [i] %x[i] and %y[i]",
    "conversion from bf16": "(%x: bf16[5]) f32[5] = [i] f32(%x[i])",
    "sum in bf16": "(%x: bf16[5], %y: bf16[5]) bf16[5] = [i] %x[i] + %y[i] * 0.5:bf16",
    "conversion to bf16": "(%x: f32[5]) bf16[5] = [i] bf16(%x[i])",
    "nothing": "(%x: f32[0, 3]) f32[3] = [j] sum[i < 0](%x[i, j])",
    "empty": "(%x: f32[0, 3]) f32[0, 3] = [i, j] exp(%x[i, j])",
    "single": "(%x: f32[1, 1]) f32[1, 1] = [i, j] %x[i, j] * 2.0",
}


def function(case: str) -> Function:
    """A function of one compute."""
    arguments, result = re.fullmatch(r"(\(.*?\)) (\w+\[.*)", CASES[case]).groups()
    text = f"module phase=global\nfunc @f{arguments} {{\n  %r: {result}\n  return %r\n}}\n"
    return parse_module(text).functions["f"]


def compute(case: str) -> Compute:
    op = function(case).body.first
    assert isinstance(op, Compute)
    return op


def data(name: str, type: TensorType, random: np.random.Generator) -> Array:
    """Random numbers of a type; `%ids7` holds indices below 7. Floats are multiples of 1/4, so
    that bf16 holds them exactly."""
    if limit := re.fullmatch(r"ids(\d+)(\.\d+)?", name):
        return random.integers(0, int(limit[1]), type.shape)
    match category(type.dtype):
        case "bool":
            return random.integers(0, 2, type.shape) > 0
        case "int":
            return random.integers(-5, 9, type.shape).astype(NUMPY[type.dtype])
    return (random.integers(-9, 9, type.shape) / 4).astype(NUMPY[type.dtype])
