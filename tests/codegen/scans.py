"""A scan for every kind of kernel that scans have, with extents that divide nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from anabranch.ir.core import Function, Value
from anabranch.ir.expr import Call, walk
from anabranch.ir.ops import Scan
from anabranch.ir.parser import parse_module
from anabranch.ir.recurrence import statements
from anabranch.ir.reference import convert
from anabranch.ir.types import is_float

HEAD = "module phase=global\n\nfunc @f"

SCANS = {
    "cell, weights by row": """(%x: f32[5, 9, 70], %w: f32[70, 70], %s: f32[5, 70]) {
        %h: f32[5, 9, 70] = scan[t < 9](%a = %x, %b = %w, %c = %s; %old) {
            %p: f32[9, 5, 70] = [t, b, i] sum[k < 70](%old[b, t - 1, k, pad=%c[b, k]] * %b[i, k])
            %new: f32[5, 9, 70] = [b, t, i] tanh(%p[t, b, i] + %a[b, t, i])
            return %new
        }
        return %h""",
    "cell, weights by column": """(%x: f32[5, 9, 70], %w: f32[70, 70], %s: f32[5, 70]) {
        %h: f32[5, 9, 70] = scan[t < 9](%a = %x, %b = %w, %c = %s; %old) {
            %p: f32[9, 5, 70] = [t, b, i] sum[k < 70](%old[b, t - 1, k, pad=%c[b, k]] * %b[k, i])
            %new: f32[5, 9, 70] = [b, t, i] tanh(%p[t, b, i] + %a[b, t, i])
            return %new
        }
        return %h""",
    "two gates of one product, two results": """(%x: f32[3, 7, 38], %w: f32[19, 38]) {
        %c: f32[3, 7, 19], %h: f32[3, 7, 19] = scan[t < 7](%a = %x, %b = %w; %c.o, %h.o) {
            %z: f32[7, 3, 38] = [t, b, n] sum[k < 19](%h.o[b, t - 1, k, pad=0.0] * %b[k, n])
            %g: f32[7, 3, 38] = [t, b, n] tanh(%z[t, b, n] + %a[b, t, n])
            %c.n: f32[3, 7, 19] = [b, t, j] 0.5 * %c.o[b, t - 1, j, pad=1.0] + %g[t, b, j]
            %h.n: f32[3, 7, 19] = [b, t, j] %g[t, b, j + 19] * %c.n[b, t, j]
            return %c.n, %h.n
        }
        return %c, %h""",
    "sums of elements": """(%x: f32[3, 9, 70]) {
        %y: f32[3, 9, 70] = scan[t < 9](%a = %x; %old) {
            %new: f32[3, 9, 70] = [i, t, j] %old[i, t - 1, j, pad=0.0] + %a[i, t, j]
            return %new
        }
        return %y""",
    "sums along rows, from the end": """(%x: f32[70, 9]) {
        %y: f32[70, 9] = scan[t < 9, reverse](%a = %x; %old) {
            %new: f32[70, 9] = [i, t] %old[i, t + 1, pad=0.0] + %a[i, t]
            return %new
        }
        return %y""",
    "three steps back, from the end": """(%x: f32[2, 11, 5]) {
        %y: f32[2, 11, 5] = scan[t < 11, reverse](%a = %x; %old) {
            %m: f32[11, 2, 5] = [t, i, j] %old[i, t + 3, j, pad=2.0] * %old[i, t + 1, j, pad=0.5]
            %new: f32[2, 11, 5] = [i, t, j] 0.5 * %m[t, i, j] + %a[i, t, j]
            return %new
        }
        return %y""",
    "farther back than there are steps": """(%x: f32[2, 3]) {
        %y: f32[2, 3] = scan[t < 3](%a = %x; %old) {
            %new: f32[2, 3] = [i, t] %old[i, t - 5, pad=2.0] + %a[i, t]
            return %new
        }
        return %y""",
    "a reduction in registers": """(%x: f32[3, 9, 35], %w: f32[9, 35, 70]) {
        %y: f32[3, 9] = scan[t < 9](%a = %x, %b = %w; %old) {
            %d: f32[9, 3] = [t, i] max[j < 35](%a[i, t, j] * %old[i, t - 1, pad=1.0])
            %new: f32[3, 9] = [i, t] 0.5 * %d[t, i] + %a[i, t, 0]
            return %new
        }
        return %y""",
    "a neighbourhood": """(%x: f32[9, 70]) {
        %y: f32[9, 70] = scan[t < 9](%a = %x; %old) {
            %new: f32[9, 70] = [t, i] 0.5 * %old[t - 1, i - 1, pad=0.0] + %a[t, i]
            return %new
        }
        return %y""",
    "a path of best places": """(%x: f32[4, 8, 6], %w: f32[6, 6]) {
        %v: f32[4, 8, 6], %p: i64[4, 8, 6] = scan[t < 8](%a = %x, %b = %w; %v.o, %p.o) {
            %q: i64[4, 8, 6] = [i, t, j] argmax[k < 6](%v.o[i, t - 1, k, pad=0.0] + %b[k, j])
            %m: f32[8, 4, 6] = [t, i, j] max[k < 6](%v.o[i, t - 1, k, pad=0.0] + %b[k, j])
            %n: f32[4, 8, 6] = [i, t, j] %m[t, i, j] + %a[i, t, j]
            return %n, %q
        }
        return %v, %p""",
    "reads of a table at places from before": """(%x: i64[3, 9], %w: i64[60]) {
        %y: i64[3, 9] = scan[t < 9](%a = %x, %b = %w; %old) {
            %s: i64[3, 9] = [i, t] (%old[i, t - 1, pad=1] + %a[i, t]) % 60
            %new: i64[3, 9] = [i, t] %b[check(%s[i, t], 60)]
            return %new
        }
        return %y""",
    "halves": """(%x: f16[3, 9, 35]) {
        %y: f16[3, 9, 35] = scan[t < 9](%a = %x; %old) {
            %s: f16[9, 3] = [t, i] sum[j < 35](%old[i, t - 1, j, pad=0.0:f16] * %a[i, t, j])
            %new: f16[3, 9, 35] = [i, t, j] %s[t, i] * 0.5:f16 + %a[i, t, j]
            return %new
        }
        return %y""",
    "nothing independent, and a sum over two variables": """(%x: f64[9], %w: f64[5, 3]) {
        %y: f64[9, 5] = scan[t < 9](%a = %x, %b = %w; %old) {
            %s: f64[9, 5] = [t, i] sum[j < 5, k < 3](%old[t - 1, j, pad=0.5:f64] * %b[i, k])
            %new: f64[9, 5] = [t, i] %s[t, i] * 0.0625:f64 + %a[t]
            return %new
        }
        return %y""",
    "the step, and a value returned twice": """(%x: i32[7]) {
        %y: i64[4, 7], %z: i64[4, 7] = scan[t < 7](%a = %x; %old, %same) {
            %s: i64[4, 7] = [i, t] %old[i, t - 1, pad=0] + %same[i, t - 2, pad=1]
            %new: i64[4, 7] = [i, t] %s[i, t] + t * i64(%a[t]) + i
            return %new, %new
        }
        return %y, %z""",
    "gates that are told apart by a number": """(%x: f32[3, 9, 2, 19], %w: f32[19, 19]) {
        %y: f32[3, 9, 2, 19] = scan[t < 9](%a = %x, %b = %w; %old) {
            %s: f32[9, 3, 19] = [t, i, n] sum[k < 19](%old[i, t - 1, 1, k, pad=0.0] * %b[n, k])
            %new: f32[3, 9, 2, 19] = [i, t, q, n] where(0 == q, tanh(%s[t, i, n]), 0.0) \
+ where(q < 1, 0.0, %s[t, i, n] * %a[i, t, 0, n]) + %a[i, t, q, n]
            return %new
        }
        return %y""",
    "no steps": """(%x: f32[3, 0]) {
        %y: f32[3, 0] = scan[t < 0](%a = %x; %old) {
            %new: f32[3, 0] = [i, t] %old[i, t - 1, pad=0.0] + %a[i, t]
            return %new
        }
        return %y""",
    "a merged dimension": """(%x: f32[9, 42]) {
        %y: f32[9, 42] = scan[t < 9](%a = %x; %old) {
            %m: f32[9, 6, 7] = [t, g, c] %old[t - 1, g * 7 + c, pad=0.0] * 0.5
            %new: f32[9, 42] = [t, (g < 6, c < 7)] %m[t, g, c] + %a[t, g * 7 + c]
            return %new
        }
        return %y""",
}


def scan_of(text: str) -> Scan:
    (function,) = parse_module(f"{HEAD}{text}\n}}\n").functions.values()
    return only_scan(function)


def only_scan(function: Function) -> Scan:
    found = function.body.first
    assert isinstance(found, Scan)
    return found


def numbers(values: list[Value] | tuple[Value, ...]) -> list[np.ndarray[Any, Any]]:
    """Floats that do not grow over the steps, and small integers."""
    random = np.random.default_rng(0)
    return [convert(random.uniform(-0.2, 0.2, v.type.shape) if is_float(v.type.dtype)
                    else random.integers(0, 9, v.type.shape), v.type.dtype) for v in values]


def all_elements_are_needed(op: Scan) -> bool:
    """Whether there are elements, and a kernel computes each of them."""
    return all(
        all(n for _, n in each.ranges)
        and not any(isinstance(e, Call) and e.fn == "stop_grad" for e in walk(each.body))
        for each in statements(op))
