"""Adapters of ONNX's recurrent and cumulative nodes. Its gates stand in another order than ours,
and one step before the batch."""

from __future__ import annotations

from typing import Any

from benchmarks.oracles.contract import Operand, Unsupported, node


def _gates(weight: str, order: tuple[int, ...], size: int) -> str:
    """The rows of gates in our order."""
    parts = [f"{weight}[{n * size}:{(n + 1) * size}]" for n in order]
    return f"concat([{', '.join(parts)}])" if len(order) > 1 else parts[0]


def _layer(
    call: str, states: dict[str, Operand | None], order: tuple[int, ...], given: list[Operand],
    b: Operand | None, lengths: Operand | None, direction: str, layout: int, outputs: list[bool],
    **others: Any,
) -> str:
    """The statements around a layer, once for each direction. `call` has the names below and
    `{back}`; what it gives are states and, of an lstm, cells."""
    if others:
        raise Unsupported(f"recurrent layers have no {', '.join(others)}")
    x, w, r = given
    backward = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    lines = [f"x = {x}" if layout else f"x = transpose({x}, 0, 1)"]
    found: dict[str, list[str]] = {"y": [], "end": [], "cell": []}
    for n, back in enumerate(backward):
        lines += _weights(n, order, w, r, b)
        lines += [f"{name} = {_start(state, n, x, r, layout)}" for name, state in states.items()]
        made = f"y{n}, c{n}" if "c" in states else f"y{n}"
        lines.append(f"{made} = {call.format(back=back, n=n)}")
        last = 0 if back else x.shape[1 if layout else 0] - 1
        found["y"].append(f"y{n}" if lengths is None else f"where(inside, y{n}, 0)")
        found["end"].append(f"y{n}[:, {last}]")
        found["cell"].append(f"c{n}[:, {last}]")
    if lengths is not None:  # past the end of a sequence ONNX has 0
        lines.append(f"inside = arange(x.shape[1])[None, :, None] < {lengths}[:, None, None]")
    whole = f"stack([{', '.join(found['y'])}], 2)"
    made = [whole if layout else f"transpose({whole}, [1, 2, 0, 3])"]
    made += [f"stack([{', '.join(found[name])}], {layout})" for name in ("end", "cell")]
    wanted = [text for text, wanted in zip(made, outputs, strict=False) if wanted]
    return "\n".join([*lines, f"return {', '.join(wanted)}"])


def _weights(
    n: int, order: tuple[int, ...], w: Operand, r: Operand, b: Operand | None
) -> list[str]:
    """The weights of a direction, gates in our order."""
    size, count = r.shape[-1], len(order)
    lines = [f"w = {_gates(f'{w}[{n}]', order, size)}", f"r = {_gates(f'{r}[{n}]', order, size)}"]
    for name, start in (("bi", 0), ("bh", count * size)):
        row = f"{b}[{n}, {start}:{start + count * size}]"
        lines.append(f"{name} = {_gates(row, order, size) if b else f'zeros([{count * size}])'}")
    return lines


def _start(state: Operand | None, n: int, x: Operand, r: Operand, layout: int) -> str:
    batch = x.shape[0] if layout else x.shape[1]
    if state is None:
        return f"zeros([{batch}, {r.shape[-1]}])"
    return f"{state}[:, {n}]" if layout else f"{state}[{n}]"


@node("LSTM")
def _lstm(x: Operand, w: Operand, r: Operand, b: Operand | None = None,
          lengths: Operand | None = None, h: Operand | None = None, c: Operand | None = None,
          peepholes: Operand | None = None, *, hidden_size: int = 0, direction: str = "forward",
          layout: int = 0, outputs: Any = (), **others: Any) -> str:
    rows = [f"{peepholes}[{{n}}, {g * hidden_size}:{(g + 1) * hidden_size}]" for g in (0, 2, 1)]
    peephole = f"stack([{', '.join(rows)}])" if peepholes else None
    call = f"lstm(x, h, c, w, r, bi, bh, {{back}}, {peephole}, {lengths})"
    return _layer(call, {"h": h, "c": c}, (0, 2, 3, 1), [x, w, r], b, lengths, direction, layout,
                  outputs, **others)


@node("GRU")
def _gru(x: Operand, w: Operand, r: Operand, b: Operand | None = None,
         lengths: Operand | None = None, h: Operand | None = None, *, hidden_size: int = 0,
         direction: str = "forward", layout: int = 0, linear_before_reset: int = 0,
         outputs: Any = (), **others: Any) -> str:
    call = f"gru(x, h, w, r, bi, bh, {{back}}, {bool(linear_before_reset)}, {lengths})"
    return _layer(call, {"h": h}, (1, 0, 2), [x, w, r], b, lengths, direction, layout, outputs,
                  **others)


@node("RNN")
def _rnn(x: Operand, w: Operand, r: Operand, b: Operand | None = None,
         lengths: Operand | None = None, h: Operand | None = None, *, hidden_size: int = 0,
         direction: str = "forward", layout: int = 0, outputs: Any = (), **others: Any) -> str:
    call = f'rnn(x, h, w, r, bi, bh, "tanh", {{back}}, {lengths})'
    return _layer(call, {"h": h}, (0,), [x, w, r], b, lengths, direction, layout, outputs, **others)


def _running(name: str) -> Any:
    def write(x: Operand, axis: Operand, *, exclusive: int = 0, reverse: int = 0) -> str:
        made = (f"{name}({x}, {int(axis.value.reshape(-1)[0])}, {bool(reverse)}, "
                f"{bool(exclusive)})")
        return f"{x.dtype}({made})" if not x.is_float else made

    return write


node("CumSum")(_running("cumsum"))
node("CumProd")(_running("cumprod"))
