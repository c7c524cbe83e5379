"""Makes a scan smaller: what no one reads of it, what it has twice, and a scan that is no loop.

`simplify` has rewritten the statements of the region before; this looks at the frame around them.
A scan of one place (or none) reads no earlier one: its statements stand for themselves.
"""

from __future__ import annotations

from collections.abc import Collection

from anabranch.ir.core import Value
from anabranch.ir.expr import Expr, Read, reads, renumber, transform
from anabranch.ir.ops import Compute, Scan
from anabranch.ir.recurrence import statements
from anabranch.ir.rewrite import replace, sweep


def tidy(scan: Scan, fixed: Collection[Value]) -> bool:
    """Simplify the frame in place; whether anything changed. Results in `fixed` keep values of
    their own."""
    if scan.extent <= 1:
        replace(scan, _in_line(scan))
        return True
    return any([_merge_results(scan, fixed), _drop_results(scan), _merge_operands(scan)])


def _in_line(scan: Scan) -> list[Value]:
    """The results of the statements outside, where histories are what stands before the first."""
    assert scan.block is not None
    known = dict(zip(scan.inputs, scan.operands, strict=True))
    for op in statements(scan):
        histories = [n for n, v in enumerate(op.operands) if v in scan.histories]

        def start(node: Expr, histories: list[int] = histories) -> Expr | None:
            padded = isinstance(node, Read) and node.operand in histories
            return node.pad if padded and isinstance(node, Read) else None

        body = transform(op.body, start)
        guard = None if op.guard is None else transform(op.guard, start)
        every = [*(reads(guard) if guard is not None else ()), *reads(body)]
        used = list(dict.fromkeys(read.operand for read in every))
        made = Compute(
            [known[op.operands[n]] for n in used], op.result.type.dtype, op.ranges, op.dims,
            renumber(body, used.index), reduce=op.reduce, reduced=op.reduced,
            guard=None if guard is None else renumber(guard, used.index), name=op.result.name,
            loc=op.loc, stage=op.stage, recompute=op.recompute)
        known[op.result] = scan.block.insert_before(made, scan).result
    return [known[new] for new in scan.news]


def _merge_results(scan: Scan, fixed: Collection[Value]) -> bool:
    """One result for each value of the region; none for an operand that is handed through."""
    first: dict[Value, tuple[Value, Value]] = dict(
        zip(scan.inputs, zip(scan.operands, scan.inputs, strict=True), strict=True))
    changed = False
    for result, history, new in zip(scan.results, scan.histories, scan.news, strict=True):
        same, past = first.setdefault(new, (result, history))
        if same is not result and result not in fixed and (result.uses or history.uses):
            result.replace_by(same)
            history.replace_by(past)
            changed = True
    return changed


def _drop_results(scan: Scan) -> bool:
    """Take away the results that nothing needs, not even a later place of one that is needed."""
    needed = _needed(scan)
    if len(needed) == len(scan.results):
        return False
    histories, news, end = scan.histories, scan.news, scan.region.last
    assert end is not None, "the region of a scan ends in return"
    end.set_operands([news[n] for n in needed])
    sweep(scan.region)
    scan.region.args[:] = [*scan.inputs, *(histories[n] for n in needed)]
    scan.results = tuple(scan.results[n] for n in needed)
    return True


def _needed(scan: Scan) -> list[int]:
    place = {history: n for n, history in enumerate(scan.histories)}
    found = {n for n, result in enumerate(scan.results) if result.uses}
    waiting, seen = [scan.news[n] for n in found], set[Value]()
    while waiting:
        value = waiting.pop()
        if value in place and place[value] not in found:
            found.add(place[value])
            waiting.append(scan.news[place[value]])
        if value.op is not None and value not in seen:
            seen.add(value)
            waiting += value.op.operands
    return sorted(found)


def _merge_operands(scan: Scan) -> bool:
    """Each operand once, and only those that are read."""
    first: dict[Value, Value] = {}
    for operand, inside in zip(scan.operands, scan.inputs, strict=True):
        if first.setdefault(operand, inside) is not inside:
            inside.replace_by(first[operand])
    kept = {operand: inside for operand, inside in first.items() if inside.uses}
    if len(kept) == len(scan.operands):
        return False
    histories = scan.histories
    scan.set_operands(list(kept))
    scan.region.args[:] = [*kept.values(), *histories]
    return True
