"""Small random programs to plan, and all plans of one, tried one after the other."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
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
    """A value in the middle of a plan: where it was made (an argument: nowhere yet), and the copies
    that are wanted of it so far."""

    made: Layout | None
    copies: frozenset[Layout]


@dataclass(frozen=True, slots=True)
class Late:
    """Arguments that are placed behind op `after`: alone, or states with the value that updates
    them all, whose copies they share."""

    after: int
    arguments: tuple[Value, ...]
    update: Value | None


class Search:
    """Tries every choice of every op, in order. It turns back where what is paid already, and what
    the ops to come cost at least, is not below the best known plan, and where it has been before
    for less with the same choices left. Prices come from the router and the cost model, op by op
    and box by box: nothing here is shared with the planner."""

    def __init__(self, function: Function, mesh: Mesh, machine: Machine) -> None:
        self.mesh, self.machine = mesh, machine.shared_by(mesh.ranks)
        self.price = step_prices(mesh, self.machine)
        self.ops = [op for op in function.body if isinstance(op, Compute)]
        self.options = [sorted((self.op_seconds(op, o), n, o)
                               for n, o in enumerate(options(op, mesh))) for op in self.ops]
        least = [every[0][0] for every in self.options]
        self.to_come = [sum(least[n:]) for n in range(len(least) + 1)]
        last = function.body.last
        assert isinstance(last, Return)
        self.returned = set(last.values)
        self.late = list(self._late(function, last))
        self.until = {v: self._last_reader(v) for op in self.ops for v in (op.result, *op.operands)}
        for late in self.late:
            self.until.update(dict.fromkeys((*late.arguments, *_some(late.update)), late.after))

    def _last_reader(self, value: Value) -> int:
        return max((n for n, op in enumerate(self.ops) if value in op.operands), default=-1)

    def _late(self, function: Function, last: Return) -> Iterator[Late]:
        updated: dict[Value, list[Value]] = {}
        for argument in function.arguments:
            value = argument.value
            if argument.role == "state" and value.name in last.updates:
                updated.setdefault(last.updates[value.name], []).append(value)
            else:
                yield Late(self._last_reader(value), (value,), None)
        for source, states in updated.items():
            assert source.op is not None, "drafts update states by what they make"
            after = max(*map(self._last_reader, (source, *states)), self.ops.index(source.op))
            yield Late(after, tuple(states), source)

    # ---- prices --------------------------------------------------------------------------------

    def op_seconds(self, op: Compute, option: tuple[tuple[Layout, ...], Layout]) -> float:
        once = seconds(op, *option, self.mesh, self.machine)
        return once + self.memory(op.result.type, option[1])

    def memory(self, type: TensorType, layout: Layout) -> float:
        shape, _ = local_box(type.shape, layout, self.mesh, (0,) * len(self.mesh.axes))
        return MEMORY_PRICE * type.with_shape(shape).nbytes

    @functools.cache  # noqa: B019 (a search lives for one program)
    def box(self, type: TensorType, source: Layout, target: Layout) -> float:
        steps = route(type, source, target, self.mesh, self.price)
        assert steps is not None
        before = (source, *(step.layout for step in steps))
        return sum(self.price(type, layout, step.layout, step.step, step.axis)
                   for layout, step in zip(before, steps, strict=False))

    def boxes(self, value: Value, made: Layout, copies: Iterable[Layout]) -> float:
        return sum(self.box(value.type, made, layout) for layout in copies)

    # ---- the search ----------------------------------------------------------------------------

    def best(self, below: float) -> float:
        """The seconds of the best plan that costs less than `below`, or `below`."""
        self.least = below
        self.seen: dict[tuple[int, frozenset[tuple[Value, Held]]], float] = {}
        self._from(0, 0.0, {})
        return self.least

    def _from(self, number: int, paid: float, held: dict[Value, Held]) -> None:
        if paid + self.to_come[number] >= self.least:
            return
        if number == len(self.ops):
            self.least = paid
            return
        left = number, frozenset((v, h) for v, h in held.items() if self.until[v] >= number)
        if self.seen.get(left, paid + 1) <= paid:
            return
        self.seen[left] = paid
        op = self.ops[number]
        for cost, _, (operands, result) in self.options[number]:
            after, total = dict(left[1]), paid + cost
            for value, layout in zip(op.operands, operands, strict=True):
                known = after.get(value, Held(None, frozenset()))
                if known.made is not None and layout not in known.copies:
                    total += self.box(value.type, known.made, layout)
                after[value] = Held(known.made, known.copies | {layout})
            copies = [broadcast_on(self.mesh)] if op.result in self.returned else []
            total += self.boxes(op.result, result, copies)
            after[op.result] = Held(result, frozenset(copies))
            total += sum(self._place(late, after) for late in self.late if late.after == number)
            self._from(number + 1, total, after)

    def _place(self, late: Late, held: dict[Value, Held]) -> float:
        """The arguments where they are cheapest."""
        ways = itertools.product(*(self._places(v.type) for v in late.arguments))
        return min(self._placed(late, way, held) for way in ways)

    def _placed(self, late: Late, way: tuple[Layout, ...], held: dict[Value, Held]) -> float:
        total = sum(
            self.memory(v.type, at) + self.boxes(v, at, held[v].copies if v in held else ())
            for v, at in zip(late.arguments, way, strict=True))
        if late.update is not None:
            source = held[late.update]
            assert source.made is not None
            total += self.boxes(late.update, source.made, set(way) - source.copies)
        return total

    def _places(self, type: TensorType) -> Iterator[Layout]:
        entries = [B, *map(S, range(type.rank))]
        end = tuple(n - 1 for n in self.mesh.sizes)
        for way in itertools.product(entries, repeat=len(self.mesh.axes)):
            layout = layout_on(self.mesh, way)
            if all(local_box(type.shape, layout, self.mesh, end)[0]):
                yield layout


def _some(value: Value | None) -> tuple[Value, ...]:
    return () if value is None else (value,)
