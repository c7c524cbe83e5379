"""Calls: what `f(...)` does for every kind of `f`, and how ops, functions and models run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from anabranch.frontend import elements
from anabranch.frontend import syntax as s
from anabranch.frontend.arguments import Argument, Callee, by_place, matched
from anabranch.frontend.bounds import negated
from anabranch.frontend.builtins import Call, invoke
from anabranch.frontend.constants import constant
from anabranch.frontend.dimensions import Binding
from anabranch.frontend.evaluate import (
    NOTHING,
    Activation,
    Frame,
    Index,
    blamed,
    certain,
    evaluate,
    evaluates,
    run,
)
from anabranch.frontend.expressions import as_element, settled, spread
from anabranch.frontend.extracted import kept_small
from anabranch.frontend.indexing import is_reduction, reduction
from anabranch.frontend.models import instantiate
from anabranch.frontend.ranges import list_shape
from anabranch.frontend.signatures import (
    alike,
    bind,
    declared_dtype,
    declared_type,
    kind_of,
    pinned,
    scalar_signature,
    without_layout,
)
from anabranch.frontend.tensors import broadcast, elementwise
from anabranch.frontend.values import (
    FULL,
    WEAK,
    Builtin,
    Deferred,
    Dtype,
    Element,
    Function,
    Instance,
    Key,
    Kind,
    Method,
    Model,
    Tensor,
    describe,
    weak,
)
from anabranch.ir.diagnostics import Note, Span, UserError, fail
from anabranch.ir.types import TensorType, is_float, tensor


@evaluates(s.Call)
def _call(node: s.Call, frame: Frame) -> object:
    if is_reduction(node, frame):
        return reduction(node, frame)
    callee = evaluate(node.function, frame if isinstance(node.function, s.Name) else frame.whole())
    inner = frame.called()
    if isinstance(callee, Builtin) and callee.name == "where" and (parts := _written(node)):
        return _lazy_where(callee, parts, inner, node.span)
    args = _arguments(node, inner)
    keywords = {k.name: Argument(evaluate(k.value, inner), k.span) for k in node.keywords}
    return call(callee, args, keywords, frame, node.span)


def _arguments(node: s.Call, frame: Frame) -> list[Argument]:
    found: list[Argument] = []
    for item in node.args:
        if isinstance(item, s.Star):
            found += [Argument(value, item.span) for value in spread([item], frame)]
        else:
            found.append(Argument(evaluate(item, frame), item.span))
    return found


def _written(node: s.Call) -> list[s.Expr]:
    """The condition and the two values of a `where`; nothing if they are not written one by one."""
    named = {keyword.name: keyword.value for keyword in node.keywords}
    given = {**dict(zip(("condition", "yes", "no"), node.args, strict=False)), **named}
    apart = len(given) == len(node.args) + len(named) == 3 and given.keys() == {
        "condition", "yes", "no"} and not any(isinstance(arg, s.Star) for arg in node.args)
    return [given["condition"], given["yes"], given["no"]] if apart else []


def _lazy_where(where: Builtin, parts: list[s.Expr], frame: Frame, span: Span) -> object:
    """What a condition known when compiling leaves out is not evaluated, and in index notation the
    others are evaluated under their condition."""
    condition, *branches = parts
    value = evaluate(condition, frame)
    if isinstance(value, bool):
        chosen = branches[0 if value else 1]
        found = evaluate(chosen, frame)
        return found if frame.index is None else as_element(found, frame, chosen.span)
    if frame.index is None:
        args = [Argument(value, condition.span),
                *(Argument(evaluate(arg, frame), arg.span) for arg in branches)]
        return call(where, args, {}, frame, span)
    test = as_element(value, frame, condition.span)
    under = []
    for arg, holds in zip(branches, (test.expr, negated(test.expr)), strict=True):
        index = replace(frame.index, conditions=(*frame.index.conditions, holds))
        inner = replace(frame, index=index)
        under.append(as_element(evaluate(arg, inner), inner, arg.span))
    return elements.apply("where", [test, *under], span)


def call(
    callee: object, args: Sequence[Argument], keywords: dict[str, Argument], frame: Frame,
    span: Span,
) -> object:
    """Call any value that can be called."""
    match callee:
        case Builtin():
            return invoke(callee, Call(frame, span, apply_function), args, keywords)
        case Function():
            return _waiting(callee, args, keywords, frame, span) or _run(
                callee, args, keywords, frame, span)
        case Model():
            return _waiting(callee, args, keywords, frame, span) or instantiate(
                callee, args, keywords, frame, span)
        case Instance():
            return call(method(callee, "forward", span), args, keywords, frame, span)
        case Method(function, receiver):
            return call(function, [Argument(receiver, span), *args], keywords, frame, span)
        case Dtype():
            return _cast(callee, args, keywords, frame, span)
        case Kind():
            return _convert(callee, args, keywords, span)
    raise certain(f"{describe(callee)} cannot be called", span, help=_instead(callee))


def _instead(uncallable: object) -> str:
    match uncallable:
        case str():
            return f"a text is no function; from Python: Expression({uncallable!r})"
        case list():
            return "an item of a list is written with brackets: x.shape[0]"
    return ""


def method(instance: Instance, name: str, span: Span) -> Function:
    """A function of a model."""
    found = instance.scope.names.get(name)
    if not isinstance(found, Function):
        raise fail(f"{describe(instance)} has no function '{name}'", span,
                   help="calling a model calls its 'forward'" if name == "forward" else "")
    return found


def apply_function(
    function: object, args: Sequence[object], keywords: dict[str, object], frame: Frame, span: Span
) -> object:
    """Call with plain values, all of which were written at one place."""
    return call(function, [Argument(v, span) for v in args],
                {k: Argument(v, span) for k, v in keywords.items()}, frame, span)


def _waiting(
    callee: Function | Model, args: Sequence[Argument], keywords: dict[str, Argument],
    frame: Frame, span: Span,
) -> Deferred | None:
    """Where a field or recipe supplies the shape, a call that lacks it waits."""
    if not frame.waits:
        return None
    shapes = [p.name for p in callee.definition.params if kind_of(p, callee.scope) == "Shape"]
    if not shapes or shapes[0] in keywords:
        return None
    return Deferred(callee, tuple(a.value for a in args),
                    {k: a.value for k, a in keywords.items()}, span)


def supplied(deferred: Deferred, shape: Sequence[int]) -> dict[str, Argument]:
    """The arguments of a call that waited for its shape, by name."""
    definition, scope = deferred.callee.definition, deferred.callee.scope
    kinds = {p.name: kind_of(p, scope) for p in definition.params}
    shapes = [name for name, kind in kinds.items() if kind == "Shape"]
    open_ = [p for p in definition.params if p.name not in shapes]
    keys = frozenset(name for name, kind in kinds.items() if kind == "Key")
    args = [Argument(v, deferred.span) for v in deferred.args]
    callee = replace(Callee.of(definition), parameters=tuple(p.name for p in open_))
    found = by_place(open_, args, callee, keys)
    for twice in found.keys() & deferred.keywords.keys():
        raise fail(f"'{definition.name}' is given '{twice}' twice", deferred.span)
    found |= {k: Argument(v, deferred.span) for k, v in deferred.keywords.items()}
    return {**found, shapes[0]: Argument(list(shape), deferred.span)}


# ---- Ops and functions


def _run(
    function: Function, args: Sequence[Argument], keywords: dict[str, Argument], frame: Frame,
    span: Span,
) -> object:
    """Call an op or function; a mistake that shows only inside the library is the caller's."""
    builder = frame.builder
    builder.depth += 1
    before = builder.loc
    try:
        return _activate(function, args, keywords, frame, span)
    except UserError as error:
        if function.scope.is_library and not frame.scope.is_library:
            raise blamed(error, _full_name(function), span) from None
        raise
    except RecursionError:
        if builder.depth > 1:
            raise
        raise fail("calls are nested too deeply here", span,
                   help="a recursion that never ends? If not, compute a part of it first, under a "
                   "name of its own") from None
    finally:
        builder.depth -= 1
        builder.loc = before


