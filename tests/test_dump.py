"""`anabranch dump` shows every stage, in every form that it has, and refuses the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anabranch.cli import main
from anabranch.dumps import OF_MODULES, STAGES, Request, dump, dump_text
from anabranch.frontend.program import loads
from anabranch.ir.diagnostics import UserError
from anabranch.ir.mesh import Mesh
from anabranch.ir.parser import parse_module
from anabranch.ir.printer import print_module
from anabranch.ir.verifier import verify

NET = """
op scaled(x: T[N], by: float) -> T[N]:
    y[n] = x[n] * by
    return y

model Net(dim: int):
    w: f32[dim, 4] = normal()

    def forward(x: f32[B, dim]) -> f32[B, 4]:
        return relu(x @ w)

    def loss(x: f32[B, dim], y: f32[B, 4]) -> f32[]:
        return mse(forward(x), y)

train Net(dim=6):
    steps = 10
    data = arrays(batch=8)
    optimizer = adamw(lr=0.1)
"""
MESH = Mesh.of(data=2)


def shown(stage: str, **request) -> str:
    return dump(loads(NET, "net.ab"), stage, Request(**{"mesh": MESH, **request}))


def test_a_truth_given_for_a_number_is_a_number() -> None:
    text = ("op f(x: f32[N], k: i32[N]) -> f32[N], i32[N]:\n"
            "    y[n] = x[n - 1, pad=False] + where(n > 2, x[n], True)\n"
            "    z[n] = k[n - 1, pad=True]\n    return y, z\n")
    text = dump(loads(text), "ir", Request(settings={"N": "8"}))
    assert "%x[n - 1, pad=0.0] + where(n > 2, %x[n], 1.0)" in text
    assert "%k[n - 1, pad=1:i32]" in text


@pytest.mark.parametrize("stage", OF_MODULES)
def test_what_a_stage_of_the_ir_shows_parses_back_and_is_sound(stage: str) -> None:
    module = parse_module(shown(stage))
    verify(module)
    assert print_module(module) == shown(stage)


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_has_a_json_form(stage: str) -> None:
    assert json.loads(shown(stage, form="json"))


@pytest.mark.parametrize("stage", STAGES)
def test_modules_have_an_mlir_form_and_nothing_else_has(stage: str) -> None:
    if stage in OF_MODULES:
        assert shown(stage, form="mlir").startswith('"builtin.module"() ({')
    else:
        with pytest.raises(UserError, match="no MLIR form"):
            shown(stage, form="mlir")


def test_ranks_differ_in_their_origins() -> None:
    label = "local mesh=data=3 set=N=8 rank={} function=f"
    source = "op f(x: f32[N] @ {data: S(0)}) -> f32[N] :\n    y[n] = x[n] * n\n    return y\n"
    texts = [dump_text(source, label.format(rank)) for rank in range(3)]
    assert [f"n + origin({start})" in text for start, text in zip((0, 3, 6), texts, strict=True)
            ] == [True] * 3


def test_a_rank_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match="no rank 2: the mesh data=2 has 2"):
        shown("local", rank=2)


@pytest.mark.parametrize(
    ("function", "settings", "name"),
    [
        ("", {}, "train"), ("eval", {}, "eval"), ("init", {}, "init"),
        ("loss", {"dim": "3"}, "loss"), ("Net.forward", {}, "forward"),
        ("scaled", {"N": "3", "by": "2.0"}, "scaled"),
        ("scaled", {"N": "3", "by": "1/3"}, "scaled"),
    ],
)
def test_a_function_is_meant_by_its_name(
    function: str, settings: dict[str, str], name: str
) -> None:
    assert f"func @{name}(" in shown("simple", function=function, settings=settings)


def test_a_function_of_the_model_is_sized_by_the_recipe_and_its_settings() -> None:
    assert "%x: f32[8, 6]" in shown("ir", function="loss")
    assert "%x: f32[8, 3]" in shown("ir", function="loss", settings={"dim": "3"})


@pytest.mark.parametrize(
    ("request_", "message", "help"),
    [
        ({"function": "scald"}, "no function 'scald'", "did you mean 'scaled'?"),
        ({"function": "next"}, "the recipe has no function 'next'", "it has train, eval, init"),
        ({"function": "scaled"}, "the size of the dimension 'N' is not known", "N=8"),
        ({"settings": {"dimm": "3"}}, "the recipe has no 'dimm' to set", "did you mean 'dim'?"),
        ({"model": "Nett"}, "no recipe for 'Nett'", "did you mean 'Net'?"),
    ],
)
def test_a_wrong_request_is_answered(request_: dict, message: str, help: str) -> None:
    with pytest.raises(UserError) as failure:
        shown("ir", **request_)
    assert message in str(failure.value)
    assert help in str(failure.value)


def test_a_file_with_several_functions_asks_which_is_meant() -> None:
    two = "def f(x: f32[2]):\n    return x\ndef g(x: f32[2]):\n    return x\n"
    with pytest.raises(UserError, match="which function is meant") as failure:
        dump_text(two, "ir")
    assert "one of f, g" in str(failure.value)


def test_a_mistake_that_shows_late_has_its_place() -> None:
    """That micro-batches are even is known when layouts are."""
    with pytest.raises(UserError) as failure:
        shown("boxed", micro=3)
    assert "net.ab:12:14: error: 3 micro-batches" in str(failure.value)
    assert "    def loss(x: f32[B, dim], y: f32[B, 4]) -> f32[]:\n                 ^" in str(
        failure.value)


def test_the_command_prints_times_and_modules_between(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.ab"
    path.write_text(NET)
    assert main(["dump", str(path), "--stage", "plan", "--mesh", "data=2", "--time-passes",
                 "--print-after", "simplify"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("plan for mesh data=2, 2 ranks")
    assert "// after simplify\nmodule phase=global" in said.err
    names = [line.split()[0] for line in said.err.splitlines() if line.endswith(" s")]
    assert {"differentiate", "simplify", "plan", "fuse", "schedule", "total"} <= set(names)


def test_there_is_at_least_one_micro_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dump", str(tmp_path / "net.ab"), "--micro", "0"]) == 2
    assert "argument --micro: 0 is less than 1" in capsys.readouterr().err


def test_a_plan_is_told_in_tables() -> None:
    text = shown("plan")
    titles = [line for line in text.splitlines() if line and not line.startswith(" ")]
    assert titles[1:7] == [
        "memory", "states on rank 0", titles[3], "actors of train on rank 0",
        "registers of train on rank 0", "streams of train on rank 0"]
    assert titles[3].startswith("program train: predicted ")
