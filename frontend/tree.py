"""Lark's parse tree -> the nodes of `syntax.py`: one method for each rule of `grammar.lark`.

The few rules of syntax that a context-free grammar says badly are checked here: what may stand on
the left of `=`, the order of arguments and of defaults, and the entries of a layout.
"""

from __future__ import annotations

import inspect
import re
from itertools import pairwise
from typing import Any, cast

from lark import Token, Transformer, v_args
from lark.tree import Meta

from anabranch.frontend import syntax as s
from anabranch.ir.diagnostics import Collector, Note, Span

_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", '"': '"', "'": "'", "\n": ""}
_LONGEST_NUMBER = 1000
_PARTIALS = ("max", "min", "prod")

Body = tuple[s.Statement, ...]
Params = tuple[s.Param, ...]


@v_args(inline=True, meta=True)
class TreeBuilder(Transformer[Token, Any]):
    """Builds one top-level item; mistakes go to `found`."""

    def __init__(self, file: str, found: Collector) -> None:
        super().__init__(visit_tokens=False)
        self.file, self.found = file, found
        self.has_seen_self = False

    # ---- Places

    def _at(self, meta: Meta) -> Span:
        return Span(self.file, meta.line, meta.column, meta.end_line, meta.end_column)

    def _of(self, token: Token) -> Span:
        line, column = cast(int, token.line), cast(int, token.column)
        return Span(self.file, line, column, line, column + len(token))

    def _named(self, token: Token) -> s.Name:
        self._check_self(token)
        return s.Name(str(token), span=self._of(token))

    # ---- Items

    def module(self, meta: Meta, *items: s.Item) -> list[s.Item]:
        return list(items)

    def expression(self, meta: Meta, expr: s.Expr) -> list[s.Expr]:
        return [expr]

    def import_(self, meta: Meta, module: str, *names: s.ImportedName) -> s.Import:
        return s.Import(module, names, span=self._at(meta))

    def dotted(self, meta: Meta, *parts: Token) -> str:
        return ".".join(parts)

    def imported(self, meta: Meta, name: Token, alias: Token | None) -> s.ImportedName:
        return s.ImportedName(str(name), str(alias or name), span=self._at(meta))

    def op(
        self, meta: Meta, name: Token, params: Params, results: tuple[s.Expr, ...], body: Body
    ) -> s.OpDef:
        doc, body = _split_doc(body)
        return s.OpDef(
            str(name), params, results, doc, body, span=self._at(meta).to(self._of(name))
        )

    def def_(
        self,
        meta: Meta,
        name: Token,
        params: Params,
        results: tuple[s.Expr, ...] | None,
        body: Body,
    ) -> s.FuncDef:
        doc, body = _split_doc(body)
        header = self._at(meta).to(self._of(name))
        if name == "__init__":
            self.found.add("there is no '__init__'", self._of(name), help="the parameters of a "
                           "model stand behind its name, as in model Net(n: int):, and its body "
                           "declares its fields")
        return s.FuncDef(str(name), params, results or (), doc, body, span=header)

    def params(self, meta: Meta, *params: s.Param) -> Params:
        self._check_params(params)
        return params

    typed_params = params

    def param(
        self, meta: Meta, name: Token, type: s.Expr | None, default: s.Expr | None
    ) -> s.Param:
        self._check_self(name)
        return s.Param(str(name), type, default, span=self._at(meta))

    typed_param = param

    def results(self, meta: Meta, *results: s.Expr) -> tuple[s.Expr, ...]:
        match results:
            case (s.Tuple(items),):  # `-> (A, B)`, which is how Python would say it
                return items
        return results

    def model(self, meta: Meta, name: Token, params: Params, body: Body) -> s.ModelDef:
        doc, body = _split_doc(body)
        return s.ModelDef(str(name), params, doc, body, span=self._at(meta).to(self._of(name)))

    def train(self, meta: Meta, model: Token, *rest: Any) -> s.TrainDef:
        args, keywords = self._arguments(rest[:-1])
        doc, body = _split_doc(rest[-1])
        header = self._at(meta).to(self._of(model))
        lines = cast(tuple[s.Setting | s.FuncDef, ...], body)
        return s.TrainDef(self._named(model), args, keywords, doc, lines, span=header)

    def field(
        self, meta: Meta, buffer: Token | None, name: Token, type: s.Expr, init: s.Expr | None
    ) -> s.Field:
        return s.Field(str(name), type, init, buffer is not None, span=self._at(meta))

    def setting(
        self, meta: Meta, name: Token, patterns: tuple[s.String, ...], value: s.Expr
    ) -> s.Setting:
        return s.Setting(self._named(name), patterns, value, span=self._at(meta))

    def patterns(self, meta: Meta, *patterns: s.String) -> tuple[s.String, ...]:
        return patterns

    def doc(self, meta: Meta, text: s.String) -> s.Run:
        return s.Run(text, span=text.span)

    # ---- Statements

    def suite(self, meta: Meta, *statements: s.Statement | None) -> Body:
        return tuple(each for each in statements if each is not None)

    members = settings = suite

    def pass_(self, meta: Meta) -> None:
        return None

    def assign(self, meta: Meta, left: s.Expr, value: s.Expr) -> s.Statement:
        match left:
            case s.Name() | s.Tuple() if _is_target(left):
                return s.Assign(left, value, span=self._at(meta))
            case s.Index(s.Name() as target, items, keywords):
                self._check_left(target, items, keywords)
                return s.Equation(target, items, value, span=self._at(meta))
        if isinstance(left, s.Attribute) and left.value == s.Name("self", span=left.value.span):
            return s.Run(value, span=self._at(meta))  # which is told of 'self' already
        self.found.add(
            "this cannot stand on the left of '='",
            left.span,
            help="there stands a name, several names, or a tensor with its indices: y[*i, n] = ...",
        )
        return s.Run(value, span=self._at(meta))

    def update(self, meta: Meta, name: Token, value: s.Expr) -> s.Update:
        return s.Update(self._named(name), value, span=self._at(meta))

    def return_(self, meta: Meta, value: s.Expr | None = None) -> s.Return:
        return s.Return(value, span=self._at(meta))

    def assert_(self, meta: Meta, condition: s.Expr, message: s.Expr | None) -> s.Assert:
        return s.Assert(condition, message, span=self._at(meta))

    def run(self, meta: Meta, value: s.Expr) -> s.Run:
        return s.Run(value, span=self._at(meta))

    def for_(self, meta: Meta, target: s.Target, iterable: s.Expr, body: Body) -> s.For:
        return s.For(target, iterable, body, span=self._at(meta).to(iterable.span))

    def if_(self, meta: Meta, condition: s.Expr, then: Body, *rest: Any) -> s.If:
        *elifs, otherwise = rest
        otherwise = otherwise or ()
        for span, test, body in reversed(elifs):
            otherwise = (s.If(test, body, otherwise, span=span),)
        return s.If(condition, then, otherwise, span=self._at(meta).to(condition.span))

    def elif_(self, meta: Meta, condition: s.Expr, body: Body) -> tuple[Span, s.Expr, Body]:
        return self._at(meta).to(condition.span), condition, body

    def with_(self, meta: Meta, *rest: Any) -> s.With:
        *items, body = rest
        return s.With(tuple(items), body, span=self._at(meta).to(items[-1].span))

    # ---- Expressions

    def exprs(self, meta: Meta, *items: s.Expr) -> s.Expr:
        return items[0] if len(items) == 1 else s.Tuple(items, span=self._at(meta))

    targets = exprs

    def conditional(
        self, meta: Meta, then: s.Expr, condition: s.Expr, otherwise: s.Expr
    ) -> s.Conditional:
        return s.Conditional(condition, then, otherwise, span=self._at(meta))

    def binary(self, meta: Meta, left: s.Expr, op: Token, right: s.Expr) -> s.Binary:
        return s.Binary(str(op), left, right, span=self._at(meta))

    def unary(self, meta: Meta, op: Token, operand: s.Expr) -> s.Unary:
        return s.Unary(str(op), operand, span=self._at(meta))

    def comparison(self, meta: Meta, *parts: Any) -> s.Compare:
        return s.Compare(parts[::2], parts[1::2], span=self._at(meta))

    def comparator(self, meta: Meta, *words: Token) -> str:
        return " ".join(words)

    def call(self, meta: Meta, function: s.Expr, *arguments: s.Expr | s.Keyword) -> s.Call:
        args, keywords = self._arguments(arguments)
        return s.Call(function, args, keywords, span=self._at(meta))

    def index(self, meta: Meta, value: s.Expr, *arguments: s.Expr | s.Keyword) -> s.Index:
        items, keywords = self._arguments(arguments)
        return s.Index(value, items, keywords, span=self._at(meta))

    def attribute(self, meta: Meta, value: s.Expr, name: Token) -> s.Attribute:
        return s.Attribute(value, str(name), span=self._at(meta))

    def name(self, meta: Meta, name: Token) -> s.Name:
        return self._named(name)

    def number(self, meta: Meta, text: Token) -> s.Number:
        digits = text.replace("_", "")
        if len(digits) > _LONGEST_NUMBER:
            self.found.add("this number is too long", self._at(meta))
            digits = "0"
        value = int(digits) if digits.isdigit() else float(digits)
        return s.Number(value, span=self._at(meta))

    def string(self, meta: Meta, *parts: Token) -> s.String:
        return s.String("".join(map(_unquote, parts)), span=self._at(meta))

    def constant(self, meta: Meta, word: Token) -> s.Constant:
        return s.Constant({"None": None, "True": True, "False": False}[word], span=self._at(meta))

    def tuple_(self, meta: Meta, *items: s.Expr) -> s.Tuple:
        return s.Tuple(items, span=self._at(meta))

    def list_(self, meta: Meta, *items: s.Expr) -> s.List:
        return s.List(items, span=self._at(meta))

    def comprehension(self, meta: Meta, element: s.Expr, *clauses: s.Clause) -> s.Comprehension:
        return s.Comprehension(element, clauses, span=self._at(meta))

    def clause(
        self, meta: Meta, target: s.Target, iterable: s.Expr, *conditions: s.Expr
    ) -> s.Clause:
        return s.Clause(target, iterable, conditions, span=self._at(meta))

    def star(self, meta: Meta, value: s.Expr) -> s.Star:
        return s.Star(value, span=self._at(meta))

    def keyword(self, meta: Meta, name: Token, value: s.Expr) -> s.Keyword:
        return s.Keyword(str(name), value, span=self._at(meta))

    def guard(self, meta: Meta, item: s.Expr, condition: s.Expr) -> s.Guard:
        return s.Guard(item, condition, span=self._at(meta))

    def slice_(
        self, meta: Meta, start: s.Expr | None, stop: s.Expr | None, step: s.Expr | None
    ) -> s.Slice:
        return s.Slice(start, stop, step, span=self._at(meta))

    def dots(self, meta: Meta) -> s.Dots:
        return s.Dots(span=self._at(meta))

    def layout(self, meta: Meta, *entries: s.LayoutEntry) -> s.Layout:
        self._check_unique("mesh axis", [(entry.axis, entry.span) for entry in entries])
        return s.Layout(entries, span=self._at(meta))

    def entry(self, meta: Meta, axis: Token, kind: Token, argument: s.Expr | None) -> s.LayoutEntry:
        if not _is_sbp(kind, argument):
            self.found.add(
                f"the layout of mesh axis '{axis}' is not S, B or P",
                self._at(meta),
                help="S(axis) splits that axis of the tensor, B replicates, P is a partial sum, "
                "P(max), P(min) and P(prod) are other partial results",
            )
        return s.LayoutEntry(str(axis), str(kind), argument, span=self._at(meta))

    # ---- Checks

    def _check_self(self, name: Token) -> None:
        if name == "self" and not self.has_seen_self:
            help = ("a model declares its fields in its body, as in layer: Linear(n, n), and they "
                    "are in scope in its functions: write the name alone")
            self.found.add("there is no 'self'", self._of(name), help=help)
            self.has_seen_self = True

    def _arguments(
        self, arguments: tuple[s.Expr | s.Keyword, ...]
    ) -> tuple[tuple[s.Expr, ...], tuple[s.Keyword, ...]]:
        """Positional ones and keywords, in that order; each keyword once."""
        keywords = tuple(each for each in arguments if isinstance(each, s.Keyword))
        positional = tuple(each for each in arguments if not isinstance(each, s.Keyword))
        for before, after in pairwise(arguments):
            if isinstance(before, s.Keyword) and not isinstance(after, s.Keyword):
                message = f"this argument follows '{before.name}=', but has no name"
                self.found.add(message, after.span)
        self._check_unique("argument", [(each.name, each.span) for each in keywords])
        return positional, keywords

    def _check_params(self, params: Params) -> None:
        self._check_unique("parameter", [(each.name, each.span) for each in params])
        for before, after in pairwise(params):
            if before.default is not None and after.default is None:
                self.found.add(
                    f"parameter '{after.name}' has no default, but follows one that has",
                    after.span,
                    Note("this one has a default", before.span),
                )

    def _check_unique(self, what: str, named: list[tuple[str, Span]]) -> None:
        first: dict[str, Span] = {}
        for name, span in named:
            if name in first:
                message = f"{what} '{name}' is given twice"
                self.found.add(message, span, Note("first here", first[name]))
            first.setdefault(name, span)

    def _check_left(
        self, target: s.Name, items: tuple[s.Expr, ...], keywords: tuple[s.Keyword, ...]
    ) -> None:
        for keyword in keywords:
            message = f"'{keyword.name}=' belongs to a read, not to the left side"
            self.found.add(message, keyword.span)
        for item in items:
            if isinstance(item, s.Slice | s.Dots | s.Guard):
                self.found.add(
                    "a tensor cannot be written in part",
                    item.span,
                    help=f"an index statement defines all of '{target.id}', as in "
                    f"{target.id}[i, j] = ...; to replace a part: where(condition, new, old)",
                )


def _split_doc(body: Body) -> tuple[str | None, Body]:
    """A text that stands first in a body documents the definition."""
    match body:
        case (s.Run(s.String(text)), *_):
            return inspect.cleandoc(text), body[1:]
    return None, body


def _is_target(left: s.Expr) -> bool:
    match left:
        case s.Tuple(items):
            return all(map(_is_target, items))
    return isinstance(left, s.Name)


def _is_sbp(kind: str, argument: s.Expr | None) -> bool:
    match kind, argument:
        case ("S", s.Star() | None) | ("B", s.Number() | s.Name()):
            return False
        case ("P", s.Name(operation)):
            return operation in _PARTIALS
    return kind in ("S", "B", "P") and (kind == "S" or argument is None)


def _unquote(text: str) -> str:
    """What a literal stands for; a backslash before any other character stands for itself."""
    body = text[3:-3] if text.startswith('"""') else text[1:-1]
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), body, flags=re.DOTALL)
