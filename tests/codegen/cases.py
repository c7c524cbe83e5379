"""A function for every kind of kernel, in index notation, with shapes that divide nothing."""

from __future__ import annotations

from anabranch.ir.core import Block, Function, Module
from anabranch.ir.ops import Fused
from anabranch.ir.parser import parse_module

BIG = 3001  # enough rows that a reduction over them is split

CASES = {
    "pointwise with a row": """(%x: f32[33, 70], %b: f32[70]) {
        %y: f32[33, 70] = [i, j] (%x[i, j] + %b[j]) * 0.5
        return %y""",
    "gelu": """(%x: f32[33, 70]) {
        %y: f32[33, 70] = [i, j] %x[i, j] * 0.5 * (1.0 + erf(%x[i, j] * 0.70710678))
        return %y""",
    "transpose": """(%x: f32[33, 70, 5]) {
        %y: f32[70, 5, 33] = [j, k, i] %x[i, j, k]
        return %y""",
    "split and merge": """(%x: f32[6, 35]) {
        %y: f32[5, 42] = [c, (a < 6, b < 7)] %x[a, b * 5 + c]
        return %y""",
    "softmax": """(%x: f32[19, 70]) {
        %m: f32[19] = [i] max[n < 70](%x[i, n])
        %e: f32[19, 70] = [i, n] exp(%x[i, n] - %m[i])
        %s: f32[19] = [i] sum[n < 70](%e[i, n])
        %z: f32[19, 70] = [i, n] %e[i, n] / %s[i]
        return %z, %m""",
    "softmax over columns": """(%x: f32[70, 19]) {
        %m: f32[19] = [i] max[n < 70](%x[n, i])
        return %m""",
    "softmax down columns": """(%x: f32[70, 19]) {
        %m: f32[19] = [i] max[n < 70](%x[n, i])
        %e: f32[70, 19] = [n, i] exp(%x[n, i] - %m[i])
        %s: f32[19] = [i] sum[n < 70](%e[n, i])
        %z: f32[70, 19] = [n, i] %e[n, i] / %s[i]
        return %z""",
    "causal softmax": """(%x: f32[2, 3, 19, 19]) {
        %s: f32[2, 3, 19, 19] = [b, h, i, j] %x[b, h, i, j] / 3.0
        %m: f32[2, 3, 19] = [b, h, i] max[j < 19 if j <= i](%s[b, h, i, j])
        %e: f32[2, 3, 19, 19] = [b, h, i, j] where(j <= i, exp(%s[b, h, i, j] - %m[b, h, i]), 0.0)
        %t: f32[2, 3, 19] = [b, h, i] sum[j < 19](%e[b, h, i, j])
        return %e, %t""",
    "masked difference": """(%x: f32[2, 19, 19]) {
        %y: f32[2, 19, 19] = [b, i, j] where(i - 2 > j, %x[b, i, j], -1.0)
        return %y""",
    "layer norm": """(%x: f32[4, 6, 35], %w: f32[35], %b: f32[35]) {
        %t: f32[4, 6] = [i, s] sum[d < 35](%x[i, s, d])
        %u: f32[4, 6] = [i, s] %t[i, s] / 35.0
        %c: f32[4, 6, 35] = [i, s, d] %x[i, s, d] - %u[i, s]
        %q: f32[4, 6] = [i, s] sum[d < 35](%c[i, s, d] * %c[i, s, d])
        %r: f32[4, 6] = [i, s] rsqrt(%q[i, s] / 35.0 + 0.00001)
        %y: f32[4, 6, 35] = [i, s, d] %c[i, s, d] * %r[i, s] * %w[d] + %b[d]
        return %y, %u, %r""",
    "cross entropy": """(%x: f32[19, 70], %t: i64[19]) {
        %m: f32[19] = [i] max[v < 70](%x[i, v])
        %s: f32[19] = [i] sum[v < 70](exp(%x[i, v] - %m[i]))
        %h: f32[19] = [i] %x[i, check(%t[i], 70)]
        %y: f32[19] = [i] log(%s[i]) + %m[i] - %h[i]
        return %y""",
    "adamw": """(%p: f32[9, 35], %g: f32[9, 35], %m: f32[9, 35], %v: f32[9, 35], %lr: f32[]) {
        %n: f32[9, 35] = [i, j] 0.9 * %m[i, j] + 0.1 * %g[i, j]
        %w: f32[9, 35] = [i, j] 0.95 * %v[i, j] + 0.05 * %g[i, j] * %g[i, j]
        %q: f32[9, 35] = [i, j] %p[i, j] * (1.0 - %lr[] * 0.1) \
- %lr[] * %n[i, j] / (sqrt(%w[i, j]) + 0.00000001)
        return %q, %n, %w""",
    "column sums": """(%x: f32[300, 70], %g: f32[300, 70]) {
        %p: f32[300, 70] = [i, j] %x[i, j] * %g[i, j]
        %w: f32[70] = [j] sum[i < 300](%p[i, j])
        %b: f32[70] = [j] sum[i < 300](%g[i, j])
        return %p, %w, %b""",
    "split column sums": f"""(%x: f32[{BIG}, 70]) {{
        %y: f32[{BIG}, 70] = [i, j] %x[i, j] * 2.0
        %s: f32[70] = [j] sum[i < {BIG}](%y[i, j])
        %u: f32[70] = [j] %s[j] / {BIG}.0
        %h: f32[70] = [j] max[i < {BIG}](%y[i, j])
        return %y, %u, %h""",
    "split full sum": f"""(%x: f32[{BIG}, 70]) {{
        %s: f32[] = [] sum[i < {BIG}, j < 70](%x[i, j] * %x[i, j])
        %n: f32[] = [] sqrt(%s[])
        return %n, %s""",
    "rows of two axes": """(%x: f32[7, 3, 5, 11]) {
        %s: f32[3] = [c] sum[n < 7, h < 5, w < 11](%x[n, c, h, w])
        %y: f32[7, 3, 5, 11] = [n, c, h, w] %x[n, c, h, w] - %s[c]
        return %y""",
    "bools": """(%x: f32[19, 70]) {
        %p: bool[19, 70] = [i, j] %x[i, j] > 0.0 and not (%x[i, j] > 0.5)
        %a: bool[19] = [i] any[j < 70](%p[i, j])
        %b: bool[19] = [i] all[j < 70](%p[i, j])
        %n: i64[19] = [i] sum[j < 70](i64(%p[i, j]))
        return %a, %b, %n""",
    "argmax": """(%x: f32[19, 70]) {
        %y: i64[19] = [i] argmax[j < 70](%x[i, j])
        return %y""",
    "argmin over columns": """(%x: f32[19, 70]) {
        %y: i64[70] = [j] argmin[i < 19 if i > 2](%x[i, j])
        return %y""",
    "product": """(%x: f32[19, 7]) {
        %y: f32[19] = [i] prod[j < 7](%x[i, j])
        return %y""",
    "gradient of strided windows": """(%x: f32[3, 20, 40]) {
        %y: f32[39, 79] = [h, v] sum[i < 3 if (h - i + 1) % 2 == 0 and h < 37 + i and v % 2 == 0](\
%x[i, (h - i + 1) // 2, v // 2])
        return %y""",
    "gather": """(%x: f32[70, 35], %t: i64[4, 9]) {
        %y: f32[4, 9, 35] = [b, s, d] %x[check(%t[b, s], 70), d]
        return %y""",
    "scatter": """(%x: f32[50, 35], %t: i64[50]) {
        %y: f32[70, 35] = [v, d] sum[n < 50 if %t[n] == v](%x[n, d])
        return %y""",
    "scatter of bf16": """(%x: bf16[50, 35], %t: i64[50]) {
        %y: bf16[70, 35] = [v, d] sum[n < 50 if %t[n] == v](%x[n, d])
        return %y""",
    "scatter of two axes": """(%x: f32[4, 9, 35], %t: i64[4, 9]) {
        %y: f32[70, 35] = [v, d] sum[b < 4, s < 9 if %t[b, s] == v and s > 1](%x[b, s, d])
        return %y""",
    "segment maximum": """(%x: f32[50, 35], %t: i64[50]) {
        %y: f32[70, 35] = [v, d] max[n < 50 if %t[n] == v](%x[n, d])
        return %y""",
    "histogram": """(%t: i64[50]) {
        %y: i64[70] = [v] sum[n < 50 if %t[n] == v](1)
        return %y""",
    "pad": """(%x: f32[19, 70]) {
        %y: f32[19, 75] = [i, j] %x[i, j - 2, pad=1.5]
        return %y""",
    "window": """(%x: f32[19, 70]) {
        %y: f32[19, 23] = [i, j] max[k < 4](%x[i, j * 3 + k - 1, pad=-inf])
        return %y""",
    "transposed convolution": """(%x: f32[2, 3, 5, 4], %w: f32[3, 6, 3, 3]) {
        %y: f32[2, 6, 11, 9] = [b, o, p, q] sum[c < 3, h < 5, v < 4, i < 3, j < 3 \
if p == h * 2 + i and q == v * 2 + j](%x[b, c, h, v] * %w[c, o, i, j])
        return %y""",
    "transposed convolution with padding": """(%x: f32[2, 3, 5, 4], %w: f32[3, 6, 3, 3]) {
        %y: f32[2, 6, 9, 7] = [b, o, p, q] sum[c < 3, h < 5, v < 4, i < 3, j < 3 \
if p == h * 2 + i - 1 and q == v * 2 + j - 1](%x[b, c, h, v] * %w[c, o, i, j])
        return %y""",
    "transposed convolution along one axis": """(%x: f32[2, 5, 35], %w: f32[3, 35]) {
        %y: f32[2, 11, 35] = [b, p, d] sum[h < 5, i < 3 if p == h * 2 + i](%x[b, h, d] * %w[i, d])
        return %y""",
    "convolution": """(%x: f32[2, 3, 9, 8], %w: f32[5, 3, 3, 3]) {
        %y: f32[2, 5, 9, 8] = [b, o, h, v] sum[c < 3, i < 3, j < 3](\
%x[b, c, h + i - 1, v + j - 1, pad=0.0] * %w[o, c, i, j])
        return %y""",
    "slice at an origin": """(%x: f32[70]) {
        %y: f32[9] = [i] %x[i + origin(20, 3)] * f32(i + origin(5, 1))
        return %y""",
    "dropout": """(%x: f32[19, 70], seed %seed: i64[], step %step: i64[]) {
        %y: f32[19, 70] = [i, j] where(\
rand(3, %seed[], %step[], (i + origin(4, 2)) * 70 + j) >= 0.25, %x[i, j] / 0.75, 0.0)
        return %y""",
    "normal numbers": """(seed %seed: i64[], step %step: i64[]) {
        %y: f32[19, 70] = [i, j] randn(1, %seed[], %step[], i * 70 + j)
        return %y""",
    "routing into one place": """(%x: f32[3, 2], %k: i64[3, 2]) {
        %y: f32[3, 1] = [i, v] max[n < 2 if %k[i, n] - origin(2, 1) == v](%x[i, n])
        return %y""",
    "a sum over nothing": """(%x: f32[0]) {
        %y: f32[2, 4] = [i, j] sum[k < 0](%x[k * 0 + ((i * 0 + 0) * 4 + j)])
        return %y""",
    "0-d": """(%x: f32[], %n: i64[]) {
        %y: f32[] = [] exp(%x[]) / f32(%n[] + 1)
        return %y""",
}

