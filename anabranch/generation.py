"""Sequences from a model's `next`, one token a step.

`next` is compiled for a window of a fixed size, filled up to `last`; when the window is full it
slides, so a sequence may be of any length and nothing is compiled twice. Draws are keyed by the
seed of the session and the position, so the same prompt gives the same sequence.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence

import numpy as np

from anabranch.ir.plan import Plan
from anabranch.runtime.errors import RunError
from anabranch.runtime.session import Session

PROGRAM = "next"


def window_of(plan: Plan) -> int:
    """How many tokens the model sees. Raises `RunError` if its `next` is not of the usual form."""
    feeds = {port.name: plan.values[port.value] for port in plan.program(PROGRAM).feeds}
    shapes = [feeds[name].shape for name in ("tokens", "last") if name in feeds]
    if len(feeds) != 2 or len(shapes) != 2 or len(shapes[0]) != 2 or shapes[0][0] != 1:
        taken = ", ".join(f"{name}: {v.dtype}{list(v.shape)}" for name, v in feeds.items())
        raise RunError(
            "text is made by a function `next(tokens: i64[B, S], last: i64[B], ...)` of one "
            f"sequence; here it takes {taken}")
    return shapes[0][1]


def tokens(session: Session, prompt: Sequence[int], length: int) -> Iterator[int]:
    """`length` tokens that follow the prompt, as they are made."""
    window = window_of(session.plan)
    given = [operator.index(token) for token in prompt][-window:]
    if not given:
        raise RunError("the prompt is empty; give at least one token")
    last = len(given) - 1
    seen = np.zeros((1, window), np.int64)
    seen[0, : last + 1] = given
    for step in range(length):
        feeds = {"tokens": seen.copy(), "last": np.array([last], np.int64)}
        (drawn,) = session.step(PROGRAM, feeds, step=step).values()
        token = int(drawn[0])
        yield token
        if last + 1 < window:
            last += 1
        else:
            seen[0, :-1] = seen[0, 1:].copy()
        seen[0, last] = token


def text(session: Session, prompt: str, length: int) -> str:
    """What a byte-level model writes after the prompt; what is not text shows as �."""
    made = tokens(session, list(prompt.encode()), length)
    return harmless(b"".join(map(as_byte, made)).decode("utf-8", errors="replace"))


def harmless(written: str) -> str:
    """Text that a terminal only prints: control characters, which could command it, show as �."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}"
                   for c in written)


def as_byte(token: int) -> bytes:
    if not 0 <= token <= 255:
        raise RunError(f"the model's tokens are not bytes: it drew {token}")
    return bytes([token])
