"""The axis `micro` is planned first, by propagation: a split in time has no price to weigh.

The batch comes in parts, S(0) on `micro`; states are whole. From there every op keeps what it can
in parts, or as terms of a sum (P), without a conversion; terms are accumulated (P -> B) where
something not linear, a state or the caller needs the whole, and once accumulated the whole is used
wherever it serves. Whole values are cut in time (B -> S) where they meet the batch. The other way,
making a whole of parts, does not exist: it is the user's error, with the line that asks for it.

What is made of indices and random numbers alone is made in parts if all its readers want parts.
"""

from __future__ import annotations

from collections.abc import Iterator

from anabranch.ir.core import Function, Op, Value, upstream
from anabranch.ir.diagnostics import Loc, fail
from anabranch.ir.mesh import MICRO, Mesh
from anabranch.ir.ops import Compute, Order, Pin, Return, Scan
from anabranch.ir.sbp import B, S, Sbp
from anabranch.lowering.boxing import whole_batch
from anabranch.lowering.scan_signatures import scan_forms
from anabranch.lowering.settled import AxisPlan, Entries
from anabranch.lowering.signatures import options


def plan_micro(function: Function, micro: int) -> AxisPlan:
    """Entries for every value of a function."""
    found = AxisPlan(_arguments(function, micro))
    whole: set[Value] = set()  # values of which terms are accumulated anyway
    while True:
        for op in function.body:
            if not isinstance(op, Return):
                found.ops[op] = _choose(op, found.values, whole, micro)
                found.values.update(zip(op.results, found.ops[op][1], strict=True))
        more = set(_accumulated(found)) - whole
        if not more:
            break
        whole |= more
    _check_return(function, found)
    _make_in_parts(function, found, micro)
    return found


def _arguments(function: Function, micro: int) -> dict[Value, Sbp]:
    """The batch is the leading extent of the first input that has one."""
    shaped = [a for a in function.arguments if a.role == "input" and a.value.type.rank]
    if not shaped:
        raise fail(f"there is no batch to cut into {micro} micro-batches",
                   help="use micro=1, or give the batch as an input")
    batch = shaped[0].value.type.shape[0]
    if batch % micro:
        raise fail(f"{micro} micro-batches cannot share a batch of {batch} evenly", shaped[0].span,
                   help=f"choose micro so that it divides {batch}")
    in_parts = {a.value for a in shaped if a.value.type.shape[0] == batch}
    return {v: S(0) if v in in_parts else B for v in function.body.args}


def _candidates(op: Op, values: dict[Value, Sbp], micro: int) -> Iterator[Entries]:
    """The signatures of an op in time, most wanted first."""
    if isinstance(op, Compute | Order):
        for operands, result in options(op, Mesh(((MICRO, micro),)), small=True):
            yield tuple(layout[MICRO] for layout in operands), (result[MICRO],)
    elif isinstance(op, Scan):
        for laid in scan_forms(op, Mesh(((MICRO, micro),)), small=True):
            yield (tuple(layout[MICRO] for layout in laid.operands),
                   tuple(layout[MICRO] for layout in laid.results))
    else:
        entry = values[op.operands[0]]
        yield (entry,), (entry,)


def _choose(op: Op, values: dict[Value, Sbp], whole: set[Value], micro: int) -> Entries:
    ranked = {
        (rank, place): entries for place, entries in enumerate(_candidates(op, values, micro))
        if (rank := _rank(op, entries, values, whole)) is not None}
    if not ranked:
        asked = next(v for v in op.operands if values[v].kind == "S")
        raise whole_batch(asked, op.loc)
    return ranked[min(ranked)]


