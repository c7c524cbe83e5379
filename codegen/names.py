"""Names and integer arguments of a kernel, and conditions as far as they are known."""

from __future__ import annotations

import re

from anabranch.codegen.kernel import Ref
from anabranch.ir.expr import FALSE, TRUE, Call, Const, Expr, integer
from anabranch.ir.launch import IntArg

RESERVED = {
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else",
    "enum", "extern", "float", "for", "goto", "if", "inline", "int", "long", "register",
    "restrict", "return", "short", "signed", "sizeof", "static", "struct", "switch", "typedef",
    "union", "unsigned", "void", "volatile", "while", "bool", "true", "false", "asm", "linux",
    "unix", "tl", "triton", "ints", "floats", "ptrs", "ctx", "tile", "tile_begin", "tile_end",
    "and", "or", "not", "is", "in", "def", "del", "from", "import", "lambda", "None", "pass",
    "class", "try", "with", "yield", "raise", "global", "assert", "as", "elif", "except",
    "finally", "nonlocal", "True", "False", "min", "max", "I", "_Complex", "NAN", "INFINITY",
}  # fmt: skip

class Names:
    """Fresh names, also legal in C and Python."""

    def __init__(self) -> None:
        self.taken = set(RESERVED)

    def fresh(self, hint: str) -> str:
        stem = re.sub(r"[^0-9A-Za-z_]+", "_", hint).strip("_") or "v"
        stem = f"v{stem}" if stem[0].isdigit() else stem
        name, number = stem, 2
        while name in self.taken or name.startswith("ab_"):
            name, number = f"{stem}_{number}", number + 1
        self.taken.add(name)
        return name


class Numbers:
    """The integer arguments of a kernel; equal numbers share one."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.args: dict[str, IntArg] = {}

    def extent(self, axis: str, size: int) -> Ref:
        """A name of its own for the extent of an axis, whatever its size."""
        name = self.names.fresh(f"n_{axis}")
        self.args[name] = IntArg(size)
        return Ref(name)

    def argument(self, arg: IntArg, hint: str) -> Ref:
        for name, known in self.args.items():
            if known == arg:
                return Ref(name)
        name = self.names.fresh(hint)
        self.args[name] = arg
        return Ref(name)

    def number(self, value: int) -> Expr:
        """Small numbers are text; others are arguments, so that shapes can share the text."""
        return integer(value) if -1 <= value <= 2 else self.argument(IntArg(value), "k")


def both(mask: Expr | None, more: Expr) -> Expr | None:
    """The conjunction of two conditions; None is true."""
    if more == TRUE:
        return mask
    return more if mask is None else Call("and", (mask, more))


def negated(condition: Expr) -> Expr:
    if isinstance(condition, Const):
        return FALSE if condition.value else TRUE
    return Call("not", (condition,))
