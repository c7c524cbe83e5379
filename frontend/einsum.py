"""`einsum`: a contraction by the letters of its axes, as index notation.

The text says which axes of the operands are the same variable; one that the result lacks is summed.
What can be summed early is: a variable of one operand alone before the products, others as soon as
no operand to come has them. So work is never multiplied; two operands make one statement.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from anabranch.frontend import elements
from anabranch.frontend.builder import Builder, letters
from anabranch.frontend.tensors import read, summable
from anabranch.frontend.values import Tensor, describe
from anabranch.ir.diagnostics import Span, fail
from anabranch.ir.expr import Expr, Var, integer

Label = Hashable  # a letter, a number, or (place from the last,) for an axis under the dots
Labels = tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class Factor:
    """A tensor and the variable of each of its axes."""

    tensor: Tensor
    labels: Labels


def einsum(
    terms: Sequence[Sequence[object]], result: Sequence[object] | None, tensors: Sequence[Tensor],
    builder: Builder, span: Span,
) -> Tensor:
    """The contraction of tensors whose axes have these labels; `...` stands for any others."""
    if len(terms) != len(tensors) or not tensors:
        raise fail(f"{len(terms)} lists of subscripts for {len(tensors)} tensors", span)
    factors = [Factor(x, _labels(term, x, span)) for term, x in zip(terms, tensors, strict=True)]
    extents = _extents(factors, span)
    output = _output(result, factors, span)
    for label in output:
        if label not in extents:
            raise fail(f"the result has the subscript '{_shown(label)}', and no operand has", span)
        if output.count(label) > 1:
            raise fail(f"the result has the subscript '{_shown(label)}' twice", span)
    return _contracted(factors, output, extents, builder, span)


def parsed(text: str, span: Span) -> tuple[list[list[object]], list[object] | None]:
    """`ij,jk->ik` as lists of labels; the result is None where it is left out."""
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = [_letters(term, text, span) for term in left.split(",")]
    return terms, _letters(right, text, span) if arrow else None


def _letters(term: str, text: str, span: Span) -> list[object]:
    before, dots, after = term.partition("...")
    for letter in before + after:
        if not letter.isalpha():
            raise fail(f"'{letter}' in the subscripts '{text}'", span,
                       help="subscripts are letters, commas, '->' and one '...' for each operand, "
                       "as in 'bij,bjk->bik'")
    return [*before, *([...] if dots else []), *after]


def _labels(term: Sequence[object], x: Tensor, span: Span) -> Labels:
    """A label for each axis of a tensor."""
    hidden = x.rank - sum(label is not ... for label in term)
    if hidden < 0 or (hidden and ... not in term):
        text = "".join("..." if label is ... else _shown(label) for label in term)
        raise fail(f"the subscripts '{text}' for {describe(x)}", span,
                   help=f"it has {x.rank} axes; '...' stands for those that have no letter")
    dots = [(hidden - n,) for n in range(hidden)]
    return tuple(each for label in term for each in (dots if label is ... else [label]))


def _extents(factors: Sequence[Factor], span: Span) -> dict[Label, int]:
    """The size of each variable; axes of size 1 are repeated."""
    found: dict[Label, int] = {}
    for factor in factors:
        for label, size in zip(factor.labels, factor.tensor.shape, strict=True):
            if found.get(label, 1) != 1 and size not in (1, found[label]):
                raise fail(f"the subscript '{_shown(label)}' has the sizes {found[label]} and "
                           f"{size}", span, help="only an axis of size 1 is repeated")
            if found.get(label, 1) == 1:
                found[label] = size
    return found


def _output(result: Sequence[object] | None, factors: Sequence[Factor], span: Span) -> Labels:
    """The labels of the result. Where it is left out: the axes under the dots, then what is there
    just once, in the order of the alphabet."""
    used = [label for factor in factors for label in factor.labels]
    dots = sorted({label for label in used if isinstance(label, tuple)}, reverse=True)
    if result is None:
        single = [label for label in used if used.count(label) == 1 and label not in dots]
        return (*dots, *sorted(single, key=_in_order))
    return tuple(each for label in result for each in (dots if label is ... else [label]))


def _in_order(label: Label) -> tuple[int, str]:
    """Letters by the alphabet, numbers by size."""
    return (label, "") if isinstance(label, int) else (0, str(label))


def _shown(label: Label) -> str:
    return "..." if isinstance(label, tuple) else str(label)


def _contracted(
    factors: list[Factor], output: Labels, extents: dict[Label, int], builder: Builder, span: Span
) -> Tensor:
    if len(factors) > 1:
        factors = [_alone(factor, [f for f in factors if f is not factor], output, extents,
                          builder, span) for factor in factors]
    pending = factors[:1]
    for n, factor in enumerate(factors[1:], 2):
        pending.append(factor)
        needed = {*output, *(label for f in factors[n:] for label in f.labels)}
        kept = tuple(dict.fromkeys(
            label for f in pending for label in f.labels if label in needed))
        if n < len(factors) and any(label not in needed for f in pending for label in f.labels):
            pending = [Factor(_statement(pending, kept, extents, builder, span), kept)]
    return _statement(pending, output, extents, builder, span)


def _alone(
    factor: Factor, others: Sequence[Factor], output: Labels, extents: dict[Label, int],
    builder: Builder, span: Span,
) -> Factor:
    """A factor without the variables that only it has, and the result has not."""
    needed = {*output, *(label for f in others for label in f.labels)}
    kept = tuple(dict.fromkeys(label for label in factor.labels if label in needed))
    if all(label in needed for label in factor.labels):
        return factor
    return Factor(_statement([factor], kept, extents, builder, span), kept)


def _statement(
    factors: Sequence[Factor], output: Labels, extents: dict[Label, int], builder: Builder,
    span: Span,
) -> Tensor:
    """`result[output] = sum[the others](product of the factors)`."""
    others = dict.fromkeys(
        label for f in factors for label in f.labels if label not in output)
    labels = [*output, *others]
    own = {label: {f.tensor.shape[d] for f in factors for d, each in enumerate(f.labels)
                   if each == label} for label in labels}
    sizes = [max(own[label], key=lambda n: n != 1) if own[label] else extents[label]
             for label in labels]
    names = dict(zip(labels, letters(len(labels)), strict=True))
    reads = [read(f.tensor, _places(f, names, dict(zip(labels, sizes, strict=True))), builder)
             for f in factors]
    product = reads[0]
    for each in reads[1:]:
        product = elements.apply("mul", [product, each], span)
    reduced = [names[label] for label in others]
    body = summable("sum", product, widened=len(factors) == 1) if reduced else product
    return builder.emit(
        body, [(names[label], size) for label, size in zip(labels, sizes, strict=True)],
        [(names[label],) for label in output], reduce="sum" if reduced else "", reduced=reduced)


def _places(factor: Factor, names: dict[Label, str], sizes: dict[Label, int]) -> list[Expr]:
    return [Var(names[label]) if size == sizes[label] else integer(0)
            for label, size in zip(factor.labels, factor.tensor.shape, strict=True)]
