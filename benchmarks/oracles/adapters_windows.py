"""Adapters of convolutions, pools, interpolation and borders."""

from __future__ import annotations

from typing import Any

from torch.nn import functional

from benchmarks.oracles.contract import Operand, adapter, oracle


def setting(value: Any) -> str:
    """A number, a list of them, or a word."""
    if isinstance(value, str):
        return f'"{value}"'
    return str(list(value) if isinstance(value, list | tuple) else value)


def _conv(name: str) -> Any:
    def write(x: Operand, w: Operand, b: Operand | None = None, stride: Any = 1,
              padding: Any = 0, dilation: Any = 1, groups: int = 1) -> str:
        return (f"{name}({x}, {w}, {b}, {setting(stride)}, {setting(padding)}, "
                f"{setting(dilation)}, {groups})")

    return write


def _conv_transpose(name: str) -> Any:
    def write(x: Operand, w: Operand, b: Operand | None = None, stride: Any = 1,
              padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1
              ) -> str:
        return (f"{name}({x}, {w}, {b}, {setting(stride)}, {setting(padding)}, "
                f"{setting(output_padding)}, {groups}, {setting(dilation)})")

    return write


def _max_pool(name: str) -> Any:
    def write(x: Operand, kernel_size: Any, stride: Any = None, padding: Any = 0,
              dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False) -> str:
        return (f"{name}({x}, {setting(kernel_size)}, {setting(stride)}, {setting(padding)}, "
                f"{setting(dilation)}, {ceil_mode})")

    return write


def _avg_pool(name: str) -> Any:
    def write(x: Operand, kernel_size: Any, stride: Any = None, padding: Any = 0,
              ceil_mode: bool = False, count_include_pad: bool = True,
              divisor_override: Any = None) -> str:
        more = "" if name == "avg_pool1d" else f", {divisor_override}"
        return (f"{name}({x}, {setting(kernel_size)}, {setting(stride)}, {setting(padding)}, "
                f"{ceil_mode}, {count_include_pad}{more})")

    return write


def _adaptive(name: str) -> Any:
    def write(x: Operand, output_size: Any, return_indices: bool = False) -> str:
        return f"{name}({x}, {setting(output_size)})"

    return write


def _values(function: Any, name: str) -> Any:
    """A pool of torch without the places of its largest elements, which the library does not
    give."""
    def pool(*args: Any, return_indices: bool = False, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def adaptive(x: Any, output_size: Any, return_indices: bool = False) -> Any:
        return function(x, output_size)

    return adaptive if name.startswith("adaptive") else pool


for _axes in (1, 2, 3):
    for _pool in (f"max_pool{_axes}d", f"adaptive_max_pool{_axes}d"):
        oracle(f"nn.functional.{_pool}")(_values(getattr(functional, _pool), _pool))
    adapter(f"nn.functional.conv{_axes}d")(_conv(f"conv{_axes}d"))
    adapter(f"nn.functional.conv_transpose{_axes}d")(_conv_transpose(f"conv_transpose{_axes}d"))
    adapter(f"nn.functional.max_pool{_axes}d")(_max_pool(f"max_pool{_axes}d"))
    adapter(f"nn.functional.avg_pool{_axes}d")(_avg_pool(f"avg_pool{_axes}d"))
    adapter(f"nn.functional.adaptive_avg_pool{_axes}d")(_adaptive(f"adaptive_avg_pool{_axes}d"))
    adapter(f"nn.functional.adaptive_max_pool{_axes}d")(_adaptive(f"adaptive_max_pool{_axes}d"))


@adapter("nn.functional.pixel_shuffle")
def _pixel_shuffle(x: Operand, upscale_factor: int) -> str:
    return f"pixel_shuffle({x}, {upscale_factor})"


@adapter("nn.functional.pixel_unshuffle")
def _pixel_unshuffle(x: Operand, downscale_factor: int) -> str:
    return f"pixel_unshuffle({x}, {downscale_factor})"


@adapter("nn.functional.channel_shuffle")
def _channel_shuffle(x: Operand, groups: int) -> str:
    return f"channel_shuffle({x}, {groups})"


@adapter("nn.functional.unfold")
def _unfold(x: Operand, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
            ) -> str:
    return (f"im2col({x}, {setting(kernel_size)}, {setting(dilation)}, {setting(padding)}, "
            f"{setting(stride)})")


@adapter("nn.functional.interpolate.nearest", "nn.functional.interpolate.bilinear",
         "nn.functional.interpolate.linear", "nn.functional.interpolate.trilinear",
         "nn.functional.interpolate.nearest-exact", "nn.functional.interpolate.bicubic")
def _interpolate(x: Operand, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
                 align_corners: Any = None, recompute_scale_factor: Any = None) -> str:
    if recompute_scale_factor:  # only the sizes are taken from the scale
        scales = list(scale_factor) if isinstance(scale_factor, list | tuple) else [scale_factor]
        axes = x.ndim - 2
        scales = scales * axes if len(scales) == 1 else scales
        size, scale_factor = [int(n * s) for n, s in zip(x.shape[2:], scales, strict=True)], None
    return (f'interpolate({x}, {setting(size)}, {setting(scale_factor)}, "{mode}", '
            f"{bool(align_corners)})")


@adapter("nn.functional.grid_sample")
def _grid_sample(x: Operand, grid: Operand, mode: str = "bilinear", padding_mode: str = "zeros",
                 align_corners: Any = None) -> str:
    return f'grid_sample({x}, {grid}, "{mode}", "{padding_mode}", {bool(align_corners)})'


@adapter("grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(x: Operand, grid: Operand, interpolation_mode: int, padding_mode: int,
                  align_corners: bool) -> str:
    return _grid_sample(x, grid, ["bilinear", "nearest", "bicubic"][interpolation_mode],
                        ["zeros", "border", "reflection"][padding_mode], align_corners)


@adapter("nn.functional.upsample_nearest")
def _upsample_nearest(x: Operand, size: Any = None, scale_factor: Any = None) -> str:
    return _interpolate(x, size, scale_factor, "nearest")


@adapter("nn.functional.upsample_bilinear")
def _upsample_bilinear(x: Operand, size: Any = None, scale_factor: Any = None) -> str:
    return _interpolate(x, size, scale_factor, "bilinear", True)


@adapter("nn.functional.pad.constant", "nn.functional.pad.reflect", "nn.functional.pad.replicate",
         "nn.functional.pad.circular")
def _pad(x: Operand, pad: Any, mode: str = "constant", value: Any = None) -> str:
    pairs = [[pad[n], pad[n + 1]] for n in range(0, len(pad), 2)][::-1]
    widths = [[0, 0]] * (x.ndim - len(pairs)) + pairs
    return f'pad({x}, {widths}, {value or 0}, "{mode}")'
