"""A plan file gives back what was saved, or is refused and says why."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.ir.plan import VERSION, Arg, Plan, PlanError, Port, Transfer, Use, float_arg
from anabranch.ir.plan import float_of as number
from tests.runtime.collectives import channel, transfer_plan
from tests.runtime.hand import Builder, add, put


def example() -> Plan:
    b = Builder(2, micro=2)
    b.state("blocks.0.w", b.value("w", 3), 0)
    comm, cpu = b.comm(0, 1), b.stream(0)
    b.sequence(cpu, (0, 0), (0, 1))
    actor = b.actor("forward", cpu, fires=2, loc=b.loc(12, "blocks.0 é"))
    b.launch(actor, put(0, 3, float("nan"), phase="first"), add(0, 0, 3, float("-inf")))
    b.transfer(actor, Transfer(4, "all_reduce", comm, 0, "f32", (3,), reduce="max"))
    b.register(b.value("h", 3), actor, Use(actor, 2), hold=2, slots=2, advance=(1,))
    b.feeds.append(Port("tokens", 1, (0,), "micro"))
    return replace(b.plan(), prelude="/* maths */ \0 “quoted”", seed=7)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    saved = tmp_path / "train.plan"
    example().save(saved)
    return saved


def test_what_was_saved_comes_back(path: Path) -> None:
    loaded = Plan.load(path)
    assert loaded.digest() == example().digest()
    assert replace(loaded, programs=()) == replace(example(), programs=())
    program, before = loaded.programs[0], example().programs[0]
    assert program.registers == before.registers
    assert program.actors == before.actors


def test_a_plan_with_every_transfer_comes_back(tmp_path: Path) -> None:
    plan = transfer_plan(channel("bf16", 9))
    plan.save(tmp_path / "x")
    assert Plan.load(tmp_path / "x") == plan


@pytest.mark.parametrize("value", [0.1, -0.0, float("inf"), 5e-324])
def test_a_double_survives_as_an_argument(value: float) -> None:
    assert struct.pack("<d", number(float_arg(value))) == struct.pack("<d", value)


def test_any_damaged_byte_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    for at in [*range(64), *range(64, len(whole), 97), len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[at] ^= 0x20
        path.write_bytes(damaged)
        with pytest.raises(PlanError):
            Plan.load(path)


def test_any_truncation_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    for length in [0, 3, 16, 40, 59, 60, 200, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(PlanError, match=r"truncated|not a plan file"):
            Plan.load(path)


def test_another_version_is_refused_with_both_named(path: Path) -> None:
    replace(example(), version=VERSION + 1).save(path)
    with pytest.raises(PlanError, match=rf"version {VERSION + 1}; this reads version {VERSION}"):
        Plan.load(path)


def test_a_foreign_file_is_refused(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(PlanError, match="is not a plan file"):
        Plan.load(path)


def test_saving_leaves_the_old_file_when_it_fails(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(TypeError):
        replace(example(), seed=Arg).save(path)  # type: ignore[arg-type]
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_an_unknown_program_is_named_with_those_there_are() -> None:
    with pytest.raises(PlanError, match="no program 'eval'; it has train"):
        example().program("eval")
