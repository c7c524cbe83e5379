"""Weights of other programs in use: set on every rank, trained from, written with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import anabranch as ab
from anabranch.cli import main
from anabranch.generation import harmless
from anabranch.ir.mesh import Mesh
from anabranch.runtime.errors import WeightError
from tests.end_to_end.conftest import TINY

SPLIT = """
model Net(vocab: int, dim: int):
    table: f32[vocab, dim] @ {model: S(0)} = normal()
    inner: Linear(dim, dim)

    def forward(ids: i64[B]) -> f32[B, vocab]:
        return relu(inner(embedding(ids, table))) @ table.T
"""
THEIR_NAMES = {"emb.weight": "table", "net.1.*": "inner.*"}


def theirs(vocab: int, dim: int) -> torch.nn.ModuleDict:
    torch.manual_seed(0)
    return torch.nn.ModuleDict({
        "emb": torch.nn.Embedding(vocab, dim),
        "net": torch.nn.ModuleList([torch.nn.Identity(), torch.nn.Linear(dim, dim)])})


@pytest.mark.parametrize("mesh", [Mesh(), Mesh.of(model=2), Mesh.of(data=2, model=3)], ids=str)
def test_every_rank_takes_its_part_of_the_weights(mesh: Mesh, tmp_path: Path) -> None:
    """7 rows on 3 ranks: the parts are uneven. A Linear layer's files are f16, the table's f32."""
    net = theirs(7, 5)
    net["net"].half()
    torch.save(net.state_dict(), tmp_path / "net.pt")
    forward = ab.loads(SPLIT).Net(vocab=7, dim=5).forward
    ids = np.array([0, 6, 3, 3], np.int64)
    with ab.Session(ab.compile(forward, mesh=mesh, B=4)) as session:
        session.load_state_dict(ab.load_weights(tmp_path / "net.pt", THEIR_NAMES))
        found = session(ids=ids)
    net.float()
    hidden = torch.relu(net["net"][1](net["emb"](torch.from_numpy(ids))))
    expected = (hidden @ net["emb"].weight.T).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.fixture
def foreign(tmp_path: Path) -> list[str]:
    """Weights of `tiny.ab` under other names, and the options that read them."""
    path, table = tmp_path / "foreign.safetensors", tmp_path / "table.json"
    save_file({k: v.detach() for k, v in theirs(256, 8).state_dict().items()}, path)
    table.write_text(json.dumps(THEIR_NAMES))
    return [str(path), "--rename", str(table)]


def test_training_begins_with_weights_of_another_program(
    foreign: list[str], trained: Callable[..., dict[str, Any]], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = trained("--steps", "1", "--set", "lr=0.0", "--init", *foreign)
    found = ab.load_weights(report["checkpoint"])
    for name, tensor in theirs(256, 8).state_dict().items():
        new = name.replace("emb.weight", "table").replace("net.1", "inner")
        np.testing.assert_allclose(found[new], tensor.numpy(), rtol=1e-6, atol=1e-7)
    save_file({"emb.weight": torch.zeros(256, 8)}, tmp_path / "part.safetensors")
    (tmp_path / "table.json").write_text('{"emb.weight": "table"}')
    command = ["train", str(TINY), "--steps", "1", "--init", str(tmp_path / "part.safetensors"),
               "--rename", str(tmp_path / "table.json"), "--data", str(tmp_path / "corpus.txt")]
    assert main(command) == 0
    said = capsys.readouterr().err
    assert f"arrays taken from {tmp_path / 'part.safetensors'}: 1\n" in said
    assert "2 parameters are not in the file and begin as the program says:\n  inner.bias" in said


def test_weights_of_another_program_write(
    foreign: list[str], workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(TINY), "--weights", *foreign, "--length", "5", "--json"]) == 0
    text = json.loads(capsys.readouterr().out)["text"]
    with ab.Session(ab.compile(ab.load(TINY).train)) as session:
        session.load_state_dict(ab.load_weights(foreign[0], THEIR_NAMES))
        assert session.generate("def ", 5) == harmless(text)
    assert main(["generate", str(TINY), "--weights", foreign[0]]) == 1
    complaint = capsys.readouterr().err
    assert "missing: table" in complaint
    assert "unknown: net.1.weight; did you mean 'inner.weight'?" in complaint
    assert ('help: --rename FILE, in which is {"emb.weight": "table", "net.1.bias": "inner.bias", '
            '"net.1.weight": "inner.weight"}, takes' in complaint)


NORMS = """
model Net(n: int):
    one: BatchNorm(n)
    two: BatchNorm(n)

    def forward(x: f32[B, n]) -> f32[B, n]:
        return two(one(x))

    def loss(x: f32[B, n]) -> f32[]:
        return mean(forward(x))

train Net(n=3):
    steps     = 1
    data      = arrays(batch=2)
    optimizer = sgd(lr=0.1)
"""


def test_what_torch_counts_beside_a_norm_is_left_out_as_the_help_says(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    norms = torch.nn.ModuleDict({"one": torch.nn.BatchNorm1d(3), "two": torch.nn.BatchNorm1d(3)})
    save_file(norms.state_dict(), "net.safetensors")
    Path("net.ab").write_text(NORMS)
    np.savez("rows.npz", x=np.zeros((40, 3), np.float32))
    with ab.Session(ab.compile(ab.loads(NORMS).train)) as session:
        with pytest.raises(WeightError, match=r'rename=\{"\*\.num_batches_tracked": None\}\)'):
            session.load_state_dict(ab.load_weights("net.safetensors"))
        session.load_state_dict(
            ab.load_weights("net.safetensors", rename={"*.num_batches_tracked": None}))
    command = ["train", "net.ab", "--data", "rows.npz", "--init", "net.safetensors"]
    assert main(command) == 1
    row = '{"*.num_batches_tracked": null}'
    assert f"help: --rename FILE, in which is {row}, takes" in capsys.readouterr().err
    Path("table.json").write_text(row)
    assert main([*command, "--rename", "table.json"]) == 0


def test_help_with_names_is_a_row_for_each_and_stays_short() -> None:
    plan = ab.compile(ab.loads(SPLIT).Net(vocab=7, dim=5).forward, B=4)
    have = {"table": np.zeros((7, 5), "f4"), "inner.weight": np.zeros((5, 5), "f4")}
    for more, rows in [
        ({}, '{"...": "inner.bias"}'),
        ({"inner.bais": np.zeros(5)}, '{"inner.bais": "inner.bias"}'),
        ({"a.n": 0, "b.weight": 0, "inner.n": 0},
         '{"*.n": None, "b.weight": None, "...": "inner.bias"}'),
        ({"pool.one.weight": 0, "pool.two.weight": 0}, '{"pool.*": None, "...": "inner.bias"}'),
        ({"other": 0}, '{"other": None, "...": "inner.bias"}'),
        ({f"x{i}.weight": 0 for i in range(9)}, '{"x0.weight": None, "x1.weight": None, '
         '"x2.weight": None, "x3.weight": None, ...}'),
    ]:
        with ab.Session(plan) as session, pytest.raises(WeightError) as failure:
            session.load_state_dict(have | more)
        assert f"help: load_weights(path, rename={rows}) takes" in str(failure.value)


def test_a_table_without_weights_to_rename_is_refused(
    foreign: list[str], workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(TINY), *foreign[1:]]) == 1
    assert "add --init" in capsys.readouterr().err
