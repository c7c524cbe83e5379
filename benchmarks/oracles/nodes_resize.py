"""Adapters of ONNX's resizing. What PyTorch has too is the library's `interpolate`. ONNX's other
ways to place and to weigh elements are lists of places and weights, blended axis by axis."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from benchmarks.oracles.contract import Operand, node
from benchmarks.oracles.nodes_layout import numbers

HALF = Fraction(1, 2)
ROUNDED: dict[str, Callable[[Fraction], int]] = {
    "floor": math.floor, "ceil": math.ceil,
    "round_prefer_ceil": lambda p: math.floor(p + HALF),
    "round_prefer_floor": lambda p: math.ceil(p - HALF),
}


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of `old` elements that is to have `new`, by a factor; `crop` is the part of it that
    is meant, from 0 to 1."""

    number: int
    old: int
    new: int
    factor: Fraction
    crop: tuple[Fraction, Fraction]

    def origins(self, where: str) -> list[Fraction]:
        """Where the new elements lie among the old ones."""
        whole, (start, end) = self.factor * self.old, self.crop
        places = [(n + HALF) / self.factor - HALF for n in range(self.new)]
        match where:
            case "half_pixel":
                return places
            case "pytorch_half_pixel":
                return places if whole != 1 else [-HALF]
            case "half_pixel_symmetric":
                return [p + Fraction(self.old, 2) * (1 - self.new / whole) for p in places]
            case "asymmetric":
                return [n / self.factor for n in range(self.new)]
            case "align_corners":
                start, end = Fraction(0), Fraction(1)
            case "tf_crop_and_resize" if whole == 1:
                return [(start + end) / 2 * (self.old - 1)]
        step = (end - start) * (self.old - 1) / (whole - 1) if whole != 1 else Fraction(0)
        return [n * step + start * (self.old - 1) for n in range(self.new)]


    def nearest(self, where: str, rounding: str) -> list[int]:
        """The old element nearest to each of the new ones."""
        return [min(max(ROUNDED[rounding](p), 0), self.old - 1) for p in self.origins(where)]


@node("Resize")
def _resize(
    x: Operand, roi: Operand | None = None, scales: Operand | None = None,
    sizes: Operand | None = None, *, mode: str = "nearest", nearest_mode: str =
    "round_prefer_floor", coordinate_transformation_mode: str = "half_pixel", axes: Any = None,
    keep_aspect_ratio_policy: str = "stretch", antialias: int = 0, exclude_outside: int = 0,
    cubic_coeff_a: float = -0.75, extrapolation_value: float = 0.0,
) -> str:
    where = coordinate_transformation_mode
    along = _axes(x, list(axes or range(x.ndim)), roi, scales, sizes, keep_aspect_ratio_policy)
    plain = not antialias and not exclude_outside and cubic_coeff_a == -0.75
    kind = nearest_mode if mode == "nearest" else mode
    given = _by_interpolate(x, along, kind, where, sizes is not None) if plain else None
    if given is not None:
        return given
    lines = [f"y = {x}"]
    for axis in reversed(along):
        places = axis.origins(where)
        if mode == "nearest":
            made = (f"near = {axis.nearest(where, nearest_mode)}\n"
                    f"taken[*i, n < {axis.new}] = y[*i, near[n]]\ny = taken")
        else:
            narrow = min(axis.factor, Fraction(1)) if antialias else Fraction(1)
            rows = [_taps(p, axis.old, narrow, mode, cubic_coeff_a, bool(exclude_outside))
                    for p in places]
            made = f"y = weighted(y, {[near for near, _ in rows]}, {[part for _, part in rows]})"
        if where == "tf_crop_and_resize":
            inside = [int(0 <= p <= axis.old - 1) for p in places]
            made += (f"\ninside = {inside}\nkept[*i, n < {axis.new}] = "
                     f"where(inside[n] == 1, y[*i, n], {extrapolation_value})\ny = kept")
        lines.append(_apart(made, axis.number))
    return "\n".join([*lines, "return y"])


def _apart(made: str, number: int) -> str:
    """Statements on the last axis, of another; the tensors they make have names of their own."""
    for name in ("taken", "kept"):
        made = made.replace(f"{name}[", f"{name}{number}[").replace(f"y = {name}",
                                                                    f"y = {name}{number}")
    return f"y = movedim(y, {number}, -1)\n{made}\ny = movedim(y, -1, {number})"


