"""Small random programs to plan, and all plans of one, tried one after the other."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from anabranch.ir.core import Function, Module, Value
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Compute, Return
from anabranch.ir.parser import parse_module
from anabranch.ir.sbp import B, Layout, S, broadcast_on, layout_on, local_box
from anabranch.ir.types import TensorType
from anabranch.lowering.boxing import route
from anabranch.lowering.choices import MEMORY_PRICE
from anabranch.lowering.cost import seconds, step_prices
from anabranch.lowering.machine import Machine
from anabranch.lowering.signatures import options

Shape = tuple[int, ...]


# --- programs ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Draft:
    """A program being written: values with their shapes, and lines."""

    random: random.Random
    sizes: Sequence[int]
    values: dict[str, Shape] = field(default_factory=dict)
    header: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def argument(self, shape: Shape, kind: str = "") -> str:
        name = f"%a{len(self.header)}"
        self.header.append(f"{kind}{name}: f32[{', '.join(map(str, shape))}]")
        self.values[name] = shape
        return name

    def some(self, rank: int) -> str:
        """A value of a rank; mostly one of the last."""
        fitting = [name for name, shape in self.values.items() if len(shape) == rank]
        if not fitting:
            return self.argument(tuple(self.random.choice(self.sizes) for _ in range(rank)))
        return self.random.choice(fitting[-3:])

    def like(self, shape: Shape) -> str:
        """A value of a shape, now and then a new state."""
        fitting = [name for name, known in self.values.items() if known == shape]
        if not fitting or self.random.random() < 0.3:
            return self.argument(shape, "state ")
        return self.random.choice(fitting)

    def op(self) -> None:
        kind = self.random.choice(KINDS)
        x = self.some(2)
        m, n = self.values[x]
        k = self.random.choice(self.sizes)
        shape, text = {
            "matmul": lambda: ((m, k), f"sum[k < {n}]({x}[i, k] * {self.like((n, k))}[k, j])"),
            "tanh": lambda: ((m, n), f"tanh({x}[i, j])"),
            "scale": lambda: ((m, n), f"{x}[i, j] * 0.5"),
            "add": lambda: ((m, n), f"{x}[i, j] + {self.like((m, n))}[i, j]"),
            "multiply": lambda: ((m, n), f"{x}[i, j] * {self.like((m, n))}[i, j]"),
            "bias": lambda: ((m, n), f"{x}[i, j] + {self.like((n,))}[j]"),
            "less": lambda: ((m, n), f"{x}[i, j] - {self.like((m,))}[i]"),
            "transpose": lambda: ((n, m), f"{x}[j, i]"),
            "sum": lambda: ((m,), f"sum[j < {n}]({x}[i, j])"),
            "maximum": lambda: ((m,), f"max[j < {n}]({x}[i, j])"),
        }[kind]()
        name = f"%v{len(self.lines)}"
        place = "[i, j]" if len(shape) == 2 else "[i]"
        self.lines.append(f"  {name}: f32[{', '.join(map(str, shape))}] = {place} {text}")
        self.values[name] = shape


KINDS = ("matmul", "matmul", "tanh", "scale", "add", "multiply", "bias", "less", "transpose",
         "sum", "maximum")


def program(seed: int, most: int = 6) -> Module:
    """A random program of one function `f`, of at most so many ops. Some states get a value of the
    program as their next one."""
    draw = random.Random(seed)
    sizes = draw.choice([(4, 6), (64, 512), (1024, 4096), (7, 2048)])
    draft = _Draft(draw, sizes)
    for _ in range(draw.randint(1, most)):
        draft.op()
    made = [name for name in draft.values if name.startswith("%v")]
    read = " ".join(line.split("=", 1)[1] for line in draft.lines)
    returned = [name for name in made if f"{name}[" not in read or draw.random() < 0.1]
    updates = []
    for text in draft.header:
        name = text.split(":")[0].removeprefix("state ")
        fitting = [v for v in made if draft.values[v] == draft.values[name]]
        if text.startswith("state ") and fitting and draw.random() < 0.6:
            updates.append(f'"{name[1:]}": {draw.choice(fitting)}')
    states = f"; state {', '.join(updates)}" if updates else ""
    body = "\n".join(draft.lines)
    return parse_module(f"module phase=global\nfunc @f({', '.join(draft.header)}) {{\n{body}\n"
                        f"  return {', '.join(returned)}{states}\n}}\n")


# --- all plans of a program ----------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Held:
    """A value in the middle of a plan: where it was made or placed, and the copies of it so far."""

    made: int
    copies: frozenset[int]


Holding = dict[Value, Held]
Choice = tuple[float, tuple[int, ...], int]  # seconds, layouts of the operands and of the result


class Search:
    """Tries every choice of every op, in order, and every place of an argument when an op first
    reads it. It turns back where what is paid already, and what the ops to come cost at least, is
    not below the best known plan, and where it has been before for less with the same choices
    left. Prices come from the router and the cost model, op by op and box by box: nothing here is
    shared with the planner. Layouts are numbered, since a great many are compared."""

    def __init__(self, function: Function, mesh: Mesh, machine: Machine) -> None:
        self.mesh, self.machine = mesh, machine.shared_by(mesh.ranks)
        self.price = step_prices(mesh, self.machine)
        self.ops = [op for op in function.body if isinstance(op, Compute)]
        self.layouts: list[Layout] = []
        self.whole = self.number(broadcast_on(mesh))
        self.options = [sorted(self.priced(op, *o) for o in options(op, mesh)) for op in self.ops]
        least = [every[0][0] for every in self.options]
        self.to_come = [sum(least[n:]) for n in range(len(least) + 1)]
        last = function.body.last
        assert isinstance(last, Return)
        self.returned = set(last.values)
        states = {a.value.name: a.value for a in function.states()}
        self.updates: dict[Value, list[Value]] = {}
        for name, source in last.updates.items():
            self.updates.setdefault(source, []).append(states[name])
        self.until = {v: self._last_need(v) for op in self.ops for v in (op.result, *op.operands)}
        self.alone = {a.value for a in function.arguments if self._is_alone(a.value)}
        idle = {a.value for a in function.arguments} - {v for op in self.ops for v in op.operands}
        self.idle = sum(min(self.memory(v.type, at) for at in self.places(v.type))
                        for v in idle if all(v not in s for s in self.updates.values()))

    def _last_need(self, value: Value) -> int:
        sources = [op.result for op in self.ops if value in self.updates.get(op.result, ())]
        return max((n for n, op in enumerate(self.ops)
                    if value in op.operands or op.result in sources), default=-1)

    def _is_alone(self, value: Value) -> bool:
        """Whether a value is read by one op and updated by none."""
        return (sum(value in op.operands for op in self.ops) == 1
                and all(value not in states for states in self.updates.values()))

    # ---- prices --------------------------------------------------------------------------------

    def number(self, layout: Layout) -> int:
        if layout not in self.layouts:
            self.layouts.append(layout)
        return self.layouts.index(layout)

    def priced(self, op: Compute, operands: tuple[Layout, ...], result: Layout) -> Choice:
        once = seconds(op, operands, result, self.mesh, self.machine)
        made = self.number(result)
        return once + self.memory(op.result.type, made), tuple(map(self.number, operands)), made

    @functools.cache  # noqa: B019 (a search lives for one program)
    def memory(self, type: TensorType, layout: int) -> float:
        start = (0,) * len(self.mesh.axes)
        shape, _ = local_box(type.shape, self.layouts[layout], self.mesh, start)
        return MEMORY_PRICE * type.with_shape(shape).nbytes

    @functools.cache  # noqa: B019
    def box(self, type: TensorType, source: int, target: int) -> float:
        steps = route(type, self.layouts[source], self.layouts[target], self.mesh, self.price)
        assert steps is not None
        before = (self.layouts[source], *(step.layout for step in steps))
        return sum(self.price(type, layout, step.layout, step.step, step.axis)
                   for layout, step in zip(before, steps, strict=False))

    def boxes(self, value: Value, made: int, copies: Iterable[int]) -> float:
        return sum(self.box(value.type, made, layout) for layout in copies)

    @functools.cache  # noqa: B019
    def places(self, type: TensorType) -> tuple[int, ...]:
        entries = [B, *map(S, range(type.rank))]
        end = tuple(n - 1 for n in self.mesh.sizes)
        every = (layout_on(self.mesh, way)
                 for way in itertools.product(entries, repeat=len(self.mesh.axes)))
        return tuple(self.number(at) for at in every
                     if all(local_box(type.shape, at, self.mesh, end)[0]))

    @functools.cache  # noqa: B019
    def placed(self, value: Value, copies: frozenset[int]) -> float:
        """An argument that nothing else needs, where it is cheapest."""
        return min(self.memory(value.type, at) + self.boxes(value, at, copies)
                   for at in self.places(value.type))

    # ---- the search ----------------------------------------------------------------------------

    def best(self, below: float) -> float:
        """The seconds of the best plan that costs less than `below`, or `below`."""
        self.least = below
        self.seen: dict[tuple[int, frozenset[tuple[Value, Held]]], float] = {}
        self._from(0, self.idle, {})
        return self.least

    def _from(self, number: int, paid: float, held: Holding) -> None:
        if number == len(self.ops):
            self.least = min(self.least, paid)
            return
        left = number, frozenset((v, h) for v, h in held.items() if self.until[v] >= number)
        if self.seen.get(left, paid + 1) <= paid:
            return
        self.seen[left] = paid
        for choice in self.options[number]:
            if paid + choice[0] + self.to_come[number + 1] >= self.least:
                return
            self._op(number, paid, dict(left[1]), choice)

    def _op(self, number: int, paid: float, held: Holding, choice: Choice) -> None:
        """An op in its layouts, with every place of the arguments that come into play here."""
        op, (cost, operands, result) = self.ops[number], choice
        wishes: dict[Value, frozenset[int]] = {}
        for value, layout in zip(op.operands, operands, strict=True):
            wishes[value] = wishes.get(value, frozenset()) | {layout}
        paid += cost + sum(self.placed(v, wishes[v]) for v in wishes if v in self.alone)
        updated = self.updates.get(op.result, [])
        new = [v for v in dict.fromkeys((*wishes, *updated))
               if v not in held and v not in self.alone]
        for way in itertools.product(*(self.places(v.type) for v in new)):
            holding, total = dict(held), paid
            for value, at in zip(new, way, strict=True):
                holding[value] = Held(at, frozenset())
                total += self.memory(value.type, at)
            for value in wishes.keys() - self.alone:
                known = holding[value]
                total += self.boxes(value, known.made, wishes[value] - known.copies)
                holding[value] = Held(known.made, known.copies | wishes[value])
            copies = {holding[state].made for state in updated}
            copies |= {self.whole} if op.result in self.returned else set()
            total += self.boxes(op.result, result, copies)
            holding[op.result] = Held(result, frozenset(copies))
            if total + self.to_come[number + 1] < self.least:
                self._from(number + 1, total, holding)