PRODUCTS = {
    "matrix product": """(%x: f32[5, 6], %w: f32[6, 7]) {
        %y: f32[5, 7] = [i, j] sum[k < 6](%x[i, k] * %w[k, j])""",
    "transposed factors": """(%x: f32[6, 5], %w: f32[7, 6]) {
        %y: f32[5, 7] = [i, j] sum[k < 6](%x[k, i] * %w[j, k])""",
    "transposed result": """(%x: f32[5, 6], %w: f32[6, 7]) {
        %y: f32[7, 5] = [j, i] sum[k < 6](%x[i, k] * %w[k, j])""",
    "heads in a slice": """(%x: f32[2, 5, 3, 12]) {
        %y: f32[2, 3, 5, 5] = [b, h, i, j] sum[c < 4](\
%x[b, i, 1, h * 4 + c] * %x[b, j, 2, h * 4 + c] * 0.5)""",
    "two summed axes": """(%x: f32[2, 5, 6], %w: f32[2, 5, 7]) {
        %y: f32[6, 7] = [i, j] sum[b < 2, s < 5](%x[b, s, i] * %w[b, s, j])""",
    "f64": """(%x: f64[5, 6], %w: f64[6, 7]) {
        %y: f64[5, 7] = [i, j] sum[k < 6](%x[i, k] * %w[k, j])""",
    "an empty side": """(%x: f32[0, 6], %w: f32[6, 7]) {
        %y: f32[0, 7] = [i, j] sum[k < 6](%x[i, k] * %w[k, j])""",
    "one of everything": """(%x: f32[1, 1], %w: f32[1, 1]) {
        %y: f32[1, 1] = [i, j] sum[k < 1](%x[i, k] * %w[k, j])""",
}

