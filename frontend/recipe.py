"""A training recipe becomes the functions train, eval, init and, if the model has it, next.

`train` is one step: the loss, its gradient by the parameters that it uses, clipping, an update of
each parameter by its own optimizer. The functions share states by path: the parameters and buffers
of the model, and the buffers of the optimizers under `optimizer.<path of the parameter>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.frontend import syntax as s
from anabranch.frontend.builder import Builder
from anabranch.frontend.calls import call, method, supplied
from anabranch.frontend.entries import Sizes, bound_names, build_entry, dimensions
from anabranch.frontend.evaluate import Activation, Frame, evaluate, unsupported
from anabranch.frontend.models import instantiate, place, states
from anabranch.frontend.parse import parse_expression
from anabranch.frontend.signatures import Argument, kind_of, without_layout
from anabranch.frontend.tensors import as_tensor
from anabranch.frontend.values import (
    Deferred,
    Dtype,
    Function,
    Instance,
    Model,
    Reader,
    Scope,
    State,
    Tensor,
    TypeValue,
    describe,
)
from anabranch.ir.core import Function as IrFunction
from anabranch.ir.core import Module
from anabranch.ir.diagnostics import Span, fail, nearest
from anabranch.ir.types import TensorType, is_float, tensor

ALWAYS = ("steps", "micro", "clip")  # may be set though no line says them
UNSUPPORTED = {
    "ema": "averaged weights ('ema') are not supported yet",
    "metrics": "'metrics' are not supported yet",
}


@dataclass(frozen=True, slots=True)
class Training:
    """A recipe for one model with all sizes known. `inputs` are the arguments of the loss, in
    order; `states` are the dotted paths in the order of `init`'s results; `settings` are the
    recipe's lines that are numbers, texts or lists."""

    module: Module
    model: str
    arguments: Mapping[str, object]
    steps: int
    micro: int
    reader: Reader
    inputs: tuple[tuple[str, TensorType], ...]
    states: tuple[tuple[str, TensorType], ...]
    settings: Mapping[str, object]


@dataclass(slots=True)
class Recipe:
    """A recipe while its functions are built."""

    definition: s.TrainDef
    scope: Scope
    instance: Instance
    builder: Builder
    lines: dict[str, s.Setting] = field(default_factory=dict)
    values: dict[str, object] = field(default_factory=dict)

    @property
    def frame(self) -> Frame:
        return Frame(self.scope, self.builder, waits=True)

    def get(self, name: str, default: object = None) -> object:
        return self.values.get(name, default)

    def span(self, name: str) -> Span:
        return self.lines[name].span if name in self.lines else self.definition.span


def build_training(
    definition: s.TrainDef, scope: Scope, overrides: Mapping[str, object], stages: int,
    inputs: Mapping[str, TensorType] | None,
) -> Training:
    """Elaborate a recipe. `inputs` gives the types of the batch where the reader does not."""
    builder = Builder("train", training=True, stages=stages)
    recipe = _prepared(definition, scope, overrides, builder)
    loss = method(recipe.instance, "loss", definition.span)
    reader = _reader(recipe)
    types = _batch(reader, loss, recipe, inputs)
    train, all_states = _train(recipe, loss, types)
    module = Module()
    module.add(train)
    order = [x.path for x in all_states]
    module.add(_eval(recipe, loss, types, order, stages))
    module.add(_init(recipe, all_states, stages))
    if isinstance(recipe.instance.scope.names.get("next"), Function):
        module.add(_next(recipe, loss, types, order, stages))
    return Training(
        module, recipe.instance.name, recipe.instance.arguments,
        _positive("steps", recipe, None), _positive("micro", recipe, 1), reader,
        tuple(types.items()), tuple((x.path, x.type.type) for x in all_states),
        {k: v for k, v in recipe.values.items() if _is_plain(v)},
    )


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _positive(name: str, recipe: Recipe, default: int | None) -> int:
    value = recipe.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        if name not in recipe.lines:
            raise fail(f"the recipe does not say '{name}'", recipe.definition.span,
                       help=f"add a line: {name} = ...")
        raise fail(f"'{name}' is a positive integer, not {describe(value)}", recipe.span(name))
    return value


# ---- The lines of a recipe


