"""Functions of the language about a whole computation: `grad`, `report`, `minimize`."""

from __future__ import annotations

from anabranch.frontend.builtins import Call, builtin
from anabranch.frontend.evaluate import certain, resolved
from anabranch.frontend.expressions import iterated
from anabranch.frontend.tensors import as_tensor
from anabranch.frontend.values import Tensor, describe
from anabranch.ir.types import is_float


@builtin("grad")
def _grad(call: Call, y: object, x: object) -> object:
    """The gradient of a scalar by a tensor, or by each of a list: zeros where `y` does not use
    it."""
    if not isinstance(y, Tensor) or y.rank or not is_float(y.dtype):
        raise certain(f"'grad' is of a 0-d float tensor, not of {describe(y)}", call.span,
                   help="reduce it first, as in grad(sum(y), x)")
    several = isinstance(x, list | tuple)
    items = iterated(x, call.span) if several else [x]
    by = [_variable(resolved(item, call.span, call.frame), call) for item in items]
    grads = call.frame.builder.gradient(y, by) if by else []
    return grads if several else grads[0]


def _variable(x: object, call: Call) -> Tensor:
    if not isinstance(x, Tensor):
        raise certain(f"'grad' is by a tensor or a list of them, not by {describe(x)}", call.span)
    if not is_float(x.dtype):
        raise certain(f"'grad' is by a float tensor, not by {describe(x)}", call.span)
    if x.value is None:
        raise certain("'grad' is by a tensor that something was computed from, and this one is "
                   "made here", call.span, help="give it a name first: h = ...; then grad(y, h)")
    return x


@builtin("report")
def _report(call: Call, **scalars: object) -> None:
    """Record scalars of this step; of several under one name the last one counts."""
    if not scalars:
        raise certain("'report' takes scalars by name", call.span, help="as in report(norm=n)")
    builder = call.frame.builder
    for name, given in scalars.items():
        value = as_tensor(given, call.span)
        if value.rank:
            raise certain(f"'{name}' is {describe(value)}, and what is reported is a scalar",
                       call.span, help="reduce it, as in mean(...)")
        builder.reports[name] = (builder.held(value, name), call.span)


@builtin("minimize")
def _minimize(call: Call, loss: object, *patterns: object) -> None:
    """`minimize(loss, "critic.*")`: in an `update`, a step of the parameters of these paths."""
    raise certain("'minimize' stands in the 'update' of a recipe", call.span)
