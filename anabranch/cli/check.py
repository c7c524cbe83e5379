"""Find what is wrong with a program, and show what is derived of its ops.

All mistakes of the file and of its recipes are reported, and what the model of each recipe holds.
Each op of the file is tried with sizes that do not divide, small ones and empty ones: every
signature derived for a statement of it, or of its gradient, is simulated on 2 and 3 ranks, and the
gradient is compared with finite differences. Exit code 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import sys

from anabranch.checking import Report, check_file
from anabranch.cli.options import add_readers
from anabranch.frontend.program import read
from anabranch.ir.diagnostics import UserError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="a program (.ab)")
    add_readers(parser)
    parser.add_argument("--quiet", action="store_true", help="show mistakes only")


def run(args: argparse.Namespace) -> int:
    program, reports = check_file(read(args.file), args.file)
    wrong = 0
    for report in reports:
        wrong += len(report.mistakes)
        if not args.quiet and report.lines:
            print(text(report), flush=True)
        if report.mistakes:
            print(UserError(*report.mistakes, sources=program.sources), file=sys.stderr)
    return 1 if wrong else 0


def text(report: Report) -> str:
    return "\n".join([report.name, *(f"  {line}" for line in report.lines), ""])
