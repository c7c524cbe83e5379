"""The compiler, from Python: programs, what of them can be compiled, and their plans.

    program = load("gpt.ab")
    plan = compile(program.train, mesh=Mesh(data=2), set={"dim": 128})
    plan = compile(program.GPT(vocab=256, context=128, dim=96, depth=4, heads=4).next, B=1, S=128)
    plan = compile(program.softmax, x=numpy.zeros((4, 8), "f4"))

A recipe gives a plan that trains; a function with full types, of a file or of a model, one that
computes it. What is compiled comes from the cache of plans when nothing it depends on has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, NoReturn

import numpy as np

from anabranch import cache
from anabranch.driver import Compiled, Options, compile_function, compile_training
from anabranch.frontend import program as frontend
from anabranch.frontend import syntax as s
from anabranch.frontend import values
from anabranch.frontend.signatures import without_layout
from anabranch.ir import mesh as meshes
from anabranch.ir.core import Function
from anabranch.ir.diagnostics import fail, nearest
from anabranch.ir.plan import Plan
from anabranch.ir.types import DTYPES, TensorType, category, promote, tensor


@dataclass(frozen=True, slots=True)
class Program:
    """A file of the language. Models, ops and defs, its own and the library's, are attributes;
    `train` is its recipe."""

    source: frontend.Program

    @property
    def train(self) -> Recipe:
        """The recipe of a file that has one."""
        return self.recipe()

    def recipe(self, model: str | None = None) -> Recipe:
        """The recipe of a model."""
        return Recipe(self, model)

    def __getattr__(self, name: str) -> Any:  # a Model or an Entry
        match self.source.scope.find(name):
            case values.Model():
                return Model(self, name)
            case values.Function():
                return Entry(self, name)
        hint = nearest(name, self.source.scope.visible())
        raise AttributeError(f"{self.source.path} defines no model, op or def '{name}'"
                             f"{'; ' if hint else ''}{hint}")

    def __repr__(self) -> str:
        return f"the program {self.source.path}"

    def __dir__(self) -> list[str]:
        return ["recipe", "source", "train", *self.source.models, *self.source.functions]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A training recipe, by the name of its model; None is the only one of the file."""

    program: Program
    model: str | None

    def __call__(self, *unnamed: object, **arrays: object) -> NoReturn:
        """A mistake, as for an entry."""
        raise fail("a recipe is not called, but compiled and run",
                   help="with Session(compile(program.train)) as session: "
                   f"session.step({_to_give(arrays)})")


@dataclass(frozen=True, slots=True)
class Entry:
    """An op or def, or a function of a model with these arguments."""

    program: Program
    name: str
    arguments: tuple[tuple[str, object], ...] = ()

    def __call__(self, *unnamed: object, **arrays: object) -> NoReturn:
        """A mistake: what a program defines is compiled first, and a session runs the plan."""
        given = _to_give(arrays or _tensor_names(self))
        model, _, name = self.name.rpartition(".")
        of = f"{model}({_to_give(n for n, _ in self.arguments)})." if model else ""
        raise fail(f"'{self.name}' is not called, but compiled and run",
                   help=f"with Session(compile(program.{of}{name}, {given})) as session: "
                   f"session({given})")


@dataclass(frozen=True, slots=True)
class Model:
    """A model; called with its arguments it gives its functions as attributes."""

    program: Program
    name: str
    arguments: tuple[tuple[str, object], ...] = ()

    def __repr__(self) -> str:
        return f"the model {self.name}"

    def __call__(self, *unnamed: object, **arguments: object) -> Model:
        found = self.program.source.scope.find(self.name)
        assert isinstance(found, values.Model)
        names = [param.name for param in found.definition.params]
        if unnamed:
            raise fail(f"the arguments of the model {self.name} go by name",
                       help=f"as in {self.name}({', '.join(f'{n}=...' for n in names)})")
        for name in arguments.keys() - {*names}:
            raise fail(f"the model {self.name} takes no '{name}'",
                       help=nearest(name, names) or f"it takes {', '.join(names) or 'nothing'}")
        return Model(self.program, self.name, tuple(sorted(arguments.items())))

    def __getattr__(self, name: str) -> Entry:
        if name.startswith("__"):
            raise AttributeError(name)
        return Entry(self.program, f"{self.name}.{name}", self.arguments)


