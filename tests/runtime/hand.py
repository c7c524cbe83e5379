"""Plans made by hand: a builder that places memory, and a few kernels to fire."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from anabranch.ir.plan import (
    DTYPE_BYTES,
    Actor,
    Arena,
    Arg,
    Comm,
    Edge,
    Kernel,
    Launch,
    Loc,
    Plan,
    Port,
    Program,
    Register,
    Shard,
    Source,
    State,
    Stream,
    Transfer,
    Use,
    Value,
    float_arg,
)

KERNELS = """
#include <time.h>
/* out[i] = constant + step */
void put(const int64_t *ints, const double *floats, char *const *ptrs, int64_t begin, int64_t end,
         ab_ctx *ctx) {
    double *out = (double *)ptrs[0];
    for (int64_t i = 0; i < ints[0]; i++) out[i] = floats[0] + (double)ints[1];
}
/* out[i] = scale * out[i] + in[i]: the first input of a sum has scale 0 and ignores out */
void add(const int64_t *ints, const double *floats, char *const *ptrs, int64_t begin, int64_t end,
         ab_ctx *ctx) {
    double *out = (double *)ptrs[0];
    const double *in = (const double *)ptrs[1];
    for (int64_t i = 0; i < ints[0]; i++)
        out[i] = (floats[0] == 0 ? 0 : floats[0] * out[i]) + in[i];
}
/* sleeps a few microseconds that depend on the step and the micro-batch */
void nap(const int64_t *ints, const double *floats, char *const *ptrs, int64_t begin, int64_t end,
         ab_ctx *ctx) {
    uint64_t mixed = (uint64_t)(ints[0] + 7919 * ints[1] + 1) * 0x9E3779B97F4A7C15u;
    struct timespec time = {0, (long)((mixed >> 40) % (uint64_t)ints[2]) * 1000};
    nanosleep(&time, 0);
}
/* wants the first element of the input to be an index below a bound */
void look_up(const int64_t *ints, const double *floats, char *const *ptrs, int64_t begin,
             int64_t end, ab_ctx *ctx) {
    int64_t index = (int64_t)((const double *)ptrs[1])[0];
    if (index < 0 || index >= ints[0]) { ab_index_error(ctx, index, ints[0]); return; }
    ((double *)ptrs[0])[0] = (double)index;
}
/* writes tile + 1 into element tile of the output, through its scratch */
void mark(const int64_t *ints, const double *floats, char *const *ptrs, int64_t begin, int64_t end,
          ab_ctx *ctx) {
    double *own = (double *)ctx->scratch;
    for (int64_t tile = begin; tile < end; tile++) {
        own[0] = (double)(tile + 1);
        ((double *)ptrs[0])[tile] += own[0];
    }
}
/* writes one element more than it may */
void overrun(const int64_t *ints, const double *floats, char *const *ptrs, int64_t begin,
             int64_t end, ab_ctx *ctx) {
    for (int64_t i = 0; i <= ints[0]; i++) ((double *)ptrs[0])[i] = 1;
}
"""
SYMBOLS = ("put", "add", "nap", "look_up", "mark", "overrun")
LIBRARY = ("ab_gemm_f32", "ab_gemm_f64")
KERNEL = {name: i for i, name in enumerate((*SYMBOLS, *LIBRARY))}


def put(register: int, count: int, constant: float, phase: str = "all") -> Launch:
    args = (Arg("reg", register), Arg("int", count), Arg("step"), float_arg(constant))
    return Launch(KERNEL["put"], args, phase=phase)


def add(out: int, source: int, count: int, scale: float, phase: str = "all") -> Launch:
    args = (Arg("reg", out), Arg("reg", source), Arg("int", count), float_arg(scale))
    return Launch(KERNEL["add"], args, phase=phase)


def nap(salt: int, microseconds: int) -> Launch:
    args = (Arg("int", salt, 31), Arg("step"), Arg("int", microseconds))
    return Launch(KERNEL["nap"], args)


class Builder:
    """Collects one program; places every register in memory of its own."""

    def __init__(self, ranks: int = 1, micro: int = 1) -> None:
        self.ranks, self.micro = ranks, micro
        self.values: list[Value] = []
        self.actors: list[Actor] = []
        self.registers: list[Register] = []
        self.streams: list[Stream] = []
        self.edges: list[Edge] = []
        self.comms: list[Comm] = []
        self.states: list[State] = []
        self.feeds: list[Port] = []
        self.fetches: list[Port] = []
        self.locs = [Loc()]
        self.sizes = [0] * ranks

    def loc(self, line: int, path: str = "") -> int:
        self.locs.append(Loc("hand.ab", line, path))
        return len(self.locs) - 1

    def comm(self, *ranks: int, kind: str = "group") -> int:
        self.comms.append(Comm(len(self.comms), ranks, kind))
        return len(self.comms) - 1

    def stream(self, rank: int, kind: str = "cpu") -> int:
        self.streams.append(Stream(len(self.streams), rank, kind, arena=rank))
        return len(self.streams) - 1

    def sequence(self, stream: int, *events: tuple[int, int]) -> None:
        self.streams[stream] = replace(self.streams[stream], sequence=events)

    def value(self, name: str, *shape: int, dtype: str = "f64", sbp: str = "B") -> int:
        self.values.append(Value(name, dtype, shape, (sbp,)))
        return len(self.values) - 1

    def actor(self, name: str, stream: int, kind: str = "chain", **more: Any) -> int:
        rank = self.streams[stream].rank
        self.actors.append(Actor(len(self.actors), name, rank, stream, kind, **more))
        return len(self.actors) - 1

    def launch(self, actor: int, *launches: Launch) -> None:
        own = self.actors[actor]
        self.actors[actor] = replace(own, launches=(*own.launches, *launches))

    def transfer(self, actor: int, transfer: Transfer) -> None:
        self.actors[actor] = replace(self.actors[actor], transfer=transfer)

    def place(self, rank: int, nbytes: int) -> int:
        offset = self.sizes[rank]
        self.sizes[rank] += (nbytes + 63) // 64 * 64
        return offset

    def register(
        self, value: int, producer: int, *uses: Use, local: tuple[int, ...] | None = None,
        origin: tuple[int, ...] | None = None, **more: Any,
    ) -> int:  # fmt: skip
        """A data register on the rank of its producer."""
        rank = self.actors[producer].rank
        shape = self.values[value].shape if local is None else local
        nbytes = DTYPE_BYTES[self.values[value].dtype] * prod(shape)
        slots = more.get("slots", 1)
        offsets = tuple(self.place(rank, nbytes) for _ in range(slots))
        begin = origin or (0,) * len(shape)
        more = {"nbytes": nbytes, "offsets": offsets, **more}
        number = len(self.registers)
        self.registers.append(
            Register(number, rank, rank, value, shape, begin, producer, uses, **more)
        )
        return number

    def use(self, register: int, actor: int, hold: int = 1, *, donate: bool = False) -> None:
        own = self.registers[register]
        self.registers[register] = replace(own, uses=(*own.uses, Use(actor, hold, donate)))

    def state(self, name: str, value: int, *ranks: int, init: str = "zeros") -> None:
        """A state that is whole on each of some ranks. Call before registers are placed."""
        shape = self.values[value].shape
        nbytes = DTYPE_BYTES[self.values[value].dtype] * prod(shape)
        shards = [
            Shard(rank, rank, self.place(rank, nbytes), nbytes, shape, (0,) * len(shape))
            for rank in ranks
        ]
        self.states.append(State(name, value, init, tuple(shards)))

    def state_register(self, name: str, rank: int, producer: int, *uses: Use) -> int:
        state = next(s for s in self.states if s.name == name)
        shard = next(s for s in state.shards if s.rank == rank)
        number = len(self.registers)
        self.registers.append(
            Register(
                number, rank, rank, state.value, shard.local, shard.origin, producer, uses,
                nbytes=shard.nbytes, offsets=(shard.offset,), initial=1, kind="state",
            )
        )  # fmt: skip
        return number

    def scratch(self, stream: int, nbytes: int) -> None:
        own = self.streams[stream]
        offset = self.place(own.rank, nbytes)
        self.streams[stream] = replace(own, offset=offset, nbytes=nbytes)

    def program(self, name: str = "train") -> Program:
        return Program(
            name, self.micro, tuple(self.actors), tuple(self.registers), tuple(self.streams),
            tuple(self.edges), tuple(self.feeds), tuple(self.fetches),
        )  # fmt: skip

    def plan(self, *others: Program) -> Plan:
        kernels = [Kernel(i, "c", name, 0) for i, name in enumerate(SYMBOLS)]
        kernels += [Kernel(KERNEL[name], "library", name) for name in LIBRARY]
        arenas = [Arena(r, r, "cpu", size) for r, size in enumerate(self.sizes)]
        return Plan(
            (("data", self.ranks),), self.ranks, tuple(self.values), tuple(self.states),
            tuple(kernels), (Source("hand", "c", KERNELS),), tuple(self.comms), tuple(arenas),
            (self.program(), *others), tuple(self.locs),
        )  # fmt: skip
