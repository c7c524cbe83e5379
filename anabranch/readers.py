"""Readers of a user: written in Python, named in recipes.

    @anabranch.register_reader("waves")
    class Waves:
        def __init__(self, source, seed, *, batch, frequency=1.0): ...
        def batch(self, step): ...          # {name: array}, the same for the same step
        def validation(self): ...           # (batch, how many of its rows differ), ...

    data = waves(batch=16)                  # a line of a recipe

`anabranch train --readers FILE.py` runs the file that says so. `source` is what --data says, or
None; what a recipe gives are the other parameters. Both methods are needed. Unless one of the
parameters is `batch`, the first dimension of a batch is not known before the data are there.
"""

from __future__ import annotations

import inspect
import runpy
import traceback
from collections.abc import Callable

from anabranch.frontend.readers import READERS, Signature, add_reader
from anabranch.frontend.scope import library
from anabranch.frontend.values import MISSING
from anabranch.ir.diagnostics import Span, UserError, fail
from anabranch.runtime import data

TAKES = "it takes the source of the data and the seed, then what a recipe may give"


def register_reader(name: str) -> Callable[[data.Maker], data.Maker]:
    """Let recipes name what the decorated class or function makes."""
    if not name.isidentifier():
        raise fail(f"'{name}' is no name of a reader", help="as in waves")
    if name not in READERS and library().find(name) is not MISSING:
        raise fail(f"a reader cannot be called '{name}': the language has that name already")

    def add(maker: data.Maker) -> data.Maker:
        if isinstance(maker, type) and (missing := data.lacks(maker)):
            raise fail(f"the reader '{name}' has no {missing}", help=data.BOTH)
        add_reader(name, signature_of(name, maker))
        return data.register(name)(maker)

    return add


def signature_of(name: str, maker: data.Maker) -> Signature:
    """What a recipe may give to a reader."""
    params = list(inspect.signature(maker).parameters.values())
    first, settings = params[:2], params[2:]
    if len(first) < 2 or any(p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
                             for p in first):
        raise fail(f"what makes the reader '{name}' has no parameters (source, seed, ...)",
                   help=TAKES)
    named = [p for p in settings if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return Signature(tuple(p.name for p in named if p.default is p.empty),
                     tuple(p.name for p in named if p.default is not p.empty),
                     others=any(p.kind is p.VAR_KEYWORD for p in settings))


def run_file(path: str) -> None:
    """Run a file of Python that registers readers."""
    try:
        runpy.run_path(path)
    except (OSError, UserError):
        raise
    except Exception as error:
        raise fail(f"{type(error).__name__}: {error}", _place(error, path),
                   help="this file was run because of --readers") from error


def _place(error: Exception, path: str) -> Span | None:
    """The last line of the file that was running."""
    if isinstance(error, SyntaxError) and error.filename == path:
        line = error.lineno or 1
        return Span(path, line, error.offset or 1, line, (error.offset or 1) + 1)
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__)
             if f.filename == path and f.lineno]
    return Span(path, lines[-1], 1, lines[-1], 2) if lines else None
