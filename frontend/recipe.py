"""The lines of a training recipe: what they say, and what may override them.

A line may use earlier lines, the model's arguments and its functions. `optimizer` with patterns
gives a group of parameters an optimizer of its own; functions of a recipe are what `steps` calls:
`update` for a step, `clip` for the gradients of one `minimize`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from anabranch.frontend import syntax as s
from anabranch.frontend.arguments import Argument
from anabranch.frontend.builder import Builder
from anabranch.frontend.evaluate import Frame, evaluate, unsupported
from anabranch.frontend.lines import how_to_set, settings
from anabranch.frontend.models import instantiate, place
from anabranch.frontend.parse import parse_expression
from anabranch.frontend.values import (
    MISSING,
    Deferred,
    Dtype,
    Expression,
    Function,
    Instance,
    Model,
    Reader,
    Scope,
    Tensor,
    describe,
)
from anabranch.ir.diagnostics import Span, UserError, fail, nearest
from anabranch.ir.plan import ADDED

LINES = ("steps", "data", "optimizer", "clip", "precision", "micro", "ema", "metrics")
OFFERED = tuple(line for line in LINES if line != "precision")  # it has one value, f32
ALWAYS = ("steps", "micro", "clip", "ema", "metrics")  # may be set though no line says them
OPTIMIZER = ("as in adamw(lr=1e-3): a model with a parameter of type Shape and a function "
             "update(p, g)")


@dataclass(frozen=True, slots=True)
class Group:
    """`optimizer[patterns] = optimizer`; without patterns it is for all that no other matches."""

    patterns: tuple[s.String, ...]
    optimizer: Deferred | None
    span: Span


Shapes = Callable[[Reader], Mapping[str, tuple[int, ...]]]
"""Those of a batch that a reader gives, by name."""


@dataclass(slots=True)
class Recipe:
    """A recipe while its functions are built. `shapes` tells those of the data, if they are there;
    `sizes` are dimensions of a batch that only overrides or the data say."""

    definition: s.TrainDef
    scope: Scope
    instance: Instance
    builder: Builder
    overrides: Mapping[str, object]
    shapes: Shapes | None = None
    sizes: dict[str, object] = field(default_factory=dict)
    lines: dict[str, s.Setting] = field(default_factory=dict)
    values: dict[str, object] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)

    @property
    def frame(self) -> Frame:
        return Frame(self.scope, self.builder, waits=True)

    def get(self, name: str, default: object = None) -> object:
        return self.values.get(name, default)

    def span(self, name: str) -> Span:
        return self.lines[name].span if name in self.lines else self.definition.span

    def function(self, name: str) -> Function | None:
        """A function of the recipe, else of the model."""
        found = self.functions.get(name, self.instance.scope.names.get(name))
        return found if isinstance(found, Function) else None

    def positive(self, name: str, default: int | None) -> int:
        """A line that is a count."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            if name not in self.lines:
                raise fail(f"the recipe does not say '{name}'", self.definition.span,
                           help=f"add a line: {name} = ...")
            raise fail(f"'{name}' is a positive integer, not {describe(value)}", self.span(name))
        return value

    @property
    def reader(self) -> Reader:
        value = self.get("data")
        if isinstance(value, Reader):
            return value
        if "data" not in self.lines:
            raise fail("the recipe does not say where its data comes from", self.definition.span,
                       help="add a line: data = text(window=128, batch=16)")
        raise fail(f"'data' is a reader, not {describe(value)}", self.span("data"),
                   help="as in text(window=128, batch=16)")


def prepared(
    definition: s.TrainDef, scope: Scope, overrides: Mapping[str, object], builder: Builder,
    shapes: Shapes | None = None,
) -> Recipe:
    """A recipe with all its lines evaluated."""
    model = scope.find(definition.model.id)
    if not isinstance(model, Model):
        raise fail(f"'{definition.model.id}' is not a model", definition.model.span,
                   help=nearest(definition.model.id, scope.visible()))
    frame = Frame(scope, builder)
    texts, lines = {p.name for p in model.definition.params}, _lines_of(definition)
    values = {name: _value(name, given, replace(frame, waits=True), name in texts)
              for name, given in overrides.items() if name in texts or name not in lines}
    instance = make_model(model, definition, values, frame)
    recipe = Recipe(definition, scope.inner(dict(instance.scope.names)), instance, builder,
                    {**overrides, **values}, shapes)
    for line in definition.body:
        if isinstance(line, s.FuncDef):
            _function(line, recipe)
        else:
            _line(line, recipe)
    recipe.values |= {k: v for k, v in values.items() if k in _defaults_of_next(instance)}
    recipe.values |= {k: _value(k, v, recipe.frame, False) for k, v in overrides.items()
                      if k in ALWAYS and k not in recipe.lines}
    return recipe