def _activate(
    function: Function, args: Sequence[Argument], keywords: dict[str, Argument], frame: Frame,
    span: Span,
) -> object:
    definition = function.definition
    names: dict[str, object] = {}
    path = _path(function, frame)
    activation = Activation(path)
    inner = Frame(function.scope.inner(names), frame.builder, activation, _index_for(args, frame),
                  shape=frame.shape)
    binding = Binding(_full_name(function), inner, names, function.owner)
    keys = frozenset(p.name for p in definition.params
                     if kind_of(p, function.scope) == "Key")
    given = matched(definition, args, keywords, span, keys=keys, owner=binding.owner)
    frame.builder.loc = replace(frame.builder.loc, path=path)
    if scalar_signature(function):
        given = alike(definition.params, given, binding)
    bind(definition, _computed(given, inner), binding, span)
    for name in keys:
        if name not in names or names[name] is None:
            names[name] = Key(frame.builder.call_path(path))
    if scalar_signature(function) and any(isinstance(a.value, Tensor) for a in given.values()):
        return _elementwise(function, binding, frame, span)
    _declare(function, binding, activation)
    value = run(definition.body, inner)
    if value is NOTHING:
        if definition.results:
            returns = any(isinstance(node, s.Return) for node in s.walk(definition))
            raise (fail if returns else certain)(
                f"'{binding.owner}' ends without 'return'", definition.span)
        return None
    return _results(value, definition, binding, span)


