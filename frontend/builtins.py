"""The functions of the language itself, and the other names that are always in scope.

Each takes the `Call` and evaluated arguments. They work on numbers as Python does, on elements
where they are scalar, and on whole tensors by the index notation in `tensors.py` and
`reshaping.py`. Everything that index notation can say in a definition is in `std/*.ab` instead.
"""

from __future__ import annotations

import builtins as python
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.frontend import einsum as contraction
from anabranch.frontend import ordering, reshaping
from anabranch.frontend.arguments import Argument, unfit
from anabranch.frontend.evaluate import Ambient, Certain, Frame, integer, resolved
from anabranch.frontend.expressions import LARGEST_LIST, as_element, combine, fitting, iterated
from anabranch.frontend.indexing import draw
from anabranch.frontend.mistakes import CAST, NO_DEVICE
from anabranch.frontend.signatures import key
from anabranch.frontend.stated import check_stated
from anabranch.frontend.tensors import as_tensor, axis_numbers, broadcast, permuted, reduce
from anabranch.frontend.tensors import axis_number as numbered
from anabranch.frontend.values import (
    Builtin,
    Dtype,
    Element,
    Generic,
    Kind,
    Region,
    Scope,
    Tensor,
    describe,
    weak,
)
from anabranch.ir.diagnostics import Span, fail
from anabranch.ir.sbp import Layout
from anabranch.ir.types import DTYPES, LARGEST, category, integers, is_float

Apply = Callable[[object, Sequence[object], dict[str, object], Frame, Span], object]


@dataclass(frozen=True, slots=True)
class Call:
    """Where a builtin is called, and how it calls functions that it is given."""

    frame: Frame
    span: Span
    apply: Apply


BUILTINS: dict[str, object] = {}
_Run = Callable[..., object]


def builtin(
    name: str, meaning: str = "", *, is_reduction: bool = False
) -> Callable[[_Run], _Run]:
    """Register a function under a name; one of several made alike is told what it means."""

    def register(run: _Run) -> _Run:
        run.__doc__ = meaning or run.__doc__
        BUILTINS[name] = Builtin(name, run, is_reduction)
        return run

    return register


def invoke(
    function: Builtin, call: Call, args: Sequence[Argument], keywords: dict[str, Argument]
) -> object:
    """Call a builtin; arguments that do not fit are the user's mistake."""
    places = {name: argument.span for name, argument in keywords.items()}
    if wrong := unfit(function, len(args), places, call.span):
        raise Certain(wrong)
    return function.run(call, *(a.value for a in args), **{k: a.value for k, a in keywords.items()})


# ---- Scalar functions


def _scalar(name: str, on_number: Callable[[Any], object], meaning: str) -> None:
    @builtin(name, meaning)
    def run(call: Call, x: object) -> object:
        if isinstance(x, Tensor | Element):
            return combine(name, [x], call.frame, call.span)
        return _on_numbers(on_number, [x], call.span)


def _on_numbers(function: Callable[..., object], args: Sequence[object], span: Span) -> object:
    for x in args:
        if not isinstance(x, bool | int | float):
            raise fail(f"a number or a tensor is needed here, not {describe(x)}", span)
    try:
        return function(*args)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        raise fail(f"this cannot be computed: {error}", span) from None


def _sign(x: float) -> float:
    return (x > 0) - (x < 0)


def _rsqrt(x: float) -> float:
    return 1 / math.sqrt(x)


