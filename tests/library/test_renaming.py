"""The compiler knows no op by name: with every op of the library called `op0`, `op1`, ... each op
has the same plan, kernels included, and so have the examples."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from anabranch.driver import Options, compile_module
from anabranch.frontend import scope
from anabranch.frontend.builder import Builder
from anabranch.frontend.evaluate import LIBRARY
from anabranch.frontend.program import Training, load
from anabranch.frontend.values import Function
from anabranch.ir.core import Module
from anabranch.ir.mesh import Mesh
from anabranch.ir.printer import print_module
from anabranch.trials import usual
from tests.library.ops import FILES, OPS, s, stepped

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.ab"))
GPT = next(path for path in EXAMPLES if path.stem == "gpt")
SMALL = {"depth": 2, "dim": 32, "heads": 2, "context": 16, "vocab": 40}
NEW = {name: f"op{number}" for number, name in enumerate(OPS)}
OLD = {new: name for name, new in NEW.items()}
WITH_OPS = [file for file, tree in FILES.items()
            if any(isinstance(item, s.OpDef) for item in tree.items)]


def renamed(text: str) -> str:
    """A program in which every op, and all that happens to be called like one, has a new name."""
    return re.sub(r"\w+", lambda word: NEW.get(word[0], word[0]), text)


def named_back(text: str, folder: Path) -> str:
    """Also where an op's name has become part of another."""
    text = text.replace(str(folder), LIBRARY)
    return re.sub(r"(?<![a-zA-Z])op\d+(?![a-zA-Z0-9])", lambda name: OLD[name[0]], text)


@contextmanager
def other_library(folder: Path) -> Iterator[None]:
    """While this lasts, every op of the library has its other name."""
    for path in Path(LIBRARY).glob("*.ab"):
        changed = renamed(path.read_text(encoding="utf-8"))
        (folder / path.name).write_text(changed, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scope, "LIBRARY", str(folder))
        scope.library.cache_clear()
        try:
            yield
        finally:
            scope.library.cache_clear()


@pytest.fixture(autouse=True)
def numbered_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws are keyed by the path of their definition; here, by their order in a function."""
    monkeypatch.setattr(
        Builder, "stream", lambda self, text: self._streams.setdefault(text, len(self._streams)))


def assert_same(before: str, after: str, folder: Path) -> None:
    is_equal = named_back(after, folder) == before
    assert is_equal  # the texts are too long to be shown side by side


# ---- every op


def ops_of(file: str, *, other: bool = False) -> Module:
    """The ops of a file, each with its gradient."""
    module = Module()
    for item in FILES[file].items:
        if isinstance(item, s.OpDef):
            found = scope.library().find(NEW[item.name] if other else item.name)
            assert isinstance(found, Function)
            trial = usual(found)
            assert trial is not None
            module.add(stepped(trial).function)
    return module


def plan(module: Module) -> str:
    compiled = compile_module(module, Options(Mesh.of(data=2), verify=False), 1)
    return json.dumps(dataclasses.asdict(compiled.plan), sort_keys=True)


@pytest.mark.parametrize("file", WITH_OPS)
def test_a_plan_of_every_op_does_not_depend_on_its_name(file: str, tmp_path: Path) -> None:
    before = plan(ops_of(file))
    with other_library(tmp_path):
        after = plan(ops_of(file, other=True))
    assert re.search(r"\bop\d+\b", after)
    assert_same(before, after, tmp_path)


# ---- programs


def training(path: Path, overrides: dict[str, Any]) -> Training:
    return load(path).training(overrides=overrides)


def renamed_examples(folder: Path) -> Path:
    """All of them, because they import each other."""
    target = folder / "examples"
    target.mkdir()
    for path in EXAMPLES:
        (target / path.name).write_text(renamed(path.read_text(encoding="utf-8")), encoding="utf-8")
    return target


def test_a_plan_of_a_model_does_not_depend_on_the_names_of_ops(tmp_path: Path) -> None:
    before = plan(training(GPT, SMALL).module).replace(str(GPT.parent), "")
    assert "cross_entropy" in before
    examples = renamed_examples(tmp_path)
    with other_library(tmp_path):
        after = plan(training(examples / GPT.name, SMALL).module).replace(str(examples), "")
    assert re.search(r"\bop\d+\b", after)
    assert_same(before, after, tmp_path)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_what_the_compiler_gets_of_an_example_differs_in_names_only(
    path: Path, tmp_path: Path
) -> None:
    if not load(path).recipes:
        pytest.skip("it trains nothing")
    before = print_module(training(path, {}).module, locations=False)
    examples = renamed_examples(tmp_path)
    with other_library(tmp_path):
        after = print_module(training(examples / path.name, {}).module, locations=False)
    assert_same(before, after, tmp_path)
