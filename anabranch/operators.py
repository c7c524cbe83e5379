"""The table of operators: what a file or the library defines, with all that is derived of it.

    listing(operators_of(None))          # a line for each of the library
    details(find("softmax", None))       # all about one

Nothing is written down for a table: signatures and meanings stand in the definitions, layouts,
costs and gradients are derived, examples are made up (`samples.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from anabranch.derived import Derived, Whole, derive
from anabranch.frontend import syntax as s
from anabranch.frontend.arguments import as_text, call_of, header_of, parameters_of
from anabranch.frontend.builtins import BUILTINS
from anabranch.frontend.evaluate import LIBRARY
from anabranch.frontend.parse import parse
from anabranch.frontend.program import Program
from anabranch.frontend.scope import library
from anabranch.frontend.unparse import format_header
from anabranch.frontend.values import Builtin, Function, Model, Scope
from anabranch.ir.diagnostics import Collector, Span, fail, nearest
from anabranch.ir.ops import Return
from anabranch.samples import Sample, sample_of

LANGUAGE = "<language>"  # where its own functions stand
KINDS = (s.OpDef, s.FuncDef, s.ModelDef)


@dataclass(frozen=True, slots=True)
class Operator:
    """A definition: of a file, or of the library's file for its family."""

    definition: s.OpDef | s.FuncDef | s.ModelDef
    scope: Scope
    source: Sequence[str]
    takes: str = ""  # how it is called, and an example, where no header tells
    called: str = ""

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def family(self) -> str:
        return Path(self.definition.span.file).stem

    @property
    def header(self) -> str:
        return self.takes or format_header(self.definition)

    @property
    def meaning(self) -> str:
        return self.definition.doc or ""

    @property
    def body(self) -> list[str]:
        """The lines behind the header and the meaning, as they are written."""
        if not self.source:
            return []
        first = min(each.span.line for each in self.definition.body)
        last = max(each.span.end_line for each in s.walk(self.definition))
        return [line.removeprefix("    ") for line in self.source[first - 1:last]]

    def holds(self, span: Span | None) -> bool:
        last = max(each.span.end_line for each in s.walk(self.definition))
        mine = self.definition.span
        return span is not None and span.file == mine.file and mine.line <= span.line <= last

    @property
    def function(self) -> Function | None:
        match self.definition:
            case s.OpDef() | s.FuncDef():
                return Function(self.definition, self.scope)
        return None


def operators_of(program: Program | None) -> list[Operator]:
    """What a program's file defines, or the library, in the order of the text."""
    if program is None:
        return _defined(library(), None)
    return _defined(program.scope, program.sources[program.path])


def _defined(scope: Scope, text: str | None) -> list[Operator]:
    """`text` is that of the one file there is."""
    sources: dict[str, list[str]] = {}
    found = []
    for value in scope.names.values():
        definition = value.definition if isinstance(value, Function | Model) else None
        if isinstance(definition, KINDS):
            file = definition.span.file
            if file not in sources:
                whole = Path(file).read_text(encoding="utf-8") if text is None else text
                sources[file] = whole.splitlines()
            found.append(Operator(definition, scope, sources[file]))
    return found


def find(name: str, program: Program | None) -> Operator:
    """By name: of the file, or else of the library. Raises `UserError`."""
    known: list[Operator] = [*(operators_of(program) if program else ()), *operators_of(None)]
    named = [operator for operator in known if operator.name == name]
    if named:
        return named[0]
    if name in builtins():
        return _of_language(name)
    names = [*(operator.name for operator in known), *builtins()]
    raise fail(f"there is no op, def or model '{name}'",
               help=nearest(name, names) or "anabranch ops lists them all")


def mistakes_of(name: str, program: Program | None, found: Collector) -> Collector:
    """Those of the mistakes in a file that stand in the way of a name: all but what is wrong with
    other definitions. One that is not there may be missing because of any."""
    own = operators_of(program) if program else []
    if name not in {*builtins(), *(each.name for each in (*own, *operators_of(None)))}:
        return found
    others = [each for each in own if each.name != name]
    return Collector([each for each in found.diagnostics
                      if not any(other.holds(each.span) for other in others)])


# ---- functions of the language itself


def builtins() -> list[str]:
    """Their names, in the order of their modules, whichever was imported first. What they do is no
    definition, but they can be called like one."""
    found = {name: value for name, value in BUILTINS.items() if isinstance(value, Builtin)}
    return sorted(found, key=lambda name: found[name].run.__module__)


def _of_language(name: str) -> Operator:
    """A definition that only calls it: as its meaning does, or else with its parameters."""
    run = BUILTINS[name]
    assert isinstance(run, Builtin)
    meaning, call = inspect.getdoc(run.run), call_of(run)
    called = [p for p in parameters_of(run) if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    given = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.name}" for p in called)
    names = _tensors(call, name) if call else [as_text(p) for p in called]
    text = f"def {name}({', '.join(names)}):\n    return {call or f'{name}({given})'}\n"
    (definition,) = parse(text, LANGUAGE).items
    assert isinstance(definition, s.FuncDef)
    return Operator(replace(definition, doc=meaning), library(), (), header_of(run), call)


