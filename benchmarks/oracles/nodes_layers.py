"""Adapters of ONNX's nodes that are layers of nets."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.oracles.contract import Operand, Unsupported, check_share, drawn, last, node

SMALL = 1e-5  # what ONNX adds to a variance if it is not said


def _along(name: str) -> Any:
    def write(x: Operand, *, axis: int = -1) -> str:
        return f"{name}({x}, {axis})"

    return write


node("Softmax")(_along("softmax"))
node("LogSoftmax")(_along("log_softmax"))


@node("Hardmax")
def _hardmax(x: Operand, *, axis: int = -1) -> str:
    return last(x, axis, f"{x.dtype}(one_hot(argmax({{}}, axis=-1), {x.shape[axis]}))")


@node("Celu")
def _celu(x: Operand, *, alpha: float = 1.0) -> str:
    return f"celu({x}, {alpha})"


@node("SwiGLU")
def _swiglu(a: Operand, b: Operand, *, alpha: float = 1.0) -> str:
    """The gate and what it lets through come apart; ours are the halves of one tensor."""
    return f"swiglu(concat([{alpha} * {a}, {b}], axis=-1)) / {alpha}"


@node("Dropout")
def _dropout(x: Operand, share: Operand | None = None, training: Operand | None = None, *,
             seed: int = 0, ratio: float = 0.5, outputs: Any = ()) -> str:
    p = ratio if share is None else float(share.value)
    learns = training is not None and bool(training.value)
    y = f"dropout({x}, {p if learns else 0.0})"
    kept = "y != 0" if learns else f"full({list(x.shape)}, True, bool)"
    return f"y = {y}\nreturn y, {kept}" if len(outputs) > 1 else y


@drawn("Dropout")
def _dropped(found: Any, x: Any, share: Any = None, training: Any = None, *, seed: int = 0,
             ratio: float = 0.5) -> Any:
    """What is left, and a mask of it."""
    p = float(ratio if share is None else share) if training else 0.0
    kept = np.asarray(found[0]) != 0 if p else np.full(x.shape, True)
    check_share(kept, p)
    return (x * kept / (1 - p)).astype(x.dtype), kept


# ---- norms


@node("LayerNormalization")
def _layer_norm(x: Operand, w: Operand, b: Operand | None = None, *, axis: int = -1,
                epsilon: float = SMALL, stash_type: int = 1, outputs: Any = ()) -> str:
    axes = list(range(axis % x.ndim, x.ndim))
    results = [f"layer_norm({x}, {w}, {b}, {epsilon})",
               f"mean({x}, axis={axes}, keepdims=True)",
               f"1 / sqrt(var({x}, axis={axes}, keepdims=True, correction=0) + {epsilon})"]
    return f"return {', '.join(results[: len(outputs)])}"


@node("RMSNormalization")
def _rms_norm(x: Operand, w: Operand, *, axis: int = -1, epsilon: float = SMALL,
              stash_type: int = 1) -> str:
    return f"rms_norm({x}, {w}, {epsilon})"


@node("GroupNormalization")
def _group_norm(x: Operand, w: Operand, b: Operand, *, num_groups: int, epsilon: float = SMALL,
                stash_type: int = 1) -> str:
    return f"group_norm({x}, {num_groups}, {w}, {b}, {epsilon})"


@node("InstanceNormalization")
def _instance_norm(x: Operand, w: Operand, b: Operand, *, epsilon: float = SMALL) -> str:
    return f"instance_norm({x}, {w}, {b}, {epsilon})"


@node("BatchNormalization")
def _batch_norm(x: Operand, w: Operand, b: Operand, center: Operand, spread: Operand, *,
                epsilon: float = SMALL, momentum: float = 0.9, training_mode: int = 0) -> str:
    if not training_mode:
        return f"batch_norm({x}, {center}, {spread}, {w}, {b}, {epsilon})"
    return (f"mu, v = channel_moments({x})\n"
            f"return batch_norm({x}, None, None, {w}, {b}, {epsilon}), "
            f"moving_average({center}, mu, {momentum}), moving_average({spread}, v, {momentum})")


@node("LRN")
def _lrn(x: Operand, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
         ) -> str:
    if size % 2 == 0:
        raise Unsupported("of an even number of neighbours, one more comes before than after")
    return f"local_response_norm({x}, {size}, {alpha}, {beta}, {bias})"


@node("LpNormalization")
def _lp_norm(x: Operand, *, axis: int = -1, p: int = 2) -> str:
    return f"normalize({x}, {float(p)}, {axis})"


@node("MeanVarianceNormalization")
def _mean_variance(x: Operand, *, axes: Any = (0, 2, 3)) -> str:
    along = f"axis={list(axes)}, keepdims=True"
    return f"({x} - mean({x}, {along})) / (std({x}, {along}, correction=0) + 1e-9)"
