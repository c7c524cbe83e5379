"""A program: what a file defines, and the modules that can be made of it.

    program = load("gpt.ab")
    training = program.training(overrides={"dim": 128}, stages=2)
    module = program.function("softmax", {"I": [4], "N": 8})

Every mistake of the user is a `UserError` that can show its source lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from anabranch.frontend import control, gradients, readers, recurrence, subscripts
from anabranch.frontend import syntax as s
from anabranch.frontend.builder import Builder
from anabranch.frontend.entries import Sizes, bound_names, build_entry
from anabranch.frontend.evaluate import Frame
from anabranch.frontend.lines import how_to_set
from anabranch.frontend.recipe import Shapes, make_model, meant
from anabranch.frontend.scope import File, Files, library, load_file
from anabranch.frontend.steps import Training, build_training
from anabranch.frontend.values import MISSING, Expression, Function, Model, Scope
from anabranch.ir.core import Module
from anabranch.ir.diagnostics import Collector, UserError, fail, nearest
from anabranch.ir.types import DTYPES, TensorType

__all__ = ["Program", "Training", "load", "loads", "read"]

# Modules that only fill the tables of the evaluator.
RULES = (control, gradients, readers, recurrence, subscripts)


@dataclass(frozen=True, slots=True)
class Program:
    """A loaded file."""

    file: File
    sources: dict[str, str]

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def tree(self) -> s.Module:
        return self.file.tree

    @property
    def scope(self) -> Scope:
        return self.file.scope

    @property
    def recipes(self) -> dict[str, s.TrainDef]:
        """The recipes by the name of their model."""
        return self.file.recipes

    @property
    def models(self) -> dict[str, s.ModelDef]:
        return {k: v.definition for k, v in self.scope.names.items() if isinstance(v, Model)}

    @property
    def functions(self) -> dict[str, s.OpDef | s.FuncDef]:
        """The ops and defs of the file."""
        return {k: v.definition for k, v in self.scope.names.items() if isinstance(v, Function)}

    def training(
        self, recipe: str | None = None, overrides: Mapping[str, object] | None = None,
        stages: int = 1, inputs: Mapping[str, TensorType] | None = None,
        shapes: Shapes | None = None,
    ) -> Training:
        """Elaborate a recipe: by the name of its model, or the only one of the file. `shapes` are
        those of the data, where they are there."""
        with self._explained():
            return build_training(self._recipe(recipe), self.scope, overrides or {}, stages, inputs,
                                  shapes)

    def how_to_set(self, recipe: str | None, name: str, value: object) -> str:
        """How to override what is an argument in a line of a recipe, or nothing."""
        return how_to_set(name, value, self._recipe(recipe), self.scope)

    def function(
        self, name: str, sizes: Mapping[str, object] | None = None, *,
        inputs: Mapping[str, TensorType] | None = None, model: Mapping[str, object] | None = None,
        stages: int = 1, training: bool = False,
    ) -> Module:
        """A module with one fully typed op or def, or `Model.function` of a model made with these
        arguments. `sizes` gives dimensions, packs, generic dtypes and compile-time parameters;
        what the types of `inputs` bind need not be said."""
        with self._explained():
            builder = Builder(name.rsplit(".", 1)[-1], training=training, stages=stages)
            function = self._function(name, model or {}, builder)
            module = Module()
            given = _values(sizes or {}, self.scope)
            known = Sizes({**bound_names(function, inputs or {}), **given})
            module.add(build_entry(function, known, builder))
            for unknown in given.keys() - known.used:
                raise fail(f"'{name}' takes no '{unknown}'", function.definition.span,
                           help=nearest(unknown, known.used))
            return module

    def _recipe(self, name: str | None) -> s.TrainDef:
        recipes = self.recipes
        if not recipes:
            raise fail(f"{Path(self.path).name} has no training recipe",
                       help="a recipe begins with `train Model(...):`")
        if name is None and len(recipes) == 1:
            return next(iter(recipes.values()))
        if name not in recipes:
            wanted = "several recipes" if name is None else f"no recipe for '{name}'"
            raise fail(f"{Path(self.path).name} has {wanted}",
                       help=nearest(name or "", recipes) or f"choose one of {', '.join(recipes)}")
        return recipes[name]

    def _function(self, name: str, arguments: Mapping[str, object], builder: Builder) -> Function:
        owner, _, member = name.rpartition(".")
        value = self.scope.find(owner or name)
        if isinstance(value, Model) and member:
            frame = Frame(self.scope, builder)
            given = _values(arguments, self.scope)
            recipe = self.recipes.get(owner) if not given else None
            instance = make_model(value, recipe, given, frame)
            value = instance.scope.names.get(member, MISSING)
        if isinstance(value, Function):
            return value
        raise fail(f"there is no op or def '{name}'", help=nearest(name, self.scope.visible()))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors know the texts that are not on disk."""
        try:
            yield
        except UserError as error:
            error.sources = {**self.sources, **error.sources}
            raise


def _values(given: Mapping[str, object], scope: Scope) -> dict[str, object]:
    """Expressions have their values, but for names of dtypes."""
    frame = Frame(scope, Builder("argument"))
    return {name: meant(name, value, frame)
            if isinstance(value, Expression) and value not in DTYPES else value
            for name, value in given.items()}


def load(path: str | Path) -> Program:
    """Read a program and what it imports."""
    return loads(read(path), str(path))


def read(path: str | Path) -> str:
    """The text of a program."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise fail(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise fail(f"{path} is not text in UTF-8") from None


def loads(
    text: str, file: str = "<program>", mistakes: Collector | None = None
) -> Program:
    """A program from its text; imports are looked up beside `file`. With `mistakes`, what is wrong
    with definitions is collected there, and the others can be used."""
    library()
    files = Files()
    try:
        loaded = load_file(text, file, files, mistakes)
    except UserError as error:
        error.sources = {**files.sources, **error.sources}
        raise
    return Program(loaded, files.sources)
