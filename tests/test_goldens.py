"""The golden collector itself: what is a block, when text agrees, how a block is rewritten."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import agrees, fenced_blocks, replace_block

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
