"""Anabranch: a compiler and runtime for neural networks. See README.md.

    import anabranch as ab

    program = ab.load("gpt.ab")
    plan = ab.compile(program.train, mesh=ab.Mesh(data=2))
    with ab.Session(plan) as session:
        loss = session.step(tokens=tokens, targets=targets)

A name is imported when it is first used, so that what runs a saved plan pays for no compiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch.api import Mesh, compile, load, loads
    from anabranch.frontend.values import Expression
    from anabranch.ir.diagnostics import UserError
    from anabranch.ir.plan import Plan
    from anabranch.readers import register_reader
    from anabranch.session import Session
    from anabranch.weights import Target, load_weights

__version__ = "0.1.0"
__all__ = ["Expression", "Mesh", "Plan", "Session", "Target", "UserError", "compile", "load",
           "load_weights", "loads", "register_reader"]

_HOMES = {
    "Mesh": "api", "compile": "api", "load": "api", "loads": "api", "Plan": "ir.plan",
    "Expression": "frontend.values", "Session": "session", "UserError": "ir.diagnostics",
    "Target": "weights", "load_weights": "weights", "register_reader": "readers",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'anabranch' has no attribute '{name}'")
    return getattr(importlib.import_module(f"anabranch.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
