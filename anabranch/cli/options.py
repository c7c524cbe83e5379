"""Options that several subcommands share; `subjects` says what their text means."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from anabranch.subjects import mesh_of, overrides_of

__all__ = ["add_program", "mesh_of", "overrides_of", "positive"]


def positive(text: str) -> int:
    """An integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not an integer of at least 1")
    return int(text)


def add_program(parser: argparse.ArgumentParser) -> None:
    """The file and how to compile it."""
    parser.add_argument("file", help="a program (.ab)")
    parser.add_argument("--model", metavar="NAME", help="the model whose recipe is meant")
    parser.add_argument("--mesh", default="", metavar="AXIS=N,...",
                        help="named axes of the device mesh, for example data=2,model=2")
    parser.add_argument("--micro", type=positive, metavar="N", help="micro-batches in a step")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                        help="override a line of the recipe or an argument of the model")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random draws")


def command() -> str:
    """How this command line is called from here, for what is proposed to type next."""
    called = Path(sys.argv[0])
    if called.name != "anabranch":
        return "python -m anabranch"
    found = shutil.which("anabranch")
    on_path = found is not None and Path(found).resolve() == called.resolve()
    return "anabranch" if on_path else os.path.relpath(called)
