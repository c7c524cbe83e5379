"""Adapters of products of matrices and vectors."""

from __future__ import annotations

from typing import Any

from benchmarks.oracles.contract import Operand, adapter


@adapter("matmul", "mm", "bmm", "mv", "__rmatmul__")
def _matmul(x: Operand, y: Operand) -> str:
    return f"{x} @ {y}"


@adapter("dot", "vdot")
def _dot(x: Operand, y: Operand) -> str:
    return f"dot({x}, {y})"


@adapter("outer")
def _outer(x: Operand, y: Operand) -> str:
    return f"outer({x}, {y})"


def _sum(terms: str, start: Operand, alpha: Any, beta: Any) -> str:
    """beta start + alpha terms; a beta of 0 leaves the start out, whatever is in it."""
    scaled = terms if alpha == 1 else f"{alpha} * ({terms})"
    if beta == 0:
        return scaled
    return f"{start if beta == 1 else f'{beta} * {start}'} + {scaled}"


@adapter("addmm", "baddbmm", "addmv", "addmm.decomposed")
def _addmm(start: Operand, x: Operand, y: Operand, *, alpha: Any = 1, beta: Any = 1) -> str:
    return _sum(f"{x} @ {y}", start, alpha, beta)


@adapter("addr")
def _addr(start: Operand, x: Operand, y: Operand, *, alpha: Any = 1, beta: Any = 1) -> str:
    return _sum(f"outer({x}, {y})", start, alpha, beta)


@adapter("addbmm")
def _addbmm(start: Operand, x: Operand, y: Operand, *, alpha: Any = 1, beta: Any = 1) -> str:
    return _sum(f"sum({x} @ {y}, axis=0)", start, alpha, beta)


@adapter("nn.functional.linear")
def _linear(x: Operand, w: Operand, b: Operand | None = None) -> str:
    if b is None:
        return f"{x} @ {w}.T"
    return f"linear({x}, {w}, {b})" if w.ndim == 2 else f"{x} @ {w} + {b}"


@adapter("nn.functional.bilinear")
def _bilinear(x: Operand, y: Operand, w: Operand, b: Operand | None = None) -> str:
    bias = f"zeros([{w.shape[0]}])" if b is None else f"{b}"
    return f"bilinear({x}, {y}, {w}, {x.dtype}({bias}))"
