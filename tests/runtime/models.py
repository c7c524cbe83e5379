"""Two plans that look like training: data-parallel steps on a state, and a two-stage pipeline."""

from __future__ import annotations

from dataclasses import replace

from anabranch.ir.plan import Arg, Launch, Plan, Port, Program, Transfer, Use, float_arg
from tests.runtime.hand import KERNEL, Builder, add, nap

WIDTH = 4


def counter(ranks: int, slots: int = 1, *, canaries_break: bool = False) -> Plan:
    """train: every rank adds the all-reduced sum of its shard of x and its state w to w.

    y = w + sum over ranks of x_r; w <- y. eval: z = w, which nobody writes.
    """
    b = Builder(ranks)
    w = b.value("w", WIDTH)
    x = b.value("x", ranks, WIDTH, sbp="S0")
    total, y, z = b.value("total", WIDTH), b.value("y", WIDTH), b.value("z", WIDTH)
    b.state("w", w, *range(ranks))
    group = b.comm(*range(ranks))
    fed, fetched = [], []
    for rank in range(ranks):
        io, cpu, comm = b.stream(rank, "io"), b.stream(rank), b.stream(rank, "comm")
        out = b.stream(rank, "io")
        feed = b.actor("feed", io, "feed")
        reduce = b.actor("reduce", comm, "comm")
        update = b.actor("update", cpu, loc=b.loc(9, "update"))
        fetch = b.actor("fetch", out, "fetch")
        b.sequence(comm, (reduce, 0))
        own = b.register(
            x, feed, Use(reduce), local=(1, WIDTH), origin=(rank, 0), slots=slots
        )  # fmt: skip
        summed = b.register(total, reduce, Use(update), slots=slots)
        shown = b.register(y, update, Use(fetch), slots=slots)
        state = b.state_register("w", rank, update, Use(update, donate=True))
        part = (group, rank, "f64", (WIDTH,), own, summed)
        b.transfer(reduce, Transfer(0, "all_reduce", *part, reduce="sum"))
        b.launch(update, add(state, summed, WIDTH, 1.0), add(shown, state, WIDTH, 0.0))
        if canaries_break:
            overrun = (Arg("reg", shown), Arg("int", WIDTH))
            b.launch(update, Launch(KERNEL["overrun"], overrun))
        fed.append(own)
        fetched.append(shown)
    b.feeds.append(Port("x", x, tuple(fed)))
    b.fetches.append(Port("y", y, tuple(fetched)))
    return b.plan(_reading(b, z))


def _reading(b: Builder, z: int) -> Program:
    """A program that only reads the state, in the memory behind that of the first."""
    e = Builder(b.ranks)
    e.values, e.states, e.sizes = b.values, b.states, b.sizes
    fetched = []
    for rank in range(b.ranks):
        cpu, out = e.stream(rank), e.stream(rank, "io")
        copy, fetch = e.actor("copy", cpu), e.actor("fetch", out, "fetch")
        state = e.state_register("w", rank, copy, Use(copy))
        e.registers[state] = replace(e.registers[state], producer=-1)
        shown = e.register(z, copy, Use(fetch))
        e.launch(copy, add(shown, state, WIDTH, 0.0))
        fetched.append(shown)
    e.fetches.append(Port("z", z, tuple(fetched)))
    return e.program("eval")


def pipeline(micro: int, slots: int, forward_us: int, backward_us: int) -> Plan:
    """Two stages, forward and backward each, with sends between them; the gradient of every
    micro-batch is accumulated and fetched once a step.

    For micro-batch k stage 0 makes 11 + k, stage 1 adds 100, and backward passes that on: the
    fetched total is the sum over k of 111 + k on both stages.
    """
    b = Builder(2, micro)
    down, up = b.comm(0, 1, kind="channel"), b.comm(1, 0, kind="channel")
    cpu = [b.stream(0), b.stream(1)]
    sends = {(r, c): b.stream(r, "comm") for r in range(2) for c in (down, up)}
    io = [b.stream(0, "io"), b.stream(1, "io")]
    for stream in cpu:
        b.scratch(stream, 64)
    many = {"fires": micro}
    f0, f1 = b.actor("F0", cpu[0], priority=1, **many), b.actor("F1", cpu[1], priority=1, **many)
    b0, b1 = b.actor("B0", cpu[0], **many), b.actor("B1", cpu[1], **many)
    h, g = b.value("h", 1), b.value("g", 1)
    total = [b.value(f"total_{r}", 1) for r in range(2)]
    held = b.register(h, f0, slots=slots)
    sent = _send(b, sends, down, 0, held, h, f1, micro, slots)
    made = b.register(b.value("a", 1), f1, Use(b1), slots=slots)
    b.use(held, b0)
    grad = b.register(g, b1, slots=slots)
    back = _send(b, sends, up, 1, grad, g, b0, micro, slots)
    ten, hundred = float_arg(10.0), float_arg(100.0)
    k = Arg("int", 1, 1)
    b.launch(f0, nap(1, forward_us), _put(held, ten, k))
    b.launch(f1, nap(2, forward_us), _put(made, hundred, Arg("int", 0)), add(made, sent, 1, 1.0))
    for rank, actor, source in ((0, b0, back), (1, b1, made)):
        result = b.register(total[rank], actor, hold=micro)
        b.launch(
            actor, nap(3, backward_us), add(result, source, 1, 0.0, "first"),
            add(result, source, 1, 1.0, "rest"),
        )  # fmt: skip
        fetch = b.actor(f"fetch{rank}", io[rank], "fetch")
        b.use(result, fetch)
        b.fetches.append(Port(f"total_{rank}", total[rank], (result,)))
    b.launch(b1, add(grad, made, 1, 0.0))
    return b.plan()


def _put(register: int, constant: Arg, k: Arg) -> Launch:
    """register = constant + k: the place of the step holds an integer that follows k."""
    return Launch(KERNEL["put"], (Arg("reg", register), Arg("int", 1), k, constant))


def _send(
    b: Builder, streams: dict[tuple[int, int], int], comm: int, source_rank: int, source: int,
    value: int, reader: int, micro: int, slots: int,
) -> int:  # fmt: skip
    """Send a register of each micro-batch to the other stage; the register that arrives there."""
    target_rank = 1 - source_rank
    send = b.actor("send", streams[source_rank, comm], "comm", fires=micro)
    receive = b.actor("recv", streams[target_rank, comm], "comm", fires=micro)
    b.use(source, send)
    target = b.register(value, receive, Use(reader), slots=slots)
    match = 10 + comm
    b.transfer(send, Transfer(match, "send", comm, 0, "f64", (1,), source=source))
    b.transfer(receive, Transfer(match, "recv", comm, 1, "f64", (1,), target=target))
    for actor, rank in ((send, source_rank), (receive, target_rank)):
        b.sequence(streams[rank, comm], *((actor, k) for k in range(micro)))
    return target
