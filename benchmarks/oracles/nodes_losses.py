"""Adapters of ONNX's losses, and of the steps of its optimizers."""

from __future__ import annotations

from typing import Any

from benchmarks.oracles.contract import Operand, node

NOT_IGNORED = -(2 ** 31)


@node("NegativeLogLikelihoodLoss")
def _nll(x: Operand, target: Operand, weight: Operand | None = None, *,
         ignore_index: int = NOT_IGNORED, reduction: str = "mean") -> str:
    return f'nll(last({x}, 1), {target}, {weight}, {ignore_index}, "{reduction}")'


@node("SoftmaxCrossEntropyLoss")
def _cross_entropy(x: Operand, target: Operand, weight: Operand | None = None, *,
                   ignore_index: int = NOT_IGNORED, reduction: str = "mean", outputs: Any = ()
                   ) -> str:
    loss = f'cross_entropy(last({x}, 1), {target}, {weight}, {ignore_index}, "{reduction}")'
    return f"return {loss}, log_softmax({x}, 1)" if len(outputs) > 1 else loss
