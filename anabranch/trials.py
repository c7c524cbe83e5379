"""Sizes and data with which an op of a program can be tried: what `anabranch check` runs.

A trial is the op as a function with all sizes known, and an argument for each of its parameters.
Sizes are such that neither 2 nor 3 divides them, or smaller than a mesh, or 0; data are such that
indices stay in their tables and, where an op wants that, numbers are between 0 and 1 or above it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np

from anabranch.frontend import syntax as s
from anabranch.frontend.builder import Builder
from anabranch.frontend.check import noted, sample, written
from anabranch.frontend.entries import Sizes, build_entry
from anabranch.frontend.signatures import is_dtype, without_layout
from anabranch.frontend.values import Function
from anabranch.ir.core import Function as IrFunction
from anabranch.ir.core import Module
from anabranch.ir.diagnostics import UserError
from anabranch.ir.expr import Call, Const, Expr, walk
from anabranch.ir.ops import Compute, Gradient, nested
from anabranch.ir.reference import evaluate, held, round_bf16
from anabranch.ir.types import TensorType, category
from anabranch.lowering.differentiate import differentiate

Array = np.ndarray[Any, Any]
Domain = tuple[float, float]
Sizing = tuple[Sequence[int], int] | tuple[Sequence[int], int, int]
"""Sizes in order, the length of packs, and what an integer is, if not 2."""

USUAL = (((5, 7, 11), 2), ((5,), 1), ((25, 5), 2), ((10, 5), 2), ((20, 10), 1), ((12,), 2),
         ((8, 8, 4), 3), ((64, 32, 16, 8, 4, 2), 0))  # sizes, in order, and the length of packs
SMALL = (((2, 1), 2), ((1, 2), 1), ((0, 3), 2), ((3, 0, 2), 1), ((0,), 1), ((1,), 0), ((2,), 0),
         ((4,), 0), ((0, *(2,) * 9), 1))
USUAL_SIZES, SMALL_SIZES = (1, 3, 4, 5, 7), (0, 1, 2, 2, 4)
DRAWN = 400  # sets of sizes that are tried where these have no meaning
MOST_POINTS = 300_000  # of one statement: nobody waits for a trial
DOMAINS = ((-math.inf, math.inf), (0.1, 0.9), (1.1, 1.9))  # of floats, until results are finite
FEW_INDICES = 3  # integers are below this where nothing bounds them
SEED = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """An op with sizes, arguments and, for people, the sizes that its names were given."""

    function: IrFunction
    arguments: tuple[Array, ...]
    sizes: Mapping[str, object]

    @property
    def module(self) -> Module:
        return Module({self.function.name: self.function})


def usual(function: Function) -> Trial | None:
    """A trial with sizes that do not divide, or the first of other sizes that have a meaning."""
    own = [((number,), 1, number) for number in written(function.definition)]
    return next(_trials(function, chain(USUAL, own, _drawn(USUAL_SIZES, [1, 0, 2]))), None)


def small(function: Function) -> Iterator[Trial]:
    """Trials in which shards, or whole tensors, are empty. Not all of them have a meaning."""
    found = list(_trials(function, SMALL))
    if not found:
        for length in (0, 1, 3):
            found += islice(_trials(function, _drawn(SMALL_SIZES, [length])), 2)
    return iter(found)


def _drawn(choices: Sequence[int], lengths: Sequence[int]) -> Iterator[tuple[Sequence[int], int]]:
    """Sizes for an op that wants them to fit together in its own way."""
    random = np.random.default_rng(SEED)
    for number in range(DRAWN):
        sizes = random.choice(choices, len(USUAL[-1][0]) * 2)
        yield [int(size) for size in sizes], lengths[number % len(lengths)]


def _trials(function: Function, sizes: Iterable[Sizing]) -> Iterator[Trial]:
    for numbers, length, *own in sizes:
        wanted = _wanted(function, numbers, length, *own)
        if wanted is None:
            return
        made = _made(function, wanted)
        if made is not None and _points(made) <= MOST_POINTS and (
                arguments := accepted(made)) is not None:
            yield Trial(made, arguments, wanted)


def _wanted(
    function: Function, numbers: Sequence[int], length: int, own: int = 2
) -> dict[str, object] | None:
    given = sample(function, numbers, length, own)
    shape = [numbers[n % len(numbers)] for n in range(length)]
    return None if given is None else {**given, **elementwise(function, shape)}


def refusal(function: Function) -> UserError | None:
    """What the function is refused with, if that is at the same place with all usual sizes; those
    that a message speaks of are noted."""
    found: list[UserError] = []
    for numbers, length in USUAL:
        sizes = _wanted(function, numbers, length) or {}
        try:
            built(function, sizes)
        except UserError as error:
            found.append(type(error)(noted(error.diagnostics[0], sizes), sources=error.sources))
        else:
            return None
    places = {error.diagnostics[0].span for error in found}
    return found[0] if len(places) == 1 else None


def _points(function: IrFunction) -> int:
    """How many terms the largest statement has."""
    return max((math.prod(n for _, n in op.ranges) for op in function.body
                if isinstance(op, Compute)), default=0)


def elementwise(function: Function, shape: list[int]) -> dict[str, object]:
    """A shape for the parameters of a scalar op, which may have any."""
    found: dict[str, object] = {}
    for param in function.definition.params:
        match without_layout(param.type)[0]:
            case s.Name(head) if head != "bool" and is_dtype(head, function.scope):
                found[param.name] = shape
    return found


def trial_with(function: Function, given: Mapping[str, object]) -> Trial | None:
    """A trial with these sizes and parameters; None where they, or the data, have no meaning for
    the op."""
    made = _made(function, given)
    arguments = None if made is None else accepted(made)
    return None if made is None or arguments is None else Trial(made, arguments, given)


def accepted(function: IrFunction, seed: int = SEED, width: float = 1.0
             ) -> tuple[Array, ...] | None:
    """Data of the first domain that gives finite results, or else of the last one; None where data
    have no meaning for the function. Normal numbers have this width."""
    for domain in DOMAINS:
        arguments = _arguments(function, np.random.default_rng(seed), domain, width)
        try:
            results = evaluate(function, arguments)
        except UserError:
            return None
        if all(np.all(np.isfinite(r)) for r in results):
            break
    return arguments


def _made(function: Function, given: Mapping[str, object]) -> IrFunction | None:
    try:
        made = built(function, given)
    except UserError:
        return None
    if any(isinstance(op, Gradient) for op in made.body):
        differentiate(Module({made.name: made}))
    return made


def built(function: Function, given: Mapping[str, object]) -> IrFunction:
    """What a definition is with these sizes and parameters; raises `UserError`."""
    builder = Builder(function.definition.name, training=True)
    return build_entry(function, Sizes(given), builder)


# ---- data


def _arguments(
    function: IrFunction, random: np.random.Generator, domain: Domain, width: float
) -> tuple[Array, ...]:
    limit = _index_limit(function)
    return tuple(
        np.asarray(3) if a.role in ("step", "seed")
        else draw(a.value.type, random, limit=limit, domain=domain, width=width)
        for a in function.arguments)


def draw(
    type: TensorType, random: np.random.Generator, *, limit: int, domain: Domain = DOMAINS[0],
    width: float = 1.0,
) -> Array:
    """Numbers of a type: normal ones, or uniform in a bounded domain; integers below a limit."""
    match category(type.dtype):
        case "bool":
            return random.integers(0, 2, type.shape) > 0
        case "int":
            return random.integers(0, limit, type.shape).astype(held(type.dtype))
    bounded = math.isfinite(domain[0])
    drawn = (random.uniform(*domain, type.shape) if bounded
             else random.normal(scale=width, size=type.shape))
    array = np.asarray(drawn, held(type.dtype))
    return round_bf16(array) if type.dtype == "bf16" else array


def _index_limit(function: IrFunction) -> int:
    """The smallest dimension that is read at a place an integer says."""
    limits = [bound for op in nested(function.body) if isinstance(op, Compute)
              for expr in (op.body, op.guard) if expr is not None for bound in _checked(expr)]
    return max(1, min(limits, default=FEW_INDICES))


def _checked(expr: Expr) -> Iterator[int]:
    for node in walk(expr):
        match node:
            case Call("check", (_, Const(int(bound)))):
                yield bound
