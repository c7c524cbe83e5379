"""Files and the names they define.

A file's names stand in its scope, around it the library's, around that the language's own. The
library (`std/*.ab`) is one scope; its trees are cached, because parsing is most of a start.
`from blocks import Block` reads `blocks.ab` beside the program.
"""

from __future__ import annotations

import functools
import inspect
import pickle
import re
from dataclasses import dataclass, field
from pathlib import Path

from anabranch.frontend import syntax as s
from anabranch.frontend.builder import Builder
from anabranch.frontend.builtins import ROOT
from anabranch.frontend.check import check
from anabranch.frontend.evaluate import LIBRARY, Frame, evaluate
from anabranch.frontend.expressions import assign
from anabranch.frontend.kept import cache_file, keep, kept
from anabranch.frontend.parse import parse
from anabranch.frontend.values import MISSING, Function, Model, Scope
from anabranch.ir.diagnostics import Collector, Note, Span, UserError, fail, nearest


@dataclass(slots=True)
class File:
    """A loaded program: its tree, the names it defines, its recipes by the name of their model."""

    path: str
    tree: s.Module
    scope: Scope
    recipes: dict[str, s.TrainDef] = field(default_factory=dict)


@dataclass(slots=True)
class Files:
    """Everything read for one program; `sources` has the texts for messages."""

    loaded: dict[str, File] = field(default_factory=dict)
    loading: list[str] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)


def load_file(text: str, path: str, files: Files, mistakes: Collector | None = None) -> File:
    """Parse a file and define its names; imported files are read first. What is wrong with its
    definitions is raised, or put where it is collected."""
    files.sources[path] = text
    tree = parse(text, path)
    file = File(path, tree, library().inner())
    file.scope.is_library = False
    file.scope.differentiates = re.search(r"\bgrad\b", text) is not None
    files.loading.append(path)
    found = Collector()
    for item in tree.items:
        try:
            _define(item, file, files)
        except UserError as error:
            found.diagnostics += error.diagnostics
    if not found.diagnostics:  # a definition that is not there would be missed everywhere
        check(tree, file.scope, found)
    if mistakes is None:
        found.raise_if_any()
    else:
        mistakes.diagnostics += found.diagnostics
    files.loading.pop()
    files.loaded[path] = file
    return file


def _define(item: s.Item, file: File, files: Files) -> None:
    match item:
        case s.Import():
            _import(item, file, files)
        case s.TrainDef():
            _once(item.model.id, item, file.recipes)
            file.recipes[item.model.id] = item
        case s.Assign():
            assign(item.target, evaluate(item.value, _frame(file.scope)),
                   _frame(file.scope))
        case s.OpDef() | s.FuncDef():
            _once(item.name, item, file.scope.names)
            file.scope.names[item.name] = Function(item, file.scope)
        case s.ModelDef():
            _once(item.name, item, file.scope.names)
            file.scope.names[item.name] = Model(item, file.scope)


def _frame(scope: Scope) -> Frame:
    """For values of a file's own names, which are all known when compiling."""
    return Frame(scope, Builder("file"))


def _once(name: str, item: s.Node, names: dict[str, object] | dict[str, s.TrainDef]) -> None:
    earlier = names.get(name)
    if earlier is None:
        return
    place = getattr(earlier, "definition", earlier)
    notes = [Note("first here", place.span)] if isinstance(place, s.Node) else []
    raise fail(f"'{name}' is defined twice", item.span, *notes)


def _import(item: s.Import, file: File, files: Files) -> None:
    folder = Path(file.path).resolve().parent
    path = folder.joinpath(*item.module.split(".")).with_suffix(".ab")
    if str(path) in files.loading or path == Path(file.path).resolve():
        raise fail(f"'{item.module}' is imported while it is being read: the files import each "
                   "other in a circle", item.span)
    other = files.loaded.get(str(path)) or load_file(_text(path, item), str(path), files)
    for each in item.names:
        value = other.scope.names.get(each.name, MISSING)
        if value is MISSING:
            raise fail(f"'{item.module}' does not define '{each.name}'", each.span,
                       help=nearest(each.name, other.scope.names))
        _once(each.alias, item, file.scope.names)
        file.scope.names[each.alias] = value


def _text(path: Path, item: s.Import) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise fail(f"{path.name} is not text in UTF-8", item.span) from None
    except OSError:
        beside = [p.stem for p in path.parent.glob("*.ab")] if path.parent.is_dir() else []
        raise fail(f"there is no file {path.name} beside this one", item.span,
                   help=nearest(path.stem, beside)
                   or "the library is in scope without an import") from None


# ---- The library


@functools.cache
def library() -> Scope:
    """The scope of the standard library."""
    scope = ROOT.inner()
    for path in sorted(Path(LIBRARY).glob("*.ab")):
        file = File(str(path), tree_of(path), scope)
        for item in file.tree.items:
            _define(item, file, Files())
    return scope


def tree_of(path: Path) -> s.Module:
    """The tree of a library file, from the user's cache if it is there and safe to read."""
    text = path.read_text(encoding="utf-8")
    cache = cache_file(f"tree-{path.stem}", _parsing(), text.encode(), str(path).encode())
    if cache and (data := kept(cache)):
        found: s.Module = pickle.loads(data)
        return found
    tree = parse(text, str(path))
    if cache:
        keep(cache, pickle.dumps(tree))
    return tree


@functools.cache
def _parsing() -> bytes:
    """Changes with all that makes a tree of a text."""
    names = ("grammar.lark", "grammar.py", "parse.py", "syntax.py", "tree.py")
    files = [Path(inspect.getfile(Span)), *map(Path(__file__).with_name, names)]
    return b"\0".join(path.read_bytes() for path in files)
