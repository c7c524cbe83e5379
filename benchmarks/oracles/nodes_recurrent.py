"""Adapters of ONNX's recurrent and cumulative nodes. Its gates stand in another order than ours,
and one step before the batch."""

from __future__ import annotations

from typing import Any

from benchmarks.oracles.contract import Operand, Unsupported, node


def _plain(direction: str, layout: int, others: dict[str, Any], lengths: Any) -> None:
    """What the library's layers have no words for."""
    if direction == "bidirectional" or others:
        raise Unsupported(f"recurrent layers have no {', '.join(others) or 'second direction'}")
    if lengths is not None:
        raise Unsupported("the sequences of a batch are of one length")


def _gates(weight: str, order: tuple[int, ...], size: int) -> str:
    """The rows of gates in our order."""
    parts = [f"{weight}[{n * size}:{(n + 1) * size}]" for n in order]
    return f"concat([{', '.join(parts)}])" if len(order) > 1 else parts[0]


def _layer(
    call: str, states: dict[str, Operand | None], order: tuple[int, ...], x: Operand, w: Operand,
    r: Operand, b: Operand | None, direction: str, layout: int, outputs: list[bool],
) -> str:
    """The statements around a layer: batch first, gates in our order, results as ONNX has them."""
    size, count = r.shape[-1], len(order)
    batch = x.shape[0] if layout else x.shape[1]
    lines = [f"x = {x}" if layout else f"x = transpose({x}, 0, 1)",
             f"w = {_gates(f'{w}[0]', order, size)}", f"r = {_gates(f'{r}[0]', order, size)}"]
    for name, start in (("bi", 0), ("bh", count * size)):
        row = f"{b}[0, {start}:{start + count * size}]"
        lines.append(f"{name} = {_gates(row, order, size) if b else f'zeros([{count * size}])'}")
    for name, state in states.items():
        given = f"zeros([{batch}, {size}])" if state is None else (
            f"{state}[:, 0]" if layout else f"{state}[0]")
        lines.append(f"{name} = {given}")
    lines.append(call)
    last = x.shape[1 if layout else 0] - 1 if direction == "forward" else 0
    whole = "y[:, :, None]" if layout else "transpose(y, 0, 1)[:, None]"
    ends = [f"{name}[:, {last}, None]" if layout else f"{name}[:, {last}][None]"
            for name in ("y", "c")]
    given = [text for text, wanted in zip([whole, *ends], outputs, strict=False) if wanted]
    return "\n".join([*lines, f"return {', '.join(given)}"])


@node("LSTM")
def _lstm(x: Operand, w: Operand, r: Operand, b: Operand | None = None,
          lengths: Operand | None = None, h: Operand | None = None, c: Operand | None = None,
          peepholes: Operand | None = None, *, hidden_size: int = 0, direction: str = "forward",
          layout: int = 0, outputs: Any = (), **others: Any) -> str:
    if peepholes is not None:
        raise Unsupported("an lstm has no peepholes")
    _plain(direction, layout, others, lengths)
    call = f"y, c = lstm(x, h, c0, w, r, bi, bh, reverse={direction == 'reverse'})"
    return _layer(call, {"h": h, "c0": c}, (0, 2, 3, 1), x, w, r, b, direction, layout, outputs)


@node("GRU")
def _gru(x: Operand, w: Operand, r: Operand, b: Operand | None = None,
         lengths: Operand | None = None, h: Operand | None = None, *, hidden_size: int = 0,
         direction: str = "forward", layout: int = 0, linear_before_reset: int = 0,
         outputs: Any = (), **others: Any) -> str:
    if not linear_before_reset:
        raise Unsupported("a gru resets after the product with its state, as PyTorch's does")
    _plain(direction, layout, others, lengths)
    call = f"y = gru(x, h, w, r, bi, bh, reverse={direction == 'reverse'})"
    return _layer(call, {"h": h}, (1, 0, 2), x, w, r, b, direction, layout, outputs)


@node("RNN")
def _rnn(x: Operand, w: Operand, r: Operand, b: Operand | None = None,
         lengths: Operand | None = None, h: Operand | None = None, *, hidden_size: int = 0,
         direction: str = "forward", layout: int = 0, outputs: Any = (), **others: Any) -> str:
    _plain(direction, layout, others, lengths)
    call = f"y = rnn(x, h, w, r, bi, bh, reverse={direction == 'reverse'})"
    return _layer(call, {"h": h}, (0,), x, w, r, b, direction, layout, outputs)


def _running(name: str) -> Any:
    def write(x: Operand, axis: Operand, *, exclusive: int = 0, reverse: int = 0) -> str:
        made = (f"{name}({x}, {int(axis.value.reshape(-1)[0])}, {bool(reverse)}, "
                f"{bool(exclusive)})")
        return f"{x.dtype}({made})" if not x.is_float else made

    return write


node("CumSum")(_running("cumsum"))
node("CumProd")(_running("cumprod"))