_NUMERIC: dict[str, tuple[Callable[[Any], object], str]] = {
    "exp": (math.exp, "e to the power of x."),
    "expm1": (math.expm1, "exp(x) - 1, precisely where x is small."),
    "log": (math.log, "The natural logarithm."),
    "log1p": (math.log1p, "log(1 + x), precisely where x is small."),
    "sqrt": (math.sqrt, "The square root."),
    "rsqrt": (_rsqrt, "One over the square root."),
    "sin": (math.sin, "The sine of an angle in radians."),
    "cos": (math.cos, "The cosine of an angle in radians."),
    "tan": (math.tan, "The tangent of an angle in radians."),
    "asin": (math.asin, "The angle whose sine is x."),
    "acos": (math.acos, "The angle whose cosine is x."),
    "atan": (math.atan, "The angle whose tangent is x."),
    "sinh": (math.sinh, "The hyperbolic sine."),
    "cosh": (math.cosh, "The hyperbolic cosine."),
    "tanh": (math.tanh, "The hyperbolic tangent."),
    "erf": (math.erf, "The error function: the share of normal draws of variance 1/2 within x."),
    "floor": (math.floor, "The next integer that is not above x."),
    "ceil": (math.ceil, "The next integer that is not below x."),
    "trunc": (math.trunc, "The next integer towards 0."),
    "abs": (python.abs, "x without its sign."),
    "sign": (_sign, "1, 0 or -1, as x is above, at or below 0."),
    "isnan": (math.isnan, "Whether x is not a number."),
    "isinf": (math.isinf, "Whether x is infinite."),
}
for _name, (_function, _meaning) in _NUMERIC.items():
    _scalar(_name, _function, _meaning)


def _pairwise(
    name: str, fn: str, on_numbers: Callable[[Any, Any], object], meaning: str
) -> None:
    @builtin(name, meaning)
    def run(call: Call, x: object, y: object) -> object:
        if isinstance(x, Tensor | Element) or isinstance(y, Tensor | Element):
            return combine(fn, [x, y], call.frame, call.span)
        return _on_numbers(on_numbers, [x, y], call.span)


_pairwise("atan2", "atan2", math.atan2, "The angle of the point (y, x) from the first axis.")
_pairwise("bitwise_and", "bitand", operator.and_, "The bits that both integers have.")
_pairwise("bitwise_or", "bitor", operator.or_, "The bits that either of two integers has.")
_pairwise("bitwise_xor", "bitxor", operator.xor, "The bits that one of two integers has.")
_pairwise("bitwise_left_shift", "shl", operator.lshift, "The bits of x, y places higher.")
_pairwise("bitwise_right_shift", "shr", operator.rshift, "The bits of x, y places lower.")


@builtin("round")
def _round(call: Call, x: object, decimals: int = 0) -> object:
    """To the nearest integer, or the nearest with that many decimals; halves to even."""
    if not isinstance(x, Tensor | Element):
        return _on_numbers(python.round, [x, decimals] if decimals else [x], call.span)
    if not decimals:
        return combine("round", [x], call.frame, call.span)
    scale = float(10 ** python.abs(integer(decimals, call.span, "the number of decimals")))
    ways = ("mul", "div") if decimals > 0 else ("div", "mul")
    scaled = combine(ways[0], [x, scale], call.frame, call.span)
    whole = combine("round", [scaled], call.frame, call.span)
    return combine(ways[1], [whole, scale], call.frame, call.span)


@builtin("highest")
def _highest(call: Call, dtype: object) -> object:
    """The largest finite number of a dtype."""
    if not isinstance(dtype, Dtype):
        raise fail(f"'highest' takes a dtype, not {describe(dtype)}", call.span)
    if is_float(dtype.name):
        return LARGEST[dtype.name]
    return True if dtype.name == "bool" else integers(dtype.name)[-1]


@builtin("where")
def _where(call: Call, condition: object, yes: object, no: object) -> object:
    """`yes` where the condition holds, else `no`; what is not chosen has no gradient."""
    if isinstance(condition, bool) and call.frame.index is None:
        return yes if condition else no
    return combine("where", [condition, yes, no], call.frame, call.span)


@builtin("stop")
def _stop(call: Call, x: object, grad: object = None) -> object:
    """The value of `x` without its gradient. With `grad` its gradient is that of the expression
    `grad`, which is not the derivative itself: `stop(sign(x), grad=x)` is straight through, and
    `stop(e, grad=stop(d) * x)` has the derivative `d` by `x`."""
    if isinstance(x, bool | int | float):
        return x
    if grad is None:
        return combine("stop", [x], call.frame, call.span)
    made = combine("stop_grad", [x, grad], call.frame, call.span)
    check_stated(made, grad, call.frame, call.span)
    return made


