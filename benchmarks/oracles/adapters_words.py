"""Adapters of operators that the library has in other words: a composition of a line."""

from __future__ import annotations

from typing import Any

from benchmarks.oracles.contract import Operand, Unsupported, adapter, axes_of, listed

for _theirs, _ours in {
    "double": "f64", "float": "f32", "half": "f16", "bfloat16": "bf16", "long": "i64", "int": "i32",
    "short": "i16", "char": "i8", "byte": "u8", "bool": "bool",
}.items():  # fmt: skip
    adapter(_theirs)(lambda x, function=_ours, **_: f"{function}({x})")

for _theirs, _ours in {
    "__radd__": "{1} + {0}", "__rsub__": "{1} - {0}", "__rmul__": "{1} * {0}",
    "__rdiv__": "{1} / {0}", "__rmod__": "{1} % {0}", "__rpow__": "{1} ** {0}",
    "__rmatmul__": "{1} @ {0}", "__rand__": "bitwise_and({1}, {0})",
    "__ror__": "bitwise_or({1}, {0})", "__rxor__": "bitwise_xor({1}, {0})",
    "ldexp": "{0} * exp2({1})", "special.xlog1py": "xlog1py({0}, {1})",
    "reshape_as": "reshape({0}, {1}.shape)", "view_as": "reshape({0}, {1}.shape)",
}.items():  # fmt: skip
    adapter(_theirs)(lambda x, y, text=_ours: text.format(x, y))

for _theirs, _ours in {
    "ravel": "reshape({}, [-1])", "T": "transpose({})", "mT": "{}.T",
}.items():  # fmt: skip
    adapter(_theirs)(lambda x, text=_ours: text.format(x) if x.ndim > 1 or "[-1]" in text
                     else f"{x}")


@adapter("equal")
def _equal(x: Operand, y: Operand) -> str:
    return f"all({x} == {y})" if x.shape == y.shape else f"all(full({list(x.shape)}, False, bool))"


@adapter("allclose")
def _allclose(x: Operand, y: Operand, rtol: float = 1e-5, atol: float = 1e-8,
              equal_nan: bool = False) -> str:
    return f"all(isclose({x}, {y}, {float(rtol)}, {float(atol)}, {equal_nan}))"


@adapter("isin")
def _isin(x: Operand, among: Operand, *, assume_unique: bool = False, invert: bool = False) -> str:
    found = f"any({x}[..., None] == reshape({among}, [-1]), axis=-1)"
    return f"not {found}" if invert else found


@adapter("dist")
def _dist(x: Operand, y: Operand, p: float = 2) -> str:
    return f"norm({x} - {y}, p={p})"


@adapter("norm.fro", "norm.inf")
def _norm(x: Operand, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None
          ) -> str:
    if dtype is not None:
        raise Unsupported("a norm has the dtype of its tensor: cast that")
    axes = axes_of(dim, x.ndim)
    return f"norm({x}, axis={axes}, keepdims={keepdim}, p={2 if p == 'fro' else p})"


@adapter("nanmean")
def _nanmean(x: Operand, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> str:
    axes = None if x.ndim == 0 or dim in (None, [], ()) else axes_of(dim, x.ndim)
    return f"nanmean({x}, axis={axes}, keepdims={keepdim})"


@adapter("aminmax")
def _aminmax(x: Operand, dim: Any = None, keepdim: bool = False) -> str:
    axes = None if x.ndim == 0 or dim is None else axes_of(dim, x.ndim)
    return f"low, high = aminmax({x}, axis={axes}, keepdims={keepdim})\nreturn low, high"


for _name in ("atleast_1d", "atleast_2d", "atleast_3d"):
    def _atleast(x: Any, *, function: str = _name) -> str:
        if isinstance(x, Operand):
            return f"{function}({x})"
        return "return " + ", ".join(f"{function}({one})" for one in x)

    adapter(_name)(_atleast)


def _split(axis: int) -> Any:
    def write(x: Operand, parts: Any) -> str:
        own = 0 if axis == 1 and x.ndim == 1 else axis
        where = list(parts) if isinstance(parts, list | tuple) else parts
        count = len(where) + 1 if isinstance(where, list) else where
        return listed(f"tensor_split({x}, {where}, {own})", count)

    return write


for _axis, _name in enumerate(("vsplit", "hsplit", "dsplit")):
    adapter(_name)(_split(_axis))


@adapter("diagflat")
def _diagflat(x: Operand, offset: int = 0) -> str:
    return f"diag(reshape({x}, [-1]), {offset})"


@adapter("broadcast_tensors")
def _broadcast_tensors(*tensors: Operand) -> str:
    shape = f"broadcast_shapes({', '.join(f'{x}.shape' for x in tensors)})"
    return "return " + ", ".join(f"broadcast_to({x}, {shape})" for x in tensors)


@adapter("index_copy")
def _index_copy(x: Operand, dim: int, ids: Operand, source: Operand) -> str:
    if x.ndim:
        return f"index_copy({x}, {ids}, {source}, {dim})"
    return f"index_copy({x}[None], reshape({ids}, [-1]), reshape({source}, [-1]), 0)[0]"


@adapter("bincount")
def _bincount(x: Operand, weights: Any = None, minlength: int = 0) -> str:
    count = max(int(x.value.max()) + 1 if x.value.size else 0, minlength)  # known when compiling
    given = weights if weights is None or weights.is_float else f"f64({weights})"
    return f"bincount({x}, {count}, {given})"


@adapter("linalg.multi_dot")
def _multi_dot(tensors: list[Operand]) -> str:
    return " @ ".join(map(str, tensors))


@adapter("linalg.diagonal")
def _linalg_diagonal(x: Operand, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> str:
    return f"diagonal({x}, {offset}, {dim1}, {dim2})"


@adapter("fill")
def _fill(x: Operand, value: Any) -> str:
    return f"expand({x.dtype}({value}), {list(x.shape)})"


@adapter("nn.functional.interpolate.area")
def _area(x: Operand, size: Any = None, scale_factor: Any = None, mode: str = "area",
          align_corners: Any = None, recompute_scale_factor: Any = None) -> str:
    axes = x.ndim - 2
    if size is None:
        scales = scale_factor if isinstance(scale_factor, list | tuple) else [scale_factor] * axes
        size = [int(n * s) for n, s in zip(x.shape[2:], scales, strict=True)]
    sizes = list(size) if isinstance(size, list | tuple) else size
    return f"adaptive_avg_pool{axes}d({x}, {sizes})"


# ---- losses of several classes; a sample without a batch is a batch of one


def _margins(name: str) -> Any:
    def write(x: Operand, target: Operand, *given: Any, reduction: str = "mean", **named: Any
              ) -> str:
        values = {**dict(zip(("p", "margin", "weight"), given, strict=False)), **named}
        more = "".join(f", {key}={float(v) if key == 'margin' else v}"
                       for key, v in values.items() if v is not None)
        if name == "multi_margin" and x.ndim < 2:
            text = f"{name}(reshape({x}, [1, -1]), reshape({target}, [1]){more}, " \
                   f'reduction="{reduction}")'
            return f"{text}[0]" if reduction == "none" else text
        own = (f"{x}", f"{target}") if x.ndim else (f"{x}[None]", f"reshape({target}, [1])")
        return f'{name}({own[0]}, {own[1]}{more}, reduction="{reduction}")'

    return write


for _name in ("multi_margin", "multilabel_margin", "multilabel_soft_margin"):
    adapter(f"nn.functional.{_name}_loss")(_margins(_name))
