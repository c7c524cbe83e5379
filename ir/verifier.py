"""What must hold of a module at each phase: a table of rules, checked between passes.

A rule looks at one op (or argument, or value) and says what is wrong, or nothing. A module that
breaks one is a `CompilerBug` that names the rule's finding, the op, where it came from and the text
of the program. Everything is checked in one walk, linear in the size of the module.

Not checked here: that layouts of operands and result form a legal signature, which follows from the
definition of the op (`lowering/signatures.py`), and that ranks agree on their transfers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from anabranch.ir import recurrence
from anabranch.ir.core import Argument, Block, Function, Module, Op, Value
from anabranch.ir.diagnostics import NOWHERE, CompilerBug
from anabranch.ir.expr_parser import WORDS
from anabranch.ir.expr_types import ExprFault, ExprTypes
from anabranch.ir.ops import (
    REDUCTIONS,
    Box,
    Compute,
    Fused,
    Gradient,
    Order,
    Pin,
    Return,
    Scan,
    Transfer,
    region_of,
)
from anabranch.ir.printer import print_module, print_op
from anabranch.ir.sbp import PARTIAL_OPS, Layout
from anabranch.ir.types import TensorType, is_float, tensor

PHASES = ("global", "sbp", "boxed", "local", "fused")
PLANNED = ("sbp", "boxed")  # the phases in which values have layouts
PER_RANK = ("local", "fused")
ROLES = ("input", "state", "step", "seed")

VARIABLE = re.compile(r"[^\W\d][\w.]*")
STATE = re.compile(r"[\w.]+")
FUNCTION = re.compile(r"[\w.]+")


def verify(module: Module) -> None:
    """Raise a `CompilerBug` for the first broken rule."""
    if module.phase not in PHASES:
        raise CompilerBug(f"there is no phase '{module.phase}'")
    if module.phase != "global" and module.mesh is None:
        raise CompilerBug(f"a module of phase '{module.phase}' has a mesh")
    for name, function in module.functions.items():
        if name != function.name or not FUNCTION.fullmatch(name):
            raise CompilerBug(f"function @{function.name} is filed under '{name}'")
        _Check(module, function).function()


@dataclass(slots=True)
class _Check:
    """The walk through one function. `stages` are the pipeline stages that values live on."""

    module: Module
    within: Function
    uses: dict[Value, int] = field(default_factory=dict)
    stages: dict[Value, int] = field(default_factory=dict)
    layouts: dict[TensorType, str] = field(default_factory=dict)

    def function(self) -> None:
        self.arguments()
        self.block(self.within.body, _TOP_RULES[self.module.phase])

    def fail(self, message: str, op: Op | None = None) -> CompilerBug:
        at = f"\n  {print_op(op)}" if op else ""
        return CompilerBug(f"in @{self.within.name} (phase {self.module.phase}): {message}{at}",
                           op.loc if op else NOWHERE, print_module(self.module))

    def arguments(self) -> None:
        function = self.within
        if [a.value for a in function.arguments] != function.body.args:
            raise self.fail("the arguments are not those of the body")
        states = [a.value.name for a in function.states()]
        if len(set(states)) != len(states):
            raise self.fail("two states have one name")
        for argument in function.arguments:
            self.stages[argument.value] = argument.stage
            if found := _argument_fault(self, argument):
                raise self.fail(f"argument {argument.value}: {found}")

    def block(self, block: Block, rules: dict[type[Op], tuple[OpRule, ...]]) -> None:
        """Every op in turn; values of an enclosing block are out of sight, a region is closed."""
        outer, self.uses = self.uses, dict.fromkeys(block.args, 0)
        for value in block.args:
            if value.owner is not block:
                raise self.fail(f"argument {value} belongs to another block")
            if found := _type_fault(self, value.type):
                raise self.fail(f"argument {value} {found}")
        for op in self.linked(block):
            self.op(op, rules)
        if not isinstance(block.last, Return):
            raise self.fail("the last op is not 'return'", block.last)
        for value, count in self.uses.items():
            if len(value.uses) != count:
                users = f"{len(value.uses)} users, {count} of them in its block"
                raise self.fail(f"{value} lists {users}", value.op)
        self.uses = outer

    def linked(self, block: Block) -> Iterator[Op]:
        """The ops of a block, whose links must agree in both directions."""
        before, op = None, block.first
        while op is not None:
            if op.prev is not before or op.block is not block:
                raise CompilerBug(f"the links of the block are broken at {print_op(op)}", op.loc)
            yield op
            before, op = op, op.next
        if block.last is not before:
            raise CompilerBug("the links of the block do not lead to its last op")

    def op(self, op: Op, rules: dict[type[Op], tuple[OpRule, ...]]) -> None:
        for rule in rules.get(type(op), (_illegal_here,)):
            if found := rule(self, op):
                raise self.fail(found, op)
        if (region := region_of(op)) is not None:
            self.stages.update(dict.fromkeys(region.args, op.stage))
            self.block(region, _REGION_RULES[self.module.phase])
        if isinstance(op, Scan) and (found := recurrence.fault(op)):
            raise self.fail(found, op)
        for value in op.results:
            self.uses[value] = 0
            self.stages[value] = op.stage


OpRule = Callable[[_Check, Any], str]


# Values and arguments


def _argument_fault(check: _Check, argument: Argument) -> str:
    type, pin = argument.value.type, argument.pin
    if argument.role not in ROLES:
        return f"has no such role: '{argument.role}'"
    if argument.role in ("step", "seed") and (type.dtype, type.shape) != ("i64", ()):
        return "a step or seed is i64[]"
    if argument.role == "state" and not STATE.fullmatch(argument.value.name):
        return "a state has a dotted path for a name"
    if not _is_stage(check, argument.stage):
        return f"there is no stage {argument.stage}"
    if pin is None:
        return ""
    return _layout_fault(pin, type.rank) or _pin_fault(check, pin, type)


def _pin_fault(check: _Check, pin: Layout, type: TensorType) -> str:
    """After planning, a pinned value has the layout that was asked for."""
    if type.layout is None or check.module.mesh is None:
        return ""
    here = check.module.mesh.inner.names
    broken = [a for a, sbp in pin.entries if a in here and type.layout[a] != sbp]
    return f"is pinned to {pin}" if broken else ""


def _is_stage(check: _Check, stage: int) -> bool:
    mesh = check.module.mesh
    return stage >= 0 and (mesh is None or stage < mesh.stages)


def _type_fault(check: _Check, type: TensorType) -> str:
    """Types are checked once each: there are few."""
    found = check.layouts.get(type)
    if found is None:
        found = check.layouts[type] = _new_type_fault(check, type)
    return found


def _new_type_fault(check: _Check, type: TensorType) -> str:
    if type is not tensor(type.dtype, type.shape, type.layout):
        return f"has type {type}, which is not interned"
    if any(size < 0 for size in type.shape):
        return f"has a negative extent: {type}"
    planned = check.module.phase in PLANNED
    if type.layout is None:
        return f"has no layout: {type}" if planned else ""
    if not planned:
        return f"has a layout: {type}"
    assert check.module.mesh is not None, "checked before any function"
    if type.layout.axes != check.module.mesh.inner.names:
        return f"does not name the axes of the mesh in order: {type}"
    return _layout_fault(type.layout, type.rank)


def _layout_fault(layout: Layout, rank: int) -> str:
    if len(set(layout.axes)) != len(layout.axes):
        return f"names an axis twice: {layout}"
    for sbp in layout.sbps():
        if sbp.kind == "S" and not 0 <= sbp.dim < rank:
            return f"splits dimension {sbp.dim}, and has {rank}: {layout}"
        if sbp.kind == "P" and sbp.op not in PARTIAL_OPS:
            return f"has no such partial: {layout}"
    if len({sbp.op for sbp in layout.sbps() if sbp.kind == "P"}) > 1:
        return f"mixes kinds of partial: {layout}"
    return ""


# Every op


def _illegal_here(check: _Check, op: Op) -> str:
    return f"'{op.kind}' may not stand here"


def _operands(check: _Check, op: Op) -> str:
    """An operand is defined before, in this block, and lists the op as a user."""
    counted = set()
    for value in op.operands:
        if value not in check.uses:
            return f"operand {value} is not defined before its use"
        if op not in value.uses:
            return f"operand {value} does not list this op as a user"
        if value not in counted:
            counted.add(value)
            check.uses[value] += 1
    return ""


def _results(check: _Check, op: Op) -> str:
    """A result is owned by its op, defined once, and has a type of this phase."""
    for value in op.results:
        if value.owner is not op or value in check.uses:
            return f"result {value} is defined elsewhere"
        if found := _type_fault(check, value.type):
            return f"result {value} {found}"
    return ""


def _common(check: _Check, op: Op) -> str:
    if not _is_stage(check, op.stage):
        return f"there is no stage {op.stage}"
    return "a recompute region is numbered from 1" if op.recompute < 0 else ""


def _together(check: _Check, op: Op) -> str:
    """Between stages stand boxes; the step and the seed are everywhere."""
    for value in op.operands:
        if check.stages[value] != op.stage and not _is_everywhere(check, value):
            return f"operand {value} lives on stage {check.stages[value]}, the op on {op.stage}"
    return ""


def _is_everywhere(check: _Check, value: Value) -> bool:
    return any(a.value is value and a.role in ("step", "seed") for a in check.within.arguments)


# Each kind


def _ranges(check: _Check, op: Compute) -> str:
    """Ranges bind the variables of the result, in order, then the reduced ones; each once."""
    names = tuple(name for name, _ in op.ranges)
    if names != (*op.result_vars, *op.reduced):
        return f"ranges bind {names}, not the variables of the result and the reduced ones"
    if len(set(names)) != len(names):
        return "a variable is bound twice"
    for name, extent in op.ranges:
        if not VARIABLE.fullmatch(name) or name in WORDS:
            return f"'{name}' cannot name a variable"
        if extent < 0:
            return f"the extent of '{name}' is {extent}"
    return ""


def _shape(check: _Check, op: Compute) -> str:
    """The result has the extents that its dimensions merge."""
    extent = op.extents
    shape = tuple([
        extent[dim[0]] if len(dim) == 1 else math.prod([extent[v] for v in dim])
        for dim in op.dims])
    return "" if shape == op.result.type.shape else f"the dimensions have extents {shape}"


def _reduction(check: _Check, op: Compute) -> str:
    """A reduction names what it reduces; only a reduction has a guard."""
    if not op.reduce:
        return "reduced variables or a guard without a reduction" if op.reduced or op.guard else ""
    if op.reduce not in REDUCTIONS:
        return f"there is no reduction '{op.reduce}'"
    if not op.reduced or (op.reduce in ("argmax", "argmin") and len(op.reduced) != 1):
        return f"'{op.reduce}' over {len(op.reduced)} variables"
    return ""


def _expressions(check: _Check, op: Compute) -> str:
    """Body and guard make sense, and the result has the dtype that follows from the body."""
    mesh = check.module.mesh
    last = mesh.micro - 1 if mesh is not None else 0
    micros = () if check.module.phase not in PER_RANK else (0, last) if last else (0,)
    types = ExprTypes([v.type for v in op.operands], op.extents, micros)
    try:
        if op.guard is not None:
            if types.dtype(op.guard) != "bool":
                return f"the guard is {types.dtype(op.guard)}"
            types.lazy = True
        body = types.dtype(op.body)
    except ExprFault as fault:
        return str(fault)
    wanted = _reduced_dtypes(op.reduce, body)
    return "" if op.result.type.dtype in wanted else (
        f"{op.reduce or 'the body'} gives {' or '.join(wanted) or 'nothing'} from {body}")


def _reduced_dtypes(reduce: str, body: str) -> tuple[str, ...]:
    """The dtypes a reduction of the body may have: sums of bools and integers may widen."""
    if reduce in ("sum", "prod") and not is_float(body):
        return ("i64",) if body == "bool" else tuple(dict.fromkeys((body, "i64")))
    if reduce in ("argmax", "argmin"):
        return ("i64",)
    if reduce in ("any", "all"):
        return ("bool",) if body == "bool" else ()
    return (body,)


def _order(check: _Check, op: Order) -> str:
    """Along an axis that there is, of no more elements than it has."""
    source = op.operands[0].type
    if not 0 <= op.axis < source.rank:
        return f"there is no axis {op.axis} in {source}"
    if not 0 <= op.count <= source.shape[op.axis]:
        return f"the first {op.count} of {source.shape[op.axis]}"
    shape = (*source.shape[: op.axis], op.count, *source.shape[op.axis + 1 :])
    given = op.result.type
    return "" if (given.dtype, given.shape) == ("i64", shape) else f"places are i64{list(shape)}"


def _pin(check: _Check, op: Pin) -> str:
    if op.result.type is not op.operands[0].type:
        return "a pin changes no type"
    return _layout_fault(op.layout, op.result.type.rank)


def _gradient(check: _Check, op: Gradient) -> str:
    """Of a float scalar, by floats."""
    of, *by = (value.type for value in op.operands)
    if of.shape or not all(is_float(type.dtype) for type in (of, *by)):
        return "a gradient is that of a float scalar by floats"
    return "" if [r.type for r in op.results] == by else "a gradient has the type of its variable"


def _box(check: _Check, op: Box) -> str:
    """A box changes the layout, and nothing else of the type."""
    source, target = op.operands[0].type, op.result.type
    if (source.dtype, source.shape) != (target.dtype, target.shape):
        return f"a box of {source}"
    return ""


# step -> the kinds it leads from, and the kind it leads to, along its axis
STEPS: dict[str, tuple[str, str]] = {
    "slice": ("B", "S"), "fill": ("BS", "P"), "all_gather": ("S", "B"), "all_reduce": ("P", "B"),
    "reduce_scatter": ("P", "S"), "all_to_all": ("S", "S"),
}


def _step(check: _Check, op: Box) -> str:
    """One primitive step along one axis, or a move between stages."""
    before = check.stages[op.operands[0]]
    if op.step == "move":
        still = before == op.stage or op.source != op.target or op.axis
        return "a move goes to another stage and changes nothing" if still else ""
    if op.step not in STEPS or op.axis not in op.source.axes:
        return f"there is no step '{op.step}' along '{op.axis}'"
    if before != op.stage:
        return "only a move goes to another stage"
    a, b = op.source[op.axis], op.target[op.axis]
    sources, kind = STEPS[op.step]
    leads = a.kind in sources and b.kind == kind and a != b
    if not leads or op.source.replace(op.axis, b) != op.target:
        return f"'{op.step}' along '{op.axis}' does not lead from {op.source} to {op.target}"
    return _nesting(op)


def _nesting(op: Box) -> str:
    """Cuts nest in mesh order, so a step cannot change a cut that a later axis has cut again."""
    source, axis = op.source, op.axis
    later = source.axes[source.axes.index(axis) + 1 :]
    cut = {sbp.dim for sbp in (source[axis], op.target[axis]) if sbp.kind == "S"}
    inner = [name for name in later if source[name].kind == "S" and source[name].dim in cut]
    return f"axis '{inner[0]}' cuts inside what '{axis}' cuts" if inner else ""


# step -> number of operands and of results
TRANSFERS: dict[str, tuple[int, int]] = {
    "all_gather": (1, 1), "reduce_scatter": (1, 1), "all_reduce": (1, 1), "all_to_all": (1, 1),
    "send": (1, 0), "recv": (0, 1), "accumulate": (1, 1),
}
REDUCING = ("reduce_scatter", "all_reduce", "accumulate")
ALIKE = ("all_reduce", "accumulate", "send", "recv")  # one count serves all members


def _transfer(check: _Check, op: Transfer) -> str:
    if TRANSFERS.get(op.step) != (len(op.operands), len(op.results)):
        return f"'{op.step}' with {len(op.operands)} operands and {len(op.results)} results"
    types = [value.type for value in (*op.operands, *op.results)]
    if len({type.dtype for type in types}) != 1:
        return "a transfer changes no dtype"
    if op.step in ("all_reduce", "accumulate") and types[0] is not types[1]:
        return f"'{op.step}' changes no type"
    return _members(check, op)


def _members(check: _Check, op: Transfer) -> str:
    mesh = check.module.mesh
    assert mesh is not None, "checked before any function"
    if len(set(op.ranks)) != len(op.ranks) or not all(0 <= r < mesh.ranks for r in op.ranks):
        return f"ranks {op.ranks} of a mesh of {mesh.ranks}"
    wanted = 1 if op.step in ALIKE else len(op.ranks)
    if any(len(counts) not in (0, wanted) for counts in (op.counts, op.counts_back)):
        return f"'{op.step}' has {wanted} counts"
    if op.reduce not in (PARTIAL_OPS if op.step in REDUCING else ("",)):
        return f"'{op.step}' with reduction '{op.reduce}'"
    return "" if op.match >= 0 else f"transition {op.match}"


def _fused(check: _Check, op: Fused) -> str:
    """The region's arguments stand for the operands, what it returns for the results."""
    if [v.type for v in op.region.args] != [v.type for v in op.operands]:
        return "the arguments of the region are not like the operands"
    last = op.region.last
    given = [v.type for v in last.operands] if isinstance(last, Return) else None
    return "" if given == [r.type for r in op.results] else "the region returns other types"


