"""Reads the right side of a compute: a precedence parser over the tokens of one line.

Tokens are plain strings, found in one pass; where one stands is worked out only for an error.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from anabranch.ir.core import Value
from anabranch.ir.diagnostics import Diagnostic, Note, Span, UserError, nearest
from anabranch.ir.expr import Call, Cast, Const, Expr, Origin, Rand, Read, Var
from anabranch.ir.ops import REDUCTIONS
from anabranch.ir.printer import COMPARISON, INFIX, LOOSEST, NEGATION, NOT, POWER, RANDOM_CALLS
from anabranch.ir.scalar import PRIMITIVES
from anabranch.ir.types import DTYPES, is_float

TOKEN = re.compile(
    r"(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|(?:inf|nan)(?![\w.]))(?::\w+)?"  # a literal
    r"|%[\w.]+|\#\d+"  # an operand
    r"|[^\W\d][\w.]*"  # a variable, a function, a word
    r"|\*\*|//|[<>=!]=|\S"
)
END = ""
WORDS = frozenset({"true", "false", "inf", "nan", "and", "or", "not", "if"})
SIGNS = {sign: (fn, level) for fn, (sign, level) in INFIX.items()}
BY_CALL = {fn: primitive.arity for fn, primitive in PRIMITIVES.items()}
RANDOM_KINDS = {name: kind for kind, name in RANDOM_CALLS.items()}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the text, to point at."""

    number: int
    text: str
    file: str

    def span(self, start: int, stop: int) -> Span:
        return Span(self.file, self.number, start + 1, self.number, max(stop, start + 1) + 1)

    def fault(self, message: str, start: int, stop: int, *notes: Note, help: str = "") -> UserError:
        """The error with a caret under columns [start, stop) of the line; the caller raises it."""
        diagnostic = Diagnostic(message, self.span(start, stop), notes, help)
        return UserError(diagnostic, sources={self.file: "\n" * (self.number - 1) + self.text})

    def fault_at(self, message: str, part: str, *notes: Note, help: str = "") -> UserError:
        """The same, under the last occurrence of a part of the line."""
        start = max(self.text.rfind(part), 0)
        return self.fault(message, start, start + len(part), *notes, help=help)


@dataclass(slots=True)
class Tokens:
    """The rest of a line as tokens, and how far they have been read."""

    line: Line
    start: int
    stop: int
    items: list[str] = field(init=False)
    at: int = 0

    def __post_init__(self) -> None:
        self.items = TOKEN.findall(self.line.text, self.start, self.stop)
        self.items.append(END)

    def next(self) -> str:
        token = self.items[self.at]
        self.at += 1
        return token

    def skip(self, token: str) -> bool:
        """Read this token if it is the next one."""
        if self.items[self.at] != token:
            return False
        self.at += 1
        return True

    def expect(self, token: str) -> None:
        if not self.skip(token):
            raise self.fault(f"expected '{token}', found {self.shown()}")

    def shown(self) -> str:
        token = self.items[self.at]
        return f"'{token}'" if token else "the end of the line"

    def fault(self, message: str, at: int | None = None, help: str = "") -> UserError:
        """The error with a caret under a token, by default the next one."""
        places = [m.span() for m in TOKEN.finditer(self.line.text, self.start, self.stop)]
        places.append((self.stop, self.stop + 1))
        return self.line.fault(message, *places[self.at if at is None else at], help=help)


@dataclass(slots=True)
class Operands:
    """The operands of a compute. When `listed`, the line names them all; otherwise they are what
    it reads, in that order."""

    scope: dict[str, Value]
    values: list[Value] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    listed: bool = False

    def list(self, names: list[str]) -> None:
        self.listed = True
        for name in names:
            self.numbers.setdefault(name, len(self.values))
            self.values.append(self.scope[name])

    def number(self, name: str) -> int:
        found = self.numbers.get(name)
        if found is None:
            if self.listed:
                raise KeyError(name)
            found = self.numbers[name] = len(self.values)
            self.values.append(self.scope[name])
        return found