def load(path: str | PathLike[str]) -> Program:
    """Read a program and what it imports; its mistakes are raised as `UserError`."""
    return Program(frontend.load(str(path)))


def loads(text: str, file: str = "<program>") -> Program:
    """A program from its text; imports are looked up beside `file`."""
    return Program(frontend.loads(text, file))


def Mesh(**axes: int) -> meshes.Mesh:
    """Named axes of devices, outermost first, as in `Mesh(data=2, model=2)`."""
    for name, size in axes.items():
        if name == meshes.MICRO:
            raise fail("the mesh axis 'micro' is reserved", help="compile(..., micro=4)")
        if not _counts(size):
            raise fail(f"the mesh axis '{name}' has at least 1 rank, not {size!r}")
        if not name.isidentifier():
            raise fail(f"'{name}' is no name of a mesh axis")
    return meshes.Mesh.of(**axes)


def compile(
    what: Recipe | Entry,
    *unnamed: object,
    mesh: meshes.Mesh | None = None,
    micro: int | None = None,
    slots: int = 2,
    set: Mapping[str, object] | None = None,
    checked: bool = True,
    cached: bool = True,
    **given: Any,
) -> Plan:
    """The plan of a recipe or of a function.

    `set` overrides lines of a recipe, written as there (`{"lr": "cosine(...)"}`), and arguments of
    its model, where a text is a text and `Expression("relu")` stands for what it says. Of a
    function, everything its types leave open is given by keyword: dimensions and compile-time
    arguments by value, and the shape of an argument by any array of that shape. Unless `checked`,
    an index out of range is clamped; unless `cached`, the plan is made even if it has been before.
    """
    if not isinstance(what, Recipe | Entry):
        raise fail(f"{what!r} cannot be compiled", help="give a recipe (program.train), or a "
                   "function: program.softmax, program.GPT(dim=128, ...).forward")
    if mesh is not None and not isinstance(mesh, meshes.Mesh):
        raise fail(f"{mesh!r} is not a mesh", help="as in mesh=Mesh(data=2, model=2)")
    if unnamed:
        raise fail("arrays and sizes go by name", help="as in compile(program.softmax, x=array)")
    _check_counts(micro=micro, slots=slots)
    options = Options(mesh or meshes.Mesh(), micro, slots, checked=checked)
    tensors = _tensors(what, given) if isinstance(what, Entry) else given.keys()
    given = {n: value if n in tensors else _plain(value) for n, value in given.items()}
    overrides = {name: _plain(value) for name, value in (set or {}).items()}
    inputs = {name: _type(name, value) for name, value in given.items() if _is_array(value)}
    sizes = {name: value for name, value in given.items() if name not in inputs}
    source = what.program.source

    def make() -> Plan:
        return _compiled(what, options, overrides, inputs, sizes).plan

    if not cached:
        return make()
    about = (what.model,) if isinstance(what, Recipe) else (what.name, what.arguments)
    facts = (sorted(overrides.items()), sorted(inputs.items()), sorted(sizes.items()), options)
    return cache.plan(cache.key(source.sources, type(what).__name__, *about, *facts), make)[0]