def _return(check: _Check, op: Return) -> str:
    """Ends the block and updates states, each once, by values of their types."""
    if op.next is not None:
        return "'return' is not the last op"
    if len(set(op.states)) != len(op.states) or len(op.states) > len(op.operands):
        return f"states {op.states}"
    if not op.states:
        return ""
    known = {a.value.name: a.value.type for a in check.within.states()}
    for name, value in op.updates.items():
        if name not in known:
            return f"there is no state '{name}'"
        if value.type is not known[name]:
            return f"state '{name}' is {known[name]}, its next value {value.type}"
    return ""


def _region_return(check: _Check, op: Return) -> str:
    return "a region updates no state" if op.states else _return(check, op)


# The table: phases, kind of op (None: all), rules in the order of checking.
RULES: tuple[tuple[tuple[str, ...], type[Op] | None, tuple[OpRule, ...]], ...] = (
    (PHASES, None, (_operands, _results, _common)),
    (PHASES, Compute, (_ranges, _shape, _reduction, _expressions)),
    (PHASES, Order, (_order,)),
    (PHASES, Return, (_return,)),
    (PHASES, Scan, ()),  # what holds of it is asked after its region
    (("global",), Pin, (_pin,)),
    (("global",), Gradient, (_gradient,)),
    (PLANNED, Compute, (_together,)),
    (PLANNED, Scan, (_together,)),
    (PLANNED, Order, (_together,)),
    (PLANNED, Box, (_box,)),
    (("boxed",), Box, (_step,)),
    (PER_RANK, Transfer, (_transfer,)),
    (("fused",), Fused, (_fused,)),
)
KINDS: tuple[type[Op], ...] = (
    Compute, Order, Pin, Gradient, Box, Transfer, Fused, Scan, Return)


def _rules(phase: str) -> dict[type[Op], tuple[OpRule, ...]]:
    """The rules of each kind that is legal in a phase: one that has rules of its own."""
    here = [(kind, rules) for phases, kind, rules in RULES if phase in phases]
    legal = {kind for kind, _ in here if kind is not None}
    return {
        kind: tuple(rule for k, rules in here if k in (None, kind) for rule in rules)
        for kind in KINDS if kind in legal
    }


_TOP_RULES = {phase: _rules(phase) for phase in PHASES}
_REGION_RULES: dict[str, dict[type[Op], tuple[OpRule, ...]]] = {
    phase: {
        Compute: _TOP_RULES[phase][Compute],
        Return: (_operands, _results, _common, _region_return),
    } for phase in PHASES
}