def _prepared(
    definition: s.TrainDef, scope: Scope, overrides: Mapping[str, object], builder: Builder
) -> Recipe:
    model = scope.find(definition.model.id)
    if not isinstance(model, Model):
        raise fail(f"'{definition.model.id}' is not a model", definition.model.span,
                   help=nearest(definition.model.id, scope.visible()))
    frame = Frame(scope, builder)
    values = {name: _value(given, frame) for name, given in overrides.items()}
    instance = make_model(model, definition, values, frame)
    recipe = Recipe(definition, scope.inner(dict(instance.arguments)), instance, builder)
    _check_overrides(values, recipe)
    for line in definition.body:
        if isinstance(line, s.FuncDef):
            raise unsupported(f"a recipe's own '{line.name}' is not supported yet", line.span,
                              help="without it a step minimizes the model's 'loss'")
        _line(line, values, recipe)
    recipe.values |= {k: v for k, v in values.items()
                      if k in ALWAYS or k in _defaults_of_next(instance)}
    return recipe


def make_model(
    model: Model, definition: s.TrainDef | None, values: Mapping[str, object], frame: Frame
) -> Instance:
    """The model of a recipe, its arguments overridden by name, in its place at the root."""
    args: list[Argument] = []
    keywords: dict[str, Argument] = {}
    span = model.definition.span
    if definition is not None:
        span = definition.span
        args = [Argument(evaluate(a, frame), a.span) for a in definition.args]
        keywords = {k.name: Argument(evaluate(k.value, frame), k.span)
                    for k in definition.keywords}
    names = [p.name for p in model.definition.params]
    keywords = {**dict(zip(names, args, strict=False)), **keywords}
    keywords |= {k: Argument(v, span) for k, v in values.items() if k in names}
    if len(args) > len(names):
        raise fail(f"'{model.definition.name}' takes {len(names)} arguments", args[-1].span)
    instance = instantiate(model, [], keywords, frame, span)
    place(instance, "")
    if "optimizer" in instance.fields:
        raise fail("a model that is trained has no field 'optimizer': the name is the place of "
                   "the optimizer's buffers", model.definition.span)
    return instance


def _value(given: object, frame: Frame) -> object:
    """An override: a Python value, or the text of an expression."""
    if isinstance(given, str):
        return evaluate(parse_expression(given), frame)
    return given


def _check_overrides(values: Mapping[str, object], recipe: Recipe) -> None:
    known = [*recipe.instance.arguments,
             *(line.target.id for line in recipe.definition.body if isinstance(line, s.Setting)),
             *ALWAYS, *_defaults_of_next(recipe.instance)]
    for name in values:
        if name not in known:
            raise fail(f"the recipe has no '{name}' to set", recipe.definition.span,
                       help=nearest(name, known) or f"it has {', '.join(dict.fromkeys(known))}")


def _defaults_of_next(instance: Instance) -> list[str]:
    """What generation may be told beside its arguments, such as a temperature."""
    function = instance.scope.names.get("next")
    params = function.definition.params if isinstance(function, Function) else ()
    return [p.name for p in params if p.default is not None]


def _line(line: s.Setting, values: Mapping[str, object], recipe: Recipe) -> None:
    name = line.target.id
    if line.patterns:
        raise unsupported("parameter groups are not supported yet", line.span,
                          help="give one optimizer for all parameters: optimizer = adamw(lr=lr)")
    if name in UNSUPPORTED:
        raise unsupported(UNSUPPORTED[name], line.span)
    if name in recipe.lines:
        raise fail(f"'{name}' is set twice", line.span)
    recipe.builder.loc = recipe.frame.loc(line.span)
    value = values[name] if name in values else evaluate(line.value, recipe.frame)
    if name == "precision" and value not in (Dtype("f32"), "f32"):
        raise unsupported("a precision other than f32 is not supported yet", line.span)
    if isinstance(value, Tensor):
        value = recipe.builder.held(value, name)
    recipe.lines[name] = line
    recipe.values[name] = recipe.scope.names[name] = value


def _reader(recipe: Recipe) -> Reader:
    value = recipe.get("data")
    if isinstance(value, Reader):
        return value
    if "data" not in recipe.lines:
        raise fail("the recipe does not say where its data comes from", recipe.definition.span,
                   help="add a line: data = text(window=128, batch=16)")
    raise fail(f"'data' is a reader, not {describe(value)}", recipe.span("data"),
               help="as in text(window=128, batch=16)")