# ---- Reductions


def _reduction(kind: str, meaning: str) -> None:
    @builtin(kind, f"{meaning} Of all elements, or along one axis or several.", is_reduction=True)
    def run(call: Call, x: object, *more: object, axis: object = None,
            keepdims: bool = False) -> object:
        if isinstance(x, list | tuple) and not more:
            return _of_list(kind, _items(x, call), call)
        if more and kind in ("max", "min"):
            return _extreme(kind, [x, *more], call)
        if len(more) == 1 and axis is None and isinstance(more[0], int | list | tuple):
            axis, more = more[0], ()
        if more:
            raise fail(f"'{kind}' takes one tensor and axis=", call.span)
        if isinstance(x, Element):
            raise fail(f"'{kind}' of one element", call.span,
                       help=f"in index notation name the index: {kind}[k](x[i, k])")
        return reduce(kind, as_tensor(x, call.span), axis, keepdims, call.frame.builder, call.span)


for _kind, _meaning in {
    "sum": "The sum; integers and bools give i64.",
    "max": "The largest, or nan if there is one; what is equally large shares the gradient.",
    "min": "The smallest, or nan if there is one; what is equally small shares the gradient.",
    "prod": "The product; integers and bools give i64.",
    "mean": "The sum over the number of elements.",
    "any": "Whether there is one that is not 0.",
    "all": "Whether there is none that is 0.",
    "argmax": "The place of the largest: the first of several, or of the first nan.",
    "argmin": "The place of the smallest: the first of several, or of the first nan.",
}.items():
    _reduction(_kind, _meaning)


def _of_list(kind: str, items: list[object], call: Call) -> object:
    """A reduction of a list of numbers is Python's; of tensors it is elementwise."""
    if any(isinstance(x, Tensor | Element) for x in items):
        if kind in ("sum", "prod"):
            return _chain("add" if kind == "sum" else "mul", items, call)
        if kind in ("max", "min"):
            return _extreme(kind, items, call)
        raise fail(f"'{kind}' of a list of tensors", call.span, help="stack them first")
    numbers: dict[str, Callable[[Any], object]] = {
        "sum": python.sum, "prod": math.prod, "max": python.max, "min": python.min,
        "any": python.any, "all": python.all, "mean": lambda v: python.sum(v) / len(v),
        "argmax": lambda v: v.index(python.max(v)), "argmin": lambda v: v.index(python.min(v)),
    }
    try:
        return numbers[kind](items)
    except (TypeError, ValueError, ZeroDivisionError):
        raise fail(f"'{kind}' of {describe(items)} has no value", call.span) from None


def _chain(fn: str, items: Sequence[object], call: Call) -> object:
    """Combine pairwise, a few in one statement, so that long lists make shallow expressions."""
    while len(items) > 1:
        items = [_folded(fn, items[n:n + 16], call) for n in range(0, len(items), 16)]
        items = [call.frame.builder.held(x) if isinstance(x, Tensor) else x for x in items]
    return items[0]


def _folded(fn: str, items: Sequence[object], call: Call) -> object:
    total = items[0]
    for item in items[1:]:
        total = combine(fn, [total, item], call.frame, call.span)
    return total


def _extreme(kind: str, items: Sequence[object], call: Call) -> object:
    if any(isinstance(x, Tensor | Element) for x in items):
        return _chain(kind, items, call)
    chosen: Callable[..., object] = python.max if kind == "max" else python.min
    return _on_numbers(chosen, items, call.span)


# ---- Layout of tensors


@builtin("reshape")
def _reshape(call: Call, x: object, *shape: object) -> object:
    """`reshape(x, [-1])`: the elements in their order, in another shape; -1 is what is left."""
    wanted = shape[0] if len(shape) == 1 else list(shape)
    return reshaping.reshape(as_tensor(x, call.span), wanted, call.frame.builder, call.span)


