"""Calls against signatures: arguments find their parameters, dimensions and dtypes are bound.

In the type of a parameter a name in scope is that integer; an unknown capitalised name standing
alone binds a dimension or must equal its earlier binding; a pack `*I` binds the sizes of any number
of dimensions. Everything else is an expression, checked once all names are bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anabranch.frontend import elements
from anabranch.frontend import syntax as s
from anabranch.frontend.arguments import Argument, Definition
from anabranch.frontend.dimensions import Binding, Given, bind_shape, check_later, dimension
from anabranch.frontend.evaluate import evaluate
from anabranch.frontend.expressions import fitting
from anabranch.frontend.mistakes import NOTHING_RETURNED
from anabranch.frontend.unparse import format_expression
from anabranch.frontend.values import (
    FULL,
    WEAK,
    Dtype,
    Element,
    Function,
    Generic,
    Instance,
    Key,
    Kind,
    Model,
    Scope,
    State,
    Tensor,
    describe,
    weak,
)
from anabranch.ir.diagnostics import Note, Span, UserError, fail, nearest
from anabranch.ir.expr import integer
from anabranch.ir.sbp import Layout
from anabranch.ir.types import category, is_float, promote, tensor

CATEGORIES = {"Float": "float", "Int": "int"}


def kind_of(param: s.Param, scope: Scope) -> str:
    """`Key`, `Shape`, `int`, ... for a parameter of such a type, the first of several; an empty
    string for others."""
    first = None if param.type is None else alternatives(param.type)[0]
    found = scope.find(first.id) if isinstance(first, s.Name) else None
    return found.name if isinstance(found, Kind) else ""


def bind(
    definition: Definition, given: Mapping[str, Argument], binding: Binding, span: Span
) -> None:
    """Bind all parameters, in order: values, dimensions, dtypes; then check what was put off."""
    for param in definition.params:
        if param.name in given:
            argument = given[param.name]
        elif param.default is not None:
            argument = Argument(evaluate(param.default, binding.frame), param.span)
            if argument.value is None:
                binding.names[param.name] = None
                continue
        else:
            continue  # the caller supplies it
        binding.names[param.name] = _accepted(param, argument, binding)
    check_later(binding)
    for name, dtype in binding.dtypes.items():
        binding.names.setdefault(name, Dtype(dtype))


def alike(
    params: Sequence[s.Param], given: Mapping[str, Argument], binding: Binding
) -> dict[str, Argument]:
    """The arguments of a scalar op, those of one generic type brought to their common dtype, as in
    PyTorch; whole numbers given for `Float` become f32. In the body the type is that dtype."""
    found = dict(given)
    heads = [(p.name, p.type.id) for p in params
             if isinstance(p.type, s.Name) and isinstance(binding.outer.find(p.type.id), Generic)]
    for head in dict.fromkeys(head for _, head in heads):
        names = [name for name, own in heads if own == head and name in found]
        typed = [e for name in names if (e := _element(found[name].value)) is not None]
        if head == "Int" or not typed:
            continue
        dtype, _ = elements.promoted(typed, found[names[0]].span)
        if head == "Float" and not is_float(dtype):
            dtype = "f32"
        binding.dtypes[head] = dtype
        for name in names:
            found[name] = Argument(_in_dtype(found[name].value, dtype), found[name].span)
    return found


def _element(value: object) -> Element | None:
    """What a value weighs in a promotion."""
    if isinstance(value, Tensor):
        return value.element
    if isinstance(value, bool | int | float):
        return weak(value)
    return value if isinstance(value, Element) else None


def _as_floats(head: str, x: Tensor) -> Tensor:
    """Whole numbers given for `Float` become f32."""
    if head != "Float" or is_float(x.dtype) or x.element.level == WEAK:
        return x
    cast = Element(elements.convert(x.element, "f32"), "f32", x.element.level)
    return Tensor(x.shape, cast)


def _in_dtype(value: object, dtype: str) -> object:
    """A tensor or element in a dtype; numbers give way by themselves."""
    element = value.element if isinstance(value, Tensor) else value
    if not isinstance(element, Element) or element.dtype == dtype or element.level == WEAK:
        return value
    cast = Element(elements.convert(element, dtype), dtype, element.level)
    return Tensor(value.shape, cast) if isinstance(value, Tensor) else cast


def _accepted(param: s.Param, argument: Argument, binding: Binding) -> object:
    """The value of a parameter, checked against its type."""
    type_, layout = without_layout(param.type)
    value = argument.value
    if type_ is None or (value is None and isinstance(param.default, s.Constant)):
        return value
    what = f"'{param.name}' of '{binding.owner}'"
    match type_:
        case s.Index(s.Name(head), items) if is_dtype(head, binding.outer):
            x = _as_tensor(value, what, argument.span)
            if isinstance(binding.outer.find(head), Generic):
                x = _as_floats(head, x)
            _bind_dtype(head, x, what, argument.span, binding)
            bind_shape(Given(items, x, what, argument.span, type_.span), binding)
            if isinstance(value, State):
                return value
            return pinned(x, layout, binding)
        case s.Name(head) if is_dtype(head, binding.outer):
            return _scalar(head, value, what, argument.span, binding)
        case s.List((inner,)):
            return _list(inner, param, argument, binding)
        case s.Binary("|"):
            return _one_of(type_, param, argument, binding)
        case s.Name(head):
            return _compile_time(head, value, what, argument.span, type_.span, binding)
    raise fail("this is not a type", type_.span,
               help="a type is f32[N, 4], T[*I], int, float, bool, str, Key, Shape or [int]")


def without_layout(type_: s.Expr | None) -> tuple[s.Expr | None, s.Layout | None]:
    """A type and the layout that is pinned to it."""
    match type_:
        case s.Binary("@", inner, s.Layout() as layout):
            return inner, layout
    return type_, None


def is_dtype(name: str, scope: Scope) -> bool:
    return isinstance(scope.find(name), Dtype | Generic)


def pinned(x: Tensor, layout: s.Layout | None, binding: Binding) -> Tensor:
    """`x` in the layout of its type, if that has one."""
    if layout is None:
        return x
    found = evaluate(layout, binding.frame)
    assert isinstance(found, Layout)
    return binding.frame.builder.pin(x, fitting(found, x.rank, layout.span))


def _as_tensor(value: object, what: str, span: Span) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, bool | int | float):
        return Tensor((), weak(value, span))
    if isinstance(value, State):  # given to a model: only its type is known
        return Tensor(value.type.shape, Element(integer(0), value.type.dtype, FULL))
    if isinstance(value, Element):
        raise fail(f"{what} is a whole tensor, and this is one element of one", span,
                   help="call it on whole tensors in a statement of its own: y = f(x)")
    raise fail(f"{what} is a tensor, not {describe(value)}", span,
               help=NOTHING_RETURNED if value is None else "")


# ---- Dtypes


def _bind_dtype(head: str, x: Tensor, what: str, span: Span, binding: Binding) -> None:
    found = binding.outer.find(head)
    if isinstance(found, Dtype):
        if x.element.level != WEAK and x.dtype != found.name:
            raise fail(f"{what} has dtype {found.name}, and this is {describe(x)}", span,
                       help=f"cast it: {found.name}(...)")
        return
    if head in CATEGORIES:
        wanted = CATEGORIES[head]
        if category(x.dtype) != wanted and not (x.element.level == WEAK and wanted == "float"):
            raise fail(f"{what} has a{'n' if wanted == 'int' else ''} {wanted} dtype, and this is "
                       f"{describe(x)}", span,
                       help="cast it: f32(...)" if wanted == "float" else "cast it: i64(...)")
        return
    if x.element.level == WEAK:
        return
    if binding.dtypes.setdefault(head, x.dtype) != x.dtype:
        common = promote(binding.dtypes[head], x.dtype) or binding.dtypes[head]
        raise fail(f"{what} has dtype {head}, which is {binding.dtypes[head]} in this call, and "
                   f"this is {describe(x)}", span, binding.first[head],
                   help=f"cast one of them: {common}(...)")
    binding.first.setdefault(head, Note(f"{head} is {x.dtype} because of {what}", span))


def _scalar(head: str, value: object, what: str, span: Span, binding: Binding) -> object:
    """The argument of a scalar op: a number, an element, or a tensor that is broadcast."""
    if isinstance(value, bool | int | float):
        if head == "bool" and not isinstance(value, bool):
            raise fail(f"{what} is True or False, not {describe(value)}", span)
        return value
    if isinstance(value, Element):
        _bind_dtype(head, Tensor((), value), what, span, binding)
        return value
    _bind_dtype(head, _as_tensor(value, what, span), what, span, binding)
    return value


# ---- Compile-time values


def _list(inner: s.Expr, param: s.Param, argument: Argument, binding: Binding) -> object:
    what = f"'{param.name}' of '{binding.owner}'"
    if not isinstance(argument.value, list | tuple):
        raise fail(f"{what} is a list, not {describe(argument.value)}", argument.span)
    one = s.Param(param.name, inner, None, span=param.span)
    return [_accepted(one, Argument(v, argument.span), binding) for v in argument.value]


def alternatives(type_: s.Expr) -> list[s.Expr]:
    """The types of `A | B`, in order."""
    match type_:
        case s.Binary("|", left, right):
            return [*alternatives(left), *alternatives(right)]
    return [type_]


def _one_of(
    union: s.Binary, param: s.Param, argument: Argument, binding: Binding
) -> object:
    """The value as the first of several types that it fits."""
    types = alternatives(union)
    for type_ in types:
        if isinstance(type_, s.Constant) and type_.value is None:
            if argument.value is None:
                return None
            continue
        try:
            return _accepted(s.Param(param.name, type_, None, span=param.span), argument, binding)
        except UserError:
            continue
    *most, last = map(format_expression, types)
    raise fail(f"'{param.name}' of '{binding.owner}' is {', '.join(most)} or {last}, not "
               f"{describe(argument.value)}", argument.span,
               Note("it is declared here", union.span))


def _compile_time(
    head: str, value: object, what: str, span: Span, type_span: Span, binding: Binding
) -> object:
    kind = binding.outer.find(head)
    if isinstance(kind, Model):
        if isinstance(value, Instance) and value.model.definition is kind.definition:
            return value
        raise fail(f"{what} is a model {head}, not {describe(value)}", span)
    if not isinstance(kind, Kind):
        raise fail(f"'{head}' is not a type", type_span,
                   help=nearest(head, binding.frame.scope.visible()))
    if kind.name == "Shape":
        return _shape(value, what, span)
    if kind.name == "Key":
        return key(value, what, span)
    if kind.name == "float" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    wanted = {"int": int, "float": float, "bool": bool, "str": str}[kind.name]
    if not isinstance(value, wanted) or (kind.name == "int" and isinstance(value, bool)):
        raise fail(f"{what} is {_article(kind.name)}, not {describe(value)}", span)
    return value


def _article(kind: str) -> str:
    names = {"int": "an integer", "float": "a number", "bool": "True or False", "str": "a text"}
    return f"{names[kind]} known when compiling"


def _shape(value: object, what: str, span: Span) -> object:
    if isinstance(value, list | tuple) and all(
        isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in value
    ):
        return list(value)
    raise fail(f"{what} is a shape: a list of integers, not {describe(value)}", span,
               help=f"write [{value}]" if isinstance(value, int) else "")


def key(value: object, what: str, span: Span) -> Key:
    if isinstance(value, Key):
        return value
    if isinstance(value, Tensor) and value.type is tensor("i64", ()):
        return Key("", value)
    raise fail(f"{what} is a key: leave it out, or pass a 0-d i64 tensor; this is "
               f"{describe(value)}", span,
               help="random numbers of a shape are drawn by an initialiser, as in normal([4, 5])")


# ---- Results


def declared_type(node: s.Expr, binding: Binding) -> tuple[str | None, tuple[int, ...]] | None:
    """The dtype (None where generic and unbound) and shape of a declared result; None if it is
    scalar."""
    type_, _ = without_layout(node)
    match type_:
        case s.Index(s.Name(head), items) if is_dtype(head, binding.outer):
            shape: list[int] = []
            for item in items:
                shape += _sizes(item, binding)
            return declared_dtype(head, binding), tuple(shape)
        case s.Index(s.Call() as head, items):
            found = evaluate(head, binding.frame)
            if isinstance(found, Dtype | Generic):
                shape = [size for item in items for size in _sizes(item, binding)]
                return found.name if isinstance(found, Dtype) else None, tuple(shape)
        case s.Name(head) if is_dtype(head, binding.outer):
            return None
    raise fail("a result is a tensor type", node.span, help="as in T[*I, N], or f32[]")


def _sizes(item: s.Expr, binding: Binding) -> list[int]:
    if isinstance(item, s.Star):
        value = evaluate(item.value, binding.frame) if not isinstance(
            item.value, s.Name) else binding.frame.scope.find(item.value.id)
        if not isinstance(value, list | tuple):
            name = item.value.id if isinstance(item.value, s.Name) else "this"
            raise fail(f"the pack '{name}' is not bound", item.span,
                       help="a pack in the type of a parameter binds it: x: T[*I]")
        return [int(v) for v in value]
    return [dimension(item, binding)]


def declared_dtype(head: str, binding: Binding) -> str | None:
    """The dtype that a declared head names in a call; None where it is generic and unbound."""
    found = binding.outer.find(head)
    if isinstance(found, Dtype):
        return found.name
    return binding.dtypes.get(head)


def scalar_signature(function: Function) -> bool:
    """Whether an op works per element: no parameter or result has dimensions."""
    definition = function.definition
    if not isinstance(definition, s.OpDef):
        return False
    types = [p.type for p in definition.params] + list(definition.results)
    return any(_is_scalar(t, function.scope) for t in definition.results) and not any(
        isinstance(without_layout(t)[0], s.Index) for t in types)


def _is_scalar(type_: s.Expr, scope: Scope) -> bool:
    return isinstance(type_, s.Name) and is_dtype(type_.id, scope)
