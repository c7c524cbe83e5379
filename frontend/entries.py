"""Functions that are called from outside: their parameters become arguments of an `ir.Function`.

Dimensions, generic dtypes and compile-time parameters come from `sizes`, by name; a parameter of
type `Key` is derived from the seed and the step that the runtime gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.frontend import syntax as s
from anabranch.frontend.arguments import Argument
from anabranch.frontend.builder import Builder
from anabranch.frontend.calls import call
from anabranch.frontend.evaluate import Frame, evaluate, unsupported
from anabranch.frontend.signatures import is_dtype, kind_of, without_layout
from anabranch.frontend.values import MISSING, Dtype, Function, Generic, Scope, Tensor
from anabranch.ir.core import Function as IrFunction
from anabranch.ir.diagnostics import Diagnostic, UserError, fail, nearest
from anabranch.ir.types import DTYPES, TensorType, tensor

GENERIC_DEFAULTS = {"T": "f32", "U": "f32", "Float": "f32", "Int": "i64"}
BY_NAME = "give it by name, as in {name}=8 (--set {name}=8 in a shell)"
OF_RECIPE = 'set it: set={{"{name}": 8}}, or --set {name}=8 in a shell'


class Open(UserError):
    """A size, by its name, that is for the caller, or the data, to say."""

    name = ""


@dataclass(slots=True)
class Sizes:
    """Values for the names in a signature, how more are given, and which of them were used."""

    given: Mapping[str, object]
    how: str = BY_NAME
    used: set[str] = field(default_factory=set)

    def get(self, name: str) -> object:
        self.used.add(name)
        return self.given.get(name, MISSING)


def build_entry(
    function: Function, sizes: Sizes, builder: Builder, order: Sequence[str] = (),
) -> IrFunction:
    """The whole function of a fully typed op, def or model function."""
    frame = Frame(function.scope.inner(), builder)
    builder.loc = frame.loc(function.definition.span)
    arguments: dict[str, Argument] = {}
    for param in function.definition.params:
        value = _argument(param, function, sizes, frame)
        if value is not MISSING:
            arguments[param.name] = Argument(value, param.span)
    result = call(function, [], arguments, frame, function.definition.span)
    results = list(result) if isinstance(result, tuple | list) else [result]
    for each in results:
        if not isinstance(each, Tensor):
            # A mistake only of those who ask for it: a def may well give numbers to others.
            raise unsupported(f"'{function.definition.name}' does not give tensors only",
                              function.definition.span)
    updated = {path: builder.states[path] for path in builder.updated}
    return builder.finish([r for r in results if isinstance(r, Tensor)], updated, order)


def _argument(param: s.Param, function: Function, sizes: Sizes, frame: Frame) -> object:
    """An input of the function, or a compile-time value; MISSING where the callee supplies it."""
    type_, _ = without_layout(param.type)
    if kind_of(param, function.scope) == "Key":
        return MISSING
    match type_:
        case s.Index(s.Name(head), items) if is_dtype(head, function.scope):
            if isinstance(param.default, s.Constant) and sizes.get(param.name) is not True:
                return None
            shape = [n for item in items for n in dimensions(item, sizes, frame)]
            type = tensor(_dtype(head, sizes, function.scope), tuple(shape))
            return frame.builder.input(param.name, type, span=param.span)
        case s.Name(head) if is_dtype(head, function.scope) and head != "bool":
            wanted = sizes.get(param.name)
            shape = list(wanted) if isinstance(wanted, list | tuple) else []
            type = tensor(_dtype(head, sizes, function.scope), tuple(int(n) for n in shape))
            return frame.builder.input(param.name, type, span=param.span)
    value = sizes.get(param.name)
    if value is not MISSING:
        frame.scope.names[param.name] = value
        return value
    if param.default is not None:
        value = evaluate(param.default, frame)
        frame.scope.names[param.name] = value
        return value
    what = "has no type" if param.type is None else "is known when compiling"
    raise fail(f"the parameter '{param.name}' of '{function.definition.name}' {what}", param.span,
               help=f"give its value: {param.name}=...")


def _dtype(head: str, sizes: Sizes, scope: Scope) -> str:
    found = scope.find(head)
    if isinstance(found, Dtype):
        return found.name
    wanted = sizes.get(head)
    return wanted if isinstance(wanted, str) and wanted in DTYPES else GENERIC_DEFAULTS[head]


def dimensions(item: s.Expr, sizes: Sizes, frame: Frame) -> list[int]:
    """The sizes that a dimension of a type stands for."""
    match item:
        case s.Star(s.Name(name)):
            value = _named(name, item, sizes, frame)
            if not isinstance(value, list | tuple):
                raise fail(f"the pack '{name}' takes a list of sizes", item.span)
            return [int(v) for v in value]
        case s.Name(name):
            return [_integer(_named(name, item, sizes, frame), item)]
    inner = frame.scope.inner()
    for each in s.walk(item):
        if isinstance(each, s.Name) and frame.scope.find(each.id) is MISSING:
            inner.names[each.id] = _named(each.id, each, sizes, frame)
    return [_integer(evaluate(item, Frame(inner, frame.builder)), item)]


def _named(name: str, node: s.Expr, sizes: Sizes, frame: Frame) -> object:
    """A dimension by name: a name in scope, else a size that was given."""
    value = frame.scope.find(name)
    if isinstance(value, int | list | tuple) and not isinstance(value, bool):
        return value
    value = sizes.get(name)
    if value is MISSING:
        unknown = Open(Diagnostic(
            f"the size of the dimension '{name}' is not known", node.span,
            help=nearest(name, sizes.given)
            or sizes.how.format(name=name)))
        unknown.name = name
        raise unknown
    return value


def _integer(value: object, node: s.Expr) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise fail("a dimension is an integer of at least 0", node.span)
    return value


def bound_names(function: Function, types: Mapping[str, TensorType]) -> dict[str, object]:
    """What arguments of these types bind: dimensions standing alone, packs, generic dtypes, and
    the shapes of the arguments of a scalar op."""
    found: dict[str, object] = {}
    for param in function.definition.params:
        type_, _ = without_layout(param.type)
        if param.name not in types:
            continue
        given = types[param.name]
        match type_:
            case s.Index(s.Name(head), items):
                found[param.name] = True  # an optional tensor is there
                found |= {k: v for k, v in bound_sizes(items, given.shape, function.scope)
                          if k not in found}
                if isinstance(function.scope.find(head), Generic):
                    found.setdefault(head, given.dtype)
            case s.Name(head) if isinstance(function.scope.find(head), Generic | Dtype):
                found[param.name] = list(given.shape)
                found.setdefault(head, given.dtype)
    return found


def bound_sizes(
    items: Sequence[s.Expr], shape: tuple[int, ...], scope: Scope
) -> Iterator[tuple[str, int | list[int]]]:
    """Names in a type with the sizes they stand for; one pack may be of any length."""
    lengths = [_length(item, scope) for item in items]
    if lengths.count(None) > 1:
        return
    rest = len(shape) - sum(n for n in lengths if n is not None)
    start = 0
    for item, known in zip(items, lengths, strict=True):
        length = max(0, rest) if known is None else known
        part = shape[start:start + length]
        start += length
        match item:
            case s.Name(name) if part:
                yield name, part[0]
            case s.Star(s.Name(name)):
                yield name, list(part)


def _length(item: s.Expr, scope: Scope) -> int | None:
    """How many dimensions an item of a type stands for, where the scope says it."""
    if not isinstance(item, s.Star):
        return 1
    sizes = scope.find(item.value.id) if isinstance(item.value, s.Name) else None
    return len(sizes) if isinstance(sizes, list | tuple) else None
