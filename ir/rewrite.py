"""Changing programs: replacing, cloning, removing what nothing reads, and a driver for local rules.

Ops are pure, but for two kinds: `Return` ends a block, and a `Transfer` is one rank's part of a
joint movement, which the other members wait for. Neither is ever removed for not being read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from anabranch.ir.core import Argument, Block, Function, Module, Op, Value
from anabranch.ir.diagnostics import CompilerBug
from anabranch.ir.ops import Return, Transfer, clone_block, region_of

Rule = Callable[[Op], Sequence[Value] | None]

MAX_REWRITES_PER_OP = 100  # rules that go on for longer undo each other


def is_pure(op: Op) -> bool:
    return not isinstance(op, Return | Transfer)


def is_dead(op: Op) -> bool:
    """Whether nothing would be lost without it."""
    return is_pure(op) and not any(r.uses for r in op.results)


def replace(op: Op, values: Sequence[Value]) -> None:
    """Make users of the results read `values` instead, and erase the op."""
    for result, value in zip(op.results, values, strict=True):
        result.replace_by(value)
    op.erase()


def dce(function: Function) -> int:
    """Erase what nothing reads, also inside of regions; the number of ops erased."""
    return sweep(function.body)


def sweep(block: Block) -> int:
    """`dce` of one block."""
    erased = 0
    for op in reversed(block):
        if is_dead(op):
            op.erase()
            erased += 1
        elif (region := region_of(op)) is not None:
            erased += sweep(region)
    return erased


def clone_function(function: Function, name: str = "") -> Function:
    """A deep copy that shares nothing but immutable attributes."""
    body = clone_block(function.body)
    arguments = [
        Argument(value, a.role, a.pin, a.stage, a.span)
        for a, value in zip(function.arguments, body.args, strict=True)
    ]
    return Function(name or function.name, body, arguments)


def clone_module(module: Module) -> Module:
    functions = {name: clone_function(f) for name, f in module.functions.items()}
    return Module(functions, module.phase, module.mesh)


def rewrite(function: Function, rules: Sequence[Rule]) -> int:
    """Apply local rules until none fits; how many times one did.

    A rule looks at an op and returns what its results are to be replaced by, having inserted new
    ops right before it, or None. After a replacement the new ops, the users of the results and the
    ops that lost a user are looked at again; ops that are dead by then are erased. Ops of
    regions are left alone.
    """
    work = _Worklist(function.body)
    count, limit = 0, MAX_REWRITES_PER_OP * (1 + len(work))
    while op := work.pop():
        if is_dead(op):
            work.add(value.op for value in op.operands)
            op.erase()
        elif _apply(op, rules, work):
            count += 1
            if count > limit:
                raise CompilerBug(f"rewriting @{function.name} does not end", op.loc)
    return count


def _apply(op: Op, rules: Sequence[Rule], work: _Worklist) -> bool:
    """Replace an op by the first rule that fits."""
    before = op.prev
    for rule in rules:
        values = rule(op)
        if values is None:
            continue
        work.add(value.op for value in op.operands)
        work.add(user for result in op.results for user in result.uses)
        work.add(_between(before, op))
        replace(op, values)
        return True
    return False


def _between(before: Op | None, op: Op) -> list[Op]:
    """The ops that a rule has inserted in front of its op, in order."""
    found = []
    inserted = op.prev
    while inserted is not None and inserted is not before:
        found.append(inserted)
        inserted = inserted.prev
    return found[::-1]


class _Worklist:
    """Ops to look at, each at most once at a time, in the order of the block at first."""

    def __init__(self, block: Block) -> None:
        self.queue: deque[Op] = deque(block)
        self.waiting: set[Op] = set(self.queue)

    def __len__(self) -> int:
        return len(self.queue)

    def add(self, ops: Iterable[Op | None]) -> None:
        for op in ops:
            if op is not None and op not in self.waiting:
                self.queue.append(op)
                self.waiting.add(op)

    def pop(self) -> Op | None:
        """The next op that is still part of the program."""
        while self.queue:
            op = self.queue.popleft()
            self.waiting.discard(op)
            if op.block is not None:
                return op
        return None
