"""Sizes that a signature names apart, where the definition holds only if they are equal.

A transposed index, or a mean without `keepdims`, is right for square tensors alone. That is told
from what a definition may ask of its sizes: whatever differs is tried in either order and as
multiples, sums and powers; an assertion says by itself what it wants; and the equal sizes must be
right with more than one number. A parameter whose sizes may all be 1 is broadcast: then nothing is
wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, islice

import numpy as np

from anabranch.frontend import syntax as s
from anabranch.frontend.check import sample
from anabranch.frontend.control import Failed
from anabranch.frontend.evaluate import Unsupported
from anabranch.frontend.values import Function
from anabranch.ir.diagnostics import Diagnostic, UserError
from anabranch.trials import built

Groups = tuple[tuple[str, ...], ...]

MOST_NAMES = 8
MOST_GROUPED = 5  # in all ways, which are 52; of more names only two are named alike
ORDERED = ((5, 7, 11, 13, 17, 19, 23, 29), (29, 23, 19, 17, 13, 11, 7, 5),
           (256, 128, 64, 32, 16, 8, 4, 2), (2, 4, 8, 16, 32, 64, 128, 256))
DRAWN = 24
PACKS, INTEGERS = (2, 1, 0), (2, 1, 3)  # lengths of packs, and what integers are


def unsaid(function: Function, tried: Mapping[str, object]) -> Diagnostic | None:
    """The mistake of a definition that was right with some sizes, if it is right only with equal
    ones where its signature has different names."""
    names = _names(function)
    if len({tried[name] for name in names}) == len(names) or len(names) > MOST_NAMES:
        return None
    first = _refused_everywhere(function, names)
    if first is None or _is_broadcast(function, names):
        return None
    equal = next((groups for groups in _groupings(names) if _holds(function, groups)), ())
    said = ", ".join(" = ".join(group) for group in equal if len(group) > 1)
    return _mistake(first, said, names) if said else None


def _refused_everywhere(function: Function, names: Sequence[str]) -> Diagnostic | None:
    """What is said of sizes that all differ, if it is the same place that refuses them."""
    first: Diagnostic | None = None
    for sizes in _sizings(function, _apart(names)):
        error = _refusal(function, sizes)
        if error is None or isinstance(error, Failed | Unsupported):
            return None
        first = first or error.diagnostics[0]
        if error.diagnostics[0].span != first.span:
            return None
    return first


def _mistake(first: Diagnostic, said: str, names: Sequence[str]) -> Diagnostic:
    sizes = ", ".join(f"{name} = {size}" for name, size in zip(names, ORDERED[0], strict=False))
    return replace(first, message=f"this holds only where {said}: with {sizes}, {first.message}",
                   help="if that is meant, name these sizes alike in the signature")


def _names(function: Function) -> list[str]:
    """The sizes that a signature names, but for packs and parameters."""
    params = {param.name for param in function.definition.params}
    found = sample(function, (2,), 1) or {}
    return [name for name, size in found.items()
            if isinstance(size, int) and name not in params]


def _apart(names: Sequence[str]) -> Groups:
    return tuple((name,) for name in names)


def _groupings(names: Sequence[str]) -> list[Groups]:
    """The ways to name sizes alike, those first that ask for the least."""
    if len(names) <= MOST_GROUPED:
        return sorted(_parted(tuple(names)), key=len, reverse=True)
    return [(pair, *_apart([name for name in names if name not in pair]))
            for pair in combinations(names, 2)]


def _parted(names: tuple[str, ...]) -> Iterator[Groups]:
    if not names:
        yield ()
        return
    *before, last = names
    for groups in _parted(tuple(before)):
        yield (*groups, (last,))
        for n, group in enumerate(groups):
            yield (*groups[:n], (*group, last), *groups[n + 1:])


def _holds(function: Function, groups: Groups) -> bool:
    """Whether these are right, with more than one number for what is equal."""
    group = max(groups, key=len)
    right = {sizes[group[0]] for sizes in _sizings(function, groups)
             if len(group) > 1 and _refusal(function, sizes) is None}
    return len(right) > 1


def _is_broadcast(function: Function, names: Sequence[str]) -> bool:
    """Whether a parameter with sizes of its own may have 1 for all of them."""
    written = [{node.id for node in s.walk(param.type) if isinstance(node, s.Name)} & {*names}
               for param in function.definition.params if param.type is not None]
    shared = {name for name in names if sum(name in each for each in written) > 1}
    return any(_refusal(function, {**sizes, **dict.fromkeys(own, 1)}) is None
               for own in written if own and not own & shared and len(own) < len(names)
               for sizes in islice(_sizings(function, _apart(names)), len(ORDERED)))


def _sizings(function: Function, groups: Groups) -> Iterator[dict[str, object]]:
    """A size for each group, no two of them alike."""
    random = np.random.default_rng(0)
    drawn = [random.permutation(np.arange(2, 14)).tolist() for _ in range(DRAWN)]
    for number, sizes in enumerate((*ORDERED, *drawn)):
        way = number % len(PACKS)
        given = sample(function, (3, 4), PACKS[way], INTEGERS[way]) or {}
        yield {**given, **{name: size for group, size in zip(groups, sizes, strict=False)
                           for name in group}}


def _refusal(function: Function, sizes: Mapping[str, object]) -> UserError | None:
    try:
        built(function, sizes)
    except UserError as error:
        return error
    return None
