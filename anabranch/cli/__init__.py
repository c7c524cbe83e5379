"""The command line: `anabranch SUBCOMMAND ...`.

A subcommand is a module beside this one with `configure(parser)` and `run(args) -> int`, and a row
in `SUBCOMMANDS`; its module is imported only when it is the one asked for, so that `--help` is
instant. Guaranteed here for all of them: exit code 0 for success, 1 when the program or its data
are wrong or something failed, 2 when the command line itself is wrong; no traceback unless
`--debug` asks for it.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from anabranch import __version__
from anabranch.ir.diagnostics import CompilerBug, UserError, nearest
from anabranch.runtime.errors import PlacedError, RuntimeFailure

SUBCOMMANDS = {
    "check": "find what is wrong with a program, and show what is derived of its ops",
    "ops": "show the operators of the library and what is derived of them",
    "explain": "show how a program is distributed, and why",
    "dump": "show a program at a stage of the compiler",
    "train": "train a model by the recipe of its program",
    "generate": "let a trained model write",
    "doctor": "show what this machine offers and test that it works",
}

ELSEWHERE = {"run": "name", "output": "out", "output-dir": "out", "epochs": "steps",
             "checkpoint": "resume", "load": "init", "weights": "init"}
"""Options of other tools, and what is called here what they do."""
IN_THE_RECIPE = {
    **dict.fromkeys(("batch", "batch-size", "batch_size", "bs"), "data=arrays(batch=64)"),
    **dict.fromkeys(("lr", "learning-rate", "learning_rate"), "optimizer=adamw(lr=1e-3)"),
    "clip": "clip=1.0", "ema": "ema=0.99",
}
"""Options of other tools that are lines of a recipe here, with one as it may be set."""

INTERRUPTED = 130  # what a shell reports for a program ended by Ctrl-C


class Parser(argparse.ArgumentParser):
    """argparse that proposes the nearest legal spelling of a wrong option or choice."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings
        )

    def parse_arguments(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Like `parse_args`, with arguments between and behind options, and with a suggestion for
        what it does not know."""
        namespace, unknown = self.parse_known_intermixed_args(arguments)
        if unknown:
            self.reject(unknown[0])
        return namespace

    def reject(self, argument: str) -> NoReturn:
        option = argument.split("=", 1)[0]
        if not option.startswith("-"):
            self.error(f"unexpected argument '{argument}'")
        known = [name.lstrip("-") for name in self._option_string_actions if name[:2] == "--"]
        word = option.lstrip("-")
        elsewhere = ELSEWHERE.get(word)
        hint = f"did you mean '{elsewhere}'?" if elsewhere in known else nearest(word, known)
        hint = hint.replace("did you mean '", "; did you mean '--")
        if "set" in known and word in IN_THE_RECIPE:
            hint = f"; the recipe says it: --set '{IN_THE_RECIPE[word]}'"
        self.error(f"unknown option {option}{hint}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            legal = [str(choice) for choice in action.choices]
            message = _with_hint(f"invalid choice '{value}'", str(value), legal)
            raise argparse.ArgumentError(action, f"{message} (one of {', '.join(legal)})")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; the value is the process's exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    warnings.formatwarning = _plain_warning
    try:
        return _dispatch(arguments)
    except SystemExit as leaving:  # argparse's way of ending after --help or a wrong option
        return leaving.code if isinstance(leaving.code, int) else 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return 1
    except Exception as failure:
        if debug:
            traceback.print_exc()
        print(describe(failure), file=sys.stderr)
        return 1


def describe(failure: Exception) -> str:
    """What the user is told: their mistake as it is, anything unforeseen as a fault of ours."""
    match failure:
        case UserError() | CompilerBug() | PlacedError():
            return str(failure)
        case RuntimeFailure():
            return f"error: {failure}"
        case OSError(strerror=str(reason), filename=str(path)):
            return f"error: {path}: {reason}"
        case OSError(strerror=str(reason)):
            return f"error: {reason}"
        case _:
            return (
                f"error: {type(failure).__name__}: {failure}{_origin(failure)}\n"
                "This is a fault of Anabranch; please report it, with the output of the same "
                "command and --debug."
            )


def _plain_warning(message: Warning | str, *_place: object, **_line: object) -> str:
    """A warning is for the user, who has no use for the line of ours that it comes from."""
    return f"warning: {message}\n"


def _dispatch(arguments: list[str]) -> int:
    name = next((word for word in arguments if not word.startswith("-")), None)
    if name is None or name not in SUBCOMMANDS:
        return _face(arguments, name)
    command = importlib.import_module(f"anabranch.cli.{name}")
    parser = Parser(prog=f"anabranch {name}", description=command.__doc__)
    parser.add_argument("--debug", action="store_true", help="show the traceback of a failure")
    command.configure(parser)
    arguments.remove(name)
    given = parser.parse_arguments(arguments)
    for path in getattr(given, "readers", ()):
        importlib.import_module("anabranch.readers").run_file(path)
    return int(command.run(given))


def _face(arguments: list[str], name: str | None) -> int:
    """`anabranch` alone, `--version`, `--help`, or a subcommand that does not exist."""
    width = max(map(len, SUBCOMMANDS))
    listing = "\n".join(f"  {command:{width}}  {text}" for command, text in SUBCOMMANDS.items())
    parser = Parser(
        prog="anabranch",
        usage="anabranch [--version] [--help] SUBCOMMAND ...",
        description="A compiler and runtime for neural networks.",
        epilog=f"subcommands (each has --help):\n{listing}",
    )
    parser.add_argument("--version", action="version", version=f"anabranch {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of a failure")
    if name is not None:
        parser.error(_with_hint(f"unknown subcommand '{name}'", name, SUBCOMMANDS))
    parser.parse_arguments(arguments)
    parser.print_help()
    return 0


def _with_hint(message: str, wrong: str, legal: Iterable[str]) -> str:
    hint = nearest(wrong, legal)
    return f"{message}; {hint}" if hint else message


def _origin(failure: Exception) -> str:
    frames = traceback.extract_tb(failure.__traceback__)
    return f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""


def _forget_stdout() -> None:
    """The reader of our output has gone: keep Python from complaining once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
