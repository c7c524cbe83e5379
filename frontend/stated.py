"""What `stop(e, grad=g)` may state: `g` is an expression whose derivative is taken.

So a `g` of which nothing has a derivative (a number, an integer, what is stopped) would silently
give none to an `e` that moves. Where nothing of `e` has one either, none was to be given: then a
definition is used on constants, which it may be.
"""

from __future__ import annotations

from collections.abc import Iterator

from anabranch.frontend.builder import Builder
from anabranch.frontend.evaluate import Frame, certain
from anabranch.frontend.values import Element, Tensor
from anabranch.ir.diagnostics import Span
from anabranch.ir.expr import Call, Cast, Expr, Read, children
from anabranch.ir.ops import Compute
from anabranch.ir.scalar import PRIMITIVES
from anabranch.ir.types import is_float

MEANT = ("grad= is an expression that has the derivative wanted, not the derivative itself: "
         "straight through, as if it were x, is stop(e, grad=x), and a derivative d by x is "
         "stop(e, grad=stop(d) * x); stop(e) alone has none")


def has_derivative(expr: Expr, builder: Builder) -> bool:
    """Whether a derivative of an expression by some argument or weight may be taken, going back
    through the statements that it reads."""
    ahead = [builder.valued(number) for number in _differentiated(expr)]
    seen = set()
    while ahead:
        value = ahead.pop()
        if value in seen or not is_float(value.type.dtype):
            continue
        if value.op is None:
            return True
        seen.add(value)
        numbers = (_differentiated(value.op.body) if isinstance(value.op, Compute)
                   else range(len(value.op.operands)))
        ahead += [value.op.operands[number] for number in numbers]
    return False


def _differentiated(expr: Expr) -> Iterator[int]:
    """The operands whose derivatives that of an expression is made of."""
    match expr:
        case Read(operand):
            yield operand
        case Call("stop_grad", (_, slope)):
            yield from _differentiated(slope)
        case Call("where", (_, yes, no)):
            yield from _differentiated(yes)
            yield from _differentiated(no)
        case Call(fn) if fn == "stop" or PRIMITIVES[fn].kind == "bool":
            return
        case Cast(dtype) if not is_float(dtype):
            return
        case _:
            for child in children(expr):
                yield from _differentiated(child)


def check_stated(made: Element | Tensor, grad: object, frame: Frame, span: Span) -> None:
    """Refuse a gradient of which a float that has one gets nothing."""
    match (made.element if isinstance(made, Tensor) else made).expr:
        case Call("stop_grad", (value, slope)) if is_float(made.dtype):
            if _has_none(grad) or (has_derivative(value, frame.builder)
                                   and not has_derivative(slope, frame.builder)):
                raise certain("nothing that 'grad' is made of has a derivative here, so no "
                              "gradient comes of it", span, help=MEANT)


def _has_none(grad: object) -> bool:
    """Whether it is a number of the program, or of a dtype that never has a gradient."""
    return not isinstance(grad, Element | Tensor) or not is_float(grad.dtype)
