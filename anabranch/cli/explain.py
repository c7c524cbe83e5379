"""Show how a program is distributed, and why.

Every value with its layout, its predicted seconds and what the next best layout would add; every
change of layout with its seconds, its bytes and the source line that forced it. With the name of
a value (as `anabranch dump --stage simple` shows it): all layouts it could be made in, priced.
Seconds are of one step of training, all micro-batches together.
"""

from __future__ import annotations

import argparse

from anabranch.cli.options import add_program, mesh_of, overrides_of
from anabranch.dumps import Request
from anabranch.explaining import explain
from anabranch.frontend.program import load


def configure(parser: argparse.ArgumentParser) -> None:
    add_program(parser)
    parser.add_argument("value", nargs="?", default="", help="the name of a value")
    parser.add_argument("--function", default="", metavar="NAME",
                        help="the function that is meant, as in anabranch dump")
    parser.add_argument("--json", dest="form", action="store_const", const="json", default="text",
                        help="everything as one line of JSON")


def run(args: argparse.Namespace) -> int:
    request = Request(
        mesh=mesh_of(args.mesh), function=args.function, model=args.model or "",
        settings=overrides_of(args.set), micro=args.micro, form=args.form)
    print(explain(load(args.file), args.value, request))
    return 0