@builtin("transpose")
def _transpose(call: Call, x: object, *axes: object) -> object:
    """`transpose(x, 0, 1)`: two axes swapped; a list of all is a permutation, none reverses."""
    tensor = call.frame.builder.held(as_tensor(x, call.span))
    given = list(axes[0]) if len(axes) == 1 and isinstance(axes[0], list | tuple) else list(axes)
    order = [numbered(a, tensor.rank, call.span) for a in given]
    if not order:
        order = list(range(tensor.rank))[::-1]
    elif len(order) == 2 and len(axes) == 2:
        (a, b), order = order, list(range(tensor.rank))
        order[a], order[b] = b, a
    if sorted(order) != list(range(tensor.rank)):
        raise fail(f"{given} is no order of the {tensor.rank} axes", call.span)
    return permuted(tensor, order)


def _tensors(parts: object, call: Call) -> list[Tensor]:
    return [as_tensor(part, call.span) for part in _items(parts, call)]


def _items(parts: object, call: Call) -> list[object]:
    """The values of the items of a list, which may be parameters."""
    return [resolved(part, call.span, call.frame) for part in iterated(parts, call.span)]


@builtin("concat")
def _concat(call: Call, parts: object, axis: object = 0) -> object:
    """Tensors one after the other along an axis."""
    return reshaping.concat(_tensors(parts, call), axis, call.frame.builder, call.span)


@builtin("stack")
def _stack(call: Call, parts: object, axis: object = 0) -> object:
    """Tensors of one shape side by side along a new axis."""
    return reshaping.stack(_tensors(parts, call), axis, call.frame.builder, call.span)


@builtin("split")
def _split(call: Call, x: object, parts: object, axis: object = 0) -> object:
    """As many parts of one size, or parts of the sizes in a list."""
    return reshaping.split(as_tensor(x, call.span), parts, axis, call.frame.builder, call.span)


@builtin("unbind")
def _unbind(call: Call, x: object, axis: object = 0) -> object:
    """The list of what lies side by side along an axis, which is gone then."""
    return reshaping.unbind(as_tensor(x, call.span), axis, call.frame.builder, call.span)


@builtin("expand")
def _expand(call: Call, x: object, *shape: object) -> object:
    """`expand(x, [2, *x.shape])`: new axes in front, and axes of size 1 repeated."""
    wanted = shape[0] if len(shape) == 1 else list(shape)
    tensor = call.frame.builder.held(as_tensor(x, call.span))
    return reshaping.expand(tensor, wanted, call.span)


@builtin("flip")
def _flip(call: Call, x: object, axis: object = None) -> object:
    """The elements in reverse, along one axis, several or all."""
    return reshaping.flip(as_tensor(x, call.span), axis, call.frame.builder, call.span)


@builtin("pad_constant")
def _pad(call: Call, x: object, widths: object, value: object = 0) -> object:
    """So many copies of a value before and behind each axis: `[[before, behind], ...]`."""
    element = as_element(value, call.frame, call.span)
    return reshaping.pad(as_tensor(x, call.span), widths, element, call.frame.builder, call.span)


@builtin("arange")
def _arange(call: Call, start: object, stop: object = None, step: object = 1) -> object:
    """Numbers from start up to stop, without it; one number is the stop."""
    first, last = (0, start) if stop is None else (start, stop)
    if any(isinstance(v, float) for v in (first, last, step)):
        start, stop, step = (_number(v, "'arange'", call) for v in (first, last, step))
        return reshaping.steps(start, stop, step, call.span)
    numbers = [integer(v, call.span, "'arange'") for v in (first, last, step)]
    return reshaping.arange(numbers[0], numbers[1], numbers[2], call.span)


# ---- Order


@builtin("sort")
def _sort(call: Call, x: object, axis: object = -1, descending: bool = False) -> object:
    """The elements in ascending order and their places; ties stay in order, nan comes last."""
    down = _flag(descending, "descending", call)
    return ordering.sort(as_tensor(x, call.span), axis, down, call.frame.builder, call.span)


