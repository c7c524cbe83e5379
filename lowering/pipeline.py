"""The pipeline, in order. A pass is added here, by one word, and in a file of its own.

`STAGES` names what stands between the passes, as `anabranch dump --stage` knows it. The whole
program goes through `GLOBAL`; `LOCAL` runs for every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from anabranch.ir.core import Module
from anabranch.ir.mesh import Mesh
from anabranch.ir.passes import Pass
from anabranch.ir.sbp import Layout
from anabranch.lowering.boxing import lower_boxes
from anabranch.lowering.clamp import clamp_indices
from anabranch.lowering.cost import step_prices
from anabranch.lowering.differentiate import differentiate
from anabranch.lowering.fuse import fuse
from anabranch.lowering.localise import localise
from anabranch.lowering.machine import CPU2, Machine
from anabranch.lowering.planner import plan
from anabranch.lowering.recompute import recompute
from anabranch.lowering.simplify import simplify
from anabranch.lowering.windows import copy_windows


@dataclass(frozen=True, slots=True)
class Target:
    """What a program is lowered for: the mesh (with `micro`), the machine, and the layouts and
    stages of states that another program has fixed. `hints` collects what its author should know.
    """

    mesh: Mesh
    machine: Machine = CPU2
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    hints: list[str] = field(default_factory=list)


STAGES = {
    "grad": "differentiate",
    "simple": "simplify",
    "sbp": "plan",
    "boxed": "lower-boxes",
    "local": "localise",
    "fused": "fuse",
}
"""Stage -> the pass behind which it is seen."""


def global_passes(target: Target) -> tuple[Pass, ...]:
    """Whole program to primitive boxes."""
    rank = target.machine.shared_by(target.mesh.ranks)
    return (
        differentiate,
        simplify,
        recompute,
        partial(plan, mesh=target.mesh, machine=target.machine, pins=dict(target.layouts),
                hints=target.hints),
        partial(lower_boxes, seconds=step_prices(target.mesh, rank)),
    )


def local_passes(rank: int, *, checked: bool = True) -> tuple[Pass, ...]:
    """One rank's part, to kernels. Unless `checked`, indices are clamped."""
    clamp = () if checked else (clamp_indices,)
    return (partial(_localise, rank=rank), *clamp, copy_windows, fuse)


def _localise(module: Module, rank: int) -> Module:
    return localise(module, rank)


_localise.__name__ = "localise"
