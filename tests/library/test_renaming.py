"""The compiler knows no op by name: a GPT has the same plan when all ops are renamed."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from anabranch.driver import Options, compile_module
from anabranch.frontend import scope
from anabranch.frontend.evaluate import LIBRARY
from anabranch.frontend.program import loads
from anabranch.ir.core import Module
from anabranch.ir.mesh import Mesh
from tests.library.ops import OPS

GPT = Path(__file__).resolve().parents[2] / "examples" / "gpt.ab"
SMALL = {"depth": 2, "dim": 32, "heads": 2, "context": 16, "vocab": 40}
MARK = "renamed_"


def renamed(text: str) -> str:
    """A program in which every op, and all that happens to be called like one, has a new name."""
    return re.sub(rf"\b({'|'.join(OPS)})\b", rf"{MARK}\1", text)


def plan(text: str) -> dict[str, Any]:
    """What is compiled of a recipe. Draws are keyed by path, so `init` may differ."""
    training = loads(text, "gpt.ab").training(overrides=SMALL)
    functions = {name: training.module.functions[name] for name in ("train", "eval")}
    compiled = compile_module(Module(functions), Options(Mesh.of(data=2)), micro=1)
    return dataclasses.asdict(compiled.plan)


def test_a_plan_does_not_depend_on_the_names_of_ops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = GPT.read_text(encoding="utf-8")
    before = json.dumps(plan(text))
    assert "cross_entropy" in before
    for path in Path(LIBRARY).glob("*.ab"):
        changed = renamed(path.read_text(encoding="utf-8"))
        (tmp_path / path.name).write_text(changed, encoding="utf-8")
    monkeypatch.setattr(scope, "LIBRARY", str(tmp_path))
    scope.library.cache_clear()
    try:
        after = json.dumps(plan(renamed(text)))
    finally:
        scope.library.cache_clear()
    assert MARK in after
    is_equal = after.replace(MARK, "") == before
    assert is_equal  # the texts are too long to be shown side by side
