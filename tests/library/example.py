"""An op of the library and the function of PyTorch that means the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from anabranch.trials import Trial, trial_with
from tests.library.ops import op, trial


@dataclass(frozen=True, slots=True)
class Example:
    """An op, and the same in PyTorch: a function of the op's tensors, in order.

    An example without settings uses the sizes of the op's trial, with settings those, which may
    also set parameters that are known when compiling. `given` has arguments that must not be
    random; at a `kink` among them no difference measures a slope, and what PyTorch says of it is
    a convention.
    """

    op: str
    torch: Callable[..., torch.Tensor]
    settings: Mapping[str, object] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    kink: bool = False

    def __str__(self) -> str:
        return " ".join([self.op, *(f"{k}={v}" for k, v in self.settings.items())])

    def trial(self) -> Trial:
        found = trial_with(op(self.op), self.settings) if self.settings else trial(self.op)
        assert found is not None, f"{self} has no meaning"
        arguments = tuple(
            np.asarray(self.given.get(a.value.name, x), x.dtype)
            for a, x in zip(found.function.arguments, found.arguments, strict=True))
        return Trial(found.function, arguments, found.sizes)