PLAIN_PRODUCTS = {
    "nothing to sum": """(%x: f32[5, 0], %w: f32[0, 7]) {
        %y: f32[5, 7] = [i, j] sum[k < 0](%x[i, k] * %w[k, j])""",
    "integers": """(%x: i32[5, 6], %w: i32[6, 7]) {
        %y: i32[5, 7] = [i, j] sum[k < 6](%x[i, k] * %w[k, j])""",
    "bf16": """(%x: bf16[5, 6], %w: bf16[6, 7]) {
        %y: bf16[5, 7] = [i, j] sum[k < 6](%x[i, k] * %w[k, j])""",
    "no dense side": """(%x: f32[5, 6, 2], %w: f32[6, 7]) {
        %y: f32[5, 7] = [i, j] sum[k < 6](%x[i, k, 1] * %w[k, j])""",
}


def parsed(text: str) -> Function:
    """The function of a case."""
    body = text if "return" in text else f"{text}\n        return %y"
    module = parse_module(f"module phase=global\n\nfunc @f{body}\n}}\n")
    return module.functions["f"]


def as_one(made: Function) -> Fused:
    """All statements of a function as one fused op over its arguments."""
    region = Block([(v.name, v.type) for v in made.body.args])
    seen = dict(zip(made.body.args, region.args, strict=True))
    for op in made.body:
        new = region.append(op.clone([seen[v] for v in op.operands]))
        seen.update(zip(op.results, new.results, strict=True))
    return Fused(made.body.args, region)


def local_module(made: Function) -> Module:
    return Module({"f": made}, "local")
