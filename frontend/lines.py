"""Arguments in a line of a recipe: `lr` in `optimizer = adamw(lr=1e-2)` is no line of its own.

What is said of a name that no line has: which call takes it, and how that line reads with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from anabranch.frontend import syntax as s
from anabranch.frontend.readers import READERS
from anabranch.frontend.unparse import format_expression
from anabranch.frontend.values import Function, Model, Scope


def given_to(name: str, text: str, recipe: s.TrainDef, scope: Scope) -> Iterator[tuple[str, str]]:
    """The lines whose call takes an argument of this name: each as it is called, and what stands
    there when the argument is `text`."""
    for line in recipe.body:
        if not isinstance(line, s.Setting):
            continue
        match line.value:
            case s.Call(s.Name(callee), ()) as call if name in _arguments(callee, scope):
                named = {each.name: each for each in call.keywords}
                named[name] = s.Keyword(name, s.Name(text, span=call.span), span=call.span)
                what = ", ".join(format_expression(pattern) for pattern in line.patterns)
                yield (f"{line.target.id}[{what}]" if what else line.target.id,
                       format_expression(replace(call, keywords=tuple(named.values()))))


def how_to_set(name: str, value: object, recipe: s.TrainDef, scope: Scope) -> str:
    """The override of the line in which an argument of this name stands, if one does."""
    for line, text in given_to(name, str(value), recipe, scope):
        if "[" not in line:
            return (f"it stands in the line '{line}': --set '{line}={text}', or in Python "
                    f"set={{{line!r}: {text!r}}}")
    return ""


def settings(definition: s.OpDef | s.FuncDef | s.ModelDef) -> list[s.Param]:
    """What a recipe may give: an optimizer is told the shape of a parameter by training."""
    return [param for param in definition.params
            if not (isinstance(param.type, s.Name) and param.type.id == "Shape")]


def _arguments(callee: str, scope: Scope) -> set[str]:
    if callee in READERS:
        return {*READERS[callee].needed, *READERS[callee].optional}
    match scope.find(callee):
        case Model(definition) | Function(definition):
            return {param.name for param in settings(definition)}
    return set()
