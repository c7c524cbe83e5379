"""Do the members of every communicator mean the same transfers in the same order?

Order is all that matches transfers: libraries ignore tags. So every communicator has one order on
all of its members, that of the sequence of the one stream each member runs it on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from anabranch.ir.plan import DTYPE_BYTES, Actor, Comm, Plan, Program, Transfer
from anabranch.runtime.events import event_name
from anabranch.runtime.transport import REDUCE, REDUCING, source_count, target_count

OPS = ("all_gather", "all_to_all", "send", "recv", *REDUCING)

Part = tuple[Actor, Transfer]


def agreement_problems(plan: Plan, program: Program) -> Iterator[str]:
    parts = [(a, a.transfer) for a in program.actors if a.transfer]
    for actor, transfer in parts:
        yield from _part_problems(plan, program, actor, transfer)
    by_comm: dict[int, list[Part]] = defaultdict(list)
    by_match: dict[int, list[Part]] = defaultdict(list)
    for part in parts:
        by_comm[part[1].comm].append(part)
        by_match[part[1].match].append(part)
    for match in by_match.values():
        yield from _match_problems(plan, program, match)
    for comm, own in by_comm.items():
        yield from _order_problems(program, plan.comms[comm], own)


def _part_problems(plan: Plan, program: Program, actor: Actor, transfer: Transfer) -> Iterator[str]:
    name = event_name(plan, program, (actor.id, 0))
    comm = plan.comms[transfer.comm]
    if transfer.op not in OPS or transfer.dtype not in DTYPE_BYTES:
        yield f"{name} is the unknown transfer {transfer.op} of {transfer.dtype}"
        return
    if comm.ranks[transfer.member : transfer.member + 1] != (actor.rank,):
        yield f"{name} is not member {transfer.member} of communicator {comm.id} {comm.ranks}"
    if (transfer.op in REDUCING) != (transfer.reduce in REDUCE):
        yield f"{name} cannot reduce by {transfer.reduce or 'nothing'}"
    if transfer.dtype == "bool" and transfer.reduce in ("sum", "prod"):
        yield f"{name} sums truth values"
    length = 1 if transfer.op in ("all_reduce", "send", "recv") else len(comm.ranks)
    back = length if transfer.op == "all_to_all" else 0
    if len(transfer.counts) != length or len(transfer.counts_back) != back:
        yield f"{name} has counts {transfer.counts}, {transfer.counts_back} for {comm.ranks}"
        return
    yield from _buffer_problems(program, actor, transfer, name)


def _buffer_problems(
    program: Program, actor: Actor, transfer: Transfer, name: str
) -> Iterator[str]:
    size = DTYPE_BYTES[transfer.dtype]
    needs = (transfer.source, source_count(transfer)), (transfer.target, target_count(transfer))
    for register, count in needs:
        if count and (register < 0 or program.registers[register].nbytes < size * count):
            yield f"{name} moves {count} elements but register {register} does not hold them"
    if transfer.source >= 0:
        users = [use.actor for use in program.registers[transfer.source].uses]
        if actor.id not in users:
            yield f"{name} gives register {transfer.source}, which it does not read"
    if transfer.target >= 0 and program.registers[transfer.target].producer != actor.id:
        yield f"{name} fills register {transfer.target}, which another actor writes"


def _match_problems(plan: Plan, program: Program, parts: list[Part]) -> Iterator[str]:
    """The parts of one transfer: every member once, one meaning, counts that fit."""
    names = ", ".join(event_name(plan, program, (actor.id, 0)) for actor, _ in parts)
    transfers = {t.member: t for _, t in parts}
    first = parts[0][1]
    ranks = plan.comms[first.comm].ranks
    if sorted(t.member for _, t in parts) != list(range(len(ranks))):
        yield f"transfer {first.match} has {names} but is between ranks {ranks}"
        return
    if len({a.fires for a, _ in parts}) > 1 or len({t.comm for _, t in parts}) > 1:
        yield f"{names} are one transfer but differ in firings or communicator"
    pair = {0: "send", 1: "recv"} if first.op in ("send", "recv") else {}
    same = [(t.dtype, t.reduce, pair.get(m, first.op)) for m, t in transfers.items()]
    if len({s[:2] for s in same}) > 1 or any(
        t.op != pair.get(m, first.op) for m, t in transfers.items()
    ):
        yield f"{names} are one transfer but differ in kind, dtype or reduction"
    elif not _counts_agree(first.op, [transfers[m] for m in range(len(ranks))]):
        yield f"{names} are one transfer but disagree in counts"


def _counts_agree(op: str, parts: list[Transfer]) -> bool:
    if op != "all_to_all":
        return len({t.counts for t in parts}) == 1
    members = range(len(parts))
    return all(parts[i].counts[j] == parts[j].counts_back[i] for i in members for j in members)


def _order_problems(program: Program, comm: Comm, parts: list[Part]) -> Iterator[str]:
    orders = {}
    for rank in comm.ranks:
        own = {actor.id: t.match for actor, t in parts if actor.rank == rank}
        streams = {actor.stream for actor, _ in parts if actor.rank == rank}
        if len(streams) != 1:
            yield f"rank {rank} runs communicator {comm.id} on streams {sorted(streams)}"
            return
        sequence = program.streams[streams.pop()].sequence
        orders[rank] = [(own[a], k) for a, k in sequence if a in own]
    first = orders[comm.ranks[0]]
    for rank, order in orders.items():
        if order != first:
            differ = next(pair for pair in zip(first, order, strict=False) if pair[0] != pair[1])
            yield (
                f"communicator {comm.id}: rank {comm.ranks[0]} does transfer {differ[0]} where "
                f"rank {rank} does {differ[1]} (match, firing)"
            )
