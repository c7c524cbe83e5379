"""Adapters of products of matrices and vectors."""

from __future__ import annotations

from typing import Any

from benchmarks.oracles.contract import Operand, adapter


@adapter("matmul", "mm", "bmm", "mv")
def _matmul(x: Operand, y: Operand) -> str:
    return f"{x} @ {y}"


@adapter("dot", "vdot")
def _dot(x: Operand, y: Operand) -> str:
    return f"dot({x}, {y})"


@adapter("outer")
def _outer(x: Operand, y: Operand) -> str:
    return f"outer({x}, {y})"


for _name in ("addmm", "addmv", "addr", "baddbmm", "addbmm"):
    def _added(start: Operand, x: Operand, y: Operand, *, alpha: Any = 1, beta: Any = 1,
               function: str = _name) -> str:
        return f"{function}({start}, {x}, {y}, {beta}, {alpha})"

    adapter(_name, *(["addmm.decomposed"] if _name == "addmm" else []))(_added)


@adapter("nn.functional.linear")
def _linear(x: Operand, w: Operand, b: Operand | None = None) -> str:
    if b is None:
        return f"{x} @ {w}.T"
    return f"linear({x}, {w}, {b})" if w.ndim == 2 else f"{x} @ {w} + {b}"


@adapter("nn.functional.bilinear")
def _bilinear(x: Operand, y: Operand, w: Operand, b: Operand | None = None) -> str:
    bias = f"zeros([{w.shape[0]}])" if b is None else f"{b}"
    return f"bilinear({x}, {y}, {w}, {x.dtype}({bias}))"


@adapter("inner")
def _inner(x: Operand, y: Operand) -> str:
    return f"inner({x}, {y})"


@adapter("kron")
def _kron(x: Operand, y: Operand) -> str:
    return f"kron({x}, {y})"


@adapter("linalg.vecdot")
def _vecdot(x: Operand, y: Operand, dim: int = -1) -> str:
    return f"vecdot({x}, {y}, {dim})"


@adapter("tensordot")
def _tensordot(x: Operand, y: Operand, dims: Any = 2) -> str:
    return f"tensordot({x}, {y}, {[list(d) for d in dims] if isinstance(dims, tuple) else dims})"


@adapter("einsum")
def _einsum(tensors: list[Operand], equation: str) -> str:
    return f'einsum("{equation}", {", ".join(map(str, tensors))})'
