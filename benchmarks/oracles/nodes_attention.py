"""Adapters of ONNX's attention. Its heads come before the places, ours after them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.oracles.contract import Operand, Unsupported, node


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes of a call."""

    batch: int
    queries: int
    keys: int
    heads: int
    shared: int
    features: int


def _heads(x: Operand, count: int | None) -> str:
    """A tensor as [batch, head, place, feature]."""
    if x.ndim == 4:
        return f"{x}"
    assert count is not None
    batch, places, width = x.shape
    return f"transpose(reshape({x}, {[batch, places, count, width // count]}), 1, 2)"


def _masks(size: _Sizes, offset: str, causal: bool, left: int, right: int, given: Operand | None,
           lengths: Operand | None) -> tuple[list[str], str, str]:
    """Statements, and the names of the mask and of the bias."""
    lines, open_, bias = [f"i = arange({size.queries})[:, None] + {offset}",
                          f"j = arange({size.keys})"], [], "None"
    open_ += ["j <= i"] * causal
    open_ += [f"i - j <= {left}"] * (left >= 0) + [f"j - i <= {right}"] * (right >= 0)
    if lengths is not None:
        open_.append(f"j < {lengths}[:, None, None, None]")
    if given is not None:
        lack = size.keys - given.shape[-1]
        widths = [[0, 0]] * (given.ndim - 1) + [[0, lack]]
        filler = "-inf" if given.is_float else "False"
        whole = f"pad({given}, {widths}, {filler})" if lack else f"{given}"
        if given.is_float:
            bias = "bias"
            lines.append(f"bias = {whole}")
        else:
            open_.append(whole)
    if not open_:
        return lines, "None", bias
    lines.append("open = " + " and ".join(f"({text})" for text in open_))
    return lines, "open", bias


def _scores(size: _Sizes, mode: int, scale: str, softcap: float, mask: str, bias: str) -> list[str]:
    """Statements that leave in `s` what ONNX shows of the inside of an attention."""
    if size.heads != size.shared:
        raise Unsupported("scores of queries that share a key head are not given")
    shape = [size.batch, size.heads, size.queries, size.keys]
    lines = [f'raw = einsum("bhid,bhjd->bhij", q, k) * {scale}',
             f"capped = {softcap} * tanh(raw / {softcap})" if softcap else "capped = raw"]
    added = "capped" if bias == "None" else f"capped + {bias}"
    masked = added if mask == "None" else f"where({mask}, {added}, -inf)"
    soft = f"softmax({added})" if mask == "None" else (
        f"masked_softmax({added}, expand({mask}, {shape}))")
    return [*lines, f"s = {['raw', 'capped', masked, soft][mode]}"]


@node("Attention")
def _attention(
    q: Operand, k: Operand, v: Operand, mask: Operand | None = None,
    past_key: Operand | None = None, past_value: Operand | None = None,
    lengths: Operand | None = None, *, is_causal: int = 0, scale: float | None = None,
    softcap: float = 0.0, q_num_heads: int | None = None, kv_num_heads: int | None = None,
    softmax_precision: int = 0, qk_matmul_output_mode: int = 0, left_window_size: int = -1,
    right_window_size: int = -1, outputs: Any = (),
) -> str:
    past = 0 if past_key is None else past_key.shape[2]
    heads, shared = (q.shape[1], k.shape[1]) if q.ndim == 4 else (q_num_heads or 1,
                                                                  kv_num_heads or 1)
    size = _Sizes(q.shape[0], q.shape[-2], k.shape[-2] + past, heads, shared,
                  q.shape[-1] if q.ndim == 4 else q.shape[-1] // heads)
    lines = [f"q = {_heads(q, q_num_heads)}"]
    for name, x, before in (("k", k, past_key), ("v", v, past_value)):
        own = _heads(x, kv_num_heads)
        lines.append(f"{name} = {own if before is None else f'concat([{before}, {own}], axis=2)'}")
    offset = f"{past}" if lengths is None or past else (
        f"{lengths}[:, None, None, None] - {size.queries}")
    more, open_, bias = _masks(size, offset, bool(is_causal), left_window_size,
                               right_window_size, mask, lengths)
    parts = ", ".join(f"transpose({name}, 1, 2)" for name in "qkv")
    cap = f", softcap={softcap}" if softcap else ""
    lines += [*more, f"y = attention({parts}, mask={open_}, bias={bias}, scale={scale}{cap})"]
    width = size.heads * (v.shape[-1] if v.ndim == 4 else v.shape[-1] // size.shared)
    y = "transpose(y, 1, 2)" if q.ndim == 4 else (
        f"reshape(y, {[size.batch, size.queries, width]})")
    if len(outputs) > 3 and outputs[3]:
        factor = str(scale) if scale is not None else f"{size.features} ** -0.5"
        lines += _scores(size, qk_matmul_output_mode, factor, softcap, open_, bias)
    given = [text for text, wanted in zip([y, "k", "v", "s"], outputs, strict=False) if wanted]
    return "\n".join([*lines, f"return {', '.join(given)}"])


@node("RotaryEmbedding")
def _rotary(x: Operand, cosine: Operand, sine: Operand, places: Operand | None = None, *,
            interleaved: int = 0, num_heads: int | None = None, rotary_embedding_dim: int = 0
            ) -> str:
    """Angles come as tables of random numbers, which no base makes: the formula itself."""
    heads = x.shape[1] if x.ndim == 4 else num_heads or 1
    features = x.shape[-1] if x.ndim == 4 else x.shape[-1] // heads
    turned = rotary_embedding_dim or features
    lines = [f"x = {_heads(x, num_heads)}"]
    for name, table in (("c", cosine), ("s", sine)):
        row = f"{table}[{places}]" if places is not None else f"{table}"
        lines.append(f"{name} = {row}[:, None]")
    first, second = (f"x[:, :, :, 0:{turned}:2]", f"x[:, :, :, 1:{turned}:2]") if interleaved else (
        f"x[:, :, :, :{turned // 2}]", f"x[:, :, :, {turned // 2}:{turned}]")
    lines += [f"a = {first}", f"b = {second}", "real = c * a - s * b", "imag = s * a + c * b"]
    whole = [x.shape[0], heads, x.shape[-2], turned]
    pair = f"reshape(stack([real, imag], -1), {whole})" if interleaved else (
        "concat([real, imag], axis=-1)")
    lines.append(f"y = concat([{pair}, x[:, :, :, {turned}:]], axis=-1)" if turned < features
                 else f"y = {pair}")
    end = "y" if x.ndim == 4 else f"reshape(transpose(y, 1, 2), {list(x.shape)})"
    return "\n".join([*lines, f"return {end}"])
