"""What the READMEs show is true: Python runs, programs compile, commands succeed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.cli import SUBCOMMANDS
from tests.conftest import Block, check_golden, fenced_blocks, goldens

ROOT = Path(__file__).resolve().parent.parent
READMES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("README.md", "*/README.md", ".github/*.md")
    for path in ROOT.glob(pattern)
)


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder like a checkout with the package installed, for what examples leave behind."""
    if (ROOT / "examples").exists():
        shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


@pytest.mark.parametrize("readme", READMES)
def test_a_readme_shows_what_the_compiler_prints(readme: str, pytestconfig: pytest.Config) -> None:
    """A block labelled with a stage is a golden here as it is under tests/."""
    path = ROOT / readme
    for golden in goldens(path.read_text(encoding="utf-8")):
        check_golden(path, golden, update=pytestconfig.getoption("--update-golden"))


@pytest.mark.parametrize("readme", READMES)
def test_what_a_readme_shows_works(readme: str, workplace: Path) -> None:
    """In order and in one folder: a later block may use what an earlier one made."""
    for block in fenced_blocks((ROOT / readme).read_text(encoding="utf-8")):
        match block.label:
            case "python":
                run(workplace, "-c", block.text)
            case "ab":
                program = workplace / "program.ab"
                program.write_text(block.text + "\n", encoding="utf-8")
                run(workplace, "-m", "anabranch", "check", str(program))
            case "sh":
                for arguments in commands(block):
                    run(workplace, *arguments)


def commands(block: Block) -> list[list[str]]:
    """What Python is given to run: the block's `anabranch` lines, and scripts of the examples. make
    and pip lines are run by .ci/run."""
    lines = block.text.replace("\\\n", " ").splitlines()
    words = [line for line in (shlex.split(line, comments=True) for line in lines) if line]
    programs = {line[0] for line in words}
    known = {"anabranch", "python", "make", "pip", "pytest", "git"}
    assert programs <= known, f"nothing runs {programs - known}"
    return [["-m", *line] if line[0] == "anabranch" else line[1:]
            for line in words if line[0] in ("anabranch", "python")]


def run(folder: Path, *arguments: str) -> None:
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, f"{shlex.join(arguments)}\n{result.stdout}\n{result.stderr}"


def test_commands_are_found_in_a_shell_block() -> None:
    block = Block(
        "", "sh", "make demo   # trains\nanabranch dump \\\n  a.ab --stage ir # text", 0, 3
    )
    assert commands(block) == [["-m", "anabranch", "dump", "a.ab", "--stage", "ir"]]


def test_a_shell_block_may_not_show_what_nothing_runs() -> None:
    with pytest.raises(AssertionError, match="curl"):
        commands(Block("", "sh", "curl example", 0, 1))


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_explains_itself(name: str, workplace: Path) -> None:
    run(workplace, "-m", "anabranch", name, "--help")
