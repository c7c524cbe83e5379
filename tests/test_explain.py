"""`anabranch explain` adds up, and names the line that a change of layout comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anabranch import driver
from anabranch.cli import main
from anabranch.dumps import Request
from anabranch.explaining import explain
from anabranch.frontend.program import loads
from anabranch.ir.core import Value
from anabranch.ir.mesh import Mesh
from anabranch.lowering.decisions import Decisions

LAYERS = """
model Layer(dim: int):
    up:   f32[dim, 4 * dim] @ {model: S(1)} = normal()
    down: f32[4 * dim, dim] = normal()

    def forward(x: f32[B, dim]) -> f32[B, dim]:
        return relu(x @ up) @ down

model Net(dim: int, depth: int):
    layers: [Layer(dim) for _ in range(depth)]

    def loss(x: f32[B, dim], y: f32[B, dim]) -> f32[]:
        for layer in layers:
            x = layer(x)
        return mse(x, y)

train Net(dim=64, depth=3):
    steps = 1
    data = arrays(batch=32)
    optimizer = sgd(lr=0.1)
"""
MESHES = [Mesh.of(model=2), Mesh.of(data=2, model=2), Mesh.of(stage=1, data=3)]


def decided(mesh: Mesh, micro: int = 1) -> Decisions:
    module = loads(LAYERS, "net.ab").training().module
    return driver.decide(module, "train", driver.Options(mesh), micro=micro)


@pytest.mark.parametrize("micro", [1, 4])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_the_seconds_of_all_parts_are_those_of_the_plan(mesh: Mesh, micro: int) -> None:
    found = decided(mesh, micro)
    of_nodes = sum(float(node.seconds[k]) for node, k in zip(
        found.choices.nodes, found.solution.chosen, strict=True))
    of_changes = sum(change.seconds for change in found.reshards())
    assert of_changes == pytest.approx(found.box_seconds)
    assert of_nodes + of_changes == pytest.approx(found.seconds)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_no_alternative_is_better_alone(mesh: Mesh) -> None:
    found = decided(mesh)
    for value in (v for member in found.choices.node_of for v in (
            [member] if isinstance(member, Value) else member.results)):
        chosen, *others = found.alternatives(value)
        assert chosen.chosen
        assert [a for a in others if a.chosen or a.seconds < chosen.seconds - 1e-10] == []


def test_layers_choose_together_and_are_priced_as_one() -> None:
    found = decided(Mesh.of(model=2))
    ups = [v for v in found.function.body.args if v.name.endswith(".up")]
    assert [found.together(v) for v in ups] == [3, 3, 3]


def test_a_change_of_layout_names_what_forced_it_and_its_bytes() -> None:
    """The product with the row-split weight is partial, and becomes whole by an all-reduce."""
    text = explain(loads(LAYERS, "net.ab"), "", Request(mesh=Mesh.of(model=2)))
    assert "train on mesh model=2, by the profile cpu2: predicted " in text
    assert "\nchanges of layout\n" in text
    found = decided(Mesh.of(model=2))
    (reduced, *_) = [c for c in found.reshards() if c.steps[-1].step == "all_reduce"
                     and c.value.type.shape == (32, 64)]
    assert reduced.bytes == 32 * 64 * 4  # a ring sends 2 · 1/2 of it
    assert str(reduced.forced_by).startswith("net.ab:")


def test_one_value_is_shown_with_all_its_layouts() -> None:
    text = explain(loads(LAYERS, "net.ab"), "%layers.0.up", Request(mesh=Mesh.of(model=2)))
    assert text.startswith("%layers.0.up: f32[64, 256]  state pinned\n"
                           "  chosen together with 2 like it; seconds are of one\n")
    assert "  >  {model: S(1)}" in text


def test_a_statement_is_shown_with_the_terms_of_its_cost() -> None:
    program = loads("op f(x: f32[64, 32] @ {data: S(0)}) -> f32[64]:\n"
                    "    y[i] = sum[k](x[i, k])\n    return y\n", "f.ab")
    text = explain(program, "y", Request(mesh=Mesh.of(data=2)))
    assert "    data: S(0) -> S(0) (split of i)\n    a rank does 1,024 operations" in text


def test_everything_is_there_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The seconds add up to those of the plan, and one value's are among them."""
    path = tmp_path / "net.ab"
    path.write_text(LAYERS)

    def found(*value: str) -> dict[str, Any]:
        assert main(["explain", str(path), *value, "--mesh", "model=2", "--json"]) == 0
        facts: dict[str, Any] = json.loads(capsys.readouterr().out)
        return facts

    whole = found()
    assert whole["mesh"] == {"model": 2}
    chosen = [way for value in whole["values"] for way in value["layouts"] if way["chosen"]]
    assert len(chosen) == len(whole["values"])
    assert sum(change["seconds"] for change in whole["changes"]) == pytest.approx(
        whole["seconds_of_changes"])
    step = whole["changes"][0]["steps"][0]
    assert step["axis"] == "model"
    (one,) = found("layers.0.up")["values"]
    assert one in whole["values"]
    assert one["layouts"][0]["layout"] == "{model: S(1)}"


def test_an_unknown_value_is_answered_with_the_nearest_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.ab"
    path.write_text(LAYERS)
    assert main(["explain", str(path), "layers.0.upp"]) == 1
    assert "did you mean 'layers.0.up'?" in capsys.readouterr().err


def test_sizes_that_the_data_say_are_given_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that the recipe asks for, that the function does, or both; others are refused."""
    path = tmp_path / "net.ab"
    path.write_text("""
model Net(dim: int):
    first: Linear(dim, dim)

    def forward(x: f32[B, S, dim]) -> f32[B, S, dim]:
        return first(x)

    def twice(z: f32[B, S, dim], w: f32[R]) -> f32[R]:
        return w * sum(first(z))

    def loss(x: f32[B, S, dim], y: f32[B, S, dim]) -> f32[]:
        return mse(forward(x), y)

train Net(dim=4):
    steps     = 5
    data      = arrays(batch=2)
    optimizer = adamw(lr=0.1)
""")
    for arguments, shown in {
        "forward --set S=5": "f32[2, 5, 4]", "forward --set S=5 --set B=3": "f32[3, 5, 4]",
        "loss --set S=6 --set dim=3": "f32[2, 6, 3]", "train --set S=6": "f32[2, 6, 4]",
        "Net.twice --set S=6 --set R=3 --set B=5": "f32[5, 6, 4]",
    }.items():
        assert main(["explain", str(path), "--function", *arguments.split()]) == 0
        assert shown in capsys.readouterr().out
    assert main(["explain", str(path), "--function", "forward"]) == 1
    assert "--set S=8 in a shell" in capsys.readouterr().err
    assert main(["explain", str(path), "--function", "loss", "--set", "S=6", "--set", "Z=1"]) == 1
    assert "takes no 'Z'" in capsys.readouterr().err


@pytest.mark.parametrize("order", ["{file} {value} {options}", "{file} {options} {value}",
                                   "{options} {file} {value}"])
def test_a_value_may_stand_before_or_behind_the_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], order: str
) -> None:
    file = tmp_path / "net.ab"
    file.write_text(LAYERS)
    line = order.format(file=file, value="layers.0.up", options="--mesh data=2,model=2 --micro 1")
    assert main(["explain", *line.split()]) == 0
    assert capsys.readouterr().out.startswith("%layers.0.up: f32[64, 256]")
