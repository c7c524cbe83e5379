"""What can go wrong in a run. Every message says where and what to do or what was awaited."""

from __future__ import annotations


class RuntimeFailure(Exception):
    """Base of all errors of the runtime."""


class BuildError(RuntimeFailure):
    """Kernels could not be compiled or a cached library could not be trusted."""


class DeadPlan(RuntimeFailure):
    """A plan that the check refuses: it could hang, race or overrun its memory."""


class FeedError(RuntimeFailure):
    """An array given to a session does not fit what the program wants."""


class WeightError(RuntimeFailure):
    """Weights that cannot be read, or do not fit the program."""


class RunError(RuntimeFailure):
    """The first failure of a run; the session is closed. Later failures are its notes."""


class Aborted(RuntimeFailure):
    """Raised inside a wait when another thread has failed; never reaches the user."""
