"""Random plans with several ranks and rates, what they must compute, and a game that plays them.

Every actor sums its inputs, adds a constant and the step, and sleeps a little first. Registers are
per micro-batch or per step; accumulators sum over micro-batches. The game fires whatever the rules
allow, in random order and without threads.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import numpy as np

from anabranch.ir.plan import Arg, Launch, Plan, Port, Transfer, float_arg
from anabranch.runtime.actor import ActorState, actor_states
from tests.runtime.hand import KERNEL, Builder, nap

COUNT = 3


@dataclass(slots=True)
class Item:
    """What one register of a random plan holds: its tokens per step, and how they come about."""

    register: int
    rank: int
    tokens: int
    fires: int
    inputs: list[int] = field(default_factory=list)
    constant: float = 0.0
    reduced: bool = False


@dataclass(slots=True)
class Recipe:
    """How to make a random plan; the same seed gives the same graph whatever the rest."""

    seed: int
    ranks: int = 2
    micro: int = 2
    items: int = 7
    slots: int = 2
    fixed: bool = True
    sleep: int = 50


class RandomPlan:
    """A plan, and the value of each of its fetches at each step."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._random = random.Random(recipe.seed)
        self._b = Builder(recipe.ranks, recipe.micro)
        self._cpu = [[self._b.stream(r) for _ in range(2)] for r in range(recipe.ranks)]
        self._group = self._b.comm(*range(recipe.ranks))
        self._links = [self._b.stream(r, "comm") for r in range(recipe.ranks)]
        for own in self._cpu:
            for stream in own:
                self._b.scratch(stream, 8 * COUNT)
        self._io = [self._b.stream(r, "io") for r in range(recipe.ranks)]
        self.items: list[Item] = []
        for number in range(recipe.items):
            self._add_item(number)
        self._fetch_all()
        self.plan = self._with_sequences()

    def _add_item(self, number: int) -> None:
        if self.recipe.ranks > 1 and self._random.random() < 0.35 and self._reduce(number):
            return
        self._chain(number, self._random.randrange(self.recipe.ranks))

    def _chain(self, number: int, rank: int) -> None:
        """An actor with up to two inputs; it fires per micro-batch or, if it can, per step."""
        b, m = self._b, self.recipe.micro
        known = [i for i, item in enumerate(self.items) if item.rank == rank]
        chosen = self._random.sample(known, min(len(known), self._random.randrange(3)))
        fires = self._random.choice((1, m))
        if any(self.items[i].tokens > 1 for i in chosen):
            fires = m
        hold = self._random.choice((1, fires))
        actor = b.actor(f"chain{number}", self._random.choice(self._cpu[rank]), fires=fires)
        for i in chosen:
            b.use(self.items[i].register, actor, fires // self.items[i].tokens)
        value = b.value(f"v{number}", COUNT)
        register = b.register(value, actor, hold=hold, slots=self.recipe.slots)
        constant = float(self._random.randrange(100))
        sources = [self.items[i].register for i in chosen]
        b.launch(actor, *_sum(register, sources, constant, hold, number, self.recipe.sleep))
        self.items.append(Item(register, rank, fires // hold, fires, chosen, constant))

    def _reduce(self, number: int) -> bool:
        """An all-reduce of one register of each rank, if there are such of one rate."""
        b, tokens = self._b, self._random.choice((1, self.recipe.micro))
        chosen = []
        for rank in range(self.recipe.ranks):
            own = [i for i, x in enumerate(self.items) if (x.rank, x.tokens) == (rank, tokens)]
            if not own:
                return False
            chosen.append(self._random.choice(own))
        for rank, i in enumerate(chosen):
            source = self.items[i].register
            actor = b.actor(f"reduce{number}", self._links[rank], "comm", fires=tokens)
            b.use(source, actor)
            value = b.value(f"v{number}.{rank}", COUNT)
            target = b.register(value, actor, slots=self.recipe.slots)
            part = (self._group, rank, "f64", (COUNT,), source, target)
            b.transfer(actor, Transfer(number, "all_reduce", *part, reduce="sum"))
            self.items.append(Item(target, rank, tokens, tokens, chosen, reduced=True))
        return True

    def _fetch_all(self) -> None:
        """Everything that is made once a step is a result; the rest must not pile up either."""
        b = self._b
        for i, item in enumerate(self.items):
            name = f"y{i}"
            actor = b.actor(f"fetch {name}", self._io[item.rank], "fetch", fires=item.tokens)
            b.use(item.register, actor)
            b.fetches.append(Port(name, b.registers[item.register].value, (item.register,)))

    def _with_sequences(self) -> Plan:
        """Comm streams need a sequence: the order of one random game."""
        plan = self._b.plan()
        order = play(plan, 1, random.Random(self.recipe.seed + 1))
        kinds = ("comm", "cpu") if self.recipe.fixed else ("comm",)
        program = plan.programs[0]
        streams = tuple(
            replace(s, sequence=tuple(e for e in order if program.actors[e[0]].stream == s.id))
            if s.kind in kinds
            else s
            for s in program.streams
        )
        return replace(plan, programs=(replace(program, streams=streams),))

    def expected(self, step: int) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
        tokens: list[list[float]] = []
        for item in self.items:
            tokens.append(self._tokens(item, tokens, step))
        return {
            f"y{i}": np.squeeze(np.repeat(np.array(own)[:, None], COUNT, 1))
            if len(own) > 1
            else np.full(COUNT, own[0])
            for i, own in enumerate(tokens)
        }

    def _tokens(self, item: Item, before: list[list[float]], step: int) -> list[float]:
        if item.reduced:
            return [sum(before[i][t] for i in item.inputs) for t in range(item.tokens)]
        firings = [
            item.constant
            + step
            + sum(before[i][k * len(before[i]) // item.fires] for i in item.inputs)
            for k in range(item.fires)
        ]
        hold = item.fires // item.tokens
        return [sum(firings[t * hold : (t + 1) * hold]) for t in range(item.tokens)]


def _sum(
    register: int, sources: list[int], constant: float, hold: int, salt: int, sleep: int
) -> list[Launch]:
    """Without an accumulator: out = constant + step + inputs. With one: the same, added up."""
    count, step, one = Arg("int", COUNT), Arg("step"), float_arg(1.0)
    own = Arg("scratch", 0) if hold > 1 else Arg("reg", register)
    launches = [nap(salt, sleep)] if sleep else []
    launches.append(Launch(KERNEL["put"], (own, count, step, float_arg(constant))))
    launches += [Launch(KERNEL["add"], (own, Arg("reg", s), count, one)) for s in sources]
    if hold > 1:
        out = (Arg("reg", register), own, count)
        launches.append(Launch(KERNEL["add"], (*out, float_arg(0.0)), phase="first"))
        launches.append(Launch(KERNEL["add"], (*out, one), phase="rest"))
    return launches


Event = tuple[int, int]


def play(plan: Plan, steps: int, luck: random.Random) -> list[Event]:
    """Fire in random order what may fire, until nothing may. Transfers fire on all members."""
    program = plan.programs[0]
    states = actor_states(plan, program, tuple(range(plan.ranks)))
    position = dict.fromkeys(range(len(program.streams)), 0)
    fired: list[Event] = []

    def may_fire(state: ActorState) -> bool:
        sequence = program.streams[state.actor.stream].sequence
        place = position[state.actor.stream]
        is_next = not sequence or sequence[place % len(sequence)][0] == state.actor.id
        return is_next and state.begun < steps * state.fires and state.ready()

    def partners(state: ActorState) -> list[ActorState]:
        own = state.actor.transfer
        if own is None:
            return [state]
        return [
            s for s in states.values() if s.actor.transfer and s.actor.transfer.match == own.match
        ]

    while True:
        ready = [s for s in states.values() if all(may_fire(p) for p in partners(s))]
        if not ready:
            return fired
        for state in partners(luck.choice(ready)):
            fired.append((state.actor.id, state.begun % state.fires))
            state.begun += 1
            state.done += 1
            position[state.actor.stream] += 1


def firings(plan: Plan) -> int:
    return sum(actor.fires for actor in plan.programs[0].actors)
