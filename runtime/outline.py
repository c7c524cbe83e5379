"""Where two plans differ first, in words: ranks that were given different programs say so.

An outline lists what a plan is made of in the order of the program, so that the first line that
differs names the first parameter, value or kernel call that does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from anabranch.ir.plan import Plan, Program

END = "nothing more"


def outline(plan: Plan) -> list[str]:
    """A line each for states, values and calls; equal for equal plans."""
    lines = [f"a mesh {', '.join(f'{name}={size}' for name, size in plan.mesh) or 'of one rank'}"]
    lines += [f"the {state.kind} {state.name}, {_value(plan, state.value)}"
              for state in plan.states]
    lines += [f"the value %{value.name}, {_value(plan, number)}"
              for number, value in enumerate(plan.values)]
    for program in plan.programs:
        lines += _calls(plan, program)
    return lines


def difference(outlines: Sequence[list[str]]) -> str:
    """The first thing in which a process differs from process 0."""
    other = next((n for n, lines in enumerate(outlines) if lines != outlines[0]), None)
    if other is None:
        return "their kernels or numbers differ"
    pairs = zip_longest(outlines[0], outlines[other], fillvalue=END)
    first, second = next(pair for pair in pairs if pair[0] != pair[1])
    return f"process 0 has {first} where process {other} has {second}"


def _value(plan: Plan, number: int) -> str:
    value = plan.values[number]
    layout = f" @ {', '.join(value.sbp)}" if value.sbp else ""
    return f"{value.dtype}{list(value.shape)}{layout} on stage {value.stage}"


def _calls(plan: Plan, program: Program) -> Iterator[str]:
    for actor in program.actors:
        where = f"on rank {actor.rank} in {program.name}"
        if actor.transfer:
            moved = actor.transfer
            yield f"{moved.op} of {moved.dtype}{list(moved.counts)} {where}"
        for launch in actor.launches:
            symbol, loc = plan.kernels[launch.kernel].symbol, plan.locs[launch.loc]
            numbers = [arg.a for arg in launch.args if arg.kind == "int"]
            yield f"{symbol}{numbers} {where}, {loc}"
