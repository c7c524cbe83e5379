"""What is in the library, and the function of PyTorch that means the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from anabranch.frontend.program import loads
from anabranch.ir.types import tensor
from anabranch.trials import Trial, trial_with
from tests.frontend.running import DTYPES
from tests.library.ops import op, trial


@dataclass(frozen=True, slots=True)
class Example:
    """An op, and the same in PyTorch: a function of the op's tensors, in order, that gives the
    result, or as many as the op has.

    An example without settings uses the sizes of the op's trial, with settings those, which may
    also set parameters that are known when compiling. `given` has arguments that must not be
    random; at a `kink` among them no difference measures a slope, and what PyTorch says of it is
    a convention. Where that is not ours, `only_values` are compared; PyTorch has no gradient by
    what is `constant`.
    """

    op: str
    torch: Callable[..., torch.Tensor | Sequence[torch.Tensor]]
    settings: Mapping[str, object] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    kink: bool = False
    only_values: bool = False
    constant: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return " ".join([self.op, *(f"{k}={v}" for k, v in self.settings.items())])

    def trial(self) -> Trial:
        found = trial_with(op(self.op), self.settings) if self.settings else trial(self.op)
        assert found is not None, f"{self} has no meaning"
        arguments = tuple(
            np.asarray(self.given.get(a.value.name, x), x.dtype)
            for a, x in zip(found.function.arguments, found.arguments, strict=True))
        return Trial(found.function, arguments, found.sizes)


@dataclass(frozen=True, slots=True)
class Called:
    """A call of functions of the library on tensors, and the same in PyTorch.

    `given` has a tensor for each name: its numbers, or the shape of one with random numbers.
    """

    call: str
    torch: Callable[..., Any]
    given: Mapping[str, Any]
    kink: bool = False

    def __str__(self) -> str:
        shapes = (f"{k}={list(x.shape)}" for k, x in self.arrays().items())
        return " ".join([self.call, *shapes])

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        random = np.random.default_rng(5)
        return {name: random.normal(size=x).astype(np.float32) if isinstance(x, tuple)
                else np.asarray(x) for name, x in self.given.items()}

    def trial(self) -> Trial:
        arrays = self.arrays()
        types = {name: tensor(DTYPES[str(x.dtype)], x.shape) for name, x in arrays.items()}
        params = ", ".join(f"{name}: {type}" for name, type in types.items())
        program = loads(f"def f({params}):\n    return {self.call}\n", "test.ab")
        function = program.function("f", {}).functions["f"]
        named = [arrays[a.value.name] for a in function.arguments]
        return Trial(function, tuple(named), {})
