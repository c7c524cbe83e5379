"""Adapters of ONNX's convolutions and pools. A border of ONNX may be wider after an axis
than before it: such a one is made by pad(...), and the window then begins at place 0."""

from __future__ import annotations

import math
from typing import Any

from anabranch.ir.types import integers
from benchmarks.oracles.contract import Operand, Unsupported, node
from benchmarks.oracles.nodes_layout import numbers

Border = list[tuple[int, int]]


def _border(sizes: Any, kernel: Any, strides: Any, dilations: Any, pads: Any, auto_pad: str
            ) -> Border:
    """The places before and after each axis, as given or so many that strides divide the axis."""
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        given = list(pads or [0] * 2 * len(kernel))
        return list(zip(given[: len(kernel)], given[len(kernel):], strict=True))
    found = []
    for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        lack = max(0, (-(-n // s) - 1) * s + d * (k - 1) + 1 - n)
        less, more = lack // 2, lack - lack // 2
        found.append((less, more) if auto_pad == "SAME_UPPER" else (more, less))
    return found


def _padded(x: Operand, border: Border, filler: Any = 0, name: str = "") -> str:
    if not any(map(any, border)):
        return name or f"{x}"
    widths = [[0, 0]] * (x.ndim - len(border)) + [list(b) for b in border]
    return f"pad({name or x}, {widths}, {filler})"


def _even(border: Border) -> bool:
    return all(before == after for before, after in border)


@node("Conv")
def _conv(x: Operand, w: Operand, b: Operand | None = None, **attributes: Any) -> str:
    return convolution(x, w, (str(x), str(w), str(b)), **attributes)


def convolution(
    x: Operand, w: Operand, names: tuple[str, str, str], *, kernel_shape: Any = None,
    strides: Any = None, dilations: Any = None, pads: Any = None, auto_pad: str = "NOTSET",
    group: int = 1,
) -> str:
    """A convolution of tensors of these names, of the shapes of x and w."""
    axes, (image, kernel, bias) = x.ndim - 2, names
    steps, gaps = list(strides or [1] * axes), list(dilations or [1] * axes)
    border = _border(x.shape[2:], w.shape[2:], steps, gaps, pads, auto_pad)
    given, padding = (image, [p for p, _ in border]) if _even(border) else (
        _padded(x, border, name=image), [0] * axes)
    return f"return conv{axes}d({given}, {kernel}, {bias}, {steps}, {padding}, {gaps}, {group})"


@node("ConvTranspose")
def _conv_transpose(
    x: Operand, w: Operand, b: Operand | None = None, *, kernel_shape: Any = None,
    strides: Any = None, dilations: Any = None, pads: Any = None, output_padding: Any = None,
    output_shape: Any = None, auto_pad: str = "NOTSET", group: int = 1,
) -> str:
    axes = x.ndim - 2
    steps, gaps = list(strides or [1] * axes), list(dilations or [1] * axes)
    extra = list(output_padding or [0] * axes)
    whole = [(n - 1) * s + d * (k - 1) + 1 + e for n, s, d, k, e in zip(
        x.shape[2:], steps, gaps, w.shape[2:], extra, strict=True)]
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        output_shape = [n * s for n, s in zip(x.shape[2:], steps, strict=True)]
    if output_shape:
        lacks = [max(0, wanted - made) for wanted, made in zip(output_shape, whole, strict=True)]
        extra = [e + lack for e, lack in zip(extra, lacks, strict=True)]
        spare = [max(0, made - wanted) for wanted, made in zip(output_shape, whole, strict=True)]
        whole = [made + lack for made, lack in zip(whole, lacks, strict=True)]
        border = [(n // 2, n - n // 2) if auto_pad == "SAME_UPPER" else (n - n // 2, n // 2)
                  for n in spare]
    else:
        border = _border(x.shape[2:], w.shape[2:], steps, gaps, pads, "NOTSET")
    padding = [p for p, _ in border] if _even(border) else [0] * axes
    call = f"conv_transpose{axes}d({x}, {w}, {b}, {steps}, {padding}, {extra}, {group}, {gaps})"
    cuts = [f"{p}:{n - q}" for (p, q), n in zip(border, whole, strict=True)]
    return call if _even(border) else f"y = {call}\nreturn y[:, :, {', '.join(cuts)}]"


# ---- pools


def _fits(border: Border, kernel: Any, dilations: Any) -> bool:
    """Whether the pools of the library have this border themselves."""
    return _even(border) and all(
        2 * p <= d * (k - 1) + 1 for (p, _), k, d in zip(border, kernel, dilations, strict=True))


@node("MaxPool")
def _max_pool(x: Operand, *, kernel_shape: Any, strides: Any = None, dilations: Any = None,
              pads: Any = None, auto_pad: str = "NOTSET", ceil_mode: int = 0,
              storage_order: int = 0, outputs: Any = ()) -> str:
    axes, size = len(kernel_shape), list(kernel_shape)
    steps, gaps = list(strides or [1] * axes), list(dilations or [1] * axes)
    border = _border(x.shape[2:], size, steps, gaps, pads, auto_pad)
    own = _fits(border, size, gaps)
    given, padding = (f"{x}", [p for p, _ in border]) if own else (
        _padded(x, border, "-inf" if x.is_float else integers(x.dtype)[0]), [0] * axes)
    rest = f"{size}, {steps}, {padding}, {gaps}, {bool(ceil_mode)}"
    if len(outputs) == 1:
        return f"max_pool{axes}d({given}, {rest})"
    if not own or (storage_order and axes != 2):
        raise Unsupported("places are those of an image without a border of its own")
    lines = [f"y, k = max_pool_with_places({given}, {axes}, {rest})"]
    if storage_order:  # down the columns
        lines.append(f"k = k % {x.shape[3]} * {x.shape[2]} + k // {x.shape[3]}")
    planes, area = list(x.shape[:2]), math.prod(x.shape[2:])  # ONNX counts over all planes
    first = f"reshape({area} * arange({math.prod(planes)}), {planes + [1] * axes})"
    return "\n".join([*lines, f"return y, k + {first}"])


@node("MaxUnpool")
def _max_unpool(x: Operand, places: Operand, shape: Operand | None = None, *, kernel_shape: Any,
                strides: Any = None, pads: Any = None) -> str:
    axes = len(kernel_shape)
    steps, border = list(strides or [1] * axes), list(pads or [0] * 2 * axes)
    own = [(n - 1) * s + k - p - q for n, s, k, p, q in zip(
        x.shape[2:], steps, kernel_shape, border[:axes], border[axes:], strict=True)]
    wanted = own if shape is None else numbers(shape)[2:]
    more = [[0, 0]] * 2 + [[0, w - n] for n, w in zip(own, wanted, strict=True)]
    # Places are those of the smallest tensor that could have been pooled, over all its planes.
    return f"pad(max_unpool({x}, {places} % {math.prod(own)}, {own}), {more})"


@node("AveragePool")
def _average_pool(x: Operand, *, kernel_shape: Any, strides: Any = None, dilations: Any = None,
                  pads: Any = None, auto_pad: str = "NOTSET", ceil_mode: int = 0,
                  count_include_pad: int = 0) -> str:
    axes, size = len(kernel_shape), list(kernel_shape)
    steps, gaps = list(strides or [1] * axes), list(dilations or [1] * axes)
    border = _border(x.shape[2:], size, steps, gaps, pads, auto_pad)
    if _fits(border, size, gaps):
        padding = [p for p, _ in border]
        return (f"avg_pool{axes}d({x}, {size}, {steps}, {padding}, {bool(ceil_mode)}, "
                f"{bool(count_include_pad)}, dilation={gaps})")
    ends = f"{size}, {steps}, 0, {bool(ceil_mode)}, dilation={gaps}"
    whole = f"avg_pool{axes}d({_padded(x, border)}, {ends})"
    if count_include_pad:
        return whole
    inside = f"pad(full({list(x.shape)}, 1, {x.dtype}), "
    ones = inside + _padded(x, border).removeprefix(f"pad({x}, ")
    return f"{whole} / avg_pool{axes}d({ones}, {ends})"


@node("LpPool")
def _lp_pool(x: Operand, *, kernel_shape: Any, p: int = 2, strides: Any = None,
             dilations: Any = None, pads: Any = None, auto_pad: str = "NOTSET",
             ceil_mode: int = 0) -> str:
    axes, size = len(kernel_shape), list(kernel_shape)
    steps, gaps = list(strides or [1] * axes), list(dilations or [1] * axes)
    border = _border(x.shape[2:], size, steps, gaps, pads, auto_pad)
    return (f"lp_pool{axes}d(abs({_padded(x, border)}), {float(p)}, {size}, {steps}, "
            f"{bool(ceil_mode)}, {gaps})")


for _kind, _ours in {"GlobalAveragePool": "global_avg_pool",
                     "GlobalMaxPool": "global_max_pool"}.items():
    def _global(x: Operand, *, function: str = _ours) -> str:
        return f"reshape({function}({x}), {[*x.shape[:2], *[1] * (x.ndim - 2)]})"

    node(_kind)(_global)


# ---- images as columns, places as channels


@node("Col2Im")
def _col2im(x: Operand, shape: Operand, size: Operand, *, dilations: Any = None,
            pads: Any = None, strides: Any = None) -> str:
    axes = len(numbers(shape))
    if axes != 2:
        raise Unsupported("columns are those of an image")
    border = _border(numbers(shape), numbers(size), None, None, pads, "NOTSET")
    return (f"col2im({x}, {numbers(shape)}, {numbers(size)}, {list(dilations or [1, 1])}, "
            f"{[p for p, _ in border]}, {list(strides or [1, 1])})")


@node("SpaceToDepth")
def _space_to_depth(x: Operand, *, blocksize: int, mode: str = "DCR") -> str:
    n, c, h, w = x.shape
    made = f"pixel_unshuffle({x}, {blocksize})"
    if mode == "CRD":
        return made
    area, rows, columns = blocksize ** 2, h // blocksize, w // blocksize
    return (f"y = transpose(reshape({made}, {[n, c, area, rows, columns]}), 1, 2)\n"
            f"return reshape(y, {[n, c * area, rows, columns]})")


@node("CausalConvWithState")
def _causal_conv(x: Operand, w: Operand, b: Operand | None = None, past: Operand | None = None, *,
                 activation: str = "none", outputs: Any = ()) -> str:
    kept = w.shape[-1] - 1
    before = f"{past}" if past else f"full({[*x.shape[:2], kept]}, 0, {x.dtype})"
    y = f"conv1d(whole, {w}, {b}, groups={x.shape[1]})"
    results = [y if activation == "none" else f"silu({y})", f"whole[:, :, {x.shape[2]}:]"]
    return (f"whole = concat([{before}, {x}], axis=2)\n"
            f"return {', '.join(results[: len(outputs)])}")


@node("CenterCropPad")
def _center(x: Operand, shape: Operand, *, axes: Any = None) -> str:
    cuts, widths = [":"] * x.ndim, [[0, 0] for _ in range(x.ndim)]
    for axis, wanted in zip(axes or range(x.ndim), numbers(shape), strict=True):
        spare = x.shape[axis] - wanted
        if spare >= 0:
            cuts[axis] = f"{spare // 2}:{spare // 2 + wanted}"
        else:
            widths[axis] = [-spare // 2, -spare - -spare // 2]
    return f"pad({x}[{', '.join(cuts)}], {widths})"
