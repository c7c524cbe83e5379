"""Adapters of activations, norms, softmax and attention."""

from __future__ import annotations

from typing import Any

from benchmarks.oracles.contract import Operand, Unsupported, adapter, dtype_name

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
    return f"normalize({x}, {float(p)}, {dim}, {eps})"


@adapter("nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.alpha_dropout")
def _dropout(x: Operand, p: float = 0.5, training: bool = True, inplace: bool = False) -> str:
    if training and p > 0:
        raise Unsupported("random draws are not those of PyTorch")
    return f"dropout({x}, {float(p) if training else 0.0})"


@adapter("nn.functional.scaled_dot_product_attention")
def _attention(q: Operand, k: Operand, v: Operand, attn_mask: Any = None, dropout_p: float = 0.0,
               is_causal: bool = False, scale: Any = None, enable_gqa: bool = False) -> str:
    if dropout_p:
        raise Unsupported("random draws are not those of PyTorch")
    lead = "" if q.ndim == 4 else "[None]" if q.ndim == 3 else "[None, None]"
    parts = ", ".join(f"transpose({x}{lead}, 1, 2)" for x in (q, k, v))
    square = q.shape[-2] == k.shape[-2]
    more = f", causal={is_causal and square}, scale={scale}"
    if is_causal and not square:  # torch counts places from the first key, we from the last
        more += f", mask=arange({q.shape[-2]})[:, None] >= arange({k.shape[-2]})"
    if attn_mask is not None:
        extra = "" if attn_mask.ndim in (2, 4) or q.ndim != 3 else "[None]"
        more += f", {'bias' if attn_mask.is_float else 'mask'}={attn_mask}{extra}"
    end = "" if q.ndim == 4 else "[0]" if q.ndim == 3 else "[0, 0]"
    return f"transpose(attention({parts}{more}), 1, 2){end}"
