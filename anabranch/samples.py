"""A line of the language for an op, with small numbers and its value.

    found = sample_of(function)
    str(found)        # x = [0.1, -0.1, 0.6]
                      # softmax(x) = [0.2832, 0.2318, 0.4851]

Nobody writes these: sizes and numbers are made up as for the trials of `anabranch check`, as small
as they may be.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anabranch.derived import elaborated
from anabranch.frontend import check
from anabranch.frontend import syntax as s
from anabranch.frontend.builder import Builder
from anabranch.frontend.entries import Sizes, build_entry
from anabranch.frontend.parse import parse
from anabranch.frontend.signatures import kind_of
from anabranch.frontend.values import Function, Scope
from anabranch.ir.core import Function as IrFunction
from anabranch.ir.core import Value
from anabranch.ir.diagnostics import UserError
from anabranch.ir.reference import evaluate
from anabranch.trials import accepted

Array = np.ndarray[Any, Any]

SMALLEST = (((3, 2, 2), 0), ((2,), 0), ((3,), 1), ((2,), 1), ((2, 1), 1), ((1, 2), 0))
DRAWN, FITTING = 60, (1, 2, 2, 3, 4)  # where none of these has a meaning
WANTED = 9  # numbers in all: few, but not so few that nothing is seen
DIGITS = 4


@dataclass(frozen=True, slots=True)
class Sample:
    """`call` is an expression of the language that reads `inputs` by name."""

    inputs: Mapping[str, Array]
    call: str
    results: tuple[Array, ...]

    @property
    def is_finite(self) -> bool:
        return all(np.all(np.isfinite(r)) for r in self.results)

    def __str__(self) -> str:
        given = [f"{name} = {text(array)}" for name, array in self.inputs.items()]
        return "\n".join([*given, f"{self.call} = {', '.join(map(text, self.results))}"])


def sample_of(function: Function, called: str = "") -> Sample | None:
    """The smallest that shows something; None where no numbers can be made up. `called` is a call
    that its parameters do not tell."""
    fixed = [_sized(function, sizes, length) for sizes, length in SMALLEST]
    found = [each for each in fixed if each is not None]
    if not found and check.sample(function, FITTING, 1):
        found = _drawn(function)
    if not found:
        return None
    made, call = min(found, key=lambda each: _tedium(each[0]))
    samples = (_with_numbers(function, made, called or call, digits) for digits in (1, 2, 3))
    known = [each for each in samples if each is not None]
    return next((each for each in known if each.is_finite), known[0] if known else None)


def _drawn(function: Function) -> list[tuple[IrFunction, str]]:
    random = np.random.default_rng(0)
    drawn = ([int(n) for n in random.choice(FITTING, 12)] for _ in range(DRAWN))
    made = (_sized(function, sizes, length) for sizes in drawn for length in range(4))
    return [each for each in made if each is not None]


def _sized(function: Function, sizes: Any, length: int) -> tuple[IrFunction, str] | None:
    """The function with these sizes, and how it is called then."""
    found = elaborated(function, sizes, length, training=False)
    if found is None or not all(v.type.elements for v in _values(found.function)):
        return None
    names = {a.value.name for a in found.function.arguments}
    return found.function, _call(function, found.trial.sizes, names)


def _values(function: IrFunction) -> list[Value]:
    """What is given to a function and what comes back."""
    results = function.body.last.operands if function.body.last is not None else []
    return [*(a.value for a in function.arguments if a.role == "input"), *results]


def _tedium(function: IrFunction) -> int:
    """Too many numbers, or too few; sizes of 1 hide what they are of."""
    values = _values(function)
    ones = sum(v.type.shape.count(1) + (not v.type.shape) for v in values)
    return abs(sum(v.type.elements for v in values) - WANTED) + 3 * ones


def _call(function: Function, settings: Mapping[str, object], inputs: Collection[str]) -> str:
    """Tensors by their place, settings by name; keys and what has a default are left out."""
    places, named = [], []
    for param in function.definition.params:
        if param.default is not None or kind_of(param, function.scope) == "Key":
            continue
        several = [name for name in (f"{param.name}0", f"{param.name}1") if name in inputs]
        tensors = param.name if param.name in inputs else f"[{', '.join(several)}]"
        if param.name in settings:
            named.append(f"{param.name}={settings[param.name]}")
        elif named:
            named.append(f"{param.name}={tensors}")
        else:
            places.append(tensors)
    return f"{function.definition.name}({', '.join([*places, *named])})"


def _with_numbers(
    function: Function, made: IrFunction, call: str, digits: int
) -> Sample | None:
    """Short numbers, if the function has values for them."""
    arguments = accepted(made)
    if arguments is None:
        return None
    inputs = {a.value.name: x.round(digits) if x.dtype.kind == "f" else x
              for a, x in zip(made.arguments, arguments, strict=True) if a.role == "input"}
    try:
        results = run(call, inputs, function.scope)
    except UserError:
        return None
    return Sample(inputs, call, tuple(results))


def run(call: str, inputs: Mapping[str, Array], scope: Scope) -> list[Array]:
    """The value of an expression of the language on these arrays."""
    types = {"float32": "f32", "float64": "f64", "int64": "i64", "bool": "bool"}
    params = ", ".join(f"{name}: {types.get(x.dtype.name, x.dtype.name)}{list(x.shape)}"
                       for name, x in inputs.items())
    (definition,) = parse(f"def example({params}):\n    return {call}\n", "<example>").items
    assert isinstance(definition, s.FuncDef)
    made = build_entry(Function(definition, scope), Sizes({}), Builder("example"))
    given = {**inputs, "step": np.int64(0), "seed": np.int64(0)}
    return evaluate(made, [given[a.value.name] for a in made.arguments])


# ---- text


def text(array: Array) -> str:
    """An array as a list of the language."""
    return _nested(array.tolist())


def _nested(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_nested, value))}]"
    if isinstance(value, float):
        short = f"{value:.{DIGITS}g}"
        return f"{short}.0" if short.removeprefix("-").isdigit() else short
    return str(value)