def _rank(
    op: Op, entries: Entries, values: dict[Value, Sbp], whole: set[Value]
) -> tuple[int, int, int, int] | None:
    """How unwelcome a signature is: terms sent to another stage with every micro-batch where their
    sum could go once, sums to accumulate, values to cut, and the kind of result; None if some
    operand cannot be had so."""
    operands, results = entries
    sent, sums, cuts = set(), set(), set()
    for value, wanted in zip(op.operands, operands, strict=True):
        made = values[value]
        if made == wanted:
            if made.kind == "P" and value.op is not None and value.op.stage != op.stage:
                sent.add(value)
            continue
        if (made.kind, wanted.kind) == ("P", "B"):
            sums.update({value} - whole)
        elif (made.kind, wanted.kind) == ("B", "S"):
            cuts.add(value)
        else:
            return None
    in_parts = any(wanted.kind == "S" for wanted in operands)
    kinds = {"B": 1, "P": 2, "S": 0 if in_parts else 3}
    return len(sent), len(sums), len(cuts), max(kinds[result.kind] for result in results)


def _accumulated(found: AxisPlan) -> Iterator[Value]:
    """The values of which some op wants the whole sum."""
    for op, (operands, _) in found.ops.items():
        for value, wanted in zip(op.operands, operands, strict=True):
            if found.values[value].kind == "P" and wanted == B:
                yield value


def waits(function: Function, found: AxisPlan) -> Iterator[str]:
    """Where micro-batches wait for each other in mid-program, said once for each line: a sum over
    the batch is used together with activations that went into it, which are kept until then. Where
    they waited on the way to what is returned, as the loss, they wait on the way back again."""
    learned = _behind(function, {a.value for a in function.states()}) & _forward(function)
    parts = {v for v, entry in found.values.items() if entry.kind == "S"} & learned
    said: set[tuple[str, int]] = set()
    for value in dict.fromkeys(v for v in _accumulated(found) if v in learned):
        place = value.op.loc if value.op is not None else Loc()
        if (place.file, place.line) in said:
            continue
        kept, after = upstream(value) & parts, _behind(function, {value}) & parts
        if any(kept.intersection(v.op.operands) for v in after if v.op is not None):
            said.add((place.file, place.line))
            yield (f"{place}: '{value.name}' is of the whole batch, so the micro-batches wait here "
                   "for each other and their activations are kept; 'with per_micro:' takes each "
                   "on its own")


def _forward(function: Function) -> set[Value]:
    """What the results depend on, but for the next values of states if there are others."""
    last = function.body.last
    assert isinstance(last, Return)
    results = last.values or last.operands
    return set(results).union(*map(upstream, results))


def _behind(function: Function, values: set[Value]) -> set[Value]:
    """Everything that depends on some values."""
    found = set(values)
    for op in function.body:
        if not found.isdisjoint(op.operands):
            found.update(op.results)
    return found - values


def _check_return(function: Function, found: AxisPlan) -> None:
    last = function.body.last
    assert isinstance(last, Return)
    for value in last.operands:
        if found.values[value].kind == "S":
            raise whole_batch(value, value.op.loc if value.op else Loc())


def _make_in_parts(function: Function, found: AxisPlan, micro: int) -> None:
    """Lets ops on nothing but scalars and each other follow their readers into parts."""
    free = _free(function)
    for op in reversed(function.body):
        if op in free and found.ops[op][1] == (B,):
            wanted = {
                entry for user in op.result.uses
                for value, entry in zip(user.operands, _wants(user, found), strict=True)
                if value is op.result}
            if len(wanted) == 1 and (entry := wanted.pop()).kind == "S":
                for entries in _candidates(op, found.values, micro):
                    if entries[1] == (entry,) and _in_reach(op, entries, found, free):
                        found.ops[op], found.values[op.result] = entries, entry
                        break


def _free(function: Function) -> set[Op]:
    free: set[Op] = set()
    for op in function.body:
        if isinstance(op, Compute | Order | Pin) and all(
            v.type.rank == 0 or v.op in free for v in op.operands
        ):
            free.add(op)
    return free


def _wants(user: Op, found: AxisPlan) -> tuple[Sbp, ...]:
    return (B,) * len(user.operands) if isinstance(user, Return) else found.ops[user][0]


def _in_reach(op: Op, entries: Entries, found: AxisPlan, free: set[Op]) -> bool:
    """Whether operands are as wanted, or are free and may follow in their turn."""
    return all(
        found.values[v] == wanted or (v.op in free and wanted.kind == "S")
        for v, wanted in zip(op.operands, entries[0], strict=True))
