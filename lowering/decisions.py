"""Why a plan is as it is: the seconds of every op and box in it, and what else there was.

An alternative is a value made in another layout with everything else as planned: the seconds of its
op, and of the boxes that would then be needed before and after it. The plan as a whole is best, so
no alternative is better alone, but it may differ by little, and then one knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.ir.core import Function, Op, Value
from anabranch.ir.diagnostics import Loc
from anabranch.ir.sbp import Layout
from anabranch.lowering.boxing import Step
from anabranch.lowering.choices import Choices
from anabranch.lowering.solve import Solution


@dataclass(frozen=True, slots=True)
class Reshard:
    """A change of layout in the plan: `seconds` a step, the primitive steps, the op that made the
    value, and the places that want it so; the first of them forced it."""

    value: Value
    source: Layout
    target: Layout
    steps: tuple[Step, ...]
    seconds: float
    wanted_by: tuple[Loc, ...]


@dataclass(frozen=True, slots=True)
class Alternative:
    """A value made in a layout: seconds of its op, and of the boxes in front of it and behind."""

    layout: Layout
    chosen: bool
    op_seconds: float
    box_seconds: float

    @property
    def seconds(self) -> float:
        return self.op_seconds + self.box_seconds


@dataclass(frozen=True, slots=True)
class Decisions:
    """A plan of one function. `notes` are for the user."""

    function: Function
    choices: Choices
    solution: Solution
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Predicted seconds of a step."""
        return self.solution.seconds

    def layouts(self, member: Op | Value) -> tuple[Sequence[Layout], Layout]:
        """Layouts of what an op reads and of what it makes (of an argument: its own)."""
        return self.choices.option(member, self.solution.chosen)
