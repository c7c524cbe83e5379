"""Options that several subcommands share, and what their text means."""

from __future__ import annotations

import argparse

from anabranch.ir.diagnostics import fail
from anabranch.ir.mesh import MICRO, Mesh


def add_program(parser: argparse.ArgumentParser) -> None:
    """The file and how to compile it."""
    parser.add_argument("file", help="a program (.ab)")
    parser.add_argument("--model", metavar="NAME", help="the model whose recipe is meant")
    parser.add_argument("--mesh", default="", metavar="AXIS=N,...",
                        help="named axes of the device mesh, for example data=2,model=2")
    parser.add_argument("--micro", type=int, metavar="N", help="micro-batches in a step")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                        help="override a line of the recipe or an argument of the model")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random draws")


def mesh_of(text: str) -> Mesh:
    """`data=2,model=2` as a mesh. Raises `UserError`."""
    axes: dict[str, int] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, size = part.partition("=")
        if not name.isidentifier() or not size.isdecimal() or int(size) < 1:
            raise fail(f"'{part}' is not an axis of a mesh",
                       help="write axes as name=size, for example --mesh data=2,model=2")
        if name in axes or name == MICRO:
            why = "given twice" if name in axes else "reserved: use --micro"
            raise fail(f"the mesh axis '{name}' is {why}")
        axes[name] = int(size)
    return Mesh(tuple(axes.items()))


def overrides_of(pairs: list[str]) -> dict[str, str]:
    """`--set` texts by name; the values are expressions of the language."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise fail(f"'{pair}' is not an override", help="write --set name=value")
        found[name.strip()] = value.strip()
    return found
