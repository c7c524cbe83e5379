"""Adapters of activations, norms, softmax and attention."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.oracles.contract import (
    Operand,
    Unsupported,
    adapter,
    check_share,
    drawn,
    dtype_name,
)

ACTIVATIONS = {
    "relu": "relu", "relu6": "relu6", "selu": "selu", "silu": "silu", "mish": "mish",
    "softsign": "softsign", "hardsigmoid": "hard_sigmoid", "hardswish": "hard_swish",
    "logsigmoid": "log_sigmoid", "tanhshrink": "tanhshrink",
}  # fmt: skip
for _name, _function in ACTIVATIONS.items():
    adapter(f"nn.functional.{_name}")(
        lambda x, inplace=False, function=_function: f"{function}({x})")


@adapter("nn.functional.gelu")
def _gelu(x: Operand, approximate: str = "none") -> str:
    return f"gelu({x})" if approximate == "none" else f"gelu_tanh({x})"


@adapter("nn.functional.leaky_relu")
def _leaky_relu(x: Operand, negative_slope: float = 0.01, inplace: bool = False) -> str:
    return f"leaky_relu({x}, {negative_slope})"


@adapter("nn.functional.elu")
def _elu(x: Operand, alpha: float = 1.0, inplace: bool = False) -> str:
    return f"elu({x}, {alpha})"


@adapter("nn.functional.celu")
def _celu(x: Operand, alpha: float = 1.0, inplace: bool = False) -> str:
    return f"celu({x}, {alpha})"


@adapter("nn.functional.softplus")
def _softplus(x: Operand, beta: float = 1, threshold: float = 20) -> str:
    return f"softplus({x}, {float(beta)}, {float(threshold)})"


@adapter("nn.functional.hardshrink")
def _hardshrink(x: Operand, lambd: float = 0.5) -> str:
    return f"hardshrink({x}, {lambd})"


@adapter("nn.functional.softshrink")
def _softshrink(x: Operand, lambd: float = 0.5) -> str:
    return f"softshrink({x}, {lambd})"


@adapter("nn.functional.hardtanh")
def _hardtanh(x: Operand, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
              ) -> str:
    low, high = (min_val, max_val) if x.is_float else (int(min_val), int(max_val))
    return f"hard_tanh({x}, {low}, {high})"


@adapter("nn.functional.threshold")
def _threshold(x: Operand, threshold: float, value: float, inplace: bool = False) -> str:
    return f"threshold({x}, {threshold}, {value})"


@adapter("nn.functional.prelu")
def _prelu(x: Operand, weight: Operand) -> str:
    return f"prelu({x}, {weight})"


@adapter("nn.functional.glu")
def _glu(x: Operand, dim: int = -1) -> str:
    return f"glu({x}, {dim})"


# ---- along an axis


def _softmax(name: str) -> Any:
    def write(x: Operand, dim: int, *, dtype: Any = None, **_: Any) -> str:
        given = x if dtype is None else f"{dtype_name(dtype)}({x})"
        return f"{name}({given}, {dim})" if x.ndim else f"{name}({given}[None], {dim})[0]"

    return write


for _name, _ours in {"softmax": "softmax", "log_softmax": "log_softmax",
                     "nn.functional.softmin": "softmin"}.items():
    adapter(_name, f"{_name}.with_dtype")(_softmax(_ours))


@adapter("nn.functional.layer_norm")
def _layer_norm(x: Operand, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
                ) -> str:
    return f"layer_norm({x}, {weight}, {bias}, {eps}, {len(shape)})"


@adapter("nn.functional.rms_norm")
def _rms_norm(x: Operand, shape: Any, weight: Any = None, eps: float | None = None) -> str:
    smallest = {"f64": 2.0 ** -52, "f32": 2.0 ** -23, "f16": 2.0 ** -10, "bf16": 2.0 ** -7}
    return f"rms_norm({x}, {weight}, {smallest[x.dtype] if eps is None else eps}, {len(shape)})"


@adapter("nn.functional.group_norm")
def _group_norm(x: Operand, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
                ) -> str:
    return f"group_norm({x}, {groups}, {weight}, {bias}, {eps})"


@adapter("nn.functional.instance_norm")
def _instance_norm(x: Operand, running_mean: Any = None, running_var: Any = None,
                   weight: Any = None, bias: Any = None, use_input_stats: bool = True,
                   momentum: float = 0.1, eps: float = 1e-5) -> str:
    if not use_input_stats:
        return f"batch_norm({x}, {running_mean}, {running_var}, {weight}, {bias}, {eps})"
    return f"instance_norm({x}, {weight}, {bias}, {eps})"


@adapter("nn.functional.batch_norm", "nn.functional.batch_norm.without_cudnn")
def _batch_norm(x: Operand, running_mean: Any, running_var: Any, weight: Any = None,
                bias: Any = None, training: bool = False, momentum: float = 0.1,
                eps: float = 1e-5) -> str:
    if x.ndim < 2:
        raise Unsupported("a batch has an axis of channels")
    center, spread = (None, None) if training else (running_mean, running_var)
    return f"batch_norm({x}, {center}, {spread}, {weight}, {bias}, {eps})"


@adapter("nn.functional.local_response_norm")
def _local_response_norm(x: Operand, size: int, alpha: float = 1e-4, beta: float = 0.75,
                         k: float = 1.0) -> str:
    return f"local_response_norm({x}, {size}, {alpha}, {beta}, {float(k)})"


@adapter("nn.functional.normalize")
def _normalize(x: Operand, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> str:
    if x.ndim == 0:
        return f"normalize({x}[None], {float(p)}, {dim}, {eps})[0]"
    return f"normalize({x}, {float(p)}, {dim}, {eps})"


DROPOUTS = {"dropout": ("dropout", True), "dropout2d": ("channel_dropout", True),
            "alpha_dropout": ("alpha_dropout", False)}  # and whether they train unless told
for _name, (_function, _trains) in DROPOUTS.items():
    adapter(f"nn.functional.{_name}")(
        lambda x, p=0.5, training=_trains, inplace=False, function=_function:
        f"{function}({x}, {float(p) if training else 0.0})")


@adapter("nn.functional.feature_alpha_dropout.with_train",
         "nn.functional.feature_alpha_dropout.without_train")
def _feature_alpha_dropout(x: Operand, p: float = 0.5, training: bool = False,
                           inplace: bool = False) -> str:
    return f"channel_alpha_dropout({x}, {float(p)})" if training else f"alpha_dropout({x}, 0.0)"


@adapter("nn.functional.dropout3d")
def _dropout3d(x: Operand, p: float = 0.5, training: bool = True, inplace: bool = False) -> str:
    batch, first = ("", "") if x.ndim == 5 else ("[None]", "[0]")
    return f"channel_dropout({x}{batch}, {float(p) if training else 0.0}){first}"


@drawn("nn.functional.dropout")
def _dropped(found: Any, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False,
             channels: bool = False) -> Any:
    """An element is 0, or scaled up; so is a whole channel, the first two axes of which count."""
    p = p if training else 0.0
    kept, there = found[0] != 0, x != 0
    if channels:
        kept, there = (mask.flatten(2).any(2) for mask in (kept, there))
    check_share(kept[there], p)
    scale = kept / (1 - p) if p < 1 else kept * 0.0
    return x * scale.reshape(scale.shape + (1,) * (x.ndim - scale.ndim)).to(x.dtype)


drawn("nn.functional.dropout2d")(partial(_dropped, channels=True))


@drawn("nn.functional.dropout3d")
def _dropped3d(found: Any, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False
               ) -> Any:
    """A sample of four axes is a batch of one."""
    if x.ndim == 5:
        return _dropped(found, x, p, training, channels=True)
    return _dropped([found[0][None]], x[None], p, training, channels=True)[0]


@drawn("nn.functional.alpha_dropout")
def _set_low(found: Any, x: Any, p: float = 0.5, training: bool = False, inplace: bool = False,
             channels: bool = False) -> Any:
    """An element is that of x, or the least value of selu, as are all of its channel; mean and
    variance are then restored."""
    p = p if training else 0.0
    if p == 1:
        return 0 * x
    low = -1.7580993408473766
    scale = (1 - p + p * low**2 * (1 - p)) ** -0.5
    kept = (found[0] - scale * (low - low * p)).abs() > 1e-5
    if channels:
        kept = kept.flatten(2).any(2)
    check_share(kept, p)
    kept = kept.reshape(kept.shape + (1,) * (x.ndim - kept.ndim))
    return scale * (torch.where(kept, x, low) - low * p)


drawn("nn.functional.feature_alpha_dropout.with_train")(partial(_set_low, channels=True))


@adapter("nn.functional.scaled_dot_product_attention")
def _attention(q: Operand, k: Operand, v: Operand, attn_mask: Any = None, dropout_p: float = 0.0,
               is_causal: bool = False, scale: Any = None, enable_gqa: bool = False) -> str:
    batch = max(x.shape[0] if x.ndim == 4 else 1 for x in (q, k, v))
    parts = [_heads(x, batch) for x in (q, k, v)]
    square = q.shape[-2] == k.shape[-2]
    more = f", causal={is_causal and square}, scale={scale}"
    if is_causal and not square:  # torch counts places from the first key, we from the last
        more += f", mask=arange({q.shape[-2]})[:, None] >= arange({k.shape[-2]})"
    if attn_mask is not None:
        extra = "" if attn_mask.ndim in (2, 4) or q.ndim != 3 else "[None]"
        more += f", {'bias' if attn_mask.is_float else 'mask'}={attn_mask}{extra}"
    end = ["[0, 0]", "[0]", ""][max(x.ndim for x in (q, k, v)) - 2]
    if not dropout_p:
        return f"transpose(attention({', '.join(parts)}{more}), 1, 2){end}"
    # more values, each of which takes one weight: they show which weights are kept
    keys, size = v.shape[-2:]
    unit = f"eye({keys}, dtype={v.dtype})[None, :, None]"
    shape = [batch, keys, v.shape[-3] if v.ndim > 2 else 1, keys]
    parts[2] = f"concat([{parts[2]}, expand({unit}, {shape})], axis=3)"
    call = f"transpose(attention({', '.join(parts)}{more}, p={float(dropout_p)}), 1, 2){end}"
    return f"y = {call}\nreturn y[..., :{size}], y[..., {size}:] != 0"


def _heads(x: Operand, batch: int) -> str:
    """Keys, queries or values with all four axes, the heads third."""
    whole = f"{x}{['[None, None]', '[None]', ''][x.ndim - 2]}"
    if batch > 1 and (x.ndim < 4 or x.shape[0] == 1):
        whole = f"expand({whole}, {[batch, *([1, *x.shape])[-3:]]})"
    return f"transpose({whole}, 1, 2)"


@drawn("nn.functional.scaled_dot_product_attention")
def _attended(found: Any, q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0,
              is_causal: bool = False, scale: Any = None, enable_gqa: bool = False) -> Any:
    attend = partial(torch.ops.aten._scaled_dot_product_attention_math, q, k, v, attn_mask,
                     is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    if not dropout_p:
        return attend()[0]
    kept, weights = found[1], attend()[1]
    check_share(kept[weights != 0], dropout_p)
    return attend(dropout_p=dropout_p, dropout_mask=kept)[0], kept