@dataclass(slots=True)
class RightSide:
    """`reduce[reduced if guard](body)`, or just a body."""

    body: Expr
    reduce: str = ""
    reduced: tuple[tuple[str, int], ...] = ()
    guard: Expr | None = None


def right_side(tokens: Tokens, operands: Operands) -> RightSide:
    """All of the tokens, as a reduction at the root or a plain expression."""
    parser = _Parser(tokens, operands)
    if tokens.items[0] in REDUCTIONS and tokens.items[1] == "[":
        reduce, _ = tokens.next(), tokens.next()
        reduced = parser.reduced()
        guard = parser.expression() if tokens.skip("if") else None
        tokens.expect("]")
        tokens.expect("(")
        found = RightSide(parser.expression(), reduce, reduced, guard)
        tokens.expect(")")
    else:
        found = RightSide(parser.expression())
    if tokens.items[tokens.at] != END:
        raise tokens.fault(f"expected an operator or the end of the line, found {tokens.shown()}")
    return found


@dataclass(slots=True)
class _Parser:
    tokens: Tokens
    operands: Operands

    def expression(self, level: int = LOOSEST) -> Expr:
        """An expression of operators that bind at least as tightly as `level`."""
        tokens = self.tokens
        left = self.prefix()
        while True:
            found = SIGNS.get(tokens.items[tokens.at])
            if found is None or found[1] < level:
                return left
            fn, own = found
            tokens.at += 1
            right = self.expression(NEGATION if own == POWER else own + 1)
            left = Call(fn, (left, right))
            if own == COMPARISON and SIGNS.get(tokens.items[tokens.at], (fn, 0))[1] == own:
                raise tokens.fault("comparisons do not chain", help="use parentheses and 'and'")

    def prefix(self) -> Expr:
        token = self.tokens.next()
        first = token[:1]
        if first == "%" or first == "#":
            return self.read(token)
        if first.isdecimal() or token.partition(":")[0] in ("inf", "nan"):
            return self.literal(token)
        if token in _PREFIXES:
            return _PREFIXES[token](self)
        if first.isalpha() or first == "_":
            return self.word(token)
        self.tokens.at -= 1
        raise self.tokens.fault(f"expected an expression, found {self.tokens.shown()}")

    def literal(self, token: str) -> Expr:
        try:
            return _literal(token)
        except ValueError as error:
            raise self.tokens.fault(str(error), self.tokens.at - 1) from None

    def read(self, token: str) -> Expr:
        number = self.operand(token)
        tokens = self.tokens
        tokens.expect("[")
        subscripts: list[Expr] = []
        pad = None
        while not tokens.skip("]"):
            if tokens.items[tokens.at] == "pad" and tokens.items[tokens.at + 1] == "=":
                tokens.at += 2
                pad = self.expression()
                tokens.expect("]")
                break
            subscripts.append(self.expression())
            if tokens.items[tokens.at] != "]":
                tokens.expect(",")
        return Read(number, tuple(subscripts), pad)

    def operand(self, token: str) -> int:
        """The number of the operand that a token `%name` or `#number` stands for."""
        if token[0] == "#" and int(token[1:]) < len(self.operands.values):
            return int(token[1:])
        try:
            return self.operands.number(token)
        except KeyError:
            known = self.operands.numbers if self.operands.listed else self.operands.scope
            what = "is not among the operands" if self.operands.listed else "is not defined"
            raise self.tokens.fault(
                f"{token} {what}", self.tokens.at - 1, help=nearest(token, known)) from None

    def word(self, token: str) -> Expr:
        tokens = self.tokens
        if tokens.items[tokens.at] != "(":
            if token in WORDS:
                raise tokens.fault(f"expected an expression, found '{token}'", tokens.at - 1)
            return _variable(token)
        tokens.at += 1
        if token == "origin":
            return Origin(*self.integers())
        if token in RANDOM_KINDS:
            return self.random(RANDOM_KINDS[token])
        name_at = tokens.at - 2
        args = self.arguments()
        if token in DTYPES:
            self.check_count(token, 1, args, name_at)
            return Cast(token, args[0])
        if token not in BY_CALL:
            raise tokens.fault(f"there is no primitive '{token}'", name_at,
                               nearest(token, [*BY_CALL, *DTYPES, *RANDOM_KINDS]))
        self.check_count(token, BY_CALL[token], args, name_at)
        return Call(token, args)

    def check_count(self, fn: str, wanted: int, args: tuple[Expr, ...], name_at: int) -> None:
        if len(args) != wanted:
            raise self.tokens.fault(f"'{fn}' takes {wanted} arguments, found {len(args)}", name_at)

    def arguments(self) -> tuple[Expr, ...]:
        """Comma-separated expressions up to the closing parenthesis."""
        tokens = self.tokens
        found = [self.expression()]
        while tokens.skip(","):
            found.append(self.expression())
        tokens.expect(")")
        return tuple(found)

    def random(self, kind: str) -> Expr:
        stream = self.integer()
        self.tokens.expect(",")
        name_at = self.tokens.at
        rest = self.arguments()
        self.check_count("rand", 3, rest, name_at)
        return Rand(kind, stream, *rest)

    def integers(self) -> tuple[int, ...]:
        """The one or two numbers of an origin."""
        base = self.integer()
        step = self.integer() if self.tokens.skip(",") else 0
        self.tokens.expect(")")
        return base, step

    def integer(self) -> int:
        negative = self.tokens.skip("-")
        if not self.tokens.items[self.tokens.at].isdecimal():
            raise self.tokens.fault(f"expected an integer, found {self.tokens.shown()}")
        return int(self.tokens.next()) * (-1 if negative else 1)

    def reduced(self) -> tuple[tuple[str, int], ...]:
        """`k < 16, n < 3`."""
        found: list[tuple[str, int]] = []
        while not found or self.tokens.skip(","):
            name = self.tokens.next()
            if not (name[:1].isalpha() or name[:1] == "_") or name in WORDS:
                self.tokens.at -= 1
                raise self.tokens.fault(f"expected a variable, found {self.tokens.shown()}")
            self.tokens.expect("<")
            found.append((name, self.integer()))
        return tuple(found)

    def parenthesis(self) -> Expr:
        inner = self.expression()
        self.tokens.expect(")")
        return inner

    def negation(self) -> Expr:
        """`-x`, or a negative literal (but `-2 ** x` is the negation of a power)."""
        tokens = self.tokens
        literal = tokens.items[tokens.at][:1].isdecimal() or (
            tokens.items[tokens.at].partition(":")[0] in ("inf", "nan"))
        if literal and tokens.items[tokens.at + 1] != "**":
            positive = self.literal(tokens.next())
            assert isinstance(positive, Const)
            return Const(-positive.value, positive.dtype)
        return Call("neg", (self.expression(NEGATION),))

    def complement(self) -> Expr:
        return Call("not", (self.expression(NOT),))

    def true(self) -> Expr:
        return Const(True, "bool")

    def false(self) -> Expr:
        return Const(False, "bool")


_PREFIXES: dict[str, Callable[[_Parser], Expr]] = {
    "(": _Parser.parenthesis, "-": _Parser.negation, "not": _Parser.complement,
    "true": _Parser.true, "false": _Parser.false,
}


@functools.lru_cache(maxsize=4096)
def _variable(name: str) -> Var:
    return Var(name)


@functools.lru_cache(maxsize=4096)
def _literal(token: str) -> Const:
    text, _, dtype = token.partition(":")
    whole = text.isdecimal()
    dtype = dtype or ("i64" if whole else "f32")
    if dtype not in DTYPES or dtype == "bool" or whole == is_float(dtype):
        raise ValueError(f"'{token}' is not a literal: '{dtype}' "
                         f"{'takes no such number' if dtype in DTYPES else 'is not a dtype'}")
    if whole:
        return Const(int(text), dtype)
    return Const(math.nan if text == "nan" else float(text), dtype)