def _taps(place: Fraction, old: int, narrow: Fraction, mode: str, a: float, inner: bool
          ) -> tuple[list[int], list[float]]:
    """The old elements that a new one is made of, and their parts of it."""
    reach = (1 if mode == "linear" else 2) / narrow
    first = math.floor(place - reach) + 1
    taps = range(first, first + math.ceil(2 * reach))
    weights = [_weight(float((k - place) * narrow), mode, a) for k in taps]
    if inner:
        weights = [w if 0 <= k < old else 0.0 for k, w in zip(taps, weights, strict=True)]
    near = [min(max(k, 0), old - 1) for k in taps]
    return near, [w / sum(weights) for w in weights]


def _weight(t: float, mode: str, a: float) -> float:
    t = abs(t)
    if mode == "linear":
        return max(1 - t, 0.0)
    if t <= 1:
        return ((a + 2) * t - (a + 3)) * t * t + 1
    return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a if t < 2 else 0.0


def _axes(x: Operand, numbered: list[int], roi: Operand | None, scales: Operand | None,
          sizes: Operand | None, policy: str) -> list[Axis]:
    """The axes that are resized, in order."""
    if sizes is None:
        assert scales is not None
        factors = [Fraction(float(f)) for f in scales.value]
        wanted = [math.floor(x.shape[a] * f) for a, f in zip(numbered, factors, strict=True)]
    else:
        wanted = numbers(sizes)
        factors = [Fraction(n, x.shape[a]) for n, a in zip(wanted, numbered, strict=True)]
    if sizes is not None and policy != "stretch":
        one = min(factors) if policy == "not_larger" else max(factors)
        factors = [one] * len(numbered)
        wanted = [math.floor(one * x.shape[a] + HALF) for a in numbered]
    ends = [Fraction(float(v)) for v in roi.value] if roi is not None and roi.value.size else (
        [Fraction(0)] * len(numbered) + [Fraction(1)] * len(numbered))
    crops = list(zip(ends[:len(numbered)], ends[len(numbered):], strict=True))
    made = [Axis(a, x.shape[a], n, f, crop)
            for a, n, f, crop in zip(numbered, wanted, factors, crops, strict=True)]
    return sorted((axis for axis in made if axis.factor != 1 or axis.crop != (0, 1)),
                  key=lambda axis: axis.number)


def _by_interpolate(x: Operand, along: list[Axis], mode: str, where: str, by_size: bool
                    ) -> str | None:
    """The call of the library's function, where it takes the same elements in the same parts."""
    changed = {axis.number: axis for axis in along}
    if not changed.keys() <= set(range(2, x.ndim)):
        return None
    corners = where == "align_corners"
    if corners and any(axis.new != axis.old * axis.factor for axis in along):
        return None
    size = [changed[a].new if a in changed else x.shape[a] for a in range(2, x.ndim)]
    scale = [float(changed[a].factor) if a in changed else 1.0 for a in range(2, x.ndim)]
    half = where == "half_pixel" or (where == "pytorch_half_pixel" and 1 not in size)
    name = {"linear": "linear", "cubic": "bicubic"}.get(mode) or _nearest(along, where, mode)
    if name is None or (mode in ("linear", "cubic") and not (half or corners)):
        return None
    given = f"{size}, None" if by_size else f"None, {scale}"
    return f'interpolate({x}, {given}, "{name}", {corners and mode in ("linear", "cubic")})'


def _nearest(along: list[Axis], where: str, rounding: str) -> str | None:
    """The interpolation of the library that takes the same elements."""
    def taken(axis: Axis, offset: Fraction) -> list[int]:
        return [min(math.floor((n + offset) / axis.factor), axis.old - 1) for n in range(axis.new)]

    for name, offset in (("nearest", Fraction(0)), ("nearest-exact", HALF)):
        if all(axis.nearest(where, rounding) == taken(axis, offset) for axis in along):
            return name
    return None


@node("Upsample")
def _upsample(x: Operand, scales: Operand, *, mode: str = "nearest") -> str:
    return _resize(x, None, scales, mode=mode, coordinate_transformation_mode="asymmetric",
                   nearest_mode="floor")


# ---- elements at the places of a grid


@node("GridSample")
def _grid_sample(x: Operand, grid: Operand, *, mode: str = "linear", padding_mode: str = "zeros",
                 align_corners: int = 0) -> str:
    name = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    return f'grid_sample({x}, {grid}, "{name}", "{padding_mode}", {bool(align_corners)})'


@node("AffineGrid")
def _affine_grid(theta: Operand, size: Operand, *, align_corners: int = 0) -> str:
    return f"affine_grid({theta}, {numbers(size)[2:]}, {bool(align_corners)})"
