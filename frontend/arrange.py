"""Which index statements of a body belong together: those that read one another, as a recurrence.

`arranged` gives the statements of a body in the order in which they run. That is the order of the
text, except that equations which stand next to each other and read one another in a circle become
one `Recurrence`, in the place of its first; what it reads from between them comes before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from anabranch.frontend import syntax as s


@dataclass(frozen=True, slots=True)
class Recurrence(s.Node):
    """Equations each of which reads, at last, itself."""

    equations: tuple[s.Equation, ...]


Runnable = s.Statement | Recurrence


def arranged(body: Sequence[s.Statement]) -> Iterator[Runnable]:
    at = 0
    while at < len(body):
        if not isinstance(body[at], s.Equation):
            yield body[at]
            at += 1
            continue
        run: list[s.Equation] = []
        while at < len(body) and isinstance(equation := body[at], s.Equation):
            run.append(equation)
            at += 1
        yield from _grouped(run)


def _grouped(run: list[s.Equation]) -> Iterator[Runnable]:
    """Neighbouring equations in the order in which they can be computed."""
    place = {equation.target.id: n for n, equation in enumerate(run)}
    reads = [{place[name] for name in _read_names(equation) if name in place} for equation in run]
    if all(m < n for n, before in enumerate(reads) for m in before):
        yield from run
        return
    yield from _Order(run, reads).all()


@dataclass(slots=True)
class _Order:
    """The text's order, but that a circle waits for what it reads."""

    run: list[s.Equation]
    reads: list[set[int]]
    done: set[int] = field(default_factory=set)

    def all(self) -> Iterator[Runnable]:
        for n in range(len(self.run)):
            yield from self.one(n)

    def one(self, n: int) -> Iterator[Runnable]:
        if n in self.done:
            return
        circle = sorted(m for m in self.reached(n) if n in self.reached(m))
        self.done |= {n, *circle}
        if not circle:
            yield self.run[n]
            return
        for m in sorted(set().union(*(self.reads[each] for each in circle))):
            yield from self.one(m)
        members = tuple(self.run[m] for m in circle)
        yield Recurrence(members, span=members[0].span)

    def reached(self, start: int) -> set[int]:
        """What a statement reads, directly or through others."""
        found: set[int] = set()
        waiting = list(self.reads[start])
        while waiting:
            n = waiting.pop()
            if n not in found:
                found.add(n)
                waiting += self.reads[n]
        return found


def _read_names(equation: s.Equation) -> set[str]:
    bound = {name.id for item in equation.items for name in _names(item)}
    return {name.id for name in _names(equation.value)} - bound


def _names(node: s.Node) -> Iterator[s.Name]:
    return (each for each in s.walk(node) if isinstance(each, s.Name))
