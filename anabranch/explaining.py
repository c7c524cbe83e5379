"""Why the planner distributed a program as it did, for people.

    explain(load("gpt.ab"), "", Request(mesh=Mesh.of(data=2, model=2)))

Without a value: every value with its layout, what it costs and what the next best would add; then
every change of layout, with the source line that forced it. With the name of a value: each layout
it could have been made in, priced. As JSON, all of this about every value, or those of the name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anabranch import driver
from anabranch.dumps import Request, subject
from anabranch.frontend.program import Program
from anabranch.ir.core import Value
from anabranch.ir.diagnostics import NOWHERE, Loc, fail, nearest
from anabranch.ir.ops import Compute, Order, Pin
from anabranch.ir.printer import Names, print_op
from anabranch.lowering.cost import Work, is_contraction, part_work
from anabranch.lowering.decisions import Alternative, Decisions, Reshard
from anabranch.lowering.signatures import legal
from anabranch.tabular import Row, count, duration, table


def explain(program: Program, value: str, request: Request) -> str:
    """What was decided: about everything, or about the values of this name."""
    found = subject(program, request)
    micro = found.micro if request.micro is None else request.micro
    decisions = driver.decide(
        found.module, found.function or "train", request.options, micro=micro)
    story = Story(decisions, _named(decisions))
    if request.form == "json":
        return json.dumps(story.facts(value))
    return story.of(value) if value else story.whole()


def _named(decisions: Decisions) -> dict[Value, str]:
    """Every value with the name that a dump gives it."""
    function = decisions.function
    names = Names(a.value for a in function.states())
    every = [*function.body.args, *(r for op in function.body for r in op.results)]
    return {value: names[value] for value in every}


@dataclass(frozen=True, slots=True)
class Story:
    """Decisions with the names of the values they are about."""

    decisions: Decisions
    names: dict[Value, str]

    # ---- everything

    def whole(self) -> str:
        values = table("values", ["value", "type", "layout", "seconds", "next best", "from"],
                       [self._value_row(v) for v in self._values() if not isinstance(v.op, Pin)])
        changes = table(
            "changes of layout", ["value", "from", "to", "by", "seconds", "bytes", "forced by"],
            [self._change_row(change) for change in self.decisions.reshards()])
        return "\n\n".join(filter(None, (self._head(), values, changes)))

    def _head(self) -> str:
        d = self.decisions
        changes = d.reshards()
        moved = sum(change.bytes for change in changes)
        lines = [
            f"{d.function.name} on mesh {d.mesh}, by the profile {d.choices.machine.name}: "
            f"predicted {duration(d.seconds)} a step",
            f"{duration(d.seconds - d.box_seconds)} in statements; {duration(d.box_seconds)} in "
            f"{len(changes)} changes of layout, {count(int(moved))} through a rank",
            *(f"note: {note}" for note in d.notes)]
        if gap := d.solution.gap:
            lines.append(f"a better plan may exist, but by no more than {gap:.1%}")
        return "\n".join(lines)

    def _values(self) -> Iterator[Value]:
        yield from self.decisions.function.body.args
        yield from (v for op in self.decisions.function.body for v in op.results)

    def _value_row(self, value: Value) -> Row:
        chosen, *others = self.decisions.alternatives(value)
        each = self.decisions.together(value.op or value)
        other = "-"
        if others:
            more = (others[0].seconds - chosen.seconds) / each
            other = f"{others[0].layout} +{duration(more)}"
        seconds = duration(chosen.op_seconds / each) if value.op is not None else "-"
        return [self.names[value], value.type.with_layout(None), chosen.layout, seconds, other,
                self._place(value)]

    def _change_row(self, change: Reshard) -> Row:
        return [self.names[change.value], change.source, change.target, _steps(change),
                duration(change.seconds), count(int(change.bytes)), _at(change.forced_by)]

    def _place(self, value: Value) -> str:
        if value.op is not None:
            return _at(value.op.loc)
        argument = next(a for a in self.decisions.function.arguments if a.value is value)
        return f"{argument.role}{' pinned' if argument.pin is not None else ''}"

    # ---- as JSON

    def facts(self, name: str) -> dict[str, Any]:
        """The same as plain data; seconds and bytes are of all that was chosen together."""
        d = self.decisions
        values = self._called(name) if name else [
            v for v in self._values() if not isinstance(v.op, Pin)]
        return {
            "function": d.function.name, "mesh": dict(d.mesh.axes), "notes": list(d.notes),
            "profile": d.choices.machine.name, "seconds": d.seconds,
            "seconds_of_changes": d.box_seconds, "gap": d.solution.gap,
            "values": [self._value_facts(value) for value in values],
            "changes": [self._change_facts(change) for change in d.reshards()
                        if change.value in values]}

    def _value_facts(self, value: Value) -> dict[str, Any]:
        d = self.decisions
        ways = [{"layout": str(a.layout), "chosen": a.chosen, "op_seconds": a.op_seconds,
                 "box_seconds": a.box_seconds} for a in d.alternatives(value)]
        return {"name": self.names[value], "type": str(value.type.with_layout(None)),
                "from": self._place(value), "together": d.together(value.op or value),
                "layouts": ways}

    def _change_facts(self, change: Reshard) -> dict[str, Any]:
        return {"value": self.names[change.value], "from": str(change.source),
                "to": str(change.target), "seconds": change.seconds, "bytes": int(change.bytes),
                "steps": [{"step": step.step, "axis": step.axis} for step in change.steps],
                "forced_by": _at(change.forced_by)}

    # ---- one value

    def of(self, name: str) -> str:
        return "\n\n".join(map(self._about, self._called(name)))

    def _called(self, name: str) -> list[Value]:
        wanted = name.removeprefix("%")
        values = [v for v in self._values() if wanted in (
            v.name, self.names[v].removeprefix("%"))]
        if not values:
            known = {n.removeprefix("%") for n in self.names.values()}
            raise fail(f"@{self.decisions.function.name} has no value '%{wanted}'",
                       help=nearest(wanted, known) or "anabranch explain without a value has all")
        return values

    def _about(self, value: Value) -> str:
        op, each = value.op, self.decisions.together(value.op or value)
        head = f"{self.names[value]}: {value.type.with_layout(None)}  {self._place(value)}"
        if each > 1:
            head += f"\n  chosen together with {each - 1} like it; seconds are of one"
        parts = [head]
        if isinstance(op, Compute | Order):
            parts.append(f"  {print_op(op, locations=False)}\n{self._terms(op)}")
        rows = [self._alternative_row(a, each) for a in self.decisions.alternatives(value)]
        parts.append(table("  layouts it could be made in",
                           ["", "layout", "op", "boxes around", "sum"], rows))
        changes = [c for c in self.decisions.reshards() if c.value is value]
        parts.append(table("  and where it is wanted in another",
                           ["to", "by", "seconds", "bytes", "forced by", "wanted by"],
                           [self._wanted_row(c) for c in changes]))
        return "\n".join(filter(None, parts))

    def _terms(self, op: Compute | Order) -> str:
        """How each axis splits the statement, and what a rank then does."""
        d = self.decisions
        operands, (result,) = d.layouts(op)
        chosen = legal(op, tuple(operands), result, d.choices.mesh)
        assert chosen is not None, "a plan is legal"
        mesh = d.choices.mesh
        ways = [f"{axis}: {signature}" for (axis, _), signature in zip(
            mesh.axes, chosen, strict=True)]
        work: Work = part_work(op, tuple(s.split for s in chosen), mesh)
        machine = d.choices.machine
        rate = machine.contraction if is_contraction(op) else machine.pointwise
        ways.append(
            f"a rank does {work.flops:,} operations ({duration(work.flops / rate)}) and touches "
            f"{count(work.bytes)} ({duration(work.bytes / machine.memory)}); a launch is "
            f"{duration(machine.launch)}")
        return "\n".join(f"    {way}" for way in ways)

    def _alternative_row(self, a: Alternative, each: int) -> Row:
        return [">" if a.chosen else " ", a.layout, duration(a.op_seconds / each),
                duration(a.box_seconds / each), duration(a.seconds / each)]

    def _wanted_row(self, change: Reshard) -> Row:
        others = len(change.wanted_by) - 1
        return [change.target, _steps(change), duration(change.seconds), count(int(change.bytes)),
                _at(change.forced_by), f"and {others} more" if others else "it alone"]


def _steps(change: Reshard) -> str:
    return ", ".join(f"{step.step} {step.axis}".rstrip() for step in change.steps)


def _at(loc: Loc) -> str:
    return "-" if loc == NOWHERE else str(loc)
