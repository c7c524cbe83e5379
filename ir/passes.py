"""Runs a pipeline: a sequence of passes, with verification between them, times, dumps and, when a
pass fails, a text that reproduces the failure.

A pass is a function from module to module (it may change the module in place) with a name. The
text of a failure is the module that entered the pipeline under a comment that lists the passes up
to the one that failed, which is cheaper than keeping the text before each.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from anabranch.ir.core import Module
from anabranch.ir.diagnostics import NOWHERE, CompilerBug, UserError
from anabranch.ir.printer import print_module
from anabranch.ir.verifier import verify as verify_module


class Pass(Protocol):
    """A function, or a `functools.partial` of one."""

    def __call__(self, module: Module, /) -> Module: ...


def name_of(step: Pass) -> str:
    """The name of the function, with `-` for `_` as on the command line."""
    function = step.func if isinstance(step, functools.partial) else step
    return str(getattr(function, "__name__", type(function).__name__)).replace("_", "-")


def run(
    passes: Sequence[Pass],
    module: Module,
    *,
    verify: bool = True,
    timings: dict[str, float] | None = None,
    print_after: Collection[str] = (),
    write: Callable[[str], object] = sys.stderr.write,
) -> Module:
    """The module after all passes. `timings` receives seconds by name, those of verification
    under `verify`; the module is written after the passes named in `print_after` (`all`: each)."""
    clock = {} if timings is None else timings
    entered = print_module(module)
    done: list[str] = []
    try:
        _timed(clock, "verify", _verified if verify else _unchanged, module)
        for step in passes:
            done.append(name_of(step))
            module = _timed(clock, done[-1], step, module)
            if {done[-1], "all"} & set(print_after):
                write(f"// after {done[-1]}\n{print_module(module)}\n")
            _timed(clock, "verify", _verified if verify else _unchanged, module)
    except UserError:
        raise
    except Exception as error:  # whatever else a pass raises is our fault
        raise _with_reproducer(error, entered, done) from error
    return module


def _verified(module: Module) -> Module:
    verify_module(module)
    return module


def _unchanged(module: Module) -> Module:
    return module


def _timed(clock: dict[str, float], name: str, step: Pass, module: Module) -> Module:
    start = time.perf_counter()
    result = step(module)
    clock[name] = clock.get(name, 0.0) + time.perf_counter() - start
    return result


def _with_reproducer(error: Exception, entered: str, done: list[str]) -> CompilerBug:
    """The same failure, with the text that leads to it."""
    where = f"in pass '{done[-1]}'" if done else "before the first pass"
    text = f"// passes: {', '.join(done)}\n{entered}"
    if isinstance(error, CompilerBug):
        return CompilerBug(f"{where}: {error.message}", error.loc, text)
    return CompilerBug(f"{where}: {type(error).__name__}: {error}", NOWHERE, text)
