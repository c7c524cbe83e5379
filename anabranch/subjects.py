"""What the words of a command line mean: which function of a program, what mesh, what settings.

    subject_of(load("gpt.ab"), function="loss", settings={"dim": "128"})

A name means, in this order: a function of the recipe (`train eval init next`), a definition of the
file, `Model.function`, a function of the recipe's model. What `settings` do not say, the recipe
does: arguments of the model, sizes of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from anabranch.frontend import syntax as s
from anabranch.frontend.entries import Open
from anabranch.frontend.program import Program, Training
from anabranch.frontend.recipe import ALWAYS
from anabranch.frontend.values import Expression
from anabranch.ir.core import Module
from anabranch.ir.diagnostics import fail, nearest
from anabranch.ir.mesh import MICRO, Mesh

_Made = TypeVar("_Made")
OF_RECIPE = ("train", "eval", "init", "next")


@dataclass(frozen=True, slots=True)
class Subject:
    """A module of phase `global`, the function that is meant, and the micro-batches of a step.

    `function` is empty where all functions of a recipe are meant.
    """

    module: Module
    function: str
    micro: int = 1
    training: Training | None = None

    def alone(self) -> Module:
        """The module with the function that is meant and no other."""
        if not self.function:
            return self.module
        return Module({self.function: self.module.functions[self.function]})


def subject_of(
    program: Program, *, function: str = "", model: str = "", settings: Mapping[str, str],
    stages: int = 1, micro: int | None = None,
) -> Subject:
    """What the words of a command line mean. Raises `UserError`."""
    settings = {name: Expression(text) for name, text in settings.items()}
    if model or (program.recipes and function in ("", *OF_RECIPE)):
        settings = settings if micro is None else {**settings, "micro": str(micro)}
        return _of_recipe(program, model, function, settings, stages)
    name = function or _only(program)
    if name in program.functions:
        return _made(program, name, settings, stages)
    owner, _, method = name.rpartition(".")
    owner = owner or next(iter(program.recipes), "")
    if method in _functions(program, owner):
        return _of_model(program, owner, method, settings, stages)
    raise fail(f"there is no function '{name}'", help=nearest(name, _choices(program))
               or f"there are {', '.join(_choices(program))}")


def _of_recipe(
    program: Program, model: str, function: str, settings: Mapping[str, str], stages: int
) -> Subject:
    training = program.training(model or None, settings, stages)
    module = training.module
    if function and function not in module.functions:
        raise fail(f"the recipe has no function '{function}'",
                   help=f"it has {', '.join(module.functions)}")
    return Subject(module, function, training.micro, training)


def _of_model(
    program: Program, owner: str, method: str, settings: Mapping[str, str], stages: int
) -> Subject:
    """A function of a model: made as the recipe says, for the batch that the recipe reads."""
    recipe = program.recipes.get(owner)
    if recipe is None:
        own = _parameters(program, owner)
        return _made(program, f"{owner}.{method}",
                     {k: v for k, v in settings.items() if k not in own}, stages,
                     model={k: v for k, v in settings.items() if k in own})
    known = {*_parameters(program, owner), *_lines(recipe), *ALWAYS}
    sizes = {k: v for k, v in settings.items() if k not in known}
    said = {k: v for k, v in settings.items() if k in known}
    training, asked = _asked(
        lambda more: program.training(owner, {**said, **more}, stages), sizes)
    others = {k: v for k, v in sizes.items() if k not in asked}
    made, _ = _asked(lambda more: _made(program, f"{owner}.{method}", {**others, **more}, stages,
                                        model=training.arguments, training=training), sizes)
    return made


def _asked(
    make: Callable[[dict[str, str]], _Made], sizes: Mapping[str, str]
) -> tuple[_Made, dict[str, str]]:
    """What can be made with the sizes that it turns out to need, and which these are."""
    given: dict[str, str] = {}
    while True:
        try:
            return make(given), given
        except Open as size:
            if size.name in given or size.name not in sizes:
                raise
            given[size.name] = sizes[size.name]


def _made(
    program: Program, name: str, sizes: Mapping[str, str], stages: int,
    model: Mapping[str, object] | None = None, training: Training | None = None,
) -> Subject:
    inputs = dict(training.inputs) if training is not None else None
    module = program.function(name, sizes, inputs=inputs, model=model, stages=stages)
    return Subject(module, next(iter(module.functions)))


def _only(program: Program) -> str:
    """The one definition of a file without a recipe."""
    names = list(program.functions)
    if len(names) == 1:
        return names[0]
    if not names:
        raise fail("the file defines no function and has no recipe")
    raise fail("which function is meant?", help=f"add --function with one of {', '.join(names)}")


def _choices(program: Program) -> list[str]:
    of_recipe = OF_RECIPE if program.recipes else ()
    of_models = [f"{name}.{method}" for name in program.models
                 for method in _functions(program, name)]
    return [*of_recipe, *program.functions, *of_models]


def _functions(program: Program, model: str) -> list[str]:
    if model not in program.models:
        return []
    return [m.name for m in program.models[model].body if isinstance(m, s.FuncDef)]


def _parameters(program: Program, model: str) -> list[str]:
    return [p.name for p in program.models[model].params]


def _lines(recipe: s.TrainDef) -> list[str]:
    return [line.target.id for line in recipe.body if isinstance(line, s.Setting)]


# ---- words


def mesh_of(text: str) -> Mesh:
    """`data=2,model=2` as a mesh. Raises `UserError`."""
    axes: dict[str, int] = {}
    for part in (p.strip() for p in text.split(",") if text):
        name, _, size = part.partition("=")
        if not name.isidentifier() or not size.isdecimal() or int(size) < 1:
            raise fail(f"'{part}' is not an axis of a mesh",
                       help="write axes as name=size, for example --mesh data=2,model=2")
        if name in axes or name == MICRO:
            why = "given twice" if name in axes else "reserved: use --micro"
            raise fail(f"the mesh axis '{name}' is {why}")
        axes[name] = int(size)
    return Mesh(tuple(axes.items()))


def overrides_of(pairs: list[str]) -> dict[str, Expression]:
    """`--set` texts by name; the values are expressions of the language."""
    found: dict[str, Expression] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise fail(f"'{pair}' is not an override", help="write --set name=value")
        found[name.strip()] = Expression(value.strip())
    return found


def recalled(overrides: Mapping[str, object]) -> dict[str, object]:
    """Overrides that a file kept, as they were: its texts are expressions."""
    return {name: Expression(value) if isinstance(value, str) else value
            for name, value in overrides.items()}
