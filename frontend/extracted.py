"""Elements that statements of their own compute, to be read back in place.

Reductions are such, and reads at places that are data; so is what has grown large. Whatever is done
with an expression is done for each place where it stands: a value that is read twice would double
at each of the calls around it, and each partial derivative of a product has all of its factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce as fold

from anabranch.frontend import elements
from anabranch.frontend.evaluate import Frame, Index
from anabranch.frontend.tensors import over, read, row_major
from anabranch.frontend.values import WEAK, Element, weak
from anabranch.ir.expr import Call, Expr, variables


def extracted(
    element: Element, reduced: Sequence[str], index: Index, frame: Frame, *, reduce: str = "",
    guard: Expr | None = None, dtype: str | None = None,
) -> Element:
    """A compute of its own over the variables in use, read back in place."""
    used = variables(element.expr) | (variables(guard) if guard is not None else set())
    open_ = [v for v in index.order if v in used and v not in reduced]
    left = [v for dim in index.dims for v in dim]
    dims = index.dims if open_ == left else tuple((v,) for v in open_)
    ranges = [(v, index.extents[v]) for v in (*open_, *reduced)]
    result = frame.builder.emit(element, ranges, dims, reduce=reduce, reduced=reduced,
                                guard=guard, dtype=dtype, name=index.name)
    places = tuple(row_major(dim, index.extents) for dim in dims)
    return read(result, places, frame.builder)


def kept_small(element: Element, frame: Frame, most: int = elements.LARGE) -> Element:
    """The element, computed first if it is large and no index value, which proofs look into."""
    if element.level == WEAK or not elements.is_large(element, most):
        return element
    if frame.index is not None:
        return _where_chosen(element, frame.index, frame)
    if frame.shape is not None:
        return frame.builder.held(over(frame.shape, element)).element
    return element


def _where_chosen(element: Element, index: Index, frame: Frame) -> Element:
    """Where a condition does not choose the element, it may read outside of a tensor: 0 there."""
    if index.conditions:
        chosen = fold(lambda a, b: Call("and", (a, b)), index.conditions)
        zero = elements.convert(weak(0), element.dtype)
        element = replace(element, expr=Call("where", (chosen, element.expr, zero)))
    return extracted(element, (), replace(index, name=""), frame)
