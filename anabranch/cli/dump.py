"""Show a program at a stage of the compiler, as text or as JSON.

  ast      the syntax tree
  ir       statements in index notation, in global view
  grad     with the derived gradients
  simple   simplified
  sbp      laid out on the mesh, with boxes where layouts change
  boxed    boxes as primitive steps
  local    one rank's part
  fused    grouped into kernels
  kernels  the kernels, in the language of kernels
  c        the same, as they are compiled for a CPU
  triton   the same, as they are compiled for a GPU
  plan     actors, registers, streams and memory

What is shown is the training step of the file's recipe, or its only function, unless --function
says otherwise: train, eval, init, next, the name of a definition, MODEL.FUNCTION, or a function of
the recipe's model. Sizes that a signature leaves open are given by --set: --set N=64.
"""

from __future__ import annotations

import argparse
import sys

from anabranch import driver
from anabranch.cli.options import add_program, integer, mesh_of, overrides_of
from anabranch.dumps import STAGES, Request, dump
from anabranch.frontend.program import load
from anabranch.ir import passes
from anabranch.lowering import pipeline

PASSES = [passes.name_of(step) for step in (
    *pipeline.global_passes(pipeline.Target(driver.Options().mesh)), *pipeline.local_passes(0))]


def configure(parser: argparse.ArgumentParser) -> None:
    add_program(parser)
    parser.add_argument("--stage", choices=list(STAGES), default="ir", help="what to show")
    parser.add_argument("--function", default="", metavar="NAME", help="of which function")
    parser.add_argument("--rank", type=integer(0), default=0, metavar="R",
                        help="whose part, from the stage local on")
    parser.add_argument("--print-after", action="append", default=[], metavar="PASS",
                        choices=[*PASSES, "all"],
                        help=f"write the module behind a pass to standard error: "
                        f"{', '.join(PASSES)}, or all")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--mlir", dest="form", action="store_const", const="mlir", default="text",
                      help="in MLIR's generic form")
    form.add_argument("--json", dest="form", action="store_const", const="json",
                      help="as one line of JSON")
    parser.add_argument("--time-passes", action="store_true",
                        help="write the seconds of each pass to standard error")


def run(args: argparse.Namespace) -> int:
    request = Request(
        mesh=mesh_of(args.mesh), function=args.function, model=args.model or "",
        settings=overrides_of(args.set), micro=args.micro, rank=args.rank, form=args.form,
        print_after=args.print_after)
    print(dump(load(args.file), args.stage, request).rstrip())
    if args.time_passes:
        print(timings(request.timings), file=sys.stderr)
    return 0


def timings(seconds: dict[str, float]) -> str:
    """A line for each pass, and their sum."""
    rows = [*seconds.items(), ("total", sum(seconds.values()))]
    return "\n".join(f"{name:14} {each:8.3f} s" for name, each in rows)
