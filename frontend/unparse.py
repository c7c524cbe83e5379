"""Syntax tree -> source text that parses back to an equal tree.

Parentheses are written where the tree needs them and nowhere else, comments are lost, and lines are
not wrapped: it shows that a tree has all that was written, and is no formatter for people's files.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch
from itertools import pairwise

from anabranch.frontend import syntax as s

INDENT = "    "

# How tightly a form binds, as in the grammar; an operand that binds less tightly is parenthesised.
_ANY, _OR, _AND, _NOT, _COMPARE, _UNION, _SUM, _PRODUCT, _SIGN, _POWER, _POSTFIX = range(11)

_BINARY = {
    "or": (_OR, _OR, _AND),  # the level of the whole, of its left and of its right operand
    "and": (_AND, _AND, _NOT),
    "|": (_UNION, _UNION, _SUM),
    **dict.fromkeys(("+", "-"), (_SUM, _SUM, _PRODUCT)),
    **dict.fromkeys(("*", "/", "//", "%", "@"), (_PRODUCT, _PRODUCT, _SIGN)),
    "**": (_POWER, _POSTFIX, _SIGN),
}
_UNARY = {"not": _NOT, "-": _SIGN, "+": _SIGN}


def format_module(module: s.Module) -> str:
    """The whole file, with an empty line around definitions."""
    lines: list[str] = []
    for before, item in pairwise((None, *module.items)):
        if before and any(isinstance(each, s.Definition) for each in (before, item)):
            lines.append("")
        lines += _lines(item) if item else []
    return "".join(line + "\n" for line in lines)


def format_header(node: s.OpDef | s.FuncDef | s.ModelDef) -> str:
    """How a definition begins, on one line: `op softmax(x: T[*I, N]) -> T[*I, N]`."""
    return _lines(node)[0].removesuffix(":")


def format_expression(expr: s.Expr | s.Keyword, level: int = _ANY) -> str:
    """One line of text, in parentheses if it binds less tightly than `level`."""
    text = _text(expr)
    return f"({text})" if _level(expr) < level else text


# ---- Expressions


def _level(expr: s.Node) -> int:
    match expr:
        case s.Conditional():
            return _ANY
        case s.Binary(op):
            return _BINARY[op][0]
        case s.Unary(op):
            return _UNARY[op]
        case s.Compare():
            return _COMPARE
    return _POSTFIX


def _commas(nodes: Iterable[s.Expr | s.Keyword]) -> str:
    return ", ".join(map(format_expression, nodes))


def _bare(expr: s.Expr) -> str:
    """A tuple loses its parentheses where a statement allows that."""
    match expr:
        case s.Tuple((_, _, *_) as items) if not any(isinstance(item, s.Star) for item in items):
            return _commas(items)
    return format_expression(expr)


def _quote(text: str) -> str:
    for char, escape in (("\\", "\\\\"), ('"', '\\"'), ("\t", "\\t"), ("\n", "\\n")):
        text = text.replace(char, escape)
    return f'"{text}"'


@singledispatch
def _text(node: s.Node) -> str:
    raise TypeError(f"no text for {type(node).__name__}")


@_text.register
def _(node: s.Name) -> str:
    return node.id


@_text.register
def _(node: s.Number) -> str:
    return "1e999" if node.value == float("inf") else repr(node.value)


@_text.register
def _(node: s.String) -> str:
    return _quote(node.value)


@_text.register
def _(node: s.Constant) -> str:
    return repr(node.value)


@_text.register
def _(node: s.Tuple) -> str:
    match node.items:
        case (s.Star() as star,):
            return f"({_text(star)})"
        case (item,):
            return f"({_text(item)},)"
    return f"({_commas(node.items)})"


@_text.register
def _(node: s.List) -> str:
    return f"[{_commas(node.items)}]"


@_text.register
def _(node: s.Comprehension) -> str:
    return f"[{' '.join(map(_text, (node.element, *node.clauses)))}]"


@_text.register
def _(node: s.Clause) -> str:
    conditions = "".join(f" if {format_expression(each, _OR)}" for each in node.conditions)
    return f"for {_bare(node.target)} in {format_expression(node.iterable, _OR)}{conditions}"


@_text.register
def _(node: s.Layout) -> str:
    return "{" + ", ".join(map(_text, node.entries)) + "}"


@_text.register
def _(node: s.LayoutEntry) -> str:
    argument = "" if node.argument is None else f"({_text(node.argument)})"
    return f"{node.axis}: {node.kind}{argument}"


@_text.register
def _(node: s.Unary) -> str:
    space = " " if node.op == "not" else ""
    return f"{node.op}{space}{format_expression(node.operand, _UNARY[node.op])}"


@_text.register
def _(node: s.Binary) -> str:
    _, left, right = _BINARY[node.op]
    space = "" if node.op == "**" else " "
    operator = f"{space}{node.op}{space}"
    return format_expression(node.left, left) + operator + format_expression(node.right, right)


@_text.register
def _(node: s.Compare) -> str:
    first, *rest = (format_expression(operand, _UNION) for operand in node.operands)
    return first + "".join(f" {op} {right}" for op, right in zip(node.ops, rest, strict=True))


@_text.register
def _(node: s.Conditional) -> str:
    then, condition = format_expression(node.then, _OR), format_expression(node.condition, _OR)
    return f"{then} if {condition} else {_text(node.otherwise)}"


@_text.register
def _(node: s.Keyword) -> str:
    return f"{node.name}={_text(node.value)}"


@_text.register
def _(node: s.Star) -> str:
    return f"*{format_expression(node.value, _SUM)}"


@_text.register
def _(node: s.Call) -> str:
    arguments = _commas((*node.args, *node.keywords))
    return f"{format_expression(node.function, _POSTFIX)}({arguments})"


@_text.register
def _(node: s.Attribute) -> str:
    value = format_expression(node.value, _POSTFIX)
    return f"({value}).{node.name}" if isinstance(node.value, s.Number) else f"{value}.{node.name}"


@_text.register
def _(node: s.Index) -> str:
    items = _commas((*node.items, *node.keywords))
    return f"{format_expression(node.value, _POSTFIX)}[{items}]"


@_text.register
def _(node: s.Slice) -> str:
    start, stop, step = (_text(part) if part else "" for part in (node.start, node.stop, node.step))
    return f"{start}:{stop}:{step}" if step else f"{start}:{stop}"


@_text.register
def _(node: s.Dots) -> str:
    return "..."


@_text.register
def _(node: s.Guard) -> str:
    return f"{format_expression(node.item, _OR)} if {format_expression(node.condition, _OR)}"


# ---- Statements and definitions: lists of lines


@singledispatch
def _lines(node: s.Node) -> list[str]:
    raise TypeError(f"no lines for {type(node).__name__}")


def _block(
    header: str, body: Iterable[s.Statement | s.Setting], doc: str | None = None
) -> list[str]:
    inside = [] if doc is None else _document(doc)
    for node in body:
        if isinstance(node, s.FuncDef) and inside:
            inside.append("")
        inside += _lines(node)
    return [f"{header}:", *(INDENT + line if line else "" for line in inside or ["pass"])]


def _document(doc: str) -> list[str]:
    lines = [_quote(line)[1:-1] for line in doc.split("\n")]
    if len(lines) == 1:
        return [f'"{lines[0]}"']
    return [f'"""{lines[0]}', *lines[1:], '"""']


def _signature(node: s.OpDef | s.FuncDef) -> str:
    results = f" -> {_commas(node.results)}" if node.results else ""
    return f"{node.name}({', '.join(map(_parameter, node.params))}){results}"


def _parameter(param: s.Param) -> str:
    type = f": {_text(param.type)}" if param.type else ""
    if param.default is None:
        return f"{param.name}{type}"
    equals = " = " if type else "="
    return f"{param.name}{type}{equals}{_text(param.default)}"


@_lines.register
def _(node: s.Import) -> list[str]:
    names = (n.name if n.name == n.alias else f"{n.name} as {n.alias}" for n in node.names)
    return [f"from {node.module} import {', '.join(names)}"]


@_lines.register
def _(node: s.OpDef) -> list[str]:
    return _block(f"op {_signature(node)}", node.body, node.doc)


@_lines.register
def _(node: s.FuncDef) -> list[str]:
    return _block(f"def {_signature(node)}", node.body, node.doc)


@_lines.register
def _(node: s.ModelDef) -> list[str]:
    params = ", ".join(map(_parameter, node.params))
    return _block(f"model {node.name}({params})", node.body, node.doc)


@_lines.register
def _(node: s.TrainDef) -> list[str]:
    arguments = _commas((*node.args, *node.keywords))
    return _block(f"train {node.model.id}({arguments})", node.body, node.doc)


@_lines.register
def _(node: s.Field) -> list[str]:
    buffer = "buffer " if node.is_buffer else ""
    init = "" if node.init is None else f" = {_text(node.init)}"
    return [f"{buffer}{node.name}: {_text(node.type)}{init}"]


@_lines.register
def _(node: s.Setting) -> list[str]:
    patterns = f"[{_commas(node.patterns)}]" if node.patterns else ""
    return [f"{node.target.id}{patterns} = {_bare(node.value)}"]


@_lines.register
def _(node: s.Assign) -> list[str]:
    return [f"{_bare(node.target)} = {_bare(node.value)}"]


@_lines.register
def _(node: s.Equation) -> list[str]:
    return [f"{node.target.id}[{_commas(node.items)}] = {_bare(node.value)}"]


@_lines.register
def _(node: s.Update) -> list[str]:
    return [f"{node.target.id} := {_text(node.value)}"]


@_lines.register
def _(node: s.Return) -> list[str]:
    return [f"return {_bare(node.value)}" if node.value else "return"]


@_lines.register
def _(node: s.Assert) -> list[str]:
    message = f", {_text(node.message)}" if node.message else ""
    return [f"assert {_text(node.condition)}{message}"]


@_lines.register
def _(node: s.Run) -> list[str]:
    return [_bare(node.value)]


@_lines.register
def _(node: s.If) -> list[str]:
    lines = _block(f"if {_text(node.condition)}", node.then)
    match node.otherwise:
        case ():
            return lines
        case (s.If() as chained,):
            first, *rest = _lines(chained)
            return [*lines, f"el{first}", *rest]
    return lines + _block("else", node.otherwise)


@_lines.register
def _(node: s.For) -> list[str]:
    return _block(f"for {_bare(node.target)} in {_bare(node.iterable)}", node.body)


@_lines.register
def _(node: s.With) -> list[str]:
    return _block(f"with {_commas(node.items)}", node.body)
