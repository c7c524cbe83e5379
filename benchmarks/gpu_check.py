"""Runs every Triton kernel of a training step on a GPU, against the reference.

    python -m benchmarks.gpu_check [--small] [--drop 0.1] [--mesh data=2] [--repeat 20]

Operands are those of a step of W1. Prints, for every kernel, its programs, the microseconds of a
launch and the share of the greatest error in what is allowed. Ends with 1 if a kernel is wrong and
with 2 if there is nothing to run on.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from anabranch.cli.options import mesh_of
from anabranch.codegen.emit import launches
from anabranch.ir.launch import LaunchSpec
from anabranch.ir.mesh import Mesh
from anabranch.ir.reference import evaluate_op
from tests.codegen.triton_cases import SMALL, cases, steps
from tests.codegen.triton_memory import assert_agrees, call, run


def obstacle() -> str:
    """Why kernels cannot run here; empty if they can."""
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} must be installed: pip install 'anabranch[gpu,torch]'"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "TRITON_INTERPRET=1 is set, which would run the interpreter instead of the GPU"
    import torch

    return "" if torch.cuda.is_available() else "torch sees no GPU on this machine"


@dataclass(slots=True)
class Stopwatch:
    """Launches a kernel, then times further launches of it."""

    repeat: int
    microseconds: dict[str, float] = field(default_factory=dict)

    def __call__(self, module: Any, spec: LaunchSpec, arguments: Sequence[Any]) -> None:
        import torch

        call(module, spec, arguments)
        if "old +" in spec.kernel.source or not self.repeat:
            return  # a scatter adds to what is there: once is enough
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(self.repeat):
            call(module, spec, arguments)
        stop.record()
        stop.synchronize()
        self.microseconds[spec.kernel.symbol] = start.elapsed_time(stop) * 1e3 / self.repeat


def check(drop: float, mesh: Mesh, *, small: bool, repeat: int, console: Console) -> int:
    """Run and compare all kernels; how many ops are wrong."""
    watch, wrong = Stopwatch(repeat), 0
    table = Table("kernels", "programs", "µs", "verdict")
    sizes = {**(SMALL if small else {"depth": 2}), "drop": drop}
    for case in cases(steps(mesh, sizes, batch=3 if small else 8)):
        specs = launches(case.op, "triton")
        outcome = run(case.op, case.operands, specs, device="cuda", launch=watch)
        try:
            assert outcome.status[0] == 0, f"index {outcome.status[1]} of {outcome.status[2]}"
            assert_agrees(case.op, outcome.results, evaluate_op(case.op, case.operands))
            verdict = "agrees"
        except AssertionError as error:
            wrong, verdict = wrong + 1, f"[red]{str(error).strip().splitlines()[0]}"
        for spec in specs:
            micros = watch.microseconds.get(spec.kernel.symbol)
            table.add_row(spec.kernel.symbol, str(spec.tiles),
                          "" if micros is None else f"{micros:.1f}", verdict)
    console.print(table)
    console.print(f"{wrong} wrong" if wrong else "all kernels agree with the reference")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="sizes that divide no block")
    parser.add_argument("--drop", type=float, default=0.1)
    parser.add_argument("--mesh", default="", help="the kernels of one rank of such a mesh")
    parser.add_argument("--repeat", type=int, default=20, help="launches that are timed; 0: none")
    args = parser.parse_args()
    why = obstacle()
    if why:
        print(f"cannot check kernels: {why}", file=sys.stderr)
        return 2
    mesh = mesh_of(args.mesh) if args.mesh else Mesh()
    wrong = check(args.drop, mesh, small=args.small, repeat=args.repeat, console=Console())
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
