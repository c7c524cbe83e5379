"""A user's ops are equal citizens: checked, shown, compiled on every mesh and trained like those of
the library, in whatever layout is derived for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.cli import main
from anabranch.derived import Whole, derive
from anabranch.ir.sbp import Sbp

Array = np.ndarray[Any, Any]
OWN = Path(__file__).with_name("own_ops.ab")
TEXT = OWN.read_text(encoding="utf-8")
OPS = ("pick", "gather_sum", "smooth", "swoosh", "scaled")


def data(name: str) -> dict[str, Array]:
    """Sizes that 2 and 4 do not divide."""
    random = np.random.default_rng(3)
    x = random.normal(size=(7, 5)).astype(np.float32)
    ids = np.array([2, 0, 2, 5, 1, 2, 0], np.int64)
    return {"pick": {"ids": ids, "table": x}, "gather_sum": {"ids": ids, "x": x},
            "smooth": {"x": x}, "swoosh": {"x": x}, "scaled": {"x": x}}[name]


def expected(name: str) -> Array:
    """The same in NumPy."""
    given = data(name)
    x = given.get("x", np.zeros(0))
    match name:
        case "pick":
            return given["table"][given["ids"]]
        case "gather_sum":
            return np.stack([x[given["ids"] == group].sum(0) for group in range(3)])
        case "smooth":
            wide = np.pad(x, ((0, 0), (1, 1)))
            return 0.5 * x + 0.5 * (wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]) / 3
        case "swoosh":
            return np.tanh(x) + 0.1 * x
    return x / np.sqrt((x ** 2).mean(0) + 1)


def pinned(name: str, layout: Whole) -> str:
    """A function that calls the op with its tensors in a layout."""
    params = ", ".join(
        f"{argument}: {'i64' if x.dtype.kind == 'i' else 'f32'}{list(x.shape)} @ {{model: {entry}}}"
        for (argument, x), entry in zip(data(name).items(), layout.arguments, strict=True))
    more = ", groups=3" if name == "gather_sum" else ""
    result = list(expected(name).shape)
    return (f"{TEXT}\n\ndef f({params}) -> f32{result}:\n"
            f"    return {name}({', '.join(data(name))}{more})\n")


def ways(name: str) -> list[Whole]:
    """The layouts that are derived, if a whole tensor can be given in them."""
    found = derive(ab.load(OWN).source.scope.find(name))
    assert found is not None
    whole = [row for row in found.layouts if not any(e.kind == "P" for e in row.arguments)]
    return [row for row in whole if all(e.dim < 2 for e in row.arguments)]


@pytest.mark.parametrize("name", OPS)
def test_own_ops_give_the_right_values_in_every_layout(name: str) -> None:
    rows = ways(name)
    assert any(row.is_split for row in rows)
    for parts in (1, 2, 4):
        for row in rows:
            plan = ab.compile(ab.loads(pinned(name, row), "own.ab").f, mesh=ab.Mesh(model=parts))
            with ab.Session(plan) as session:
                found = session(**data(name))
            np.testing.assert_allclose(
                found, expected(name), rtol=1e-5, atol=1e-6, err_msg=f"{row} on {parts}")


def test_a_split_table_gives_partial_rows() -> None:
    assert (Sbp("B"), Sbp("S", 0)) in [row.arguments for row in ways("pick")]


def test_own_ops_pass_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(OWN)]) == 0
    said = capsys.readouterr().out
    for name in OPS:
        assert f"op {name}\n" in said
    assert said.count("right in parts") == said.count("gradient by") == len(OPS)
    assert "not tried" not in said


@pytest.mark.parametrize("name", OPS)
def test_own_ops_are_shown_like_those_of_the_library(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ops", name, "--file", str(OWN)]) == 0
    said = capsys.readouterr().out
    for part in ("layouts", "S(", "cost", "gradient", "d.", "example", f"{name}("):
        assert part in said


def wrong(before: str, after: str) -> str:
    assert before in TEXT
    return TEXT.replace(before, after)


@pytest.mark.parametrize("text", [
    wrong("-0.5 * stop(s[d] ** -1.5)", "0.5 * stop(s[d] ** -1.5)"),
    wrong("-0.5 * stop(s[d] ** -1.5)", "-0.5 * stop(s[d] ** -0.5)"),
])
def test_a_wrong_gradient_among_own_ops_is_caught(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.ab").write_text(text)
    assert main(["check", "--quiet", str(tmp_path / "own.ab")]) == 1
    assert "own.ab:27:15: error: along one direction" in capsys.readouterr().err


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a net of the same form with other weights says of random words."""
    random = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("own") / "rows.npz"
    np.savez(path, word=random.integers(0, 13, 12), group=random.integers(0, 4, 12),
             target=random.normal(size=4).astype(np.float32))
    return path


@pytest.fixture
def batch(rows: Path) -> dict[str, Array]:
    with np.load(rows) as file:
        return dict(file)


def losses(batch: dict[str, Array], **axes: int) -> list[float]:
    types = {name: batch[name] for name in batch}
    plan = ab.compile(ab.load(OWN).train, mesh=ab.Mesh(**axes), **types)
    with ab.Session(plan, seed=1) as session:
        return [session.step(**batch) for _ in range(30)]


def test_own_ops_train_alike_on_every_mesh(batch: dict[str, Array]) -> None:
    alone = losses(batch)
    assert alone[-1] < 0.2 * alone[0]
    for axes in ({"data": 2}, {"model": 4}, {"data": 2, "model": 2}):
        np.testing.assert_allclose(losses(batch, **axes), alone, rtol=1e-4, atol=1e-6)