def _tensors(call: str, name: str) -> list[str]:
    """The names of which a call speaks."""
    tree = parse(f"def it():\n    return {call}\n", LANGUAGE)
    named = (each.id for each in s.walk(tree) if isinstance(each, s.Name))
    return list(dict.fromkeys(each for each in named if each != name))


# ---- text


def listing(operators: Sequence[Operator]) -> str:
    """A line for each, by family."""
    width = max((len(operator.name) for operator in operators), default=0)
    families: dict[str, list[str]] = {}
    for each in operators:
        line = f"  {each.name:{width}}  {each.meaning.splitlines()[0] if each.meaning else ''}"
        families.setdefault(each.family, []).append(line.rstrip())
    return "\n\n".join("\n".join([family, *lines]) for family, lines in families.items())


def details(operator: Operator) -> str:
    """Everything about one."""
    function = operator.function
    found = derive(function) if function else None
    sample = sample_of(function, operator.called) if function else None
    return "\n".join(_sections(operator, found, sample))


def _sections(
    operator: Operator, found: Derived | None, sample: Sample | None
) -> Iterator[str]:
    yield operator.header
    yield from _indented("", operator.meaning.splitlines())
    yield from _indented("", operator.body)
    if found is not None:
        yield from _indented(f"layouts on an axis of the mesh, for {signature(found)}",
                             layouts(found))
        yield from _indented("cost, in sizes of the signature and lengths of index variables",
                             [cost(found)])
        yield from _indented("gradient", found.gradient)
    if sample is not None:
        yield from _indented("example", str(sample).splitlines())


def _indented(title: str, lines: Sequence[str]) -> Iterator[str]:
    """An empty line, a title if there is one, and what stands below it, if anything does."""
    if lines:
        yield ""
        yield from [title] if title else []
        yield from (f"  {line}".rstrip() for line in lines)


def signature(found: Derived) -> str:
    """The tensors and settings for which layouts and gradients are shown."""
    given = [f"{v.name}: {v.type}" for v in found.arguments]
    given += [f"{name} = {value}" for name, value in found.settings.items()]
    last = found.function.body.last
    assert isinstance(last, Return)
    return f"{', '.join(given)} -> {', '.join(str(v.type) for v in last.values)}"


def layouts(found: Derived) -> list[str]:
    """Each on a line, but for the one in which everything is whole."""
    rows = [_row(row, found) for row in found.layouts if row.is_split]
    return rows or ["everything whole"]


def _row(row: Whole, found: Derived) -> str:
    given = ", ".join(f"{v.name} {entry}" for v, entry in zip(
        found.arguments, row.arguments, strict=True))
    text = f"{given} -> {', '.join(map(str, row.results))}".lstrip()
    if not row.reductions:
        return text
    named = ", ".join(name for name in row.reduced if name)
    verb = "is" if row.reductions == 1 and named else "are"
    return f"{text}   when {named or 'partial values'} {verb} reduced on the way"


def cost(found: Derived) -> str:
    """Capital letters are the sizes of the signature, small ones those of index variables."""
    return f"{found.cost.flops} operations, {found.cost.bytes} bytes"


# ---- the document


def document() -> str:
    """The library's table in Markdown."""
    operators = operators_of(None)
    parts = [INTRODUCTION]
    for path in sorted(Path(LIBRARY).glob("*.ab")):
        mine = [each for each in operators if each.family == path.stem]
        if mine:
            parts += [f"## {path.stem}", _comment(mine[0].source), *map(_entry, mine)]
    own = [_of_language(name) for name in builtins()]
    parts += ["## the language's own", OWN, *map(_entry, own)]
    return "\n\n".join(part for part in parts if part) + "\n"


INTRODUCTION = """\
# Operators

Everything in `frontend/std/`, which is in scope in every program. This page is generated from the
library: `python -m pytest tests/library/test_operators.py --update-golden` writes it anew, and
`anabranch ops NAME` shows the same and the gradient.

**Layouts** are those of the tensors on one axis of the mesh, for sizes and packs (`*I`, of one
dimension here) as given: `S(d)` split along dimension d, `B` whole on every rank, `P` partial
values whose sum (or maximum, ...) is meant. *Reduced on the way* says which values inside the op
are made whole by a reduction between the ranks. Everything can also be whole everywhere.

**Cost** is in operations and in bytes that are read and written, statement by statement, before
statements are fused. Capital letters are sizes of the signature, small ones the lengths of the
index variables in the definition."""


OWN = """\
Functions that are no definitions, because index notation is made of them, or an order of elements
cannot be said in it. Those of numbers are of elements in an `op` as of whole tensors in a `def`,
and reductions name their index there: `sum[k](x[i, k])`."""


def _comment(source: Sequence[str]) -> str:
    """What a file says of itself at its top."""
    lines = []
    for line in source:
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return "\n".join(lines)


def _entry(operator: Operator) -> str:
    function = operator.function
    found = derive(function) if function else None
    sample = sample_of(function, operator.called) if function else None
    lines = [operator.header]
    if found is not None:
        lines += ["", signature(found), *(f"  {row}" for row in layouts(found)), cost(found)]
    if sample is not None:
        lines += ["", *str(sample).splitlines()]
    block = "\n".join(["```text", *lines, "```"])
    return "\n\n".join(filter(None, [f"### {operator.name}", operator.meaning, block]))
