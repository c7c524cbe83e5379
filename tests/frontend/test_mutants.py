"""A wrong program is refused with a place and a message, never with a traceback.

Sound programs have a word or two exchanged for another; whatever comes of it either elaborates to a
module that the verifier accepts, or is a `UserError`.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from anabranch.frontend.program import loads
from anabranch.ir.diagnostics import UserError
from anabranch.ir.verifier import verify

HERE = Path(__file__).parent
GPT = (HERE.parents[1] / "examples" / "gpt.ab").read_text(encoding="utf-8")
TINY = re.sub(r"dim=\d+, depth=\d+", "dim=8, depth=1", GPT).replace(
    "window=context, batch=16", "window=6, batch=2")
SOURCES = [TINY, *re.split(r"\n(?=op )", (HERE / "ops.ab").read_text(encoding="utf-8"))]
KEYWORDS = [
    "op", "def", "model", "train", "return", "for", "in", "if", "elif", "else", "with", "not", "is",
    "and", "or", "assert", "buffer", "from", "import", "as",
]
STRANGERS = [
    "0", "(-1)", "7", "0.5", "None", "True", '"a"', "[1, 2]", "(1, 2)", "inf", "1e30", "x[0]",
    "sum(x)", "f32", "Key", "step", "rand", "key", "linear", "Linear", "T", "B", "range", "where",
    "training", "zeros()", "argmax", "x.T", "x.shape", "{data: S(0)}",
]


def mutant(source: str, chosen: random.Random) -> str:
    words = re.findall(r"\s+|\w+|[^\w\s]", source)
    places = [n for n, w in enumerate(words) if re.match(r"[A-Za-z_]", w) and w not in KEYWORDS]
    for _ in range(chosen.choice([1, 1, 2])):
        other = words[chosen.choice(places)]
        words[chosen.choice(places)] = other if chosen.random() < 0.6 else chosen.choice(STRANGERS)
    return "".join(words)


def outcome(text: str) -> str:
    """What is said of a program; an empty string if it elaborates."""
    try:
        program = loads(text, "mutant.ab")
        for name in program.recipes:
            verify(program.training(name).module)
    except UserError as error:
        return error.render()
    return ""


@pytest.mark.parametrize("seed", range(8))
def test_a_mutant_is_elaborated_or_refused(seed):
    chosen = random.Random(seed)
    for _ in range(25):
        said = outcome(mutant(chosen.choice(SOURCES), chosen))
        assert said == "" or "mutant.ab:" in said
