"""A plan in use: arrays in and out, of NumPy or of torch.

    with Session(plan) as session:
        loss = session.step(tokens=tokens, targets=targets)    # the plan of a recipe
        weights = session.state_dict()

    with Session(plan) as session:
        y = session(x=x)                                        # the plan of a function

Nothing of the compiler is imported here: a saved plan runs where only the runtime is. Results are
torch tensors if an argument is one. States of a recipe begin as its initialisers say; those of a
function must be loaded. Under torchrun a plan of several ranks runs with one rank a process, and
all processes make the same calls with the same arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any

from anabranch import evaluation, generation
from anabranch.ir.plan import ADDED, Plan
from anabranch.runtime import checkpoint, session
from anabranch.runtime.arrays import Array
from anabranch.runtime.checkpoint import AVERAGE, Progress
from anabranch.runtime.errors import FeedError, RunError, WeightError
from anabranch.runtime.trace import Trace
from anabranch.runtime.world import ThreadWorld, world_of_environment
from anabranch.weights import Fit

TRAIN, INIT = "train", "init"


class Session:
    """See the module. `seed` keys all random draws; `cores` are those it may keep busy; of the
    last `trace` steps the firings are kept. `results` has all that the last call gave, by name: the
    loss, metrics, what was reported."""

    def __init__(
        self, plan: Plan, *, seed: int | None = None, cores: int | None = None, trace: int = 0
    ) -> None:
        if not isinstance(plan, Plan):
            raise RunError(f"a session runs a plan, not a {type(plan).__name__}; compile it first, "
                           "as in Session(compile(program.train))")
        self.plan = plan
        self.seed = plan.seed if seed is None else seed
        self.steps = 0
        self.results: dict[str, Any] = {}
        self._programs = [program.name for program in plan.programs]
        self._unset = {state.name for state in plan.states}
        world = world_of_environment() if plan.ranks > 1 else ThreadWorld()
        self._running = session.Session(
            plan, world=world, seed=self.seed, cores=cores, trace=trace)
        if INIT in self._programs:
            try:
                self._running.run(INIT, 1)
            except BaseException:
                self._running.close()
                raise
            self._unset = set()

    def step(self, *unnamed: Any, **arrays: Any) -> Any:
        """One training step: the loss before its update."""
        self._check_named(unnamed, TRAIN)
        loss, *_ = self._run(TRAIN, arrays, self.steps)
        self.steps += 1
        return loss

    def evaluate(self, *unnamed: Any, **arrays: Any) -> Any:
        """The loss of a batch; nothing is changed, nothing dropped out. Metrics are in `results`
        then."""
        self._check_named(unnamed, evaluation.EVALUATE)
        loss, *_ = self._run(evaluation.EVALUATE, arrays, 0)
        return loss

    def measure(self, *unnamed: Any, **arrays: Any) -> dict[str, float]:
        """The loss, metrics and reports of any number of rows by name: means over the rows."""
        self._check_named(unnamed, evaluation.EVALUATE)
        self._check_states()
        given = {name: _array(name, value) for name, value in arrays.items()}
        batches = evaluation.batches_of(self.plan, given)
        return evaluation.measure(self._running, batches).means

    def __call__(self, *unnamed: Any, **arrays: Any) -> Any:
        """The results of a plan's only program: one, or a tuple."""
        if len(self._programs) != 1:
            raise RunError(f"the plan has the programs {', '.join(self._programs)}; "
                           "use step, evaluate or generate")
        self._check_named(unnamed, self._programs[0])
        values = self._run(self._programs[0], arrays, 0)
        return values[0] if len(values) == 1 else values

    def generate(self, prompt: str | Sequence[int], length: int) -> str | list[int]:
        """What the model's `next` draws after a prompt: text for a text (of a model over bytes),
        tokens for tokens."""
        self._check_states()
        if isinstance(prompt, str):
            return generation.text(self._running, prompt, length)
        return list(generation.tokens(self._running, prompt, length))

    def _run(self, program: str, arrays: Mapping[str, Any], step: int) -> tuple[Any, ...]:
        self._check_states()
        if program not in self._programs:
            raise RunError(f"the plan has no program '{program}'; "
                           f"it has {', '.join(self._programs)}")
        feeds = {name: _array(name, value) for name, value in arrays.items()}
        results = self._running.step(program, feeds, step)
        torch = any(_is_torch(value) for value in arrays.values())
        self.results = {n: _given_back(value, torch=torch) for n, value in results.items()}
        return tuple(self.results.values())

    def _check_named(self, unnamed: Sequence[Any], program: str) -> None:
        if unnamed:
            feeds = self.plan.program(program).feeds if program in self._programs else ()
            shown = ", ".join(f"{port.name}=..." for port in feeds)
            raise RunError(f"arrays go by name{', as in ' if shown else ''}{shown}")

    def _check_states(self) -> None:
        if self._unset:
            raise RunError(f"{len(self._unset)} states have no value yet, such as "
                           f"'{min(self._unset)}': load_state_dict(...) sets them")

    # ---- states

    def state_dict(self, *, optimizer: bool = False, torch: bool = False) -> dict[str, Any]:
        """Copies of parameters and buffers by dotted path; of parameters whose average is kept it
        is the average, which is what a model is used with. With `optimizer`, all states as they
        are, the optimizer's and the averages (`ema.<path>`) among them."""
        kinds = {s.name: s.kind for s in self.plan.states}
        wanted = {name: name for name in kinds}
        if not optimizer:
            averages = {name: f"{AVERAGE}{name}" for name in kinds if f"{AVERAGE}{name}" in kinds}
            wanted = {name: averages.get(name, name) for name, kind in kinds.items()
                      if kind not in ADDED.values()}
        return {name: _given_back(self._running.state(source), torch=torch)
                for name, source in wanted.items()}

    def load_state_dict(self, arrays: Mapping[str, Any], *, strict: bool = True) -> None:
        """Set states by dotted path; the optimizer's may be left out, and averages, which then
        begin anew; a plan that does not train leaves out what training added, as `resume` does.
        Everything that is missing, unknown or of another shape is reported at once, before anything
        is set. Unless `strict`, only shapes matter. Floats are converted to the dtype of the state,
        also to a shorter one; on a mesh each rank takes its part."""
        if not isinstance(arrays, Mapping):
            raise WeightError(f"arrays by name are set, not a {type(arrays).__name__}; read a file "
                              "first, as in load_state_dict(load_weights(path))")
        fit = Fit.of(self.plan, {name: _array(name, value) for name, value in arrays.items()})
        fit.check(missing=strict, unknown=strict)
        self._running.load_states(fit.ready)
        self._unset -= fit.ready.keys()

    def save(self, path: str | PathLike[str]) -> None:
        """A checkpoint: all states and the number of steps done, in a folder that is there. Raises
        `CheckpointError` where it cannot be written."""
        checkpoint.save(self._running, str(path), Progress(self.steps, self.seed))

    def resume(self, path: str | PathLike[str]) -> None:
        """Go on where a checkpoint was saved. (Its seed must have been this session's for the
        same draws.) A plan that does not train takes what the model is used with, as `state_dict`
        gives it, and leaves the optimizer's states out."""
        progress = checkpoint.restore(self._running, str(path))
        self.steps, self._unset = progress.step, set()

    # ---- the rest

    @property
    def allocated_bytes(self) -> int:
        """Memory of the ranks of this process; a step allocates nothing more."""
        return self._running.allocated_bytes

    @property
    def trace(self) -> Trace | None:
        """What fired when in the last steps; `trace.save(path)` writes it for Perfetto."""
        return self._running.trace

    def close(self) -> None:
        self._running.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()


def _is_torch(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "torch"


def _array(name: str, value: Any) -> Any:
    """A torch tensor as an array; anything else as it is."""
    if not _is_torch(value):
        return value
    try:
        plain = value.detach().cpu()
        return (plain.float() if str(plain.dtype) == "torch.bfloat16" else plain).numpy()
    except (AttributeError, TypeError, RuntimeError) as error:  # sparse, on no device, of 8 bits
        raise FeedError(f"'{name}' has no elements that can be read: {error}") from error


def _given_back(value: Array, *, torch: bool) -> Any:
    """An array, a number if it is 0-d; or a tensor."""
    if torch:
        import torch as library

        return library.from_numpy(value)
    return value[()]
