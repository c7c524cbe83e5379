"""The command line's promises: exit codes, suggestions, and no traceback that nobody asked for."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import types
from collections.abc import Callable

import pytest

import anabranch
from anabranch.cli import SUBCOMMANDS, main
from anabranch.ir.diagnostics import CompilerBug, fail
from anabranch.runtime.errors import BuildError

Run = Callable[[argparse.Namespace], int]


@pytest.fixture
def subcommand(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """Installs a subcommand `probe` with an option --stage that behaves as the test says."""

    def install(run: Run) -> None:
        module = types.ModuleType("anabranch.cli.probe", "A probe.")
        module.configure = lambda parser: parser.add_argument("--stage", choices=["ir", "kernels"])  # type: ignore[attr-defined]
        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "anabranch.cli.probe", module)
        monkeypatch.setitem(SUBCOMMANDS, "probe", "a probe")

    return install


def raising(failure: BaseException) -> Run:
    def run(_: argparse.Namespace) -> int:
        raise failure

    return run


def test_help_lists_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert [name for name in SUBCOMMANDS if f"  {name} " not in text] == []


def test_version_is_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"anabranch {anabranch.__version__}\n"


def test_a_subcommand_gets_its_arguments_and_gives_the_exit_code(
    subcommand: Callable[[Run], None],
) -> None:
    subcommand(lambda args: 1 if args.stage == "ir" else 0)
    assert (main(["probe", "--stage", "ir"]), main(["probe"])) == (1, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["docter"], "unknown subcommand 'docter'; did you mean 'doctor'?"),
        (["probe", "--stag", "ir"], "unknown option --stag; did you mean '--stage'?"),
        (["probe", "--stage", "kernel"], "did you mean 'kernels'? (one of ir, kernels)"),
        (["probe", "more"], "unexpected argument 'more'"),
        (["train", "a.ab", "--run", "runs/a"], "unknown option --run; did you mean '--name'?"),
        (["train", "a.ab", "--stpes", "2"], "unknown option --stpes; did you mean '--steps'?"),
        (["train", "a.ab", "--rn", "2"], "unknown option --rn\n"),
        (["train", "a.ab", "--batch", "64"], "--batch; the recipe says it: --set 'data=arrays("),
        (["explain", "a.ab", "--lr=0.1"], "--lr; the recipe says it: --set 'optimizer=adamw(lr"),
    ],
)
def test_a_wrong_command_line_is_answered_with_the_nearest_right_one(
    subcommand: Callable[[Run], None],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    subcommand(lambda _: 0)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("failure", "code", "message"),
    [
        (fail("no such name 'sofmax'"), 1, "error: no such name 'sofmax'\n"),
        (FileNotFoundError(2, "No such file or directory", "a.ab"), 1, "error: a.ab: No such file"),
        (OSError(28, "No space left on device"), 1, "error: No space left on device\n"),
        (BuildError("others may write to the cache"), 1, "error: others may write to the cache\n"),
        (CompilerBug("two definitions"), 1, "please report"),
        (ZeroDivisionError("division by zero"), 1, "please report"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_a_failure_is_a_message_and_never_a_traceback(
    subcommand: Callable[[Run], None],
    capsys: pytest.CaptureFixture[str],
    failure: BaseException,
    code: int,
    message: str,
) -> None:
    subcommand(raising(failure))
    assert main(["probe"]) == code
    text = capsys.readouterr().err
    assert message in text
    assert "Traceback" not in text


@pytest.mark.parametrize("arguments", [["--debug", "probe"], ["probe", "--debug"]])
def test_debug_shows_the_traceback(
    subcommand: Callable[[Run], None], capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    subcommand(raising(ZeroDivisionError("division by zero")))
    assert main(arguments) == 1
    assert "Traceback" in capsys.readouterr().err


def test_help_imports_nothing_but_the_kinds_of_error() -> None:
    probe = (
        "import sys; from anabranch.cli import main; main(['--help'])\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in "
        "('numpy', 'rich', 'sympy', 'lark', 'torch') or m.startswith('anabranch.')))"
    )
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert result.stdout.splitlines()[-1] == str(
        [
            "anabranch.cli",
            "anabranch.ir",
            "anabranch.ir.diagnostics",
            "anabranch.runtime",
            "anabranch.runtime.errors",
        ]
    )


def test_a_reader_that_goes_away_is_not_an_error_message() -> None:
    """`anabranch ... | head` ends quietly."""
    probe = (
        "import sys, types; import anabranch.cli as cli\n"
        "m = types.ModuleType('m'); m.configure = lambda p: None\n"
        "m.run = lambda a: [print('x' * 1000) for _ in range(10000)] and 0\n"
        "sys.modules['anabranch.cli.m'] = m; cli.SUBCOMMANDS['m'] = 'm'\n"
        "sys.exit(cli.main(['m']))"
    )
    command = f'{shlex.quote(sys.executable)} -c "$PROBE" | head -1'
    result = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env={"PROBE": probe, **_path()}
    )
    assert (result.stdout[:3], result.stderr) == ("xxx", "")


def _path() -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(anabranch.__path__[0]) + "/.."}
