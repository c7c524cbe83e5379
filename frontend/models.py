"""Models: fields, buffers, sub-models and lists of them, and where each has its place.

A model is made without a place; the field that holds it gives it one, and so on down. A model or
tensor that has a place already keeps it: passing it on is how weights are shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from anabranch.frontend import syntax as s
from anabranch.frontend.arguments import Argument, matched
from anabranch.frontend.dimensions import Binding
from anabranch.frontend.evaluate import Activation, Frame, blamed, evaluate, run, truth
from anabranch.frontend.expressions import assign, settled
from anabranch.frontend.signatures import bind
from anabranch.frontend.values import (
    Deferred,
    Function,
    Instance,
    Model,
    State,
    TypeValue,
    describe,
)
from anabranch.ir.diagnostics import Span, UserError, fail

INITIALISERS = "as in `weight: f32[n, m] = normal(std=0.02)`; zeros(), ones() and others are there"


def instantiate(
    model: Model, args: Sequence[Argument], keywords: dict[str, Argument], frame: Frame, span: Span
) -> Instance:
    """A model with these arguments; it has no place yet."""
    names: dict[str, object] = {}
    scope = model.scope.inner(names)
    instance = Instance(model, scope, span)
    inner = Frame(scope, frame.builder, Activation(frame.activation.path, building=True))
    definition = model.definition
    given = matched(definition, args, keywords, span)
    given = {k: Argument(settled(a.value, frame, k), a.span) for k, a in given.items()}
    bind(definition, given, Binding(definition.name, inner, names), span)
    instance.arguments.update(names)
    before = frame.builder.origin
    if not frame.scope.is_library:
        frame.builder.origin = span
    try:
        _filled(definition, instance, inner)
    except UserError as error:
        if model.scope.is_library and not frame.scope.is_library:
            raise blamed(error, definition.name, span) from None
        raise
    frame.builder.origin = before
    return instance


def _filled(definition: s.ModelDef, instance: Instance, frame: Frame) -> None:
    """Give an instance its members, which may be models with members."""
    builder = frame.builder
    builder.depth += 1
    try:
        _members(definition.body, instance, frame)
    except RecursionError:
        if builder.depth > 1:
            raise
        raise fail(f"a model '{definition.name}' holds models without end", definition.span,
                   help="it is a field of itself, or of a model that it has") from None
    finally:
        builder.depth -= 1


def _members(body: Sequence[s.Statement], instance: Instance, frame: Frame) -> None:
    for member in body:
        match member:
            case s.Field():
                _field(member, instance, frame)
            case s.FuncDef():
                frame.scope.names[member.name] = Function(member, frame.scope, instance)
            case s.If(condition, then, otherwise):
                chosen = truth(evaluate(condition, frame), condition.span)
                _members(then if chosen else otherwise, instance, frame)
            case s.Assign(target, value):
                assign(target, evaluate(value, frame), frame)
            case s.Assert():
                run((member,), frame)
            case _:
                raise fail("this cannot stand in a model", member.span)


def _field(node: s.Field, instance: Instance, frame: Frame) -> None:
    type_ = evaluate(node.type, frame)
    held = _held(type_, node, frame)
    instance.fields[node.name] = held
    frame.scope.names[node.name] = held


def _held(type_: object, node: s.Field, frame: Frame) -> object:
    """What a field holds: states for tensor types, models as they are."""
    if _has_types(type_) and (type_ != [] or node.init is not None):
        origin = frame.builder.origin if frame.scope.is_library else None
        return _states(type_, _initialiser(node, frame), node, origin or node.span)
    if node.init is not None:
        raise fail("only a parameter or buffer has an initialiser", node.init.span)
    if node.is_buffer:
        raise fail(f"a buffer has a tensor type, not {describe(type_)}", node.type.span)
    if _is_model(type_):
        return type_
    raise fail(f"the field '{node.name}' is {describe(type_)}", node.type.span,
               help="a field is a tensor type with an initialiser, a model, a list of these, or "
               "None")


def _has_types(value: object) -> bool:
    """Or lists of tensor types, of which some may be empty."""
    if isinstance(value, list):
        return all(map(_has_types, value))
    return isinstance(value, TypeValue)


def _is_model(value: object) -> bool:
    """Or a list of models, among which there may be functions."""
    if isinstance(value, list):
        return all(isinstance(each, Function) or _is_model(each) for each in value)
    return value is None or isinstance(value, Instance | State)


def _initialiser(node: s.Field, frame: Frame) -> Deferred | None:
    if node.init is None:
        raise fail(f"the {'buffer' if node.is_buffer else 'parameter'} '{node.name}' has no "
                   "initialiser", node.span, help=INITIALISERS)
    value = evaluate(node.init, replace(frame, waits=True))
    if value is None or (isinstance(value, Deferred) and isinstance(value.callee, Function)):
        return value
    raise fail(f"an initialiser is a function with a parameter of type Shape, not "
               f"{describe(value)}", node.init.span, help=INITIALISERS)


def _states(
    type_: object, initialiser: Deferred | None, node: s.Field, span: Span
) -> object:
    """One state for each type; `span` is where the user asked for them."""
    if initialiser is None:
        return None
    if isinstance(type_, list):
        return [_states(each, initialiser, node, span) for each in type_]
    assert isinstance(type_, TypeValue)
    if type_.pin is not None and any(sbp.kind == "P" for _, sbp in type_.pin.entries):
        raise fail(f"the layout of '{node.name}' has a P, and a parameter is no partial sum",
                   node.type.span, help="split it, as in {model: S(0)}, or say {model: B}")
    return State(type_, initialiser, node.is_buffer, span)


def place(value: object, path: str) -> None:
    """Give a value a path, and everything in it one below; what has a place keeps it."""
    if isinstance(value, list):
        for number, each in enumerate(value):
            place(each, f"{path}.{number}")
    elif isinstance(value, Instance) and value.path is None:
        value.path = path
        for name, each in value.fields.items():
            place(each, f"{path}.{name}" if path else name)
    elif isinstance(value, State) and not value.path:
        value.path = path


def states(value: object) -> list[State]:
    """The parameters and buffers of a model, in the order of definition, each once."""
    found: dict[str, State] = {}
    _collect(value, found)
    return list(found.values())


def _collect(value: object, found: dict[str, State]) -> None:
    if isinstance(value, list):
        for each in value:
            _collect(each, found)
    elif isinstance(value, Instance):
        for each in value.fields.values():
            _collect(each, found)
    elif isinstance(value, State):
        found.setdefault(value.path, value)
