"""Programs of 3 to 12 calls of the library, drawn at random, with pins where chance puts them.

A program is a graph: each call reads values made before, most often the last ones, and makes one.
Numbers stay near 1 and away from kinks, so that two ways of computing them can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Draw = Callable[[st.SearchStrategy[Any]], Any]

SIZES = st.integers(1, 5)
SHAPES = st.lists(SIZES, min_size=1, max_size=3).map(tuple)
MESHES: tuple[Mapping[str, int], ...] = (
    {"a": 2}, {"a": 3}, {"a": 4}, {"a": 2, "b": 2}, {"a": 1, "b": 2})
SMOOTH = ("tanh", "sigmoid", "gelu", "sin", "softplus", "silu", "erf")


@dataclass(slots=True)
class Program:
    """A program as it grows. `plain` has no pins: it is what a pinned one must be equal to."""

    mesh: Mapping[str, int]
    parameters: list[str] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    lines: list[tuple[str, str]] = field(default_factory=list)
    values: list[tuple[str, Shape]] = field(default_factory=list)
    pins: dict[str, str] = field(default_factory=dict)

    def text(self, *, pinned: bool) -> str:
        def to(name: str) -> str:
            return f" @ {self.pins[name]}" if pinned and name in self.pins else ""

        parameters = ", ".join(f"{p}{to(p.split(':')[0])}" for p in self.parameters)
        body = []
        for name, call in self.lines:
            body.append(f"    {name} = {call}")
            if pinned and name in self.pins:
                body.append(f"    {name} = to({name}, {self.pins[name]})")
        results = ", ".join(name for name, _ in self.leaves())
        return "\n".join([f"def f({parameters}):", *body, f"    return {results}", ""])

    def leaves(self) -> list[tuple[str, Shape]]:
        """The values that no call reads."""
        text = " ".join(call for _, call in self.lines).replace("(", " ").replace(")", " ")
        words = set(text.replace(",", " ").replace("[", " ").split())
        return [(name, shape) for name, shape in self.values if name not in words]

    def floats(self) -> list[str]:
        return [name for name, array in self.arrays.items() if array.dtype == np.float32]

    # ---- growing

    def fresh(self, shape: Shape, draw: Draw, dtype: str = "f32", below: int = 0) -> str:
        """A new argument: numbers of either sign, or integers below a bound."""
        name = f"x{len(self.parameters)}"
        random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        self.parameters.append(f"{name}: {dtype}[{', '.join(map(str, shape))}]")
        self.arrays[name] = (random.integers(0, below, shape) if below
                             else random.normal(size=shape).astype(np.float32))
        self._maybe_pin(name, shape, draw, terms=False)
        return name

    def add(self, call: str, shape: Shape, draw: Draw) -> None:
        name = f"v{len(self.lines)}"
        self.lines.append((name, call))
        self.values.append((name, shape))
        self._maybe_pin(name, shape, draw, terms=True)

    def _maybe_pin(self, name: str, shape: Shape, draw: Draw, *, terms: bool) -> None:
        if draw(st.integers(0, 2)):
            return
        splits = [f"S({d})" for d in range(len(shape))]
        entry = st.sampled_from([*splits, "B", *(["P"] if terms else [])])
        axes = draw(st.lists(st.sampled_from(sorted(self.mesh)), min_size=1, unique=True))
        self.pins[name] = "{" + ", ".join(f"{axis}: {draw(entry)}" for axis in axes) + "}"


Step = Callable[[Program, str, Shape, Draw], None]


def smooth(program: Program, x: str, shape: Shape, draw: Draw) -> None:
    program.add(f"{draw(st.sampled_from(SMOOTH))}({x})", shape, draw)


def combine(program: Program, x: str, shape: Shape, draw: Draw) -> None:
    """With a value of the same shape, or with an argument that is broadcast."""
    same = [name for name, other in program.values if other == shape]
    if same and draw(st.booleans()):
        y = draw(st.sampled_from(same))
    else:
        y = program.fresh(tuple(draw(st.sampled_from([1, n])) for n in shape), draw)
    program.add(f"{x} {draw(st.sampled_from('+-*'))} {y}", shape, draw)


def product(program: Program, x: str, shape: Shape, draw: Draw) -> None:
    columns = draw(SIZES)
    w = program.fresh((shape[-1], columns), draw)
    if len(shape) == 1:
        program.add(f"sum(reshape({x}, [{shape[0]}, 1]) * {w}, axis=0)", (columns,), draw)
    else:
        program.add(f"{x} @ {w} * 0.5", (*shape[:-1], columns), draw)


def reduction(program: Program, x: str, shape: Shape, draw: Draw) -> None:
    axis = draw(st.integers(0, len(shape) - 1))
    keep = len(shape) == 1 or draw(st.booleans())
    kind = draw(st.sampled_from(["sum", "mean", "max"]))
    left = (*shape[:axis], *((1,) if keep else ()), *shape[axis + 1:])
    program.add(f"{kind}({x}, axis={axis}, keepdims={keep})", left, draw)


def normed(program: Program, x: str, shape: Shape, draw: Draw) -> None:
    if draw(st.booleans()):
        program.add(f"{draw(st.sampled_from(['softmax', 'log_softmax']))}({x})", shape, draw)
    else:
        w, b = program.fresh(shape[-1:], draw), program.fresh(shape[-1:], draw)
        program.add(f"layer_norm({x}, {w}, {b}, eps=0.1)", shape, draw)


def reshaped(program: Program, x: str, shape: Shape, draw: Draw) -> None:
    match draw(st.integers(0, 3)):
        case 0:
            size = int(np.prod(shape))
            program.add(f"reshape({x}, [{size}])", (size,), draw)
        case 1:
            one, other = (draw(st.integers(0, len(shape) - 1)) for _ in range(2))
            order = list(range(len(shape)))
            order[one], order[other] = other, one
            program.add(f"transpose({x}, {one}, {other})", tuple(shape[d] for d in order), draw)
        case 2:
            program.add(f"reshape({x}, [1, {', '.join(map(str, shape))}])"
                        if len(shape) < 3 else f"flip({x}, axis=1)",
                        (1, *shape) if len(shape) < 3 else shape, draw)
        case _:
            size = int(np.prod(shape))
            first = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
            program.add(f"reshape({x}, [{first}, {size // first}])", (first, size // first), draw)


def cut(program: Program, x: str, shape: Shape, draw: Draw) -> None:
    if draw(st.booleans()):
        start = draw(st.integers(0, shape[0] - 1))
        stop = draw(st.integers(start + 1, shape[0]))
        program.add(f"{x}[{start}:{stop}]", (stop - start, *shape[1:]), draw)
    else:
        more = draw(SIZES)
        y = program.fresh((more, *shape[1:]), draw)
        program.add(f"concat([{x}, {y}], axis=0)", (shape[0] + more, *shape[1:]), draw)


def gathered(program: Program, x: str, shape: Shape, draw: Draw) -> None:
    """Rows at places, or added up at places."""
    if len(shape) > 1 and draw(st.booleans()):
        rows = draw(SIZES)
        ids = program.fresh(shape[:1], draw, "i64", rows)
        program.add(f"segment_sum({x}, {ids}, {rows})", (rows, *shape[1:]), draw)
    elif len(shape) == 2:
        count = draw(SIZES)
        ids = program.fresh((count,), draw, "i64", shape[0])
        program.add(f"embedding({ids}, {x})", (count, shape[1]), draw)
    else:
        program.add(f"where({x} > 0.3, {x} * {x}, 0.5 * {x})", shape, draw)


STEPS: Sequence[Step] = (
    smooth, combine, combine, product, product, reduction, normed, reshaped, cut, gathered)


@st.composite
def programs(draw: Draw) -> Program:
    """A program with its arguments and a mesh that its pins name."""
    program = Program(draw(st.sampled_from(MESHES)))
    shape = draw(SHAPES)
    program.values.append((program.fresh(shape, draw), shape))
    for _ in range(draw(st.integers(3, 12))):
        name, shape = draw(st.sampled_from(program.values[-3:]))
        if np.prod(shape) <= 200:
            draw(st.sampled_from(STEPS))(program, name, shape, draw)
    return program