def _full_name(function: Function) -> str:
    """`Linear.forward` for a function of a model."""
    model = f"{function.owner.name}." if function.owner is not None else ""
    return f"{model}{function.definition.name}"


def _index_for(args: Sequence[Argument], frame: Frame) -> Index | None:
    """A function of elements stays in the index notation of its caller, but what it subscripts is
    its own, though it be the caller itself."""
    if frame.index is None or not any(isinstance(a.value, Element) for a in args):
        return None
    return replace(frame.index, bases={})


def _computed(given: dict[str, Argument], frame: Frame) -> dict[str, Argument]:
    return {name: Argument(_kept(a.value, frame, name), a.span) for name, a in given.items()}


def _kept(value: object, frame: Frame, name: str) -> object:
    """An argument may be read many times, and so may what comes of it, in each of many calls."""
    if isinstance(value, Element):
        return kept_small(value, frame, elements.LARGE_ARGUMENT)
    return settled(value, frame, name)


def _path(function: Function, frame: Frame) -> str:
    """The path of definitions: a model's place, then the functions within it."""
    name = function.definition.name
    if function.owner is not None:
        place = function.owner.path or ""
        return place if name == "forward" else f"{place} {name}".strip()
    return f"{frame.activation.path} {name}".strip()


def _declare(function: Function, binding: Binding, activation: Activation) -> None:
    """Tell index statements the declared types of what is returned by name."""
    definition = function.definition
    activation.equations = frozenset(
        node.target.id for node in definition.body if isinstance(node, s.Equation))
    if not definition.results or not definition.body:
        return
    last = definition.body[-1]
    value = last.value if isinstance(last, s.Return) else None
    returned = value.items if isinstance(value, s.Tuple) else (value,)
    for node, type_ in zip(returned, definition.results, strict=False):
        if isinstance(node, s.Name):
            declared = declared_type(type_, binding)
            if declared is not None:
                activation.declared[node.id] = declared


def _elementwise(function: Function, binding: Binding, frame: Frame, span: Span) -> Tensor:
    """A scalar op on tensors is applied to every element, broadcast."""
    tensors = {k: v for k, v in binding.names.items() if isinstance(v, Tensor)}
    shape = broadcast(list(tensors.values()), span)

    def build(given: list[Element]) -> Element:
        names = {**binding.names, **dict(zip(tensors, given, strict=True))}
        scope = function.scope.inner(names)
        inner = replace(binding.frame, scope=scope, shape=shape)
        value = run(function.definition.body, inner)
        return as_element(value, inner, function.definition.span)

    result = elementwise(list(tensors.values()), build, frame.builder, span)
    _check_scalar(result, function.definition, binding)
    return result


def _check_scalar(x: Tensor, definition: s.OpDef | s.FuncDef, binding: Binding) -> None:
    type_ = definition.results[0]
    wanted = declared_dtype(type_.id, binding) if isinstance(type_, s.Name) else None
    if wanted is not None and x.dtype != wanted and not elements.gives_way(x.element, wanted):
        raise fail(f"'{definition.name}' declares the result {wanted}, and it is {x.dtype}",
                   type_.span)


# ---- Results


def _results(
    value: object, definition: s.OpDef | s.FuncDef, binding: Binding, span: Span
) -> object:
    """The returned values, checked against the declared types."""
    value = settled(value, binding.frame)
    if not definition.results:
        return value
    values = value if isinstance(value, tuple) else (value,)
    if len(values) != len(definition.results):
        count = len(definition.results)
        raise fail(f"'{binding.owner}' declares {count} result{'s' if count > 1 else ''} and "
                   f"returns {len(values)}", definition.results[0].span,
                   help="several are declared as in -> f32[N], i64[N]")
    places = _returned(definition)
    checked = [_result(v, t, place, binding)
               for v, t, place in zip(values, definition.results, places, strict=True)]
    return checked[0] if len(checked) == 1 else tuple(checked)