@builtin("argsort")
def _argsort(call: Call, x: object, axis: object = -1, descending: bool = False) -> object:
    """The places of the elements in the order of `sort`."""
    down = _flag(descending, "descending", call)
    return ordering.argsort(as_tensor(x, call.span), axis, down, call.frame.builder, call.span)


@builtin("topk")
def _topk(call: Call, x: object, k: object, axis: object = -1, largest: bool = True) -> object:
    """The k largest elements, the largest first, and their places."""
    count, up = integer(k, call.span, "the k of 'topk'"), _flag(largest, "largest", call)
    return ordering.topk(as_tensor(x, call.span), count, axis, up, call.frame.builder, call.span)


def _flag(value: object, name: str, call: Call) -> bool:
    if not isinstance(value, bool):
        raise fail(f"'{name}' is true or false, not {describe(value)}", call.span)
    return value


def _number(value: object, what: str, call: Call) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise fail(f"{what} takes numbers, not {describe(value)}", call.span)
    return float(value)


@builtin("einsum")
def _einsum(call: Call, *args: object) -> object:
    """`einsum("ij,ik->jk", x, y)`: one sum over what the result lacks. Also with lists of numbers:
    `einsum(x, [0, 1], y, [0, 2], [1, 2])`."""
    if args and isinstance(args[0], str):
        terms, result = contraction.parsed(args[0], call.span)
        tensors = [as_tensor(x, call.span) for x in args[1:]]
    else:
        tensors = [as_tensor(x, call.span) for x in args[0:len(args) // 2 * 2:2]]
        terms = [_numbers(term, call.span) for term in args[1::2]]
        result = _numbers(args[-1], call.span) if len(args) % 2 else None
    return contraction.einsum(terms, result, tensors, call.frame.builder, call.span)


def _numbers(given: object, span: Span) -> list[object]:
    """The numbers of axes that a list gives to `einsum`."""
    numbers = list(iterated(given, span))
    for each in numbers:
        if isinstance(each, bool) or not isinstance(each, int):
            raise fail(f"a subscript of 'einsum' is an integer, not {describe(each)}", span,
                       help="as in einsum(x, [0, 1], y, [1, 2], [0, 2])")
    return numbers


@builtin("axes")
def _axes(call: Call, x: object, axis: object = None) -> object:
    """Axes as a list, counted from the first, in the order given; all of them for None."""
    rank = as_tensor(x, call.span).rank
    axis_numbers(axis, rank, call.span)
    given = range(rank) if axis is None else axis if isinstance(axis, list | tuple) else [axis]
    return [numbered(each, rank, call.span) for each in given]


@builtin("broadcast_shapes")
def _broadcast_shapes(call: Call, *shapes: object) -> object:
    """The shape that tensors of these shapes are broadcast to."""
    blank = [Tensor(tuple(reshaping.sizes(each, call.span)), weak(0)) for each in shapes]
    return list(broadcast(blank, call.span))


@builtin("check")
def _check(call: Call, place: object, size: object) -> object:
    """Integers that must be at least 0 and below a size: where one is not, an error names it."""
    bound = integer(size, call.span, "a size")
    if isinstance(place, int):
        if not 0 <= place < bound:
            raise fail(f"place {place}, where there are places 0 to {bound - 1}", call.span)
        return place
    checked = combine("check", [place, bound], call.frame, call.span)
    if category(checked.dtype) != "int":
        raise fail(f"places are integers, and these have dtype {checked.dtype}", call.span,
                   help="cast them: i64(...)")
    return checked


# ---- Kinds of values

KINDS: dict[str, type] = {"int": python.int, "float": python.float, "str": python.str,
                          "list": python.list}


@builtin("isinstance")
def _isinstance(call: Call, value: object, kind: object) -> object:
    """Whether a value is a compile-time `int`, `float`, `bool`, `str` or `list`."""
    name = kind.name if isinstance(kind, Kind | Dtype) else ""
    if name == "bool":
        return isinstance(value, bool)
    if name not in KINDS:
        raise fail(f"'isinstance' takes int, float, bool, str or list, not {describe(kind)}",
                   call.span)
    return not isinstance(value, bool) and isinstance(
        list(value) if isinstance(value, tuple) else value, KINDS[name])


# ---- Lists


@builtin("range")
def _range(call: Call, start: object, stop: object = None, step: object = 1) -> object:
    """Integers as a list, as Python's."""
    first, last = (0, start) if stop is None else (start, stop)
    numbers = [integer(v, call.span, "'range'") for v in (first, last, step)]
    if numbers[2] == 0 or len(range(*numbers)) > LARGEST_LIST:
        raise fail("a range of this length", call.span)
    return list(range(*numbers))


@builtin("len")
def _len(call: Call, items: object) -> object:
    """The number of items of a list."""
    if isinstance(items, Tensor):
        raise fail("a tensor has a shape, not a length", call.span, help="write x.shape[0]")
    return len(iterated(items, call.span))


@builtin("enumerate")
def _enumerate(call: Call, items: object, start: int = 0) -> object:
    """The items of a list, each with its number."""
    return list(python.enumerate(iterated(items, call.span), start))


@builtin("zip")
def _zip(call: Call, *lists: object) -> object:
    """The items of several lists side by side, as far as the shortest goes."""
    return list(python.zip(*(iterated(items, call.span) for items in lists), strict=False))


@builtin("reversed")
def _reversed(call: Call, items: object) -> object:
    """The items of a list from last to first."""
    return list(python.reversed(iterated(items, call.span)))


# ---- Random numbers


def _random(name: str, kind: str, meaning: str) -> None:
    @builtin(name, meaning)
    def run(call: Call, given: object) -> object:
        activation, builder = call.frame.activation, call.frame.builder
        source = key(given, f"the argument of '{name}'", call.span)
        text = f"{source.path}:{activation.path.rsplit(' ', 1)[-1]}:{next(activation.draws)}"
        seed = source.seed if source.seed is not None else builder.runtime("seed")
        step = builder.step_of_draws()
        return draw(kind, builder.stream(text), builder.held(seed).element, step, call.frame,
                    call.span)


_random("rand", "uniform", "A number from 0 to 1 of its own for each element, of a key.")
_random("randn", "normal", "A normal number of its own for each element, of a key.")


# ---- Distribution


@builtin("to")
def _to(call: Call, x: object, layout: object) -> object:
    """The same values in another layout: `to(x, {model: S(1)})`."""
    tensor = as_tensor(x, call.span)
    if not isinstance(layout, Layout):
        raise fail(f"'to' takes a layout, not {describe(layout)}", call.span,
                   help=CAST if isinstance(layout, Dtype) else
                   f"as in to(x, {{model: S(1)}}); {NO_DEVICE}")
    return call.frame.builder.pin(tensor, fitting(layout, tensor.rank, call.span))


@builtin("stage")
def _stage(call: Call, number: object) -> object:
    """`with stage(n):` what stands in it is done by that stage of a pipeline."""
    stage = integer(number, call.span, "a stage")
    stages = call.frame.builder.stages
    if not 0 <= stage < stages:
        raise fail(f"stage {stage}, where there are {stages}", call.span,
                   help="stages count from 0; with one for each part of a loop: "
                   "stage(i * stages // depth)")
    return Region(stage=stage)


# ---- Types, constants, what surrounds a call


BUILTINS |= {name: Dtype(name) for name in DTYPES if name != "bool"}
BUILTINS |= {name: Generic(name) for name in ("T", "U", "Float", "Int")}
BUILTINS |= {name: Kind(name) for name in ("int", "float", "str", "list", "Key", "Shape")}
BUILTINS["bool"] = Dtype("bool")
BUILTINS |= {"pi": math.pi, "inf": math.inf, "nan": math.nan}
BUILTINS |= {
    "step": Ambient(lambda frame: frame.builder.step()),
    "training": Ambient(lambda frame: frame.builder.training),
    "stages": Ambient(lambda frame: frame.builder.stages),
    "recompute": Region(recompute=True),
    "per_micro": Region(per_micro=True),
}
ROOT = Scope(BUILTINS, None, is_library=True)