# ---- The batch


def _batch(
    reader: Reader, loss: Function, recipe: Recipe, given: Mapping[str, TensorType] | None
) -> dict[str, TensorType]:
    """The types of the loss's arguments, in its order."""
    params = [p for p in loss.definition.params
              if p.default is None and kind_of(p, loss.scope) != "Key"]
    fields = dict(given) if given is not None else _fields(reader, params, loss, recipe)
    found: dict[str, TensorType] = {}
    for param in params:
        if param.name not in fields:
            raise fail(f"the reader '{reader.name}' gives no '{param.name}'", param.span,
                       help=nearest(param.name, fields) or f"it gives {' and '.join(fields)}")
        found[param.name] = fields[param.name]
    return found


def _fields(
    reader: Reader, params: Sequence[s.Param], loss: Function, recipe: Recipe
) -> dict[str, TensorType]:
    if reader.name == "text":
        shape = (_extent(reader, "batch", recipe), _extent(reader, "window", recipe))
        return {name: tensor("i64", shape) for name in ("tokens", "targets")}
    return {p.name: _declared(p, _extent(reader, "batch", recipe), loss, recipe) for p in params}


def _extent(reader: Reader, name: str, recipe: Recipe) -> int:
    value = reader.arguments.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise fail(f"the reader '{reader.name}' needs a positive integer '{name}'",
                   recipe.span("data"), help=f"as in {reader.name}({name}=16)")
    return value


def _declared(param: s.Param, batch: int, loss: Function, recipe: Recipe) -> TensorType:
    """The type that a parameter of the loss declares; its first dimension is the batch."""
    type_, _ = without_layout(param.type)
    match type_:
        case s.Index(s.Name(head), (first, *rest)) if isinstance(loss.scope.find(head), Dtype):
            names = {first.id: batch} if isinstance(first, s.Name) else {}
            frame = Frame(loss.scope.inner(), recipe.builder)
            shape = [n for item in (first, *rest) for n in dimensions(item, Sizes(names), frame)]
            return tensor(head, tuple(shape))
    raise fail(f"the type of '{param.name}' does not say what the reader must give", param.span,
               help="as in x: f32[B, 784]")


# ---- The functions


def _loss(
    recipe: Recipe, loss: Function, types: Mapping[str, TensorType], builder: Builder
) -> Tensor:
    frame = Frame(loss.scope, builder)
    builder.loc = frame.loc(loss.definition.span)
    spans = {param.name: param.span for param in loss.definition.params}
    args = {name: Argument(builder.input(name, type_, span=spans[name]), loss.definition.span)
            for name, type_ in types.items()}
    value = call(loss, [], args, frame, loss.definition.span)
    if not isinstance(value, Tensor) or value.rank or not is_float(value.dtype):
        raise fail(f"the loss is {describe(value)}, not a 0-d float tensor", loss.definition.span,
                   help="reduce it, as in mean(...)")
    return builder.tensor(builder.value(value))


def _train(
    recipe: Recipe, loss: Function, types: Mapping[str, TensorType]
) -> tuple[IrFunction, list[State]]:
    """One step, and all states: those of the model, then those of the optimizers."""
    builder = recipe.builder
    value = _loss(recipe, loss, types, builder)
    trained = [x for x in states(recipe.instance)
               if not x.is_buffer and x.path in builder.states and is_float(x.type.dtype)]
    if not trained:
        raise fail("the loss uses no parameter", loss.definition.span)
    optimizer = _optimizer(recipe)
    builder.loc = Frame(recipe.scope, builder).loc(recipe.span("optimizer"))
    grads = _clipped(builder.gradient(value, [builder.state(x) for x in trained]), recipe)
    made: list[State] = []
    for state, grad in zip(trained, grads, strict=True):
        made += _update(state, grad, optimizer, recipe)
    found = [*states(recipe.instance), *made]
    order = [x.path for x in found]
    new = {path: builder.states[path] for path in order if path in builder.updated}
    return builder.finish([value], new, order), found


