"""Show the operators of the library, or of a program.

Without a name: all of them, by family, with a line each. With a name: signature, meaning and
definition, and what is derived of it: the layouts it may have on a mesh, its cost, its gradient,
and an example with its value.
"""

from __future__ import annotations

import argparse
import textwrap

from anabranch.frontend.program import load
from anabranch.operators import builtins, details, find, listing, operators_of


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="an op, def or model")
    parser.add_argument("--file", metavar="FILE", help="a program (.ab) that defines it")


def run(args: argparse.Namespace) -> int:
    program = load(args.file) if args.file else None
    if args.name:
        print(details(find(args.name, program)))
        return 0
    print(listing(operators_of(program)))
    if program is None:
        names = textwrap.wrap(", ".join(builtins()), 96)
        print("\n".join(["\nthe language's own", *(f"  {line}" for line in names)]))
    return 0
