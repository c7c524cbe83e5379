"""Rules for statements: assignment, buffers, control flow known when compiling, regions."""

from __future__ import annotations

from anabranch.frontend import syntax as s
from anabranch.frontend.elements import gives_way
from anabranch.frontend.evaluate import NOTHING, Frame, evaluate, executes, run, truth
from anabranch.frontend.expressions import assign, iterated
from anabranch.frontend.parts import opened
from anabranch.frontend.tensors import as_tensor
from anabranch.frontend.values import (
    MISSING,
    Function,
    Region,
    State,
    Tensor,
    describe,
)
from anabranch.ir.diagnostics import Diagnostic, UserError, fail, nearest


class Failed(UserError):
    """An assertion that does not hold."""


@executes(s.Assign)
def _assign(node: s.Assign, frame: Frame) -> object:
    assign(node.target, evaluate(node.value, frame), frame)
    return NOTHING


@executes(s.Update)
def _update(node: s.Update, frame: Frame) -> object:
    """`name := value`: the buffer has this value from here on."""
    name = node.target.id
    state = frame.scope.find(name)
    if not isinstance(state, State) or not state.is_buffer:
        what = "not defined" if state is MISSING else f"{describe(state)}, not a buffer"
        raise fail(f"'{name}' is {what}", node.target.span,
                   help=nearest(name, frame.scope.visible()) if state is MISSING
                   else f"declare it in the model: buffer {name}: f32[...] = zeros()")
    frame.builder.update(state, _next(node, state, frame))
    return NOTHING


def _next(node: s.Update, state: State, frame: Frame) -> Tensor:
    value = evaluate(node.value, frame)
    new = as_tensor(value, node.value.span)
    wanted = state.type
    if gives_way(new.element, wanted.dtype):
        new = frame.builder.converted(new, wanted.dtype, node.value.span)
    if new.type is not wanted.type:
        raise fail(f"the buffer '{node.target.id}' is {wanted.type}, and its next value is "
                   f"{new.type}", node.value.span)
    return new


@executes(s.Return)
def _return(node: s.Return, frame: Frame) -> object:
    return None if node.value is None else evaluate(node.value, frame)


@executes(s.Assert)
def _assert(node: s.Assert, frame: Frame) -> object:
    if not truth(evaluate(node.condition, frame), node.condition.span):
        message = "this does not hold" if node.message is None else evaluate(node.message, frame)
        raise Failed(Diagnostic(str(message), node.condition.span))
    return NOTHING


@executes(s.Run)
def _run(node: s.Run, frame: Frame) -> object:
    evaluate(node.value, frame)
    return NOTHING


@executes(s.If)
def _if(node: s.If, frame: Frame) -> object:
    chosen = truth(evaluate(node.condition, frame), node.condition.span)
    return run(node.then if chosen else node.otherwise, frame)


@executes(s.For)
def _for(node: s.For, frame: Frame) -> object:
    for item in iterated(evaluate(node.iterable, frame), node.iterable.span):
        assign(node.target, item, frame)
        result = run(node.body, frame)
        if result is not NOTHING:
            return result
    return NOTHING


@executes(s.With)
def _with(node: s.With, frame: Frame) -> object:
    stage, recompute, parted = None, False, False
    for item in node.items:
        region = evaluate(item, frame)
        if not isinstance(region, Region):
            raise fail("'with' takes stage(k), recompute or per_micro, not "
                       f"{describe(region)}", item.span)
        stage = region.stage if region.stage is not None else stage
        recompute |= region.recompute
        parted |= region.per_micro
    with frame.builder.region(stage, recompute):
        return _in_parts(node, frame) if parted else run(node.body, frame)


def _in_parts(node: s.With, frame: Frame) -> object:
    """The body for each micro-batch on its own."""
    builder = frame.builder
    builder.has_parts = True
    if builder.micro == 1 or builder.parted:
        return run(node.body, frame)
    parts = opened(frame, node.items[0].span)
    builder.parted = True
    try:
        result = run(node.body, frame)
    finally:
        builder.parted = False
    return parts.leave(frame, result)


@executes(s.FuncDef)
def _function(node: s.FuncDef, frame: Frame) -> object:
    frame.scope.names[node.name] = Function(node, frame.scope)
    return NOTHING