def _compiled(
    what: Recipe | Entry, options: Options, overrides: Mapping[str, object],
    inputs: Mapping[str, TensorType], sizes: Mapping[str, object],
) -> Compiled:
    source, stages = what.program.source, options.mesh.stages
    if isinstance(what, Recipe):
        if sizes:
            name, value = next(iter(sizes.items()))
            if isinstance(value, Mapping):
                raise fail(f"compile takes no '{name}'", help="did you mean 'set'?")
            inside = source.how_to_set(what.model, name, value)
            raise fail(f"a recipe takes no argument '{name}'",
                       help=inside or "override its lines, the model's arguments and open sizes "
                       f"with set={{{', '.join(f'{n!r}: {v!r}' for n, v in sizes.items())}}}")
        micro = {} if options.micro is None else {"micro": options.micro}
        training = source.training(what.model, {**overrides, **micro}, stages, inputs or None)
        return compile_training(training, options)
    if overrides:
        raise fail("`set` is for recipes", help="give a function's sizes by keyword")
    module = source.function(what.name, sizes, inputs=inputs, model=dict(what.arguments),
                             stages=stages)
    (function,) = module.functions.values()
    _check_arrays(function, inputs)
    return compile_function(module, options)


def _check_arrays(function: Function, inputs: Mapping[str, TensorType]) -> None:
    """What was compiled takes the arrays that were given."""
    taken = {a.value.name: a.value.type for a in function.arguments if a.role == "input"}
    for name, given in inputs.items():
        if name not in taken:
            raise fail(f"'{function.name}' takes no array '{name}'",
                       help=nearest(name, taken) or f"it takes {', '.join(taken) or 'none'}")
        wanted = taken[name]
        if given.shape != wanted.shape or not _may_feed(given.dtype, wanted.dtype):
            raise fail(f"'{name}' is an array {given}, and '{function.name}' takes {wanted}")


def _may_feed(given: str, wanted: str) -> bool:
    """Whether a session converts such arrays: within a category, and to one that includes it."""
    return category(given) == category(wanted) or promote(given, wanted) == wanted


def _tensors(what: Entry, given: Mapping[str, object]) -> set[str]:
    """The parameters of a function that are tensors. What is given to one is an array, and arrays
    are given to parameters."""
    params = _parameters(what)
    names = {p.name for p in params}
    found = {*_tensor_names(what)}
    for name, value in given.items():
        if name in found and not (_is_array(value) or isinstance(value, bool | None)):
            raise fail(f"'{name}' is a {type(value).__name__}; give an array",
                       help=f"as in {name}=numpy.array(...)")
        if params and name not in names and _is_array(value) and _type(name, value).shape:
            raise fail(f"'{what.name}' takes no array '{name}'", help=nearest(name, found)
                       or f"it takes {', '.join(p.name for p in params if p.name in found)}")
    return found


def _to_give(names: Iterable[str]) -> str:
    return ", ".join(f"{name}=..." for name in names) or "..."


def _tensor_names(what: Entry) -> list[str]:
    return [p.name for p in _parameters(what) if isinstance(without_layout(p.type)[0], s.Index)]


def _parameters(what: Entry) -> list[s.Param]:
    owner, _, member = what.name.rpartition(".")
    found = what.program.source.scope.find(owner or what.name)
    definitions = found.definition.body if isinstance(found, values.Model) else (
        [found.definition] if isinstance(found, values.Function) else [])
    return [param for each in definitions
            if isinstance(each, s.OpDef | s.FuncDef) and each.name == member
            for param in each.params]


def _check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and not _counts(count):
            raise fail(f"'{name}' is an integer of at least 1, not {count!r}")


def _counts(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def _is_array(value: object) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _type(name: str, array: Any) -> TensorType:
    """The type of an array of NumPy or torch, by the names of their dtypes."""
    names = {"float": "f", "int": "i", "uint": "u", "bfloat": "bf"}
    full = str(array.dtype).removeprefix("torch.")
    letters = full.rstrip("0123456789")
    dtype = names.get(letters, letters) + full[len(letters):]
    if dtype not in DTYPES:
        raise fail(f"'{name}' is an array of {full}, which has no counterpart",
                   help=f"there are {', '.join(DTYPES)}")
    return tensor(dtype, tuple(int(n) for n in array.shape))
