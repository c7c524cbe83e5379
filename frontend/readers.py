"""The readers that a recipe can name, and what is known of each when compiling.

A reader is Python, made when a run begins. The compiler knows its name, the arguments that a recipe
gives it, and the types of its batches where they follow from those; otherwise a batch is what the
functions of the model declare, with the argument `batch` as its first dimension if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from anabranch.frontend.builtins import Call, builtin
from anabranch.frontend.values import Reader, describe
from anabranch.ir.diagnostics import fail, nearest


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of a reader. `gives` has dtypes and dimensions, which are arguments; `others`
    is set if it takes any more; `parts` are those that are a part of the rows; `about` says what
    a batch is, for people."""

    needed: tuple[str, ...]
    optional: tuple[str, ...] = ()
    others: bool = False
    parts: tuple[str, ...] = ()
    gives: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    about: str = ""


WINDOWS = ("i64", ("batch", "window"))
READERS: dict[str, Signature] = {}


def add_reader(name: str, signature: Signature) -> None:
    """Let recipes name a reader."""
    READERS[name] = signature
    known = (*signature.needed, *signature.optional)

    @builtin(name, f"A reader of a recipe. It takes {', '.join(known) or 'nothing'}"
                   f"{' and others' if signature.others else ''}, by name."
                   f"{' ' if signature.about else ''}{signature.about}")
    def run(call: Call, *args: object, **arguments: object) -> object:
        takes = f"it takes {', '.join(known) or 'nothing'}"
        if args:
            raise fail(f"the arguments of the reader '{name}' go by name", call.span, help=takes)
        for given in () if signature.others else arguments.keys() - {*known}:
            raise fail(f"the reader '{name}' takes no '{given}'", call.span,
                       help=nearest(given, known) or takes)
        for missing in {*signature.needed} - arguments.keys():
            raise fail(f"the reader '{name}' is called without '{missing}'", call.span, help=takes)
        for part in arguments.keys() & {*signature.parts}:
            _check_part(part, arguments[part], call)
        return Reader(name, arguments, signature.gives)


def _check_part(name: str, value: object, call: Call) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise fail(f"'{name}' is a part of the rows, between 0 and 1, not {describe(value)}",
                   call.span, help=f"as in {name}=0.1, which holds out one row of ten")


add_reader("text", Signature(
    ("window", "batch"), gives={"tokens": WINDOWS, "targets": WINDOWS},
    about="It gives the bytes of a text or of a folder of them as tokens: i64[batch, window], and "
          "as targets: i64[batch, window] those that follow each."))
add_reader("arrays", Signature(
    ("batch",), ("held",), parts=("held",),
    about="It gives batch rows of each array of an .npz, by the names that they have there."))
add_reader("images", Signature(
    ("batch",), ("held",), parts=("held",),
    about="It gives images: f32[batch, channels, height, width], from 0 to 1, of a folder of .png, "
          ".pgm or .ppm files of one size, and labels: i64[batch], from 0 on, if there is a folder "
          "for each class, in the order of their names."))
add_reader("table", Signature(
    ("batch",), ("held", "columns"), parts=("held",),
    about="It gives the columns of a .csv or .tsv by their names, all or those that are listed: "
          "integers and words, which are numbered in sorted order, as i64[batch], other numbers "
          "as f32[batch]."))