def _returned(definition: s.OpDef | s.FuncDef) -> Sequence[s.Expr | None]:
    """What is written for each result, if there is one place where it is."""
    count = len(definition.results)
    written = [node.value for node in s.walk(definition) if isinstance(node, s.Return)]
    if len(written) != 1 or written[0] is None:
        return [None] * count
    if count == 1:
        return written
    items = written[0].items if isinstance(written[0], s.Tuple) else ()
    return items if len(items) == count else [None] * count


def _result(value: object, type_: s.Expr, place: s.Expr | None, binding: Binding) -> object:
    declared = declared_type(type_, binding)
    if declared is None:
        return value  # of a scalar op
    if isinstance(value, bool | int | float):
        value = Tensor((), weak(value, type_.span))
    notes = [Note("this is returned", place.span)] if place is not None else []
    if not isinstance(value, Tensor):
        raise fail(f"'{binding.owner}' declares a tensor as its result and returns "
                   f"{describe(value)}", type_.span, *notes)
    dtype, shape = declared
    value = _typed(value, dtype, type_.span)
    if value.shape != shape or (dtype is not None and value.dtype != dtype):
        wanted: TensorType = tensor(dtype or value.dtype, shape)
        raise fail(f"'{binding.owner}' declares the result {wanted}, and it is {value.type}",
                   type_.span, *notes, help=_converted(value.type, wanted))
    return pinned(value, without_layout(type_)[1], binding)


def _converted(found: TensorType, wanted: TensorType) -> str:
    """How a tensor becomes one of another type, where that is plain."""
    if found.shape == wanted.shape:
        return f"cast it: {wanted.dtype}(...)"
    if found.dtype != wanted.dtype or found.elements != wanted.elements:
        return ""
    if (*found.shape[:-2], *found.shape[:-3:-1]) == wanted.shape:
        return "with its last two axes swapped it fits: .T"
    return f"it has as many elements: reshape(..., {list(wanted.shape)})"


def _typed(x: Tensor, dtype: str | None, span: Span) -> Tensor:
    if dtype is not None and elements.gives_way(x.element, dtype):
        return Tensor(x.shape, Element(elements.convert(x.element, dtype, span), dtype, WEAK))
    return x


# ---- Conversions


def _cast(
    dtype: Dtype, args: Sequence[Argument], keywords: dict[str, Argument], frame: Frame, span: Span
) -> object:
    if len(args) != 1 or keywords:
        raise fail(f"'{dtype.name}(...)' casts one value", span)
    value = args[0].value
    if isinstance(value, Element):
        return elements.cast(dtype.name, value, span)
    if isinstance(value, Tensor):
        if value.dtype == dtype.name and value.element.level == FULL:
            return value
        return elementwise(
            [value], lambda e: elements.cast(dtype.name, e[0], span), frame.builder, span)
    if dtype.name == "bool" and isinstance(value, bool | int | float):
        return bool(value)
    if isinstance(value, bool | int | float):
        element = elements.cast(dtype.name, weak(value, span), span)
        return element if frame.index is not None else Tensor((), element)
    if list_shape(value) is not None and is_float(dtype.name):
        return constant(value, frame.builder, span, dtype.name)  # type: ignore[arg-type]
    raise fail(f"{describe(value)} cannot be cast to {dtype.name}", args[0].span)


def _convert(
    kind: Kind, args: Sequence[Argument], keywords: dict[str, Argument], span: Span
) -> object:
    """`int(x)`, `float(x)`, `bool(x)` of compile-time numbers."""
    python: dict[str, Callable[[Any], object]] = {"int": int, "float": float, "bool": bool}
    if kind.name not in python or len(args) != 1 or keywords:
        raise fail(f"'{kind.name}' cannot be called so", span)
    value = args[0].value
    if isinstance(value, Tensor | Element):
        raise fail(f"'{kind.name}' takes a number known when compiling, not {describe(value)}",
                   span, help="cast a tensor with i64(...), f32(...) or bool(...)")
    if not isinstance(value, bool | int | float):
        raise fail(f"'{kind.name}' takes a number, not {describe(value)}", span)
    try:
        return python[kind.name](value)
    except (OverflowError, ValueError):
        raise fail(f"{value} is no integer", span) from None

