"""The golden collector itself: what is a block, when text agrees, how a block is rewritten."""

from __future__ import annotations

import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import (
    GoldenMismatch,
    agrees,
    check_golden,
    fenced_blocks,
    goldens,
    replace_block,
)

DOCUMENT = """\
# One

```
x = 1
```

```ir
a
b
```

## Two

````text error
```
````
"""


def test_blocks_carry_their_heading_label_and_text() -> None:
    found = [(b.heading, b.label, b.text) for b in fenced_blocks(DOCUMENT)]
    assert found == [("One", "", "x = 1"), ("One", "ir", "a\nb"), ("Two", "text error", "```")]


def test_an_unclosed_block_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 1 is never closed"):
        list(fenced_blocks("```ir\na\n"))


@pytest.mark.parametrize(
    ("expected", "actual", "equal"),
    [
        ("a\nb", "a\nb", True),
        ("a\nb", "a\nb\nc", False),
        ("a\n...", "a\nb\nc", True),
        ("...\nc", "a\nb\nc", True),
        ("a\n...\nb", "a\nb", True),
        ("a\n...\nc", "a\nb", False),
        ("a.c\n...", "abc\nd", False),
    ],
)
def test_dots_stand_for_any_lines_and_everything_else_for_itself(
    expected: str, actual: str, equal: bool
) -> None:
    assert agrees(expected, actual) is equal


def test_workers_that_rewrite_blocks_of_one_file_do_not_undo_each_other(tmp_path: Path) -> None:
    path = tmp_path / "many.md"
    path.write_text("\n".join(f"```ir\nold {n}\n```" for n in range(20)) + "\n")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: replace_block(path, n, f"new {n}\n  more"), range(20)))
    blocks = [block.text for block in fenced_blocks(path.read_text())]
    assert blocks == [f"new {n}\n  more" for n in range(20)]


def test_a_document_is_checked_and_rewritten_block_by_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a dump that prints the stage and the program in capitals."""
    dumps = types.ModuleType("anabranch.dumps")
    dumps.dump_text = lambda source, stage: f"{stage}\n{source.upper()}"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "anabranch.dumps", dumps)
    path = tmp_path / "golden.md"
    path.write_text("```\nx\n```\n```ir\nir\nX\n```\n```toml\nnot checked\n```\n```plan\nY\n```\n")
    right, wrong = goldens(path.read_text())

    check_golden(path, right, update=False)
    with pytest.raises(GoldenMismatch, match="--update-golden"):
        check_golden(path, wrong, update=False)

    check_golden(path, wrong, update=True)
    assert [g.block.text for g in goldens(path.read_text())] == ["ir\nX", "plan\nX"]


def test_a_program_ends_with_its_heading() -> None:
    document = "# A\n```\nx\n```\n```c\nint x;\n```\n# B\n```c\nint y;\n```\n"
    assert [g.block.text for g in goldens(document)] == ["int x;"]
    with pytest.raises(ValueError, match="'ir' has no program above it"):
        list(goldens(document.replace("# B\n```c", "# B\n```ir")))
