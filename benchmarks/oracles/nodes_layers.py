"""Adapters of ONNX's nodes that are layers of nets."""

from __future__ import annotations

from benchmarks.oracles.contract import Operand, last, node


@node("Softmax")
def _softmax(x: Operand, *, axis: int = -1) -> str:
    return last(x, axis, "softmax({})")


@node("LogSoftmax")
def _log_softmax(x: Operand, *, axis: int = -1) -> str:
    return last(x, axis, "log_softmax({})")
