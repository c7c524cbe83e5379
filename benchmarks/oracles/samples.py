"""Torch's samples of its operators (OpInfo) as cases.

The right results are those of torch in f64 on the same data. Of the samples of an operator at most
`limit` are taken: most in f32, chosen to be unlike one another (empty, without dimensions, strided,
then spread over all there are), and some in the other dtypes that the operator takes.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_map

from benchmarks.oracles import all_adapters  # noqa: F401 - registers them
from benchmarks.oracles.cases import Array, Case, Refusal, Wanted, wanted
from benchmarks.oracles.contract import (
    ADAPTERS,
    DRAWN,
    ORACLES,
    Operand,
    Unsupported,
    dtype_name,
    mentioned,
)

Oracle = Callable[..., Any]

MOST = 2000  # samples that are looked at
OTHERS = (
    (torch.float64, 2), (torch.int64, 1), (torch.int32, 1), (torch.bool, 1), (torch.uint8, 1),
    (torch.float16, 1), (torch.bfloat16, 1),
)  # fmt: skip
WITH_GRADIENTS = (torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class Sample:
    """A call of torch's: the first argument, the others, and whether it is one to be refused."""

    dtype: torch.dtype
    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def tensors(self) -> list[torch.Tensor]:
        leaves, _ = tree_flatten((self.input, self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def entries() -> dict[str, Any]:
    """Every OpInfo by its name and variant."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {full_name(info): info for info in op_db}


def full_name(info: Any) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)


def chosen(info: Any, limit: int) -> list[Sample]:
    """The samples that are tried."""
    supported = info.supported_dtypes("cpu")
    main = torch.float32 if torch.float32 in supported else torch.int64
    others = [(dtype, count) for dtype, count in OTHERS if dtype in supported and dtype != main]
    found = [sample for dtype, count in others for sample in _spread(_all(info, dtype), count)]
    found = found[: limit // 2]
    return _spread(_all(info, main), limit - len(found)) + found if main in supported else found


def _all(info: Any, dtype: torch.dtype, most: int = MOST) -> list[Sample]:
    torch.manual_seed(zlib.crc32(full_name(info).encode()))
    graded = info.supports_autograd and dtype in WITH_GRADIENTS
    made = islice(info.sample_inputs("cpu", dtype, requires_grad=graded), most)
    # Hardly any of torch's own lie apart in memory; its tests make them so, with nan in between.
    laid = (s.noncontiguous() if number % 3 == 1 else s for number, s in enumerate(made))
    return [Sample(dtype, s.input, tuple(s.args), dict(s.kwargs)) for s in laid]


def _spread(samples: Sequence[Sample], count: int) -> list[Sample]:
    """Some of each kind, the others evenly from first to last."""
    if len(samples) <= count:
        return list(samples)
    kinds: list[Callable[[Sample], bool]] = [
        lambda s: any(t.numel() == 0 for t in s.tensors()),
        lambda s: any(t.ndim == 0 for t in s.tensors()),
        lambda s: any(not t.is_contiguous() for t in s.tensors()),
    ]
    special = [next((i for i, s in enumerate(samples) if kind(s)), None) for kind in kinds]
    picked = {i for i in special[: max(0, count - 1)] if i is not None}
    for step in range(count):
        if len(picked) < count:
            picked.add(step * (len(samples) - 1) // max(1, count - 1))
    rest = (i for i in range(len(samples)) if i not in picked)
    picked |= set(islice(rest, count - len(picked)))
    return [samples[i] for i in sorted(picked)]


def bad(info: Any) -> list[Sample]:
    """Calls that torch refuses."""
    if info.error_inputs_func is None:
        return []
    torch.manual_seed(0)
    inputs = [e.sample_input for e in info.error_inputs("cpu")]
    return [Sample(torch.float32, s.input, tuple(s.args), dict(s.kwargs)) for s in inputs]


# ---- a sample as a case


def cases(name: str, info: Any, limit: int) -> list[Case | Refusal]:
    """The cases of an operator; samples that torch itself cannot compute are left out."""
    return _cases(name, info, chosen(info, limit))


def first(name: str, info: Any, among: int) -> Case | None:
    """One of the first samples that has a meaning for the library, another one for each name."""
    dtype = torch.float32 if torch.float32 in info.supported_dtypes("cpu") else torch.int64
    made = _all(info, dtype, among)
    turn = zlib.crc32(name.encode()) % max(1, len(made))
    found = (case for sample in (*made[turn:], *made[:turn])
             for case in _cases(name, info, [sample]) if isinstance(case, Case))
    return next(found, None)


def _cases(name: str, info: Any, among: Sequence[Sample]) -> list[Case | Refusal]:
    found: list[Case | Refusal] = []
    for number, sample in enumerate(among):
        label = f"{name} {number} {dtype_name(sample.dtype)}"
        try:
            text, operands = written(name, sample)
        except Unsupported as error:
            found.append(Refusal(label, str(error)))
            continue
        oracle = ORACLES.get(name, info.op)
        case = (_with_draws(label, name, sample, text, operands) if name in DRAWN
                else _case(label, oracle, sample, text, operands))
        if case is not None:
            found.append(case)
    return found


def _with_draws(
    label: str, name: str, sample: Sample, text: str, operands: tuple[Operand, ...]
) -> Case:
    """A case that is judged when its draws are known."""

    def drawn(found: Sequence[Array]) -> Case:
        given = [torch.from_numpy(np.array(array)) for array in found]
        case = _case(label, partial(DRAWN[name], given), sample, text, operands)
        assert case is not None, label
        return replace(case, training=True)

    return Case(label, text, operands, (), training=True, drawn=drawn)


def bad_cases(name: str, info: Any) -> Iterator[Case]:
    """The calls that torch refuses, as far as they can be written in the language."""
    for number, sample in enumerate(bad(info)):
        try:
            text, operands = written(name, sample)
        except Exception:
            continue
        yield Case(f"{name} bad {number}", text, operands, ())


def written(name: str, sample: Sample) -> tuple[str, tuple[Operand, ...]]:
    """A sample as text over named operands."""
    operands: list[Operand] = []

    def named(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            operands.append(Operand(f"x{len(operands)}", tuple(leaf.shape),
                                    dtype_name(leaf.dtype), _array(leaf)))
            return operands[-1]
        return leaf

    input, args, kwargs = tree_map(named, (sample.input, sample.args, sample.kwargs))
    text = ADAPTERS[name](input, *args, **kwargs)
    return text, tuple(o for o in operands if mentioned(o.name, text))


def _array(tensor: torch.Tensor) -> Array:
    """A NumPy array of the same strides; bf16 in f32."""
    plain = tensor.detach()
    plain = plain.float() if plain.dtype == torch.bfloat16 else plain
    found: Array = plain.resolve_conj().resolve_neg().numpy()
    return found


def _case(
    label: str, oracle: Oracle, sample: Sample, text: str, operands: tuple[Operand, ...]
) -> Case | None:
    try:
        rough, rough_by = _run(oracle, sample, None)
        exact, exact_by = _run(oracle, sample, torch.float64)
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
        return None
    dtypes = [dtype_name(r.dtype) for r in rough]
    results = tuple(
        wanted(_array(e), dtype, _array(r).astype(np.float64))
        for e, r, dtype in zip(exact, rough, dtypes, strict=True))
    if sample.dtype not in WITH_GRADIENTS:
        return Case(label, text, operands, results)
    upstream = _weights(exact)
    theirs, own = (_gradients(outputs, by, upstream)
                   for outputs, by in ((exact, exact_by), (rough, rough_by)))
    known = {o.name for o in operands}
    names = [f"x{n}" for n, t in enumerate(sample.tensors()) if t.requires_grad]
    gradients = {
        name: _gradient(their, mine, sample.dtype)
        for name, their, mine in zip(names, theirs, own, strict=False) if name in known}
    weights = tuple(_array(w) for w in upstream)
    return Case(label, text, operands, results, weights, gradients)


def _gradient(exact: torch.Tensor, rough: torch.Tensor, dtype: torch.dtype) -> Wanted:
    return wanted(_array(exact), dtype_name(dtype), _array(rough).astype(np.float64))


def _run(
    oracle: Oracle, sample: Sample, dtype: torch.dtype | None
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The results of torch, its floats in another dtype, and the leaves for gradients."""
    leaves: list[torch.Tensor] = []

    def fresh(leaf: Any) -> Any:
        if isinstance(leaf, torch.dtype):
            return dtype if dtype is not None and leaf.is_floating_point else leaf
        if not isinstance(leaf, torch.Tensor):
            return leaf
        copy = leaf.detach().clone()
        copy = copy.to(dtype) if dtype is not None and copy.is_floating_point() else copy
        if leaf.requires_grad:
            leaves.append(copy.requires_grad_())
        return copy

    input, args, kwargs = tree_map(fresh, (sample.input, sample.args, sample.kwargs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs, _ = tree_flatten(oracle(input, *args, **kwargs))
    return [torch.as_tensor(output) for output in outputs], leaves


def _weights(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A fixed random weight for every element of a float result."""
    random = torch.Generator().manual_seed(7)
    return [torch.randn(output.shape, generator=random, dtype=torch.float32).double()
            for output in outputs if output.is_floating_point()]


def _gradients(
    outputs: Sequence[torch.Tensor], by: Sequence[torch.Tensor], upstream: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    floats = [output for output in outputs if output.is_floating_point()]
    reached = [(o, w.to(o.dtype)) for o, w in zip(floats, upstream, strict=True) if o.requires_grad]
    if not reached or not by:
        return ()
    ends, weights = zip(*reached, strict=True)
    return torch.autograd.grad(ends, by, weights, allow_unused=True, materialize_grads=True)
