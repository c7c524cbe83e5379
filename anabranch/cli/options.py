"""Options that several subcommands share; `subjects` says what their text means.

The types here are argparse's: a text that they refuse is a wrong command line, exit code 2.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from anabranch.ir.diagnostics import UserError
from anabranch.subjects import mesh_of, overrides_of
from anabranch.weights import Row, read_table

__all__ = [
    "add_program", "add_readers", "add_rename", "command", "integer", "mesh_of", "overrides_of",
    "renaming", "understood",
]  # fmt: skip


def integer(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    """An integer between two others."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' is not an integer") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is less than {least}")
        if number > most:
            raise argparse.ArgumentTypeError(f"{number} is more than {most}")
        return number

    return parse


def understood(meaning: Callable[[str], object]) -> Callable[[str], str]:
    """A text that means something; kept as it is, to be shown and repeated."""

    def parse(text: str) -> str:
        try:
            meaning(text)
        except UserError as error:
            (wrong,) = error.diagnostics
            hint = f"; {wrong.help}" if wrong.help else ""
            raise argparse.ArgumentTypeError(f"{wrong.message}{hint}") from None
        return text

    return parse


def add_program(parser: argparse.ArgumentParser) -> None:
    """The file and how to compile it."""
    parser.add_argument("file", help="a program (.ab)")
    parser.add_argument("--model", metavar="NAME", help="the model whose recipe is meant")
    parser.add_argument("--mesh", default="", metavar="AXIS=N,...", type=understood(mesh_of),
                        help="named axes of the device mesh, for example data=2,model=2")
    parser.add_argument("--micro", type=integer(1), metavar="N", help="micro-batches in a step")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                        type=understood(lambda text: overrides_of([text])),
                        help="override a line of the recipe or an argument of the model; VALUE is "
                        "read as in a program: 0.1, None, [1, 2], relu, sgd(lr=0.1); a text has "
                        "quotes of its own: --set 'mode=\"same\"'")
    add_readers(parser)
    parser.add_argument("--seed", type=integer(-(2**63), 2**63 - 1), default=0,
                        help="seed of all random draws")


def add_readers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--readers", action="append", default=[], metavar="FILE",
                        help="a file of Python to run first, which registers readers that recipes "
                        "name (see anabranch/readers.py)")


def add_rename(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rename", metavar="FILE", help="JSON: what the names in the file of "
                        "weights are here (see anabranch/weights.py)")


def renaming(args: argparse.Namespace) -> dict[str, Row] | None:
    return read_table(args.rename) if args.rename else None


def command() -> str:
    """How this command line is called from here, for what is proposed to type next."""
    called = Path(sys.argv[0])
    if called.name != "anabranch":
        return "python -m anabranch"
    found = shutil.which("anabranch")
    on_path = found is not None and Path(found).resolve() == called.resolve()
    return "anabranch" if on_path else os.path.relpath(called)
