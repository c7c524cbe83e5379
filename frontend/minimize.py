"""`minimize`: gradients of a loss by the parameters that match, clipping, an update of each.

Every parameter has one optimizer, made from the group of the recipe that matches its path last, and
the buffers of that optimizer stand under `optimizer.<path of the parameter>`. A parameter whose
group says None is frozen: it has neither gradient nor optimizer. What a loss does not use is left
as it is, as in PyTorch. An optimizer's `step` counts the updates of its parameter, which are
several in a step where several calls minimize it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from anabranch.frontend import elements
from anabranch.frontend.arguments import Argument
from anabranch.frontend.builtins import Call
from anabranch.frontend.calls import call, method, supplied
from anabranch.frontend.evaluate import Frame
from anabranch.frontend.models import instantiate, place, states
from anabranch.frontend.recipe import Group, Recipe
from anabranch.frontend.tensors import as_tensor
from anabranch.frontend.values import (
    Builtin,
    Deferred,
    Function,
    Instance,
    Model,
    State,
    Tensor,
    describe,
    weak,
)
from anabranch.ir.core import upstream
from anabranch.ir.diagnostics import Span, fail, nearest
from anabranch.ir.types import is_float


@dataclass(slots=True)
class Minimizer:
    """What a step does to parameters. `total` says how often each is updated in a step, as far as
    that is known; `done` counts. `loss` is the last one minimized."""

    recipe: Recipe
    total: Mapping[str, int]
    parameters: list[State]
    optimizers: dict[str, Deferred | None]
    made: dict[str, Instance] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    loss: Tensor | None = None

    def builtin(self) -> Builtin:
        """The function of the language that an update calls."""

        def run(call: Call, loss: object, *patterns: object) -> None:
            texts = [(p, call.span) for p in patterns if isinstance(p, str)]
            if len(texts) < len(patterns):
                raise fail("'minimize' takes a loss and paths of parameters", call.span,
                           help='as in minimize(loss(x), "critic.*")')
            self.minimize(loss, texts, call.span)

        return Builtin("minimize", run)

    def minimize(self, loss: object, patterns: Sequence[tuple[str, Span]], span: Span) -> None:
        builder = self.recipe.builder
        if builder.parted:
            raise fail("'minimize' takes the loss of the whole batch, and stands outside of "
                       "'per_micro'", span)
        if not isinstance(loss, Tensor) or loss.rank or not is_float(loss.dtype):
            raise fail(f"the loss is {describe(loss)}, not a 0-d float tensor", span,
                       help="reduce it, as in mean(...)")
        self.loss = builder.tensor(builder.value(loss))
        chosen = self._chosen(patterns, self.loss, span)
        grads = builder.gradient(self.loss, [builder.state(x) for x in chosen])
        for state, grad in zip(chosen, clipped(grads, self.recipe), strict=True):
            self._update(state, grad)

    def _chosen(
        self, patterns: Sequence[tuple[str, Span]], loss: Tensor, span: Span
    ) -> list[State]:
        """The parameters that match, that the loss depends on and that are not frozen."""
        found = self.parameters
        if patterns:
            paths = {p for text, at in patterns
                     for p in matching(text, [x.path for x in found], at)}
            found = [x for x in found if x.path in paths]
        builder = self.recipe.builder
        minimized = builder.value(loss)
        used = {minimized, *upstream(minimized)}
        now = {path: builder.states[path].value for path in builder.states}
        used_now = [x for x in found if now.get(x.path) in used]
        chosen = [x for x in used_now if self.optimizers[x.path] is not None]
        if not chosen:
            matches = [f"matches {' or '.join(repr(p) for p, _ in patterns)}"] if patterns else []
            wanted = " and ".join([*matches, "is not frozen"] if used_now else matches)
            raise fail(f"the loss uses no parameter{' that ' if wanted else ''}{wanted}", span,
                       help="" if wanted else "it is computed from the fields of the model")
        return chosen

    def _update(self, state: State, grad: Tensor) -> None:
        """The next value of a parameter, by its own optimizer."""
        optimizer = self.optimizers[state.path]
        assert optimizer is not None, "a frozen parameter is not chosen"
        span, builder = optimizer.span, self.recipe.builder
        frame = Frame(self.recipe.scope, builder)
        if state.path not in self.made:
            self.made[state.path] = _instance(optimizer, state, frame)
        args = [Argument(builder.state(state), span), Argument(grad, span)]
        counted = self._counted(state.path, span)
        with builder.counting(counted) if counted is not None else nullcontext():
            new = call(method(self.made[state.path], "update", span), args, {}, frame, span)
        if not isinstance(new, Tensor) or new.type is not state.type.type:
            raise fail(f"the optimizer gives {describe(new)} for '{state.path}', which is "
                       f"{state.type.type}", span)
        builder.update(state, self._leaf(new, span))

    def _leaf(self, new: Tensor, span: Span) -> Tensor:
        """A parameter's value as what later losses start from: no gradient goes through the
        update that led to it."""
        if "update" not in self.recipe.functions:
            return new
        return Tensor(new.shape, elements.apply("stop", [new.element], span))

    def _counted(self, path: str, span: Span) -> Tensor | None:
        """How many updates a parameter has had, if not one in each step."""
        number = self.done[path]
        self.done[path] += 1
        total = self.total.get(path, 1)
        if total == 1:
            return None
        step = self.recipe.builder.runtime("step").element
        before = elements.apply("mul", [step, weak(total)], span)
        return self.recipe.builder.held(
            Tensor((), elements.apply("add", [before, weak(number)], span)))

    @property
    def trained(self) -> list[State]:
        """The parameters that the step has updated."""
        return [x for x in self.parameters if x.path in self.made]

    @property
    def states(self) -> list[State]:
        """The buffers of all optimizers."""
        return [x for each in self.trained for x in states(self.made[each.path])]


def minimizer(recipe: Recipe, total: Mapping[str, int]) -> Minimizer:
    """For the parameters of a recipe's model."""
    parameters = [x for x in states(recipe.instance)
                  if not x.is_buffer and is_float(x.type.dtype)]
    return Minimizer(recipe, total, parameters, assigned(recipe, [x.path for x in parameters]))


