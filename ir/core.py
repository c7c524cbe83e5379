"""The SSA core: values with uses, ops in a linked list, functions, modules.

Every value is defined once, by an op or as an argument; `Value.uses` is an ordered set of the ops
that read it. Ops of a block form a doubly linked list, so that inserting and erasing while
iterating is cheap and safe. Op kinds are in `ops.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from anabranch.ir.diagnostics import NOWHERE, CompilerBug, Loc, Span
from anabranch.ir.mesh import Mesh
from anabranch.ir.sbp import Layout
from anabranch.ir.types import TensorType

_O = TypeVar("_O", bound="Op")


class Value:
    """One tensor of the program. `name` is a hint; the printer makes names unique."""

    __slots__ = ("name", "owner", "type", "uses")

    def __init__(self, type: TensorType, name: str = "", owner: Op | Block | None = None) -> None:
        self.type, self.name, self.owner = type, name, owner
        self.uses: dict[Op, None] = {}

    def __repr__(self) -> str:
        return f"%{self.name or '_'}: {self.type}"

    @property
    def op(self) -> Op | None:
        """The defining op, or None for an argument."""
        return self.owner if isinstance(self.owner, Op) else None

    def replace_by(self, new: Value) -> None:
        """Make every user of this value read `new`."""
        for op in list(self.uses):
            op.operands = tuple(new if v is self else v for v in op.operands)
            new.uses[op] = None
        self.uses = {}


def upstream(value: Value) -> set[Value]:
    """Everything that a value depends on, without itself."""
    found, waiting = set[Value](), [value]
    while waiting:
        op = waiting.pop().op
        for each in op.operands if op is not None else ():
            if each not in found:
                found.add(each)
                waiting.append(each)
    return found


class Op:
    """Base of the op kinds. Attributes of a kind are named in `attributes`; they print, compare
    and clone. Common to all: `loc`, the pipeline `stage`, and the `recompute` region (0: none)."""

    __slots__ = ("block", "loc", "next", "operands", "prev", "recompute", "results", "stage")
    kind: ClassVar[str] = "op"
    attributes: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        operands: Sequence[Value],
        types: Sequence[TensorType],
        names: Sequence[str] = (),
        *,
        loc: Loc = NOWHERE,
        stage: int = 0,
        recompute: int = 0,
    ) -> None:
        self.operands: tuple[Value, ...] = tuple(operands)
        hints = (*names, *[""] * (len(types) - len(names)))
        self.results = tuple(Value(t, n, self) for t, n in zip(types, hints, strict=True))
        self.loc, self.stage, self.recompute = loc, stage, recompute
        self.block: Block | None = None
        self.prev: Op | None = None
        self.next: Op | None = None
        for value in self.operands:
            value.uses[self] = None

    @property
    def result(self) -> Value:
        return self.results[0]

    def clone(self, operands: Sequence[Value]) -> Op:
        """A copy over other operands, results typed as here, not yet in a block."""
        raise NotImplementedError

    def set_operands(self, operands: Sequence[Value]) -> None:
        for value in self.operands:
            value.uses.pop(self, None)
        self.operands = tuple(operands)
        for value in self.operands:
            value.uses[self] = None

    def erase(self) -> None:
        """Unlink an op none of whose results is used."""
        if any(r.uses for r in self.results):
            raise CompilerBug(f"erasing {self.kind} while its result is in use", self.loc)
        for value in self.operands:
            value.uses.pop(self, None)
        if self.block is not None:
            self.block.unlink(self)


class Block:
    """A straight line of ops with arguments; no control flow, ever."""

    __slots__ = ("args", "first", "last")

    def __init__(self, args: Sequence[tuple[str, TensorType]] = ()) -> None:
        self.args: list[Value] = [Value(t, n, self) for n, t in args]
        self.first: Op | None = None
        self.last: Op | None = None

    def add_arg(self, name: str, type: TensorType) -> Value:
        value = Value(type, name, self)
        self.args.append(value)
        return value

    def append(self, op: _O) -> _O:
        return self.insert_after(op, self.last)

    def insert_before(self, op: _O, anchor: Op) -> _O:
        return self.insert_after(op, anchor.prev)

    def insert_after(self, op: _O, anchor: Op | None) -> _O:
        """Insert after `anchor`, or in front of everything when it is None."""
        op.block, op.prev = self, anchor
        op.next = self.first if anchor is None else anchor.next
        if anchor is None:
            self.first = op
        else:
            anchor.next = op
        if op.next is None:
            self.last = op
        else:
            op.next.prev = op
        return op

    def unlink(self, op: Op) -> None:
        if op.prev is None:
            self.first = op.next
        else:
            op.prev.next = op.next
        if op.next is None:
            self.last = op.prev
        else:
            op.next.prev = op.prev
        op.block = op.prev = op.next = None

    def __iter__(self) -> Iterator[Op]:
        op = self.first
        while op is not None:
            following = op.next  # survives the erasure of the current op
            yield op
            op = following

    def __reversed__(self) -> Iterator[Op]:
        op = self.last
        while op is not None:
            preceding = op.prev
            yield op
            op = preceding


@dataclass(slots=True)
class Argument:
    """What a function knows of one of its parameters.

    `role` is input (fed by the caller), state (a parameter or buffer kept between runs, named by
    its dotted path), step or seed (0-d i64, given by the runtime). `pin` is the layout the source
    demands, on some of the axes. `stage` is where the value lives.
    """

    value: Value
    role: str = "input"
    pin: Layout | None = None
    stage: int = 0
    span: Span | None = None


@dataclass(slots=True)
class Function:
    """A flat list of ops that ends in `Return`. `arguments` parallels `body.args`."""

    name: str
    body: Block = field(default_factory=Block)
    arguments: list[Argument] = field(default_factory=list)

    def add_argument(
        self, name: str, type: TensorType, role: str = "input", pin: Layout | None = None,
        stage: int = 0, span: Span | None = None,
    ) -> Value:
        value = self.body.add_arg(name, type)
        self.arguments.append(Argument(value, role, pin, stage, span))
        return value

    def states(self) -> list[Argument]:
        return [a for a in self.arguments if a.role == "state"]


@dataclass(slots=True)
class Module:
    """Functions over one mesh. `phase` says which rules hold (see `verifier.py`):
    global -> sbp -> boxed -> local -> fused. `mesh` is set from `sbp` on (micro axis included)."""

    functions: dict[str, Function] = field(default_factory=dict)
    phase: str = "global"
    mesh: Mesh | None = None

    def add(self, function: Function) -> Function:
        self.functions[function.name] = function
        return function
