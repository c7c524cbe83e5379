"""Show the operators of the library, or of a program.

Without a name: all of them, by family, with a line each. With a name: signature, meaning and
definition, and what is derived of it: the layouts it may have on a mesh, its cost, its gradient,
and an example with its value.
"""

from __future__ import annotations

import argparse
import textwrap

from anabranch.frontend.program import loads, read
from anabranch.ir.diagnostics import Collector
from anabranch.operators import builtins, details, find, listing, mistakes_of, operators_of


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="an op, def or model")
    parser.add_argument("--file", metavar="FILE", help="a program (.ab) that defines it")


def run(args: argparse.Namespace) -> int:
    found = Collector()
    program = loads(read(args.file), args.file, found) if args.file else None
    if args.name:
        mistakes_of(args.name, program, found).raise_if_any(program.sources if program else None)
        print(details(find(args.name, program)))
        return 0
    print(listing(operators_of(program)))
    found.raise_if_any(program.sources if program else None)
    if program is None:
        names = textwrap.wrap(", ".join(builtins()), 96)
        print("\n".join(["\nthe language's own", *(f"  {line}" for line in names)]))
    return 0
