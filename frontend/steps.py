"""A training recipe becomes the functions train, eval, init and, if the model has it, next.

`train` is one step: what the recipe's `update` does, or else one `minimize` of the model's `loss`.
It gives the loss and what was reported; without an `update`, or where that returns no number, the
loss is the last one minimized. `eval` gives the loss, the metrics and what they report, of held-out
data. The functions share states by path: the parameters and buffers of the model, the buffers of
the optimizers under `optimizer.<path>`, and averages of the parameters under `ema.<path>`, which
`eval` and `next` use instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from anabranch.frontend import syntax as s
from anabranch.frontend.arguments import Argument
from anabranch.frontend.batch import Types, batch_of, open_sizes
from anabranch.frontend.builder import Builder
from anabranch.frontend.calls import call, supplied
from anabranch.frontend.entries import OF_RECIPE, Sizes, bound_names, build_entry
from anabranch.frontend.evaluate import Activation, Frame
from anabranch.frontend.minimize import Minimizer, minimizer
from anabranch.frontend.models import states
from anabranch.frontend.recipe import Recipe, Shapes, check_overrides, prepared
from anabranch.frontend.signatures import without_layout
from anabranch.frontend.tensors import as_tensor
from anabranch.frontend.values import (
    Function,
    Reader,
    Scope,
    State,
    Tensor,
    TypeValue,
    describe,
)
from anabranch.ir.core import Function as IrFunction
from anabranch.ir.core import Module
from anabranch.ir.diagnostics import Span, fail
from anabranch.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Training:
    """A recipe for one model with all sizes known. `inputs` are the arguments of a step, in
    order; `states` are the dotted paths in the order of `init`'s results; `results` names what
    each function gives; `settings` are the recipe's lines that are numbers, texts or lists.
    `by_micro` is set if the program is another one for another number of micro-batches, because
    of `per_micro`; `sizes` are dimensions of a batch that were overridden or found in the data."""

    module: Module
    model: str
    arguments: Mapping[str, object]
    steps: int
    micro: int
    by_micro: bool
    reader: Reader
    inputs: tuple[tuple[str, TensorType], ...]
    states: tuple[tuple[str, TensorType], ...]
    results: Mapping[str, tuple[str, ...]]
    settings: Mapping[str, object]
    sizes: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Step:
    """A recipe whose function `train` has been built, and what it came to."""

    recipe: Recipe
    train: IrFunction
    names: tuple[str, ...]
    types: Types
    minimizer: Minimizer
    averages: dict[str, State]
    states: list[State]

    @property
    def order(self) -> list[str]:
        return [x.path for x in self.states]


def build_training(
    definition: s.TrainDef, scope: Scope, overrides: Mapping[str, object], stages: int,
    inputs: Mapping[str, TensorType] | None, shapes: Shapes | None = None,
) -> Training:
    """Elaborate a recipe. `inputs` gives the types of the batch where the reader does not;
    `shapes` those of the data."""

    def built(total: Mapping[str, int]) -> Step:
        builder = Builder("train", training=True, stages=stages)
        return _train(prepared(definition, scope, overrides, builder, shapes), total, inputs)

    step = built({})
    if max(step.minimizer.done.values(), default=0) > 1:
        step = built(step.minimizer.done)  # now it is known how many updates a step has
    recipe, module = step.recipe, Module()
    module.add(step.train)
    results = {"train": step.names}
    evaluated = _eval(step, stages, inputs)
    if evaluated is not None:
        module.add(evaluated[0])
        results["eval"] = evaluated[1]
    module.add(_init(step, stages))
    if "next" in recipe.instance.scope.names and recipe.function("next") is not None:
        module.add(_next(step, stages, inputs))
    return Training(
        module, recipe.instance.name, recipe.instance.arguments,
        recipe.positive("steps", None), recipe.builder.micro, recipe.builder.has_parts,
        recipe.reader,
        tuple(step.types.items()), tuple((x.path, x.type.type) for x in step.states), results,
        {k: v for k, v in recipe.values.items() if _is_plain(v)}, recipe.sizes,
    )


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


# ---- A step


def _train(
    recipe: Recipe, total: Mapping[str, int], inputs: Mapping[str, TensorType] | None
) -> Step:
    """One step, and all states: those of the model, of the optimizers, and averages."""
    builder = recipe.builder
    builder.micro = recipe.positive("micro", 1)
    update = recipe.functions.get("update")
    function = update or _loss(recipe)
    _check_overrides(recipe, function)
    types = batch_of(function, recipe, inputs)
    work = minimizer(recipe, total)
    recipe.scope.names["minimize"] = work.builtin()
    value = _called(function, types, builder)
    if update is None:
        builder.loc = Frame(recipe.scope, builder).loc(recipe.groups[0].span)
        work.minimize(_scalar(value, "loss", function.definition.span), (),
                      function.definition.span)
    else:
        value = _shown(value, work, update)
    loss = builder.tensor(builder.value(_scalar(value, "loss", function.definition.span)))
    averages = _averaged(work.trained, recipe)
    found = [*states(recipe.instance), *work.states, *averages.values()]
    order = [x.path for x in found]
    new = {path: builder.states[path] for path in order if path in builder.updated}
    results = {"loss": loss, **_reports(builder, ["loss"])}
    train = builder.finish(list(results.values()), new, order)
    return Step(recipe, train, tuple(results), types, work, averages, found)


def _check_overrides(recipe: Recipe, function: Function) -> None:
    """Those of sizes are kept: a reader of arrays does not say all of a batch."""
    evaluated = [recipe.function("loss"), *metrics(recipe).values()]
    sizes = {name for each in (function, *evaluated) if each is not None
             for name in open_sizes(each, recipe)}
    check_overrides(recipe, sizes)
    recipe.sizes |= {name: size for name, size in recipe.overrides.items() if name in sizes}


def _loss(recipe: Recipe) -> Function:
    found = recipe.function("loss")
    if found is None:
        raise fail(f"a model {recipe.instance.name} has no function 'loss'",
                   recipe.definition.span,
                   help="a step minimizes it, unless the recipe has an 'update' of its own")
    return found


def _called(function: Function, types: Types, builder: Builder) -> object:
    """What a function gives of the batch."""
    frame = Frame(function.scope, builder)
    span = function.definition.span
    builder.loc = frame.loc(span)
    spans = {param.name: param.span for param in function.definition.params}
    args = {name: Argument(builder.input(name, type_, span=spans.get(name)), span)
            for name, type_ in types.items() if name in spans}
    return call(function, [], args, frame, span)


def _scalar(value: object, name: str, span: Span) -> Tensor:
    if not isinstance(value, Tensor) or value.rank:
        raise fail(f"the {name} is {describe(value)}, not a 0-d float tensor", span,
                   help="reduce it, as in mean(...)")
    return value


def _shown(value: object, work: Minimizer, update: Function) -> object:
    """The loss of a step that the recipe describes: what it returns, or minimized last."""
    if value is None and work.loss is None:
        raise fail("this step neither minimizes anything nor returns a loss",
                   update.definition.span, help='as in minimize(loss(x), "*")')
    return work.loss if value is None else value


def _averaged(trained: Sequence[State], recipe: Recipe) -> dict[str, State]:
    """The averages of what a step has trained, moved on by it."""
    decay = recipe.get("ema")
    if decay is None:
        return {}
    span, builder = recipe.span("ema"), recipe.builder
    if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 <= decay < 1:
        raise fail(f"'ema' is a number from 0 to less than 1, or None, not {describe(decay)}", span,
                   help="as in ema = 0.999")
    frame = Frame(recipe.scope, builder)
    builder.loc = frame.loc(span)
    found: dict[str, State] = {}
    for state in trained:
        average = State(state.type, state.initialiser, True, state.span, f"ema.{state.path}")
        args = [builder.state(average), builder.state(state), float(decay)]
        new = call(recipe.scope.find("moving_average"), [Argument(x, span) for x in args], {},
                   frame, span)
        builder.update(average, as_tensor(new, span))
        found[state.path] = average
    return found


def _reports(builder: Builder, taken: Iterable[str]) -> dict[str, Tensor]:
    for name in ("step", *taken):
        if name in builder.reports:
            raise fail(f"'{name}' is shown anyway", builder.reports[name][1],
                       help="report it under another name")
    return {name: value for name, (value, _) in builder.reports.items()}


# ---- The other functions


def _eval(
    step: Step, stages: int, inputs: Mapping[str, TensorType] | None
) -> tuple[IrFunction, tuple[str, ...]] | None:
    """The loss and the metrics of a held-out batch; None where there are none."""
    recipe = step.recipe
    loss = recipe.function("loss")
    wanted = {} if loss is None else {"loss": loss}
    wanted |= metrics(recipe)
    if not wanted:
        return None
    builder = Builder("eval", stages=stages, instead=step.averages)
    results = {}
    for each, function in wanted.items():
        types = batch_of(function, recipe, inputs)
        scalar = _scalar(_called(function, types, builder), each, function.definition.span)
        results[each] = builder.tensor(builder.value(scalar))
    results |= _reports(builder, results)
    return builder.finish(list(results.values()), {}, step.order), tuple(results)


def metrics(recipe: Recipe) -> dict[str, Function]:
    """The functions that the recipe wants evaluated, by name."""
    given, span = recipe.get("metrics", []), recipe.span("metrics")
    if not isinstance(given, list | tuple):
        raise fail(f"'metrics' is a list of functions, not {describe(given)}", span,
                   help="as in metrics = [accuracy]")
    found: dict[str, Function] = {}
    for each in given:
        if not isinstance(each, Function) or each.scope.is_library:
            raise fail(f"a metric is a function of the model, like 'loss', not {describe(each)}",
                       span)
        if each.definition.name in (*found, "loss"):
            raise fail(f"'{each.definition.name}' is shown already", span)
        found[each.definition.name] = each
    return found


def _init(step: Step, stages: int) -> IrFunction:
    """The first value of every state; random ones are keyed by the seed and the path. An average
    begins as what it is the average of."""
    builder = Builder("init", stages=stages, stepping=False)
    for state in step.states:
        builder.state(state)  # an argument says where it is kept
    values: dict[str, Tensor] = {}
    starts = {average.path: path for path, average in step.averages.items()}
    for state in step.states:
        start = starts.get(state.path)
        values[state.path] = (_first_value(state, step.recipe, builder) if start is None
                              else values[start])
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
    step: Step, stages: int, inputs: Mapping[str, TensorType] | None
) -> IrFunction:
    """One step of generation, on one sequence of the size that the loss was given."""
    recipe = step.recipe
    function = recipe.function("next")
    assert function is not None, "asked for only where it is"
    sizes: dict[str, object] = {}
    for fed in (recipe.function("loss"), recipe.functions.get("update")):
        if fed is not None:
            sizes |= bound_names(fed, batch_of(fed, recipe, inputs))
            sizes |= dict.fromkeys(_batches(fed) & sizes.keys(), 1)
    builder = Builder("next", stages=stages, instead=step.averages)
    return build_entry(function, Sizes({**recipe.values, **sizes}, OF_RECIPE), builder, step.order)


def _batches(function: Function) -> set[str]:
    """The names of the first dimensions of a function's arguments."""
    found = set()
    for param in function.definition.params:
        match without_layout(param.type)[0]:
            case s.Index(_, (s.Name(batch), *_)):
                found.add(batch)
    return found
