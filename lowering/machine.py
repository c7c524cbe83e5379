"""What a device and its links can do: the constants behind every predicted second.

A profile is a few rates. Those shipped here were measured on the machine class they name (`cpu2`:
two cores of a server CPU with AVX2, NumPy's BLAS) or taken from vendors' data sheets and public
collective benchmarks with the usual efficiency (`h100`). `anabranch explain` prints the terms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from anabranch.ir.mesh import Mesh

LEAST_LAUNCH = 1e-6  # seconds


@dataclass(frozen=True, slots=True)
class Link:
    """A transfer between two ranks takes `latency` seconds plus its bytes over `bandwidth`."""

    latency: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates of one rank: floating-point operations a second in contractions and elsewhere, bytes
    a second to memory, seconds a launch costs. Where ranks share cores (`cores` > 0) the rates are
    those of all cores together and are divided among the ranks. `inner` links ranks of one node of
    `node` ranks, `outer` ranks of different nodes."""

    name: str
    contraction: float
    pointwise: float
    memory: float
    launch: float
    inner: Link
    outer: Link
    node: int
    cores: int = 0

    def shared_by(self, ranks: int) -> Machine:
        """The rates that each of `ranks` ranks has."""
        if not self.cores or ranks <= 1:
            return self
        return replace(self, contraction=self.contraction / ranks,
                       pointwise=self.pointwise / ranks, memory=self.memory / ranks)

    def link(self, mesh: Mesh, axis: str) -> Link:
        """The slowest link along a mesh axis: the last axes lie inside a node."""
        span = 1
        for name, size in reversed(mesh.space.axes):
            span *= size
            if name == axis:
                break
        return self.inner if span <= self.node else self.outer

    def work_seconds(self, flops: float, nbytes: float, *, contraction: bool) -> float:
        """A kernel is bound by arithmetic or by memory, and costs a launch. That is never nothing:
        of plans that move as much the one with fewer kernels and boxes is better."""
        rate = self.contraction if contraction else self.pointwise
        return max(flops / rate, nbytes / self.memory) + max(self.launch, LEAST_LAUNCH)


CPU2 = Machine(
    name="cpu2", contraction=220e9, pointwise=80e9, memory=25e9, launch=4e-6,
    inner=Link(20e-6, 6e9), outer=Link(100e-6, 1e9), node=64, cores=2,
)
H100 = Machine(
    name="h100", contraction=400e12, pointwise=30e12, memory=2.8e12, launch=4e-6,
    inner=Link(12e-6, 390e9), outer=Link(25e-6, 45e9), node=8,
)
PROFILES = {machine.name: machine for machine in (CPU2, H100)}
