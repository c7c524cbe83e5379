"""Activation checkpointing: what a region computes is computed again for the backward pass.

`with recompute:` in the source marks ops with the number of their region. What the region gives to
the rest of the forward pass is kept; everything else that the backward pass reads of it is made
again, by clones that stand right before their first reader, so that the originals die as soon as
the forward pass is done with them. Random draws are keyed by the logical element and the step, so a
clone draws the same numbers; the next values of buffers are results of the function and are not
made twice.

Forward is what stands in a region or what the results of the function depend on; the rest
(gradients, the optimizer) is backward. Runs behind `simplify`, which would merge a clone with its
original. Linear.
"""

from __future__ import annotations

from anabranch.ir.core import Function, Module, Op, Value
from anabranch.ir.ops import Return


def recompute(module: Module) -> Module:
    """Insert the clones, in place."""
    for function in module.functions.values():
        _Recomputation(function).run()
    return module


class _Recomputation:
    def __init__(self, function: Function) -> None:
        self.function = function
        self.forward = _forward(function)
        regions = [op.recompute for op in function.body]
        self.count = max(regions, default=0)
        self.clones: dict[Op, Op] = {}

    def run(self) -> None:
        if not self.count:
            return
        for op in self.function.body:
            if op not in self.forward and not isinstance(op, Return):
                wanted = [self._again(value, op) for value in op.operands]
                if any(a is not b for a, b in zip(wanted, op.operands, strict=True)):
                    op.set_operands(wanted)

    def _again(self, value: Value, reader: Op) -> Value:
        """The value, or its clone for the backward pass, made before `reader` if it is new."""
        maker = value.op
        if maker is None or not self._is_inside(maker):
            return value
        if maker not in self.clones:
            clone = maker.clone([self._again(v, reader) for v in maker.operands])
            clone.recompute = self.count + maker.recompute
            self.clones[maker] = self.function.body.insert_before(clone, reader)
        return self.clones[maker].results[maker.results.index(value)]

    def _is_inside(self, op: Op) -> bool:
        """Whether an op belongs to a region and gives nothing to the forward pass outside of it."""
        return op.recompute > 0 and op in self.forward and not any(
            user in self.forward and user.recompute != op.recompute
            for result in op.results for user in result.uses)


def _forward(function: Function) -> set[Op]:
    """The ops of regions, those that the function's results depend on, and its return."""
    last = function.body.last
    assert isinstance(last, Return)
    found: set[Op] = {last, *(op for op in function.body if op.recompute)}
    waiting = [v.op for v in last.values if v.op is not None]
    seen: set[Op] = set()
    while waiting:
        op = waiting.pop()
        if op not in seen:
            seen.add(op)
            waiting += [v.op for v in op.operands if v.op is not None]
    return found | seen
