"""What a batch consists of: the types of the arguments that a recipe's functions take by name.

A reader may know its own types. For any other, a type is what is declared where the argument
is taken: by the function itself, or by a function of the model with a parameter of that name. A
dimension that neither the model nor the recipe says is overridden, or is that of the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anabranch.frontend import syntax as s
from anabranch.frontend.entries import OF_RECIPE, Sizes, bound_sizes, dimensions
from anabranch.frontend.evaluate import Frame
from anabranch.frontend.recipe import Recipe
from anabranch.frontend.signatures import kind_of, without_layout
from anabranch.frontend.values import MISSING, Dtype, Function, Reader
from anabranch.ir.diagnostics import Note, UserError, fail, nearest
from anabranch.ir.types import TensorType, tensor

Types = dict[str, TensorType]


def batch_of(function: Function, recipe: Recipe, given: Mapping[str, TensorType] | None) -> Types:
    """The types of a function's arguments, in its order. `given` are those of actual arrays."""
    params = fed(function)
    reader = recipe.reader
    if given is not None:
        _said(function, recipe, {name: type_.shape for name, type_ in given.items()})
    fields = dict(given) if given is not None else _fields(reader, params, function, recipe)
    found: Types = {}
    for param in params:
        if param.name not in fields:
            raise fail(f"the reader '{reader.name}' gives no '{param.name}'", param.span,
                       help=nearest(param.name, fields) or f"it gives {' and '.join(fields)}")
        found[param.name] = fields[param.name]
    return found


def fed(function: Function) -> list[s.Param]:
    """The parameters of a function that the reader gives."""
    return [p for p in function.definition.params
            if p.default is None and kind_of(p, function.scope) != "Key"]


def _fields(
    reader: Reader, params: Sequence[s.Param], function: Function, recipe: Recipe
) -> Types:
    if reader.gives:
        return {name: tensor(dtype, tuple(_extent(reader, n, recipe) for n in dims))
                for name, (dtype, dims) in reader.gives.items()}
    batch = _extent(reader, "batch", recipe) if "batch" in reader.arguments else None
    shapes = {} if recipe.shapes is None else recipe.shapes(reader)
    recipe.sizes = {**_said(function, recipe, shapes), **recipe.sizes}
    found = {name: tensor("f32", shape) for name, shape in shapes.items()}
    for param in params:
        if recipe.shapes is not None and param.name not in shapes:
            continue  # which is told where it is missed
        wanted = _declared(*_typed(param, function, recipe), batch, recipe)
        if wanted.shape != shapes.get(param.name, wanted.shape):
            raise _unfit(param, wanted, shapes[param.name], function, recipe)
        found[param.name] = wanted
    return found


def _unfit(
    param: s.Param, wanted: TensorType, shape: tuple[int, ...], function: Function, recipe: Recipe
) -> UserError:
    """Data of another shape than is declared, and what of that the recipe has said."""
    typed, _ = _typed(param, function, recipe)
    arguments = recipe.instance.arguments
    named = dict.fromkeys(n.id for n in s.walk(typed) if isinstance(n, s.Name))
    said = ", ".join(f"{name} = {arguments[name]}" for name in named if name in arguments)
    notes = [Note(f"the recipe says {said}", recipe.definition.span)] if said else []
    return fail(f"'{param.name}' is {wanted} in a batch, and the reader '{recipe.reader.name}' "
                f"gives {list(shape)}", typed.span, *notes)


def _said(
    function: Function, recipe: Recipe, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, object]:
    """The open sizes of a function's arguments, as the data have them; no override says others."""
    wanted = open_sizes(function, recipe)
    found: dict[str, object] = {}
    for param in fed(function):
        typed, owner = _typed(param, function, recipe)
        type_, _ = without_layout(typed.type)
        if isinstance(type_, s.Index) and param.name in shapes:
            bound = bound_sizes(type_.items, shapes[param.name], owner.scope)
            for name, size in bound:
                if name in wanted and size != recipe.overrides.get(name, size):
                    raise fail(f"{name} is set to {recipe.overrides[name]}, and '{param.name}' "
                               f"of the data has {name}={size}", typed.span)
                if name in wanted:
                    found.setdefault(name, size)
    return found


def open_sizes(function: Function, recipe: Recipe) -> set[str]:
    """Names in the types of a function's arguments that are sizes of neither the model nor the
    batch."""
    if recipe.reader.gives:
        return set()
    names, batches = set(), set()
    for param in fed(function):
        typed, owner = _typed(param, function, recipe)
        match without_layout(typed.type)[0]:
            case s.Index(_, (first, *rest)):
                if "batch" in recipe.reader.arguments:
                    batches |= {n.id for n in s.walk(first) if isinstance(n, s.Name)}
                names |= {n.id for item in (first, *rest) for n in s.walk(item)
                          if isinstance(n, s.Name) and owner.scope.find(n.id) is MISSING}
    return names - batches


def _extent(reader: Reader, name: str, recipe: Recipe) -> int:
    value = reader.arguments.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise fail(f"the reader '{reader.name}' needs a positive integer '{name}'",
                   recipe.span("data"), help=f"as in {reader.name}({name}=16)")
    return value


def _typed(param: s.Param, function: Function, recipe: Recipe) -> tuple[s.Param, Function]:
    """Where the type of an argument is declared."""
    if param.type is not None:
        return param, function
    for other in recipe.instance.scope.names.values():
        if isinstance(other, Function):
            for same in other.definition.params:
                if same.name == param.name and isinstance(without_layout(same.type)[0], s.Index):
                    return same, other
    return param, function


def _declared(
    param: s.Param, function: Function, batch: int | None, recipe: Recipe
) -> TensorType:
    """The type that a parameter declares; its first dimension is the batch, if that is known."""
    type_, _ = without_layout(param.type)
    match type_:
        case s.Index(s.Name(head), (first, *rest)) if isinstance(function.scope.find(head), Dtype):
            names = dict(recipe.sizes)
            if isinstance(first, s.Name) and batch is not None:
                names[first.id] = batch
            frame = Frame(function.scope.inner(), recipe.builder)
            sizes = Sizes(names, OF_RECIPE)
            shape = [n for item in (first, *rest) for n in dimensions(item, sizes, frame)]
            return tensor(head, tuple(shape))
    raise fail(f"the type of '{param.name}' does not say what the reader must give", param.span,
               help="as in x: f32[B, 784]")
