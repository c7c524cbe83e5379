"""Plans that could hang, race or overrun are refused, with who waits for whom and where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.ir.plan import Arg, Edge, Launch, Plan, Transfer, Use
from anabranch.runtime.check import check_plan
from anabranch.runtime.errors import DeadPlan
from tests.measuring import cpu_seconds
from tests.runtime.hand import KERNEL, Builder, add, put


def refusal(plan: Plan) -> str:
    with pytest.raises(DeadPlan) as refused:
        check_plan(plan)
    return str(refused.value)


def pair() -> Builder:
    """Two actors on one stream, the second reading what the first writes."""
    b = Builder()
    cpu = b.stream(0)
    first = b.actor("first", cpu, loc=b.loc(3, "mlp"))
    second = b.actor("second", cpu, loc=b.loc(5, "mlp"))
    h, y = b.value("h", 4), b.value("y", 4)
    b.register(h, first, Use(second))
    b.register(y, second)
    b.launch(first, put(0, 4, 1.0))
    b.launch(second, add(1, 0, 4, 0.0))
    return b


def test_a_sequence_against_the_data_is_refused_with_the_lines() -> None:
    b = pair()
    b.sequence(0, (1, 0), (0, 0))
    message = refusal(b.plan())
    assert "first on rank 0 (hand.ab:3 mlp) waits for second on rank 0 (hand.ab:5 mlp)" in message
    assert "second on rank 0 (hand.ab:5 mlp) waits for %h from first" in message


def test_a_control_edge_against_the_data_is_refused_with_its_reason() -> None:
    b = pair()
    b.edges.append(Edge(1, 0, 0, 0, 0, "reuses the bytes of %x"))
    assert "(reuses the bytes of %x)" in refusal(b.plan())


def test_the_same_edge_to_the_next_step_is_no_cycle() -> None:
    b = pair()
    b.edges.append(Edge(1, 0, 0, 0, 1, "keeps steps apart"))
    check_plan(b.plan())


@pytest.mark.parametrize(("slots", "dead"), [(1, True), (2, True), (3, True), (4, False)])
def test_a_value_needed_whole_needs_a_slot_for_every_micro_batch(slots: int, dead: bool) -> None:
    """h is made for 4 micro-batches; `count` needs all of them before the loss reads any."""
    b = Builder(micro=4)
    cpu, other = b.stream(0), b.stream(0)
    forward = b.actor("forward", cpu, fires=4)
    count = b.actor("count", other, fires=4)
    loss = b.actor("loss", other, fires=4)
    b.register(b.value("h", 1), forward, Use(count), Use(loss), slots=slots)
    b.register(b.value("n", 1), count, Use(loss, 4), hold=4)
    if dead:
        message = refusal(b.plan())
        assert f"to have read %h, which has {slots} slot" in message
        assert "waits for %n from count[3]" in message
    else:
        check_plan(b.plan())


def test_rates_that_do_not_balance_are_refused() -> None:
    b = Builder(micro=2)
    cpu = b.stream(0)
    forward, update = b.actor("forward", cpu, fires=2), b.actor("update", cpu)
    b.register(b.value("g", 1), forward, Use(update))
    assert "%g (register 0) is written and read at different rates" in refusal(b.plan())


def test_opposite_orders_on_one_communicator_are_refused() -> None:
    b = Builder(2)
    comm = b.comm(0, 1)
    for rank in range(2):
        stream = b.stream(rank, "comm")
        actors = [b.actor(f"t{match}", stream, "comm") for match in range(2)]
        for match, actor in enumerate(actors):
            source = b.register(b.value(f"x{match}", 2), b.actor("x", b.stream(rank)), Use(actor))
            target = b.register(b.value(f"y{match}", 2), actor)
            part = (comm, rank, "f64", (2,), source, target)
            b.transfer(actor, Transfer(match, "all_reduce", *part, reduce="sum"))
        b.sequence(stream, *((a, 0) for a in (actors if rank == 0 else actors[::-1])))
    assert "communicator 0: rank 0 does transfer (0, 0) where rank 1 does (1, 0)" in refusal(
        b.plan()
    )


def test_opposite_orders_on_two_communicators_are_a_cycle_through_the_transfers() -> None:
    b = Builder(2)
    comms = [b.comm(0, 1), b.comm(0, 1)]
    for rank in range(2):
        previous = None
        for match in (0, 1) if rank == 0 else (1, 0):
            stream = b.stream(rank, "comm")
            actor = b.actor(f"t{match}", stream, "comm")
            b.sequence(stream, (actor, 0))
            b.transfer(actor, Transfer(match, "all_gather", comms[match], rank, "f64", (0, 0)))
            if previous is not None:
                b.edges.append(Edge(previous, 0, actor, 0, 0, "one after the other"))
            previous = actor
    message = refusal(b.plan())
    assert "t0 on rank 0 is one transfer with t0 on rank 1" in message


def gather(counts: tuple[tuple[int, int], tuple[int, int]], dtypes: tuple[str, str]) -> Plan:
    b = Builder(2)
    comm = b.comm(0, 1)
    for rank in range(2):
        stream, cpu = b.stream(rank, "comm"), b.stream(rank)
        actor = b.actor("gather", stream, "comm")
        b.sequence(stream, (actor, 0))
        own, whole = counts[rank][rank], sum(counts[rank])
        source = b.register(b.value("x", own, dtype=dtypes[rank]), b.actor("x", cpu), Use(actor))
        target = b.register(b.value("y", whole, dtype=dtypes[rank]), actor)
        part = (comm, rank, dtypes[rank], counts[rank], source, target)
        b.transfer(actor, Transfer(0, "all_gather", *part))
    return b.plan()


def test_members_that_disagree_are_refused() -> None:
    check_plan(gather(((1, 2), (1, 2)), ("f32", "f32")))
    assert "disagree in counts" in refusal(gather(((1, 2), (1, 3)), ("f32", "f32")))
    assert "differ in kind, dtype or reduction" in refusal(gather(((1, 2), (1, 2)), ("f32", "f64")))


def test_a_transfer_that_misses_a_member_is_refused() -> None:
    plan = gather(((1, 2), (1, 2)), ("f32", "f32"))
    program = plan.programs[0]
    lost = tuple(
        replace(a, transfer=replace(a.transfer, match=9)) if a.transfer and a.rank else a
        for a in program.actors
    )
    message = refusal(replace(plan, programs=(replace(program, actors=lost),)))
    assert "but is between ranks (0, 1)" in message


def test_a_comm_stream_without_a_sequence_is_refused() -> None:
    plan = gather(((1, 2), (1, 2)), ("f32", "f32"))
    program = plan.programs[0]
    streams = tuple(replace(s, sequence=()) for s in program.streams)
    assert "has no sequence" in refusal(
        replace(plan, programs=(replace(program, streams=streams),))
    )


def sharing(sequence: bool, guard: tuple[Edge, ...] = ()) -> Plan:
    """h lives from first to second, z from third to fourth, in the same bytes."""
    b = Builder()
    streams = [b.stream(0), b.stream(0)]
    names = ("first", "second", "third", "fourth")
    actors = [b.actor(name, streams[0 if sequence else i // 2]) for i, name in enumerate(names)]
    if sequence:
        b.sequence(streams[0], *((a, 0) for a in actors))
    h = b.register(b.value("h", 8), actors[0], Use(actors[1]))
    z = b.register(b.value("z", 8), actors[2], Use(actors[3]))
    b.registers[z] = replace(b.registers[z], offsets=b.registers[h].offsets)
    b.sizes[0] = b.registers[h].nbytes
    b.edges += guard
    return b.plan()


def test_bytes_are_shared_only_in_a_proved_order() -> None:
    there, back = Edge(1, 0, 2, 0, 0, "z reuses h"), Edge(3, 0, 0, 0, 1, "h reuses z")
    check_plan(sharing(sequence=True))
    check_plan(sharing(sequence=False, guard=(there, back)))
    for guard in ((), (there,), (back,)):
        message = refusal(sharing(sequence=False, guard=guard))
        assert "%h (register 0) and %z (register 1) share bytes 0.. without an order" in message


def test_bytes_used_in_one_firing_are_not_shared() -> None:
    """second reads h while it writes y."""
    b = pair()
    b.sequence(0, (0, 0), (1, 0))
    b.registers[1] = replace(b.registers[1], offsets=b.registers[0].offsets)
    assert "share bytes" in refusal(b.plan())


def test_memory_outside_the_arena_is_refused() -> None:
    plan = pair().plan()
    small = replace(plan, arenas=(replace(plan.arenas[0], nbytes=64),))
    assert "arena 0 has 64 bytes; train uses 96" in refusal(small)


def test_a_wrong_prediction_of_the_peak_is_refused() -> None:
    plan = pair().plan()
    wrong = replace(plan, programs=(replace(plan.programs[0], peak=(4096,)),))
    assert "train uses 96 bytes of arena 0, not 4096" in refusal(wrong)


def test_a_launch_may_only_touch_registers_of_its_actor() -> None:
    b = pair()
    b.launch(0, put(1, 4, 1.0))
    assert "hands put register 1, which it does not use" in refusal(b.plan())


def test_a_launch_must_fit_its_kernel() -> None:
    b = pair()
    b.launch(0, Launch(KERNEL["put"], (Arg("reg", 0),)))
    plan = b.plan()
    kernel = replace(plan.kernels[0], params=("ptr", "int", "int", "f64"))
    message = refusal(replace(plan, kernels=(kernel, *plan.kernels[1:])))
    assert "calls put('ptr', 'int', 'int', 'f64') with ('ptr',)" in message


def test_only_the_one_writer_of_a_state_may_donate() -> None:
    b = pair()
    b.registers[0] = replace(b.registers[0], uses=(Use(1, donate=True),))
    assert "%h (register 0) is donated by an actor that is not the one writer" in refusal(b.plan())


def test_a_state_has_one_place_in_all_programs() -> None:
    b = Builder()
    b.state("w", b.value("w", 4), 0)
    cpu = b.stream(0)
    update = b.actor("update", cpu)
    register = b.state_register("w", 0, update, Use(update, donate=True))
    check_plan(b.plan())
    b.registers[register] = replace(b.registers[register], offsets=(8,))
    b.sizes[0] += 64
    assert "%w is a state on rank 0 but lies elsewhere" in refusal(b.plan())


def test_a_check_of_many_firings_is_fast() -> None:
    """A chain of 200 actors over 250 micro-batches: 50 000 firings."""
    b = Builder(micro=250)
    cpu = b.stream(0)
    actors = [b.actor(f"a{i}", cpu, fires=250) for i in range(200)]
    for i, actor in enumerate(actors[:-1]):
        b.register(b.value(f"h{i}", 1), actor, Use(actors[i + 1]), slots=2)
    plan = b.plan()
    assert cpu_seconds(lambda: check_plan(plan)) < 3
