"""Which argument goes to which parameter, and what is said of a call that does not fit.

`matched` is for calls that run, `misfits` for calls as they are written, which may never run. Both
say the same, and show how the callee is called as `anabranch ops NAME` does.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from anabranch.frontend import syntax as s
from anabranch.frontend.evaluate import Certain
from anabranch.frontend.mistakes import parameter_advice
from anabranch.frontend.unparse import format_header
from anabranch.frontend.values import Builtin, Key, Tensor, describe
from anabranch.ir.diagnostics import Diagnostic, Note, Span, fail
from anabranch.ir.types import tensor

Definition = s.OpDef | s.FuncDef | s.ModelDef


@dataclass(frozen=True, slots=True)
class Argument:
    """A value on its way to a parameter, and where it was written."""

    value: object
    span: Span


@dataclass(frozen=True, slots=True)
class Callee:
    """What is called: its name, the names of its parameters, and what tells how it is called, which
    few calls need."""

    name: str
    parameters: tuple[str, ...]
    header: Callable[[], str]

    @classmethod
    def of(cls, definition: Definition, name: str = "") -> Callee:
        return cls(name or definition.name, tuple(p.name for p in definition.params),
                   partial(format_header, definition))

    def unknown(self, name: str, span: Span) -> Diagnostic:
        return self._wrong(f"'{self.name}' has no parameter '{name}'", span,
                           parameter_advice(name, self.parameters))

    def missing(self, names: Sequence[str], span: Span) -> Diagnostic:
        return self._wrong(
            f"'{self.name}' is called without {' and '.join(map(repr, names))}", span)

    def too_many(self, count: int, span: Span) -> Diagnostic:
        most = len(self.parameters)
        arguments = f"{most or 'no'} argument{'s' if most != 1 else ''}"
        return self._wrong(f"'{self.name}' takes {arguments}, and here are {count}", span)

    def _wrong(self, message: str, span: Span, help: str = "") -> Diagnostic:
        return Diagnostic(message, span, (Note(f"it is {self.header()}"),), help)


def misfits(
    definition: Definition, args: Sequence[s.Expr], keywords: Sequence[s.Keyword], span: Span,
    supplied: Collection[str],
) -> Iterator[Diagnostic]:
    """What is wrong with a call as it is written; the parameters in `supplied` may be left out."""
    callee = Callee.of(definition)
    unknown = [k for k in keywords if k.name not in callee.parameters]
    for keyword in unknown:
        yield callee.unknown(keyword.name, keyword.span)
    if len(args) > len(callee.parameters):
        yield callee.too_many(len(args), args[len(callee.parameters)].span)
    needed = [p.name for p in definition.params if p.default is None and p.name not in supplied]
    given = {k.name for k in keywords}
    missing = [name for name in needed[len(args):] if name not in given]
    if missing and not unknown:  # which may be what is missing, under another name
        yield callee.missing(missing, span)


def matched(
    definition: Definition, args: Sequence[Argument], keywords: Mapping[str, Argument],
    span: Span, *, keys: frozenset[str] = frozenset(), owner: str = "",
) -> dict[str, Argument]:
    """Arguments by parameter name. Those in `keys` may be left out, also between others. `owner` is
    that of the definition in messages, if it has a longer one."""
    callee = Callee.of(definition, owner)
    found = by_place(definition.params, args, callee, keys)
    for name, argument in keywords.items():
        if name not in callee.parameters:
            raise Certain(callee.unknown(name, argument.span))
        if name in found:
            raise fail(f"'{callee.name}' is given '{name}' twice", argument.span)
        found[name] = argument
    missing = [p.name for p in definition.params
               if p.default is None and p.name not in found and p.name not in keys]
    if missing:
        raise Certain(callee.missing(missing, span))
    return found


def by_place(
    params: Sequence[s.Param], args: Sequence[Argument], callee: Callee, keys: frozenset[str]
) -> dict[str, Argument]:
    """Arguments that have no names, by the parameters they fall to."""
    found: dict[str, Argument] = {}
    waiting, skipped = list(params), ""
    for argument in args:
        while waiting and waiting[0].name in keys and not _is_key(argument.value):
            skipped = waiting.pop(0).name
        if not waiting and len(args) <= len(params):
            raise Certain(Diagnostic(
                f"'{skipped}' of '{callee.name}' is a key, not {describe(argument.value)}",
                argument.span, help="it may be left out"))
        if not waiting:
            raise Certain(callee.too_many(len(args), argument.span))
        found[waiting.pop(0).name] = argument
    return found


def _is_key(value: object) -> bool:
    return isinstance(value, Key) or (
        isinstance(value, Tensor) and value.type is tensor("i64", ()))


# ---- functions of the language itself


def unfit(
    function: Builtin, count: int, keywords: Mapping[str, Span], span: Span
) -> Diagnostic | None:
    """What is wrong with a call of a function of the language, if anything is."""
    if _fits(function.run, count, tuple(keywords)):
        return None
    parameters = parameters_of(function)
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    placed = [p.name for p in named if p.kind is not p.KEYWORD_ONLY]
    callee = Callee(function.name, tuple(p.name for p in named), partial(header_of, function))
    for name, place in keywords.items():
        if name not in callee.parameters:
            return callee.unknown(name, place)
    missing = [p.name for p in named if p.default is p.empty and p.name not in keywords
               and p.name not in placed[:count]]
    if missing:
        return callee.missing(missing, span)
    if twice := [name for name in placed[:count] if name in keywords]:
        return Diagnostic(f"'{function.name}' is given '{twice[0]}' twice", span)
    if not placed:
        return Diagnostic(f"'{function.name}' takes what it is given by name", span,
                          (Note(f"it is {callee.header()}"),))
    return replace(callee, parameters=tuple(placed)).too_many(count, span)


@functools.cache
def _fits(run: Callable[..., object], count: int, keywords: tuple[str, ...]) -> bool:
    """Whether a function takes so many arguments and these names, besides the call. Asked once: it
    takes longer than most of them do."""
    try:
        inspect.signature(run).bind(None, *[None] * count, **dict.fromkeys(keywords))
    except TypeError:
        return False
    return True


def parameters_of(function: Builtin) -> list[inspect.Parameter]:
    """What it takes besides the place of the call."""
    return list(inspect.signature(function.run).parameters.values())[1:]


def call_of(function: Builtin) -> str:
    """The call that its meaning begins with, if it does; else nothing."""
    shown = re.match(r"`(\w+\(.*?\))`:", inspect.getdoc(function.run) or "")
    return shown[1] if shown else ""


def header_of(function: Builtin) -> str:
    """How it is called; what it takes any number of is left out unless a call is shown."""
    takes = [as_text(p) for p in parameters_of(function)
             if call_of(function) or p.kind is not p.VAR_POSITIONAL]
    return f"def {function.name}({', '.join(takes)})"


def as_text(parameter: inspect.Parameter) -> str:
    many = parameter.kind is parameter.VAR_POSITIONAL
    stars = "*" if many else "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
    return f"{stars}{parameter.name}{default}"