def _instance(optimizer: Deferred, state: State, frame: Frame) -> Instance:
    model = optimizer.callee
    assert isinstance(model, Model), "a line of a recipe takes nothing else"
    made = instantiate(model, [], supplied(optimizer, state.type.shape), frame, optimizer.span)
    place(made, f"optimizer.{state.path}")
    return made


# ---- Groups


def assigned(recipe: Recipe, paths: Sequence[str]) -> dict[str, Deferred | None]:
    """The optimizer of every parameter; None where it is frozen."""
    if not recipe.groups:
        raise fail("the recipe has no optimizer", recipe.definition.span,
                   help="add a line: optimizer = adamw(lr=1e-3)")
    found: dict[str, Deferred | None] = {}
    for group in sorted(recipe.groups, key=lambda group: bool(group.patterns)):
        found |= dict.fromkeys(_members(group, paths), group.optimizer)
    left = [path for path in paths if path not in found]
    if left:
        shown = ", ".join(f"'{path}'" for path in left[:3]) + (", ..." if len(left) > 3 else "")
        raise fail(f"no optimizer is for {shown}", recipe.groups[-1].span,
                   help="a line 'optimizer = ...' is for all that no pattern matches, and "
                   f"optimizer[\"{left[0]}\"] = None freezes")
    return found


def _members(group: Group, paths: Sequence[str]) -> Iterable[str]:
    if not group.patterns:
        return paths
    return [path for each in group.patterns for path in matching(each.value, paths, each.span)]


def matching(pattern: str, paths: Sequence[str], span: Span) -> list[str]:
    """The paths that a pattern matches: `*` stands for anything, dots included."""
    found = [path for path in paths if fnmatchcase(path, pattern)]
    if not found:
        raise fail(f"'{pattern}' matches no parameter", span,
                   help=nearest(pattern, paths) or nearest(pattern.strip("*."), _parts(paths))
                   or f"there are {', '.join(paths[:6])}{', ...' if len(paths) > 6 else ''}")
    return found


def _parts(paths: Sequence[str]) -> list[str]:
    return [part for path in paths for part in path.split(".")]


# ---- Clipping


def clipped(grads: list[Tensor], recipe: Recipe) -> list[Tensor]:
    """Gradients as the recipe limits them: by their joint norm, or by a function of its own."""
    own, limit = recipe.functions.get("clip"), recipe.get("clip")
    if own is None and limit is None:
        return grads
    if own is not None:
        return _clipped(own, [list(grads)], own.definition.span, recipe)
    span = recipe.span("clip")
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
        raise fail(f"'clip' is a positive number or None, not {describe(limit)}", span,
                   help="a function of the gradients may stand for it: def clip(grads): ...")
    return _clipped(recipe.scope.find("clip_by_norm"), [list(grads), float(limit)], span, recipe)


def _clipped(
    clip: object, given: list[object], span: Span, recipe: Recipe
) -> list[Tensor]:
    frame = Frame(recipe.scope, recipe.builder)
    result = call(clip, [Argument(x, span) for x in given], {}, frame, span)
    name = clip.definition.name if isinstance(clip, Function) else "clip"
    grads = given[0]
    assert isinstance(grads, list)
    if not isinstance(result, list) or len(result) != len(grads):
        raise fail(f"'{name}' gives a list, with a gradient for each one it takes", span)
    found = [as_tensor(x, span) for x in result]
    for new, old in zip(found, grads, strict=True):
        if new.type is not old.type:
            raise fail(f"'{name}' gives {describe(new)} for a gradient {old.type}", span)
    return found
