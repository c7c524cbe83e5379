"""What a scan says of its statements: where each has the scan's index, and how far it looks back.

`fault` gives the rule that a scan breaks, in words; the verifier asks it, and so every other reader
of scans may rely on the rules. They are in `ops.Scan`. `closed` makes a scan of a region under
construction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from anabranch.ir.core import Block, Value
from anabranch.ir.diagnostics import Loc
from anabranch.ir.expr import Expr, Read, Var, reads
from anabranch.ir.index import affine
from anabranch.ir.ops import Compute, Return, Scan


def statements(scan: Scan) -> Iterator[Compute]:
    """The computes of the region, in order."""
    return (op for op in scan.region if isinstance(op, Compute))


def scan_axis(op: Compute, variable: str) -> int:
    """The dimension of a statement's result that is the scan's index alone, or -1."""
    return op.dims.index((variable,)) if (variable,) in op.dims else -1


def axes(scan: Scan) -> dict[Value, int]:
    """The dimension of the scan's index in each history and each value of the region."""
    found = {op.result: scan_axis(op, scan.variable) for op in statements(scan)}
    known = zip(scan.histories, scan.news, strict=True)
    return found | {history: found[new] for history, new in known if new in found}


def distance(subscript: Expr, scan: Scan) -> int:
    """How many places before the current one a subscript lies, in the direction of the scan; or
    -1 where it does not lie at a fixed distance or has yet to be filled."""
    form = affine(subscript)
    if form is None or form.terms != ((scan.variable, 1),):
        return -1
    return max(form.constant if scan.reverse else -form.constant, -1)


def fault(scan: Scan) -> str:
    """The first rule that the scan breaks, or nothing; each of its statements is known to hold."""
    args = [v.type for v in (*scan.operands, *scan.results)]
    if [v.type for v in scan.region.args] != args:
        return "the arguments of the region are not like the operands and the results"
    if [v.type for v in scan.news] != [v.type for v in scan.results]:
        return "the region returns other types"
    if not scan.results:
        return "a scan without results"
    if any(not isinstance(new.op, Compute) or new.op.block is not scan.region for new in scan.news):
        return "a result is not computed in the region"
    for op in statements(scan):
        if scan_axis(op, scan.variable) < 0 or op.extents[scan.variable] != scan.extent:
            return f"{op.result} has no dimension [{scan.variable} < {scan.extent}] of its own"
    where = axes(scan)
    return next(filter(None, (_statement_fault(op, where, scan) for op in statements(scan))), "")


def _statement_fault(op: Compute, where: dict[Value, int], scan: Scan) -> str:
    expressions = [op.body] if op.guard is None else [op.body, op.guard]
    for read in (read for expression in expressions for read in reads(expression)):
        source = op.operands[read.operand]
        if source in where and (found := _read_fault(read, where[source], source, scan)):
            return found
    return ""


def _read_fault(read: Read, axis: int, source: Value, scan: Scan) -> str:
    at = read.subscripts[axis]
    if source not in scan.histories:
        return "" if at == Var(scan.variable) else f"{source} is read at another place"
    if distance(at, scan) < 1:
        return f"{source} is read where it is not known"
    return "" if read.pad is not None else f"{source} is read without a pad"


def closed(region: Block, histories: Sequence[Value], news: Sequence[Value], variable: str,
           extent: int, *, reverse: bool, loc: Loc, stage: int, recompute: int) -> Scan:
    """The scan of a region under construction: its arguments are the histories, and what its ops
    still read from outside becomes the operands."""
    inside = {*histories, *(value for op in region for value in op.results)}
    outside = dict.fromkeys(v for op in region for v in op.operands if v not in inside)
    args = {value: Value(value.type, value.name, region) for value in outside}
    for op in region:
        op.set_operands([args.get(v, v) for v in op.operands])
    region.args[:] = [*args.values(), *histories]
    region.append(Return(news, stage=stage, recompute=recompute))
    return Scan(list(outside), region, variable, extent, reverse=reverse,
                names=[history.name for history in histories],
                loc=loc, stage=stage, recompute=recompute)


def result_of(scan: Scan, value: Value) -> Value:
    """A value of the region, outside: the result that it is, or becomes."""
    if value in scan.news:
        return scan.results[scan.news.index(value)]
    scan.region.add_arg(value.name, value.type)
    end = scan.region.last
    assert end is not None, "the region of a scan ends in return"
    end.set_operands([*end.operands, value])
    made = Value(value.type, value.name, scan)
    scan.results = (*scan.results, made)
    return made


def discard(region: Block) -> None:
    """Give up a region, so that the values outside are no longer used by it."""
    for op in reversed(region):
        op.erase()
