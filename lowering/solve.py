"""The best choice for every node: a 0/1 program, solved as a linear one where that is enough.

Variables, in microseconds of objective:

    x[node, choice]            one of them is 1
    y[flow, reader, row, copy] how a reader's copy is made; sums agree with both ends
    z[flow, row, copy]         the copy exists: at least each reader's y, and paid for once

A flow with one reader needs no z. The linear relaxation is nearly always integral; where it is not,
the same program is solved with whole x under a cap of time, and the gap is reported.

Among equals the choice must be the same everywhere: each choice costs a little more, by noise that
depends on its text only, far below any price but far above what the solver takes for zero.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anabranch.ir.diagnostics import CompilerBug
from anabranch.lowering.choices import Choices, Flow, Node
from anabranch.lowering.eliminate import Classes, Rest, eliminate
from anabranch.lowering.prices import Matrix

MICROSECOND = 1e-6
NOISE = 1e-5  # microseconds
WHOLE = 1e-6  # how near to an integer is one

# Presolve costs little where there is nothing to find, and where prices are tiny and nearly equal
# it saves nine tenths of the time. The noise keeps equal prices apart.
OPTIONS = {
    "output_flag": False, "threads": 1, "presolve": "on",
    "dual_simplex_cost_perturbation_multiplier": 0.0,
}
INTEGER_OPTIONS = {"mip_rel_gap": 0.0, "mip_abs_gap": NOISE}

# The simplex method ends after some ten thousand steps, or it has met a program so degenerate (a
# tiny model on many ranks: everything costs a launch) that the interior-point method is faster.
# The limit counts steps, not seconds, so that plans do not depend on the machine's load.
STEPS = 25_000
INTERIOR = {"solver": "ipm"}

Index = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Solution:
    """A choice for every node, its seconds, and a bound that no plan can be below."""

    chosen: list[int]
    seconds: float
    bound: float

    @property
    def gap(self) -> float:
        """How far, relatively, the best plan could be below this one."""
        return max(0.0, 1 - self.bound / self.seconds) if self.seconds else 0.0


def solve(choices: Choices, limit: float = 20.0) -> Solution:
    """The cheapest plan; `limit` caps the seconds of the integer search."""
    noisy = [
        node.seconds / MICROSECOND + _noise(node) for node in choices.nodes]
    flows = [Flow(f.producer, f.made, f.readers, f.prices / MICROSECOND) for f in choices.flows]
    rest = eliminate(noisy, flows)
    chosen = [0] * len(noisy)
    gap = 0.0
    if rest.seconds:
        program = _Program(rest)
        found, gap = program.solve(limit)
        for node, choice in found.items():
            chosen[node] = choice
    rest.complete(chosen)
    seconds = choices.seconds(chosen)
    return Solution(chosen, seconds, max(0.0, seconds - gap * MICROSECOND))


def _noise(node: Node) -> Matrix:
    """Differences between the choices of a node, the same in all programs that have one like it."""
    names = [f"{node.name} {' '.join(map(str, operands))} {' '.join(map(str, results))}"
             for operands, results in node.options]
    return NOISE / 2**32 * np.array([zlib.crc32(name.encode()) for name in names], float)


class _Program:
    """The rows and columns of the program."""

    def __init__(self, rest: Rest) -> None:
        self.costs: list[Matrix] = []
        self.columns = 0
        self.rows = 0
        self.entries: list[tuple[Index, Index, Matrix]] = []
        self.lower: list[Matrix] = []
        self.upper: list[Matrix] = []
        self.first = {node: self._choice(costs) for node, costs in rest.seconds.items()}
        self.sizes = {node: len(costs) for node, costs in rest.seconds.items()}
        self.whole = self.columns
        for flow in rest.flows:
            self._flow(flow)
        for table in rest.tables:
            self._table(table)

    def _add_columns(self, costs: Matrix) -> int:
        start, self.columns = self.columns, self.columns + costs.size
        self.costs.append(costs.ravel())
        return start

    def _add_rows(self, count: int, lower: float, upper: float) -> int:
        start, self.rows = self.rows, self.rows + count
        self.lower.append(np.full(count, lower))
        self.upper.append(np.full(count, upper))
        return start

    def _add(self, rows: Index, columns: Index, value: float) -> None:
        self.entries.append((rows.ravel(), columns.ravel(), np.full(rows.size, value)))

    def _choice(self, costs: Matrix) -> int:
        """One of the choices of a node."""
        start = self._add_columns(costs)
        row = self._add_rows(1, 1.0, 1.0)
        columns = np.arange(start, start + len(costs))
        self._add(np.full(len(costs), row), columns, 1.0)
        return start

    def _flow(self, flow: Flow) -> None:
        alone = len(flow.readers) == 1
        if not alone:
            z = np.full(flow.prices.shape, -1)
            z[flow.prices > 0] = 0
            z[z == 0] = np.arange((z == 0).sum()) + self._add_columns(flow.prices[z == 0])
        for node, wanted in flow.readers:
            copies, places = np.unique(wanted, return_inverse=True)
            prices = flow.prices[:, copies]
            start = self._add_columns(prices if alone else np.zeros(prices.shape))
            y = start + np.arange(prices.size).reshape(prices.shape)
            self._agree(y, flow.producer, flow.made)
            self._agree(y.T, node, places)
            if not alone:
                paid = z[:, copies] >= 0
                rows = self._add_rows(int(paid.sum()), 0.0, np.inf) + np.arange(paid.sum())
                self._add(rows, z[:, copies][paid], 1.0)
                self._add(rows, y[paid], -1.0)

    def _table(self, table: Classes) -> None:
        start = self._add_columns(table.seconds)
        y = start + np.arange(table.seconds.size).reshape(table.seconds.shape)
        for axis, (node, classes) in enumerate(zip(table.nodes, table.of, strict=True)):
            self._agree(np.moveaxis(y, axis, 0).reshape(y.shape[axis], -1), node, classes)

    def _agree(self, y: Index, node: int, places: Index) -> None:
        """What flows through each row is whether the node has chosen it."""
        start = self._add_rows(len(y), 0.0, 0.0) + np.arange(len(y))
        self._add(np.repeat(start, y.shape[1]), y, 1.0)
        columns = self.first[node] + np.arange(self.sizes[node])
        self._add(start[places], columns, -1.0)

    # ---- the solver ------------------------------------------------------------------------------

    def solve(self, limit: float) -> tuple[dict[int, int], float]:
        """A choice for each node, and by how many microseconds it may be from the best."""
        from highspy._core import HighsVarType, _Highs  # `highspy.Highs` greets on standard output

        solver = _Highs()
        _set(solver, OPTIONS)
        model = self._model()
        solver.setOptionValue("simplex_iteration_limit", STEPS)
        values = self._run(solver, model)
        if values is None:
            _set(solver, INTERIOR)
            values = self._run(solver, model)
        if values is None:
            raise CompilerBug("the solver found no plan in its limit of steps")
        if np.all(np.abs(values - np.round(values)) < WHOLE):
            return self._chosen(values), 0.0
        continuous = self.columns - self.whole
        model.integrality_ = ([HighsVarType.kInteger] * self.whole
                              + [HighsVarType.kContinuous] * continuous)
        _set(solver, INTEGER_OPTIONS | {"time_limit": limit, "simplex_iteration_limit": 2**31 - 1})
        values = self._run(solver, model)
        assert values is not None, "the integer search has no limit of steps"
        info = solver.getInfo()
        return self._chosen(values), max(0.0, info.objective_function_value - info.mip_dual_bound)

    def _model(self) -> Any:
        from highspy._core import HighsLp, MatrixFormat

        rows, columns, values = (np.concatenate(part) for part in zip(*self.entries, strict=True))
        order = np.lexsort((columns, rows))
        costs = np.concatenate(self.costs)
        possible = np.isfinite(costs)
        model = HighsLp()
        model.num_col_, model.num_row_ = self.columns, self.rows
        model.col_cost_ = np.where(possible, costs, 0.0)
        model.col_lower_, model.col_upper_ = np.zeros(self.columns), np.where(possible, 1.0, 0.0)
        model.row_lower_, model.row_upper_ = np.concatenate(self.lower), np.concatenate(self.upper)
        model.a_matrix_.format_ = MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.searchsorted(rows[order], np.arange(self.rows + 1))
        model.a_matrix_.index_ = columns[order]
        model.a_matrix_.value_ = values[order]
        return model

    def _run(self, solver: Any, model: Any) -> Matrix | None:
        """The values of x at the optimum, or the best found in time; None at the limit of steps."""
        solver.passModel(model)
        solver.run()
        values = np.array(solver.getSolution().col_value[: self.whole])
        status = solver.modelStatusToString(solver.getModelStatus())
        if status == "Iteration limit reached":
            return None
        if len(values) < self.whole or status not in ("Optimal", "Time limit reached"):
            raise CompilerBug(f"the solver found no plan: {status}")
        return values

    def _chosen(self, values: Matrix) -> dict[int, int]:
        return {
            node: int(np.argmax(values[start : start + self.sizes[node]]))
            for node, start in self.first.items()}


def _set(solver: Any, options: Mapping[str, object]) -> None:
    for name, value in options.items():
        solver.setOptionValue(name, value)
