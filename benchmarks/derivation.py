"""What it costs to derive everything of an op, and to have the library at hand.

    python -m benchmarks.derivation [--json]

For each op of the library, in CPU seconds of this process, the first time it is met: its shapes and
statements, the signatures of all statements forward and backward, its gradient, its cost. Then the
seconds that a start takes: loading the library with and without its cache, and `anabranch ops`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

from anabranch.derived import elaborated, sizes_of
from anabranch.frontend import syntax as s
from anabranch.frontend.program import loads
from anabranch.frontend.values import Function
from anabranch.gradient_check import float_inputs, gradient_of, weighted
from anabranch.ir.core import Function as IrFunction
from anabranch.ir.ops import Compute, Order
from anabranch.lowering.cost import work
from anabranch.lowering.signatures import signatures
from anabranch.operators import operators_of

PER_OP = 0.020  # CPU seconds
START = 1.0
LOAD = "from anabranch.frontend.scope import library\nlibrary()"
CHECK = """
from pathlib import Path
from anabranch.frontend import program
from anabranch.frontend.check import check
from anabranch.frontend.evaluate import LIBRARY
from anabranch.frontend.parse import parse
from anabranch.frontend.scope import library, tree_of
from anabranch.ir.diagnostics import Collector
found = Collector()
for path in sorted(Path(LIBRARY).glob("*.ab")):
    check(tree_of(path), library(), found)
found.raise_if_any()
"""
LIST = "from anabranch.cli import main\nmain(['ops'])"

FIRST = """
op first(x: T[N]) -> T[N]:
    y[n] = x[n] * sin(x[n])
    return y
"""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds for one op, by what is derived."""

    op: str
    shapes: float
    gradient: float
    signatures: float
    cost: float

    @property
    def total(self) -> float:
        return self.shapes + self.gradient + self.signatures + self.cost


def costs() -> Iterator[Cost]:
    """The op before the first pays for what is set up once."""
    cost(op_of(FIRST), [5], 1)
    for operator in operators_of(None):
        function = operator.function
        if function is None or not isinstance(operator.definition, s.OpDef):
            continue
        sizes = sizes_of(function)
        if sizes is not None:
            yield cost(function, *sizes)


def op_of(text: str) -> Function:
    program = loads(text)
    (function,) = (program.scope.find(name) for name in program.functions)
    assert isinstance(function, Function)
    return function


def cost(function: Function, sizes: list[int], length: int) -> Cost:
    made, shapes = timed(lambda: elaborated(function, sizes, length))
    assert made is not None
    summed = weighted_results(made.function)
    both, gradient = timed(lambda: with_gradient(made.function, summed))
    _, found = timed(lambda: [signatures(op, 2) for op in statements(both)])
    _, counted = timed(lambda: [work(op) for op in statements(both)])
    return Cost(function.definition.name, shapes, gradient, found, counted)


def weighted_results(function: IrFunction) -> IrFunction | None:
    """The op with a sum of its results behind it. The weights of that sum are drawn at random,
    which is none of the op's costs. None where nothing is differentiated."""
    found = weighted(function, None, np.random.default_rng(0)) if float_inputs(function) else None
    return None if found is None else found[0]


def with_gradient(function: IrFunction, summed: IrFunction | None) -> IrFunction:
    """With the gradients by all floats, if the results are floats."""
    if summed is None:
        return function
    return gradient_of(summed, [a.value.name for a in float_inputs(function)])


def statements(function: IrFunction) -> Iterator[Compute | Order]:
    return (op for op in function.body if isinstance(op, Compute | Order))


def timed(run: Callable[[], _T]) -> tuple[_T, float]:
    """As `timeit` does: the garbage of what came before is none of this op's costs."""
    gc.disable()
    began = time.process_time()
    result = run()
    seconds = time.process_time() - began
    gc.enable()
    return result, seconds


def start(code: str, cache: str) -> float:
    """CPU seconds of a process."""
    timing = f"import time\n{code}\nimport sys\nprint(time.process_time(), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", timing], text=True, capture_output=True,
                          env={**os.environ, "XDG_CACHE_HOME": cache}, check=False)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return float(done.stderr.split()[-1])


def starts() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as cache:
        cold = start(LOAD, cache)
        return {"library, cold": cold, "library, cached": start(LOAD, cache),
                "library, checked": start(CHECK, cache), "anabranch ops": start(LIST, cache)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found, begun = list(costs()), starts()
    slow = [each for each in found if each.total > PER_OP]
    if options.json:
        print(json.dumps({"ops": [asdict(each) for each in found], "starts": begun}))
    else:
        show(found, begun)
    sys.exit(bool(slow) or max(v for k, v in begun.items() if "cold" not in k) > START)


def show(found: list[Cost], begun: dict[str, float]) -> None:
    table = Table(title=f"{len(found)} ops: milliseconds of CPU, slowest first")
    columns = ("op", "shapes", "gradient", "signatures", "cost", "total")
    for name in columns:
        table.add_column(name, justify="left" if name == "op" else "right")
    for each in sorted(found, key=lambda each: -each.total)[:20]:
        numbers = (each.shapes, each.gradient, each.signatures, each.cost, each.total)
        table.add_row(each.op, *(f"{1000 * n:.1f}" for n in numbers))
    console = Console()
    console.print(table)
    mean = sum(each.total for each in found) / max(1, len(found))
    console.print(f"mean {1000 * mean:.1f} ms; over {1000 * PER_OP:.0f} ms: "
                  f"{sum(each.total > PER_OP for each in found)}")
    for name, seconds in begun.items():
        console.print(f"{name:18} {seconds:.2f} s of CPU")


if __name__ == "__main__":
    main()