def _optimizer(recipe: Recipe) -> Deferred:
    value = recipe.get("optimizer")
    if isinstance(value, Deferred) and isinstance(value.callee, Model):
        return value
    if "optimizer" not in recipe.lines:
        raise fail("the recipe has no optimizer", recipe.definition.span,
                   help="add a line: optimizer = adamw(lr=1e-3)")
    raise fail(f"'optimizer' is an optimizer, not {describe(value)}", recipe.span("optimizer"),
               help="as in adamw(lr=1e-3): a model with a parameter of type Shape and a function "
               "update(p, g)")


def _clipped(grads: list[Tensor], recipe: Recipe) -> list[Tensor]:
    limit = recipe.get("clip")
    if limit is None:
        return grads
    if isinstance(limit, bool) or not isinstance(limit, int | float) or limit <= 0:
        raise fail(f"'clip' is a positive number or None, not {describe(limit)}",
                   recipe.span("clip"))
    clip = recipe.scope.find("clip_by_norm")
    span = recipe.span("clip")
    frame = Frame(recipe.scope, recipe.builder)
    result = call(clip, [Argument(list(grads), span), Argument(float(limit), span)], {}, frame,
                  span)
    if not isinstance(result, list) or len(result) != len(grads):
        raise fail("'clip_by_norm' gives a gradient for each one it takes", span)
    return [as_tensor(x, span) for x in result]


def _update(state: State, grad: Tensor, optimizer: Deferred, recipe: Recipe) -> list[State]:
    """The next value of a parameter, by an optimizer of its own; the optimizer's buffers."""
    model = optimizer.callee
    assert isinstance(model, Model)
    span, builder = optimizer.span, recipe.builder
    frame = Frame(recipe.scope, builder)
    instance = instantiate(model, [], supplied(optimizer, state.type.shape), frame, span)
    place(instance, f"optimizer.{state.path}")
    args = [Argument(builder.state(state), span), Argument(grad, span)]
    new = call(method(instance, "update", span), args, {}, frame, span)
    if not isinstance(new, Tensor) or new.type is not state.type.type:
        raise fail(f"the optimizer gives {describe(new)} for '{state.path}', which is "
                   f"{state.type.type}", span)
    builder.update(state, new)
    return states(instance)


def _eval(
    recipe: Recipe, loss: Function, types: Mapping[str, TensorType], order: Sequence[str],
    stages: int,
) -> IrFunction:
    builder = Builder("eval", stages=stages)
    value = _loss(recipe, loss, types, builder)
    return builder.finish([value], {}, order)


def _init(recipe: Recipe, found: Sequence[State], stages: int) -> IrFunction:
    """The first value of every state; random ones are keyed by the seed and the path."""
    builder = Builder("init", stages=stages, stepping=False)
    for state in found:
        builder.state(state)  # an argument says where it is kept
    values = {state.path: _first_value(state, recipe, builder) for state in found}
    return builder.finish([], values)


def _first_value(state: State, recipe: Recipe, builder: Builder) -> Tensor:
    deferred = state.initialiser
    frame = Frame(recipe.scope, builder, Activation(state.path))
    builder.loc = frame.loc(state.span)
    keywords = supplied(deferred, state.type.shape)
    value = call(deferred.callee, [], keywords, frame, deferred.span)
    first = _fitted(value, state.type, deferred.span, builder)
    builder.loc = frame.loc(state.span)
    return first if state.type.pin is None else builder.pin(first, state.type.pin)


def _fitted(value: object, wanted: TypeValue, span: Span, builder: Builder) -> Tensor:
    x = builder.converted(as_tensor(value, span), wanted.dtype, span)
    if x.shape != wanted.shape:
        raise fail(f"the initialiser gives {x.type}, and the field is {wanted.type}", span)
    return x


def _next(
    recipe: Recipe, loss: Function, types: Mapping[str, TensorType], order: Sequence[str],
    stages: int,
) -> IrFunction:
    """One step of generation, on one sequence of the size that the loss was given."""
    function = method(recipe.instance, "next", recipe.definition.span)
    sizes = bound_names(loss, types)
    for param in loss.definition.params:
        type_, _ = without_layout(param.type)
        match type_:
            case s.Index(_, (s.Name(batch), *_)) if batch in sizes:
                sizes[batch] = 1
    builder = Builder("next", stages=stages)
    return build_entry(function, Sizes({**recipe.values, **sizes}), builder, order)