def _lines_of(definition: s.TrainDef) -> set[str]:
    """Names whose override may use what a line may: earlier lines, the model's functions."""
    return {*ALWAYS, *(x.target.id for x in definition.body if isinstance(x, s.Setting))}


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
    for twice in keywords.keys() & set(names[:len(args)]):
        raise fail(f"'{model.definition.name}' is given '{twice}' twice", keywords[twice].span)
    keywords = {**dict(zip(names, args, strict=False)), **keywords}
    keywords |= {k: Argument(v, span) for k, v in values.items() if k in names}
    if len(args) > len(names):
        raise fail(f"'{model.definition.name}' takes {len(names)} arguments", args[-1].span)
    instance = instantiate(model, [], keywords, frame, span)
    place(instance, "")
    for name in ADDED:
        if name in instance.fields:
            raise fail(f"a model that is trained has no field '{name}': the name is the place of "
                       "states that training adds", model.definition.span)
    return instance


def _value(name: str, given: object, frame: Frame, may_be_text: bool) -> object:
    """An override: a Python value, or an expression. A line of a recipe is written as in the file,
    while an argument of the model may be a plain text."""
    if isinstance(given, Expression) or (isinstance(given, str) and not may_be_text):
        return meant(name, given, frame)
    return given


def meant(name: str, text: str, frame: Frame) -> object:
    """What is given to a name as an expression."""
    file = f"<{name}>"
    try:
        tree = parse_expression(text, file)
        if isinstance(tree, s.Name) and frame.scope.find(tree.id) is MISSING:
            raise fail(f"'{text}' is not defined", tree.span,
                       help=f"a text has quotes of its own: {name}=\"{text}\"")
        return evaluate(tree, frame)
    except UserError as error:
        error.sources = {**error.sources, file: text}
        raise


def check_overrides(recipe: Recipe, sizes: Collection[str]) -> None:
    """There is something to override: `sizes` are dimensions that nothing in the recipe says."""
    known = [*recipe.instance.arguments,
             *(line.target.id for line in recipe.definition.body if isinstance(line, s.Setting)),
             *ALWAYS, *_defaults_of_next(recipe.instance), *sizes]
    for name, given in recipe.overrides.items():
        if name not in known:
            raise fail(f"the recipe has no '{name}' to set", recipe.definition.span,
                       help=how_to_set(name, given, recipe.definition, recipe.scope)
                       or nearest(name, known)
                       or f"it has {', '.join(dict.fromkeys(known))}")


def _defaults_of_next(instance: Instance) -> list[str]:
    """What generation may be told beside its arguments, such as a temperature."""
    function = instance.scope.names.get("next")
    params = function.definition.params if isinstance(function, Function) else ()
    return [p.name for p in params if p.default is not None]


def _function(line: s.FuncDef, recipe: Recipe) -> None:
    if line.name in recipe.functions or line.name in recipe.lines:
        raise fail(f"'{line.name}' is defined twice", line.span)
    made = Function(line, recipe.scope, recipe.instance)
    recipe.functions[line.name] = recipe.scope.names[line.name] = made


def _line(line: s.Setting, recipe: Recipe) -> None:
    name = line.target.id
    if name in recipe.functions or (not line.patterns and name in recipe.lines):
        raise fail(f"'{name}' is set twice", line.span)
    recipe.builder.loc = recipe.frame.loc(line.span)
    if name in recipe.overrides and not line.patterns:
        value = _value(name, recipe.overrides[name], recipe.frame,
                       name in recipe.instance.arguments)
    else:
        value = evaluate(line.value, recipe.frame)
    if name == "optimizer":
        recipe.groups.append(Group(line.patterns, _optimizer(value, line), line.span))
    elif line.patterns:
        raise fail(f"only 'optimizer' is set by the paths of parameters, not '{name}'", line.span)
    if name == "precision" and value not in (Dtype("f32"), "f32"):
        raise unsupported("a precision other than f32 is not supported yet", line.span)
    if isinstance(value, Tensor):
        value = recipe.builder.held(value, name)
    if not line.patterns:
        recipe.lines[name] = line
        recipe.values[name] = recipe.scope.names[name] = value


def _optimizer(value: object, line: s.Setting) -> Deferred | None:
    if value is None or (isinstance(value, Deferred) and isinstance(value.callee, Model)):
        return value
    if isinstance(value, Model):
        name = value.definition.name
        needed = [f"{p.name}=..." for p in settings(value.definition) if p.default is None]
        raise fail(f"'{name}' is not called", line.span, help=f"write {name}({', '.join(needed)})")
    raise fail(f"'optimizer' is an optimizer, not {describe(value)}", line.span, help=OPTIMIZER)
