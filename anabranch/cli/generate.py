"""Let a trained model write: text that follows a prompt.

The model's function `next` is compiled once, for a window of the size it was trained with, and
called in a loop. A checkpoint knows which model it is of and with what settings; weights of other
programs do not, and --set gives them.
"""

from __future__ import annotations

import argparse
import codecs
import json
import math
import sys

from anabranch import cache, generation
from anabranch.cli.options import add_program, add_rename, integer, mesh_of, overrides_of, renaming
from anabranch.driver import Options, compile_function
from anabranch.frontend.program import load
from anabranch.ir.core import Module
from anabranch.ir.diagnostics import fail
from anabranch.ir.plan import Plan
from anabranch.runtime import checkpoint
from anabranch.runtime.arrays import Array
from anabranch.runtime.session import Session
from anabranch.subjects import recalled
from anabranch.weights import Fit, in_a_table, load_weights


def configure(parser: argparse.ArgumentParser) -> None:
    add_program(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--checkpoint", metavar="FILE", help="of a training run")
    source.add_argument("--weights", metavar="FILE",
                        help="of another program: safetensors, .npz, torch's, .onnx")
    add_rename(parser)
    parser.add_argument("--prompt", default="def ", type=_prompt,
                        help="how the text begins ('def ')")
    parser.add_argument("--length", type=integer(1), default=400, metavar="N",
                        help="bytes to write (400)")
    parser.add_argument("--temperature", type=_temperature, metavar="T",
                        help="below the model's own is more certain, above it more varied")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _prompt(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it is empty; give at least one character")
    return text


def _temperature(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number") from None
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(
            f"{text} is not positive; 0.01 all but always takes the likeliest")
    return number


def run(args: argparse.Namespace) -> int:
    notes = checkpoint.read_progress(args.checkpoint).notes if args.checkpoint else ""
    plan = _planned(args, notes)
    states = _states(args, plan)
    with Session(plan, seed=args.seed) as session:
        session.load_states(states)
        text = _write(session, args)
    if args.json:
        print(json.dumps({"prompt": args.prompt, "text": text}))
    return 0


def _states(args: argparse.Namespace, plan: Plan) -> dict[str, Array]:
    if args.checkpoint:
        if args.rename:
            raise fail("a checkpoint has the names of its program", help="leave out --rename")
        return checkpoint.load(plan, args.checkpoint, more=True)[0]
    fit = Fit.of(plan, load_weights(args.weights, renaming(args)))
    fit.check(shown=in_a_table)
    return fit.ready


def _planned(args: argparse.Namespace, notes: str) -> Plan:
    known = json.loads(notes) if notes else {"model": None, "set": {}}
    overrides: dict[str, object] = {**recalled(known["set"]), **overrides_of(args.set)}
    if args.temperature is not None:
        overrides["temperature"] = args.temperature
    model, mesh = args.model or known["model"], mesh_of(args.mesh)
    program = load(args.file)
    options = Options(mesh)

    def make() -> Plan:
        functions = program.training(model, overrides, mesh.stages).module.functions
        if generation.PROGRAM not in functions:
            raise fail(f"the model of {args.file} has no function 'next'",
                       help="as in def next(tokens: i64[B, S], last: i64[B], key: Key) -> i64[B]")
        single = Module({generation.PROGRAM: functions[generation.PROGRAM]})
        return compile_function(single, options).plan

    facts = (model, sorted(overrides.items()), options)
    return cache.plan(cache.key(program.sources, generation.PROGRAM, *facts), make)[0]


def _write(session: Session, args: argparse.Namespace) -> str:
    """The text, shown as it is made; a character of several bytes when it is complete."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    parts = []
    _show(args, args.prompt)
    for token in generation.tokens(session, list(args.prompt.encode()), args.length):
        parts.append(decoder.decode(generation.as_byte(token)))
        _show(args, parts[-1])
    parts.append(decoder.decode(b"", final=True))
    _show(args, f"{parts[-1]}\n")
    return "".join(parts)


def _show(args: argparse.Namespace, text: str) -> None:
    if not args.json:
        sys.stdout.write(generation.harmless(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
