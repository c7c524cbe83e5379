"""Where each op runs when the mesh has a `stage` axis.

The source says it for blocks of a model (`with stage(k):`). What it does not say follows the data:
an op runs at the latest stage of the activations it reads, so that a head behind the last block
stands in the last stage. A state lives in the first stage that uses it, and so does its gradient,
hence its optimizer. Scalars made of the step alone are computed again in every stage that wants
them, which is cheaper than any message.
"""

from __future__ import annotations

from anabranch.ir.core import Function, Module, Op, Value
from anabranch.ir.ops import Gradient, Return


def assign_stages(module: Module) -> Module:
    """Complete the stages of all functions before differentiation; changes ops in place."""
    for function in module.functions.values():
        _assign(function)
    return module


def _assign(function: Function) -> None:
    home = _homes(function)
    found: dict[Value, int] = {}
    for op in function.body:
        if isinstance(op, Return):
            continue
        op.stage = max([op.stage, *(found[v] for v in op.operands if v in found)])
        for result in op.results:
            found[result] = op.stage
        if isinstance(op, Gradient):
            found.update({g: home.get(x, found.get(x, 0))
                          for g, x in zip(op.results, op.operands[1:], strict=True)})
    _sink_inputs(function)
    for argument in function.arguments:
        users = [op.stage for op in argument.value.uses if not isinstance(op, Return)]
        argument.stage = home.get(argument.value, min(users, default=0))
    _replicate_scalars(function)


def _sink_inputs(function: Function) -> None:
    """What depends on inputs alone (a mask of the targets) runs where it is first wanted."""
    given = {a.value for a in function.arguments if a.role != "state"}
    floating = []
    for op in function.body:
        if not isinstance(op, Return | Gradient) and all(v in given for v in op.operands):
            given.update(op.results)
            floating.append(op)
    for op in reversed(floating):
        users = [u.stage for r in op.results for u in r.uses if not isinstance(u, Return)]
        op.stage = max(op.stage, min(users, default=0))


def _homes(function: Function) -> dict[Value, int]:
    """The first stage that uses each state in a forward pass: a fixed point is not needed, since
    the stages of forward ops do not depend on where states live. Behind the first gradient, forward
    is what depends on the batch; an update made between two gradients is for the parameter."""
    made_of: dict[Value, set[Value]] = {a.value: {a.value} for a in function.states()}
    batch = {a.value for a in function.arguments if a.role == "input"}
    stage: dict[Value, int] = {}
    home: dict[Value, int] = {}
    began = False
    for op in function.body:
        if isinstance(op, Gradient):
            began = True
            pairs = zip(op.results, op.operands[1:], strict=True)
            stage.update({g: home.get(x, stage.get(x, 0)) for g, x in pairs})
        elif not isinstance(op, Return):
            here = max([op.stage, *(stage[v] for v in op.operands if v in stage)])
            stage.update(dict.fromkeys(op.results, here))
            used = set[Value]().union(*(made_of.get(v, ()) for v in op.operands))
            if not batch.isdisjoint(op.operands):
                batch.update(op.results)
            else:
                made_of.update(dict.fromkeys(op.results, used))
            if not began:
                used &= set(op.operands)
            elif batch.isdisjoint(op.results):
                continue
            home.update({state: min(home.get(state, here), here) for state in used})
    return home


def _replicate_scalars(function: Function) -> None:
    """Clone ops that depend on the step and the seed only into each stage that reads them."""
    timeless = {a.value for a in function.arguments if a.role in ("step", "seed")}
    copies: dict[tuple[Op, int], Op] = {}
    for op in function.body:
        if not isinstance(op, Return | Gradient) and all(v in timeless for v in op.operands):
            timeless.update(r for r in op.results if r.type.rank == 0)
    for op in list(function.body):
        if isinstance(op, Return) or (op.results and op.result in timeless):
            continue
        op.set_operands([_copy_at(v, op.stage, timeless, copies) for v in op.operands])


def _copy_at(
    value: Value, stage: int, timeless: set[Value], copies: dict[tuple[Op, int], Op]
) -> Value:
    maker = value.op
    if maker is None or value not in timeless or maker.stage == stage:
        return value
    if (maker, stage) not in copies:
        operands = [_copy_at(v, stage, timeless, copies) for v in maker.operands]
        clone = maker.clone(operands)
        clone.stage = stage
        assert maker.block is not None
        copies[maker, stage] = maker.block.insert_after(clone, maker)
    return copies[maker, stage].result


def follow(module: Module, homes: dict[str, int]) -> Module:
    """Stages of a program whose states another one has placed: what makes the next value of a
    state runs where the state lives."""
    for function in module.functions.values():
        for argument in function.states():
            argument.stage = homes.get(argument.value.name, argument.stage)
        last = function.body.last
        if isinstance(last, Return):
            for name, value in last.updates.items():
                _move(value, homes.get(name, 0))
    return module


def _move(value: Value, stage: int) -> None:
    """Put the makers of a value at a stage, as far back as they are at an earlier one."""
    maker = value.op
    if maker is not None and maker.stage < stage:
        maker.stage = stage
        for operand in maker.operands:
            _move(operand, stage)
