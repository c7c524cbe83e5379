"""What can be said about a file before anything in it is used.

Every definition is checked on its own, so that one mistake does not hide the next: names that are
not defined, calls that do not fit a signature, dimensions that nothing binds. Then each op and each
fully typed function is elaborated with several sets of sizes. For some sizes a sound definition may
have no meaning, so a mistake counts only if it is found at the same place with every set; an
assertion never does, and in a function, which may depend on sizes in any way, only what is wrong
whatever they are. A function that leaves nothing open is simply elaborated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from anabranch.frontend import syntax as s
from anabranch.frontend.arguments import misfits, unfit
from anabranch.frontend.builder import Builder
from anabranch.frontend.control import Failed
from anabranch.frontend.entries import GENERIC_DEFAULTS, Sizes, build_entry
from anabranch.frontend.evaluate import Certain, Unsupported
from anabranch.frontend.lines import given_to
from anabranch.frontend.mistakes import advice
from anabranch.frontend.readers import READERS
from anabranch.frontend.recipe import LINES, OFFERED
from anabranch.frontend.signatures import is_dtype, kind_of, without_layout
from anabranch.frontend.unparse import format_expression
from anabranch.frontend.values import MISSING, Builtin, Function, Kind, Model, Scope
from anabranch.ir.diagnostics import Collector, Diagnostic, Note, Span, UserError, nearest

Names = frozenset[str]
SAMPLES = ((5, 7, 11, 13, 17, 19, 23, 29, 31, 37), (12,), (8, 8, 4), (64, 32, 16, 8, 4, 2))
PACKS = (2, 1, 3, 0)  # lengths of packs, in the same order
A_TYPE = "as in f32[N, 4], T[*I], int, Key, [f32[N]]"
LARGEST = 256  # of the sizes that a definition speaks of, all of which are tried too
ANY_STAGES = 2**20  # how many there are is not known: none that is written is too far


def check(tree: s.Module, scope: Scope, found: Collector) -> None:
    """Everything that is wrong with the definitions of a file."""
    for item in tree.items:
        match item:
            case s.OpDef() | s.FuncDef():
                before = len(found.diagnostics)
                _Names(scope, found).function(item, frozenset())
                if len(found.diagnostics) == before:
                    found.diagnostics += sampled(Function(item, scope))
            case s.ModelDef():
                _Names(scope, found).model(item)
            case s.TrainDef():
                _Names(scope, found).recipe(item)


# ---- Names


class _Names:
    """A walk that knows which names are local; mistakes go to `found`."""

    def __init__(self, scope: Scope, found: Collector) -> None:
        self.scope, self.found = scope, found
        self.reported: set[str] = set()
        self.places: set[int] = set()  # identities of names that stand in subscripts

    def function(self, node: s.OpDef | s.FuncDef, outer: Names) -> None:
        params = frozenset(p.name for p in node.params)
        bound = self.signature(node, outer | params)
        local = outer | params | bound | frozenset(_assigned(node.body))
        for param in node.params:
            if param.default is not None:
                self.expression(param.default, outer | params)
        self.body(node.body, local)

    def signature(self, node: s.OpDef | s.FuncDef | s.ModelDef, known: Names) -> Names:
        """The dimensions that the types of parameters bind; those of results must be among them."""
        types = [t for t, _ in (without_layout(p.type) for p in node.params) if t is not None]
        bound = frozenset(n for t in types for n in self.bound(t, known))
        results = () if isinstance(node, s.ModelDef) else node.results
        for type_ in (*types, *(without_layout(r)[0] for r in results)):
            if type_ is not None:
                self.type(type_, known | bound)
        return bound

    def bound(self, type_: s.Expr, known: Names) -> Iterable[str]:
        if isinstance(type_, s.List):
            for inner in type_.items:
                yield from self.bound(inner, known)
        if not isinstance(type_, s.Index):
            return
        for item in type_.items:
            match item:
                case s.Star(s.Name(name)):
                    yield name
                case s.Name(name) if name[0].isupper():
                    yield name

    def type(self, type_: s.Expr, known: Names) -> None:
        match type_:
            case s.List(items):
                for item in items:
                    self.type(item, known)
            case s.Index(s.Name(name) as head, items) if isinstance(self.scope.find(name), Kind):
                general = name.capitalize()
                sizes = f"[{', '.join(map(format_expression, items))}]"
                usual = GENERIC_DEFAULTS.get(general)
                self.found.add(f"'{name}' is not the type of a tensor", head.span,
                               help=f"write {usual}{sizes} or {general}{sizes}" if usual else "")
            case s.Index(head, items) if not isinstance(head, s.Index):
                if isinstance(head, s.Name):
                    self.type(head, known)
                for item in items:
                    self.dimension(item, known)
            case s.Name(name):
                if not is_type(name, self.scope):
                    types = [each for each in self.scope.visible() if is_type(each, self.scope)]
                    self.found.add(f"'{name}' is not a type", type_.span,
                                   help=advice(name, types))
            case s.Binary("|", left, right):
                self.alternative(left, known)
                self.alternative(right, known)
            case _:
                self.no_type(type_)

    def no_type(self, written: s.Expr) -> None:
        """What stands where a type does, if that is said of it before it is used."""
        match written:
            case s.Attribute(_, name):
                help = advice(name, ()) or A_TYPE
            case s.Index():
                help = "all sizes stand between two brackets: f32[4, 5]"
            case s.Number() | s.String() | s.Layout() | s.Binary() | s.Call():
                help = A_TYPE
            case _:
                return
        self.found.add("this is not a type", written.span, help=help)

    def alternative(self, type_: s.Expr, known: Names) -> None:
        if isinstance(type_, s.Index):
            self.found.add("a choice of types is of values known when compiling, and this is a "
                           "tensor", type_.span, help="a tensor may be left out: x: T[N] = None")
        self.type(type_, known)

    def dimension(self, item: s.Expr, known: Names) -> None:
        for each in s.walk(item):
            if isinstance(each, s.Name) and self.is_unknown(each.id, known):
                self.found.add(
                    f"the dimension '{each.id}' is not bound", each.span,
                    help=nearest(each.id, known) or "a capitalised name standing alone in the "
                    "type of a parameter binds one")

    def model(self, node: s.ModelDef) -> None:
        params = frozenset(p.name for p in node.params)
        local = params | self.signature(node, params) | frozenset(_members(node.body))
        for param in node.params:
            if param.default is not None:
                self.expression(param.default, params)
        self.members(node.body, local)

    def members(self, body: Sequence[s.Statement], local: Names) -> None:
        self.once(body)
        for member in body:
            match member:
                case s.FuncDef():
                    self.function(member, local)
                case s.Field(_, type_, init, _):
                    self.expression(type_, local)
                    self.pinned(type_)
                    if init is not None:
                        self.expression(init, local)
                case s.If(condition, then, otherwise):
                    self.expression(condition, local)
                    self.members(then, local)
                    self.members(otherwise, local)
                case _:
                    self.body((member,), local)

    def once(self, body: Sequence[s.Statement]) -> None:
        """Fields and functions of one name, where no condition chooses between them."""
        first: dict[str, s.Node] = {}
        for member in body:
            if isinstance(member, s.Field | s.FuncDef):
                if member.name in first:
                    self.found.add(f"'{member.name}' is defined twice", member.span,
                                   Note("first here", first[member.name].span))
                first.setdefault(member.name, member)

    def pinned(self, type_: s.Expr) -> None:
        """A layout that splits an axis which a tensor of this rank does not have."""
        match type_:
            case s.Binary("@", s.Index(_, items), s.Layout(entries)):
                if any(isinstance(item, s.Star) for item in items):
                    return
                for entry in entries:
                    match entry.argument:
                        case s.Number(int() as axis) if entry.kind == "S" and axis >= len(items):
                            self.found.add(f"S({axis}) on a tensor of rank {len(items)}",
                                           entry.span)

    def recipe(self, node: s.TrainDef) -> None:
        model = self.scope.find(node.model.id)
        if not isinstance(model, Model):
            self.found.add(f"'{node.model.id}' is not a model", node.model.span,
                           help=nearest(node.model.id, models_of(self.scope)))
            return
        definition = model.definition
        self.fits(model, node.args, node.keywords, node.span)
        local = frozenset(p.name for p in definition.params) | frozenset(_members(definition.body))
        local |= {line.name for line in node.body if isinstance(line, s.FuncDef)}
        for line in node.body:
            if isinstance(line, s.FuncDef):
                self.function(line, local)
                continue
            if isinstance(line, s.Setting) and line.target.id == "data":
                self.reader(line.value, local)
            if isinstance(line, s.Setting) and line.target.id == "metrics":
                self.metrics(line.value, local)
            self.expression(line.value, local)
            local |= {line.target.id}
        self.found.diagnostics += unused_lines(node, definition, self.scope)

    def reader(self, value: s.Expr, local: Names) -> None:
        """What is called for the data is a reader, so a name that is unknown is meant as one."""
        match value:
            case s.Call(s.Name(name) as callee) if self.is_unknown(name, local):
                self.reported.add(name)
                self.found.add(f"'{name}' is not defined", callee.span, help=nearest(name, READERS)
                               or f"there are the readers {', '.join(sorted(READERS))}; "
                               "--readers FILE.py registers more")

    def metrics(self, value: s.Expr, local: Names) -> None:
        """A metric that is not defined is a function that the model lacks."""
        known = [*local, *self.scope.visible()]
        for node in value.items if isinstance(value, s.List) else ():
            if isinstance(node, s.Name) and self.is_unknown(node.id, local):
                self.reported.add(node.id)
                self.found.add(f"'{node.id}' is not defined", node.span,
                               help=nearest(node.id, known) or "a metric is a function of the "
                               f"model that gives a number, as loss: def {node.id}(...) -> f32[]")

    # ---- Statements

    def body(self, body: Sequence[s.Statement], local: Names) -> None:
        for statement in body:
            self.statement(statement, local)

    def statement(self, node: s.Statement, local: Names) -> None:
        match node:
            case s.Equation(_, items, value):
                inner = local | frozenset(n for item in items for n in _variables(item))
                for item in items:
                    self.ranges(item, inner)
                self.expression(value, inner, indexed=True)
            case s.FuncDef():
                self.function(node, local)
            case _:
                for child in s.children(node):
                    if isinstance(child, s.Statement):
                        self.statement(child, local)
                    else:
                        self.expression(child, local)

    # ---- Expressions

    def ranges(self, item: s.Expr, local: Names) -> None:
        """The bounds written with the variables of an item."""
        match item:
            case s.Guard(inner, _):
                self.ranges(inner, local)
            case s.Tuple(items):
                for each in items:
                    self.ranges(each, local)
            case s.Compare((_, bound), ("<",)):
                self.expression(bound, local)

    def expression(self, node: s.Node, local: Names, *, indexed: bool = False) -> None:
        match node:
            case s.Name(name):
                if self.is_unknown(name, local):
                    self.unknown(node, local, indexed)
            case s.Call(s.Index(s.Name(name), items), args) if self.is_reduction(name, local):
                self.reduction(items, args, local)
            case s.Comprehension(element, clauses):
                for clause in clauses:
                    self.expression(clause.iterable, local, indexed=indexed)
                    local |= frozenset(_targets(clause.target))
                    for condition in clause.conditions:
                        self.expression(condition, local, indexed=indexed)
                self.expression(element, local, indexed=indexed)
            case s.Call(s.Name(name) as callee, args, keywords):
                self.expression(callee, local)
                for child in (*args, *keywords):
                    self.expression(child, local, indexed=indexed)
                value = MISSING if name in local else self.scope.find(name)
                self.fits(value, args, keywords, node.span)
            case _:
                self.children(node, local, indexed=indexed)

    def children(self, node: s.Node, local: Names, *, indexed: bool) -> None:
        if isinstance(node, s.Index):
            self.places |= {id(n) for item in node.items for n in s.walk(item)}
            self.places.discard(id(node.value))
        if isinstance(node, s.Attribute) and self.is_foreign(node, local):
            self.foreign(node, local)
            return
        for child in s.children(node):
            self.expression(child, local, indexed=indexed)

    def reduction(self, items: Sequence[s.Expr], args: Sequence[s.Expr], local: Names) -> None:
        inner = local | frozenset(n for item in items for n in _variables(item))
        for item in items:
            self.ranges(item, inner)
        conditions = [item.condition for item in items if isinstance(item, s.Guard)]
        for part in (*conditions, *args):
            self.expression(part, inner, indexed=True)

    def is_reduction(self, name: str, local: Names) -> bool:
        value = MISSING if name in local else self.scope.find(name)
        return isinstance(value, Builtin) and value.is_reduction

    def is_unknown(self, name: str, local: Names) -> bool:
        return name not in local and self.scope.find(name) is MISSING

    def unknown(self, node: s.Name, local: Names, indexed: bool) -> None:
        """Each name once in a definition."""
        if node.id in self.reported:
            return
        self.reported.add(node.id)
        close = advice(node.id, [*local, *self.scope.visible()]) if len(node.id) > 1 else ""
        if not indexed and id(node) in self.places and len(node.id) < 3:
            self.found.add(f"'{node.id}' is not defined", node.span, help="an index stands in a "
                           f"statement that defines a tensor by it: y[{node.id}] = ...")
        elif indexed and not close and id(node) in self.places:
            self.found.add(f"'{node.id}' is neither on the left nor reduced", node.span,
                           help=f"nothing is summed unsaid: sum over it with sum[{node.id}](...)")
        else:
            close = close or nearest(node.id, local)
            self.found.add(f"'{node.id}' is not defined", node.span, help=close)

    def is_foreign(self, node: s.Attribute, local: Names) -> bool:
        root = _root(node)
        return isinstance(root, s.Name) and self.is_unknown(root.id, local)

    def foreign(self, node: s.Attribute, local: Names) -> None:
        """`F.relu`: nothing is called `F`, but what follows it may be there without it."""
        root, text = _root(node), format_expression(node)
        if text in self.reported or not isinstance(root, s.Name):
            return
        self.reported.add(text)
        known = [*local, *self.scope.visible()]
        help = nearest(root.id, local) if len(root.id) > 2 else ""
        if not help and node.name in known:
            help = f"{node.name} is in scope by itself: write {node.name} alone"
        self.found.add(f"'{root.id}' is not defined", root.span,
                       help=help or advice(node.name, known))

    def fits(
        self, callee: object, args: Sequence[s.Expr], keywords: Sequence[s.Keyword], span: Span,
    ) -> None:
        """Whether a call has arguments that its callee knows."""
        if any(isinstance(arg, s.Star) for arg in args):
            return
        match callee:
            case Function(definition) | Model(definition):
                supplied = [p.name for p in definition.params
                            if kind_of(p, self.scope) in ("Key", "Shape")]
                self.found.diagnostics += misfits(definition, args, keywords, span, supplied)
            case Builtin():
                wrong = unfit(callee, len(args), {k.name: k.span for k in keywords}, span)
                self.found.diagnostics += [wrong] if wrong else []


def is_type(name: str, scope: Scope) -> bool:
    """Whether a name can stand as the type of a parameter."""
    return isinstance(scope.find(name), Kind | Model) or is_dtype(name, scope)


def models_of(scope: Scope) -> list[str]:
    """The names of models in scope."""
    return [name for name in scope.visible() if isinstance(scope.find(name), Model)]


def _root(node: s.Expr) -> s.Expr:
    """`a` of `a.b.c`."""
    return _root(node.value) if isinstance(node, s.Attribute) else node


def _variables(item: s.Expr) -> Iterable[str]:
    """The index variables that an item on the left or of a reduction introduces."""
    match item:
        case s.Guard(inner, _):
            yield from _variables(inner)
        case s.Tuple(items):
            for each in items:
                yield from _variables(each)
        case s.Name(name) | s.Star(s.Name(name)) | s.Compare((s.Name(name), _), ("<",)):
            yield name
        case _:  # no item at all: that is the mistake, not the names in it
            yield from (n.id for n in s.walk(item) if isinstance(n, s.Name))


def _targets(target: s.Target) -> Iterable[str]:
    if isinstance(target, s.Name):
        yield target.id
        return
    for item in target.items:
        if isinstance(item, s.Name | s.Tuple):
            yield from _targets(item)


def _assigned(body: Sequence[s.Statement]) -> Iterable[str]:
    """Names that a body defines, anywhere in it."""
    for node in body:
        match node:
            case s.Assign(target):
                yield from _targets(target)
            case s.Equation(target):
                yield target.id
            case s.FuncDef(name):
                yield name
            case s.For(target, _, inner):
                yield from _targets(target)
                yield from _assigned(inner)
            case s.If(_, then, otherwise):
                yield from _assigned((*then, *otherwise))
            case s.With(_, inner):
                yield from _assigned(inner)


def _members(body: Sequence[s.Statement]) -> Iterable[str]:
    yield from _assigned(body)
    for node in body:
        match node:
            case s.Field(name):
                yield name
            case s.If(_, then, otherwise):
                yield from _members((*then, *otherwise))


# ---- Recipes


def unused_lines(recipe: s.TrainDef, model: s.ModelDef, scope: Scope) -> Iterable[Diagnostic]:
    """Lines that neither training, nor what stands below them, nor the model's `next` looks at: a
    misspelled `ema` would train without one and say nothing."""
    taken = {*LINES, *(p.name for each in _members_named("next", model.body) for p in each.params)}
    for number, line in enumerate(recipe.body):
        if not isinstance(line, s.Setting) or line.target.id in taken:
            continue
        name = line.target.id
        if any(isinstance(n, s.Name) and n.id == name
               for below in _evaluated_after(recipe, number) for n in s.walk(below)):
            continue
        if name in {p.name for p in model.params}:
            hint = f"an argument of the model stands in its call: {model.name}({name}=...)"
        elif taker := next(given_to(name, name, recipe, scope), None):
            hint = f"below this line, give it to what takes it: {' = '.join(taker)}"
        else:
            offered = taken - {*LINES} | {*OFFERED}
            hint = nearest(name, offered) or f"training looks at {', '.join(OFFERED)}"
        yield Diagnostic(f"nothing uses the line '{name}'", line.target.span, help=hint)


def _evaluated_after(recipe: s.TrainDef, number: int) -> Iterable[s.Node]:
    """The lines below a line, and the functions of the recipe wherever they stand."""
    return (below for place, below in enumerate(recipe.body)
            if place > number or isinstance(below, s.FuncDef))


def _members_named(name: str, body: Sequence[s.Statement]) -> Iterable[s.FuncDef]:
    for node in body:
        match node:
            case s.FuncDef() if node.name == name:
                yield node
            case s.If(_, then, otherwise):
                yield from _members_named(name, (*then, *otherwise))


# ---- Sizes


def sampled(function: Function) -> list[Diagnostic]:
    """A mistake that every set of sizes runs into, at the same place."""
    errors: list[Diagnostic] = []
    own = [((number,), 1, number) for number in written(function.definition)]
    for sizes, length, number in [*zip(SAMPLES, PACKS, (2,) * 4, strict=True), *own]:
        given = sample(function, sizes, length, number)
        if given is None:
            return []
        try:
            builder = Builder(function.definition.name, stages=ANY_STAGES)
            build_entry(function, Sizes(given), builder)
            return []
        except (Unsupported, Failed):
            return []
        except UserError as error:
            if isinstance(function.definition, s.FuncDef) and given and not isinstance(
                    error, Certain):
                return []
            errors.append(noted(error.diagnostics[0], given))
    places = {error.span for error in errors}
    return errors[:1] if len(places) == 1 else []


def noted(error: Diagnostic, sizes: Mapping[str, object]) -> Diagnostic:
    """With the sizes that a message speaks of, because the user never wrote them."""
    spoken = set(re.findall(r"\d+", error.message))
    if spoken.isdisjoint(re.findall(r"\d+", str([*sizes.values()]))):
        return error
    shown = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    return replace(error, notes=(*error.notes, Note(f"tried with {shown}")))


def written(definition: s.Node) -> list[int]:
    """The sizes that a definition itself asks for: lengths of its lists, and whole numbers that
    divide none of `SAMPLES`."""
    lists = {len(node.items) for node in s.walk(definition) if isinstance(node, s.List)}
    numbers = {node.value for node in s.walk(definition)
               if isinstance(node, s.Number) and isinstance(node.value, int)}
    odd = {n for n in numbers if n > 0 and all(sizes[0] % n for sizes in SAMPLES)}
    return sorted(n for n in lists | odd if 0 < n <= LARGEST)


def sample(
    function: Function, sizes: Sequence[int], length: int, number: int = 2
) -> Mapping[str, object] | None:
    """Values for the names of a signature; None if it needs one that cannot be made up."""
    definition = function.definition
    if isinstance(definition, s.FuncDef) and any(p.type is None for p in definition.params):
        return None
    found = _dimensions(definition, sizes, length)
    for param in definition.params:
        type_, _ = without_layout(param.type)
        kind = kind_of(param, function.scope)
        match type_:
            case s.List():
                return None
        if param.default is None and kind in ("int", "float"):
            found[param.name] = number if kind == "int" else 0.5
        elif param.default is None and kind == "Shape":
            found[param.name] = [sizes[n % len(sizes)] for n in range(length)]
        elif param.default is None and kind not in ("", "Key"):
            return None
    return found


def _dimensions(
    definition: s.OpDef | s.FuncDef, sizes: Sequence[int], length: int
) -> dict[str, object]:
    """Values for the names in the types of parameters that are no parameters themselves."""
    found: dict[str, object] = {}
    types = [without_layout(param.type)[0] for param in definition.params]
    for item in (item for type_ in types if isinstance(type_, s.Index) for item in type_.items):
        _name(item, sizes, length, found)
    own = {param.name for param in definition.params}
    return {name: size for name, size in found.items() if name not in own}


def _name(item: s.Expr, sizes: Sequence[int], length: int, found: dict[str, object]) -> None:
    match item:
        case s.Star(s.Name(name)):
            found.setdefault(name, [sizes[n % len(sizes)] for n in range(length)])
        case _:
            for each in s.walk(item):
                if isinstance(each, s.Name) and each.id not in found:
                    found[each.id] = sizes[len(found) % len(sizes)]
