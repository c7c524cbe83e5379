"""Golden tests are Markdown documents: every `.md` file under tests/, and the READMEs too.

Under a heading, a fenced block without a label (or labelled `ab`) is a program; each following
block labelled with a stage of the compiler (`text error`, `ir`, `sbp mesh=data=2`, ...) is what
`dumps.dump_text(program, stage)` must give: one test per block. A line `...` in it stands for any
lines, so that a golden shows only what it is about. `--update-golden` rewrites the blocks in place,
under pytest-xdist too; those with `...` are checked as they are, never rewritten.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from anabranch.runtime.build import private_folder
from anabranch.runtime.settings import cache_folder
from anabranch.runtime.world import JOB

# Two workers on two cores: a library that starts its own threads in each would only slow both.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# The suite may be started inside of a job of several processes: it is none of them.
for name in (*JOB, "LOCAL_WORLD_SIZE"):
    os.environ.pop(name, None)

# Triton's cache is beside ours, so that one variable says where everything is kept.
os.environ.setdefault("TRITON_CACHE_DIR", str(private_folder(cache_folder()) / "triton"))

hypothesis.settings.register_profile("anabranch", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.load_profile("ci" if "CI" in os.environ else "anabranch")

HEADING = re.compile(r"#+\s+(.*)")
FENCE = re.compile(r"(`{3,})\s*(.*?)\s*")
SOURCE_LABELS = {"", "ab"}
PROSE_LABELS = {"python", "sh", "toml", "text", "console"}  # shown, not derived
LANGUAGES = {"c"}  # a stage below a program, prose elsewhere


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a Markdown file; `start` and `stop` are the line numbers of its content."""

    heading: str
    label: str
    text: str
    start: int
    stop: int


def fenced_blocks(markdown: str) -> Iterator[Block]:
    """Every fenced block in order, with the heading above it."""
    heading, fence, label, start = "", "", "", 0
    lines = markdown.splitlines()
    for number, line in enumerate(lines):
        if fence:
            if line.strip() == fence:
                yield Block(heading, label, "\n".join(lines[start:number]), start, number)
                fence = ""
        elif opening := FENCE.fullmatch(line):
            (fence, label), start = opening.groups(), number + 1
        elif title := HEADING.fullmatch(line):
            heading = title[1]
    if fence:
        raise ValueError(f"the block that starts at line {start} is never closed")


def has_dots(expected: str) -> bool:
    return "..." in map(str.strip, expected.splitlines())


def agrees(expected: str, actual: str) -> bool:
    """Equality, where a line `...` of the expectation stands for any number of lines."""
    if not has_dots(expected):
        return expected == actual
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line) + "\n"
        for line in expected.splitlines()
    )
    return re.fullmatch(pattern, actual + "\n") is not None


def replace_block(path: Path, ordinal: int, text: str) -> None:
    """Give block number `ordinal` new content, while other workers may do so to other blocks."""
    with path.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        markdown = file.read()
        block = list(fenced_blocks(markdown))[ordinal]
        lines = markdown.splitlines()
        lines[block.start : block.stop] = text.splitlines()
        file.seek(0)
        file.write("\n".join(lines) + "\n")
        file.truncate()


@dataclass(frozen=True, slots=True)
class Golden:
    """An expected block, its number in the file, and the program above it."""

    source: str
    block: Block
    ordinal: int


class GoldenMismatch(Exception):
    """The document and the compiler disagree."""


def goldens(markdown: str) -> Iterator[Golden]:
    """The blocks of a document that a stage of the compiler must reproduce."""
    heading, source = "", None
    for ordinal, block in enumerate(fenced_blocks(markdown)):
        if block.heading != heading:
            heading, source = block.heading, None
        if block.label in SOURCE_LABELS:
            source = block.text + "\n"
        elif source is not None and block.label not in PROSE_LABELS:
            yield Golden(source, block, ordinal)
        elif block.label not in PROSE_LABELS | LANGUAGES:
            raise ValueError(f"the block '{block.label}' has no program above it")


def load_dumps() -> Any:
    """The compiler, imported when the first golden runs: collecting them must stay quick."""
    return importlib.import_module("anabranch.dumps")


def check_golden(path: Path, golden: Golden, *, update: bool) -> None:
    """Compare a block with what the compiler says now; on `update`, rewrite it where allowed."""
    expected = golden.block.text.rstrip()
    actual = load_dumps().dump_text(golden.source, golden.block.label).rstrip()
    if agrees(expected, actual):
        return
    if update and not has_dots(expected):
        replace_block(path, golden.ordinal, actual)
        return
    advice = (
        "a block with '...' is edited by hand"
        if has_dots(expected)
        else "pytest --update-golden rewrites it; read the diff before you commit it"
    )
    raise GoldenMismatch(
        f"{path.name}:{golden.block.start}: the document says\n{expected}\n\n"
        f"the compiler says\n{actual}\n\n({advice})"
    )


class GoldenFile(pytest.File):
    """One Markdown document; its tests are named after the heading and the stage."""

    def collect(self) -> Iterator[GoldenItem]:
        seen = set()
        for golden in goldens(self.path.read_text(encoding="utf-8")):
            name = f"{golden.block.heading} [{golden.block.label}]"
            name += f" line {golden.block.start}" if name in seen else ""
            seen.add(name)
            yield GoldenItem.from_parent(self, name=name, golden=golden)


class GoldenItem(pytest.Item):
    """One expected block: the program above it, dumped at the stage that the label names."""

    def __init__(self, *, golden: Golden, **rest: Any) -> None:
        super().__init__(**rest)
        self.golden = golden

    def runtest(self) -> None:
        check_golden(self.path, self.golden, update=self.config.getoption("--update-golden"))

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        if isinstance(excinfo.value, GoldenMismatch):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.golden.block.start - 1, self.name


@pytest.fixture(autouse=True)
def _the_same_draws() -> None:
    """What a test lets PyTorch draw is drawn again by its next run, whatever ran before it."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


def pytest_collection_finish() -> None:
    """What is imported and collected stays: it is not searched for garbage again and again."""
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the expected blocks of goldens"
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> GoldenFile | None:
    if file_path.suffix != ".md":
        return None
    return GoldenFile.from_parent(parent, path=file_path)
