"""The library against torch's samples of its operators and ONNX's tests of its nodes: one of each,
in value and gradient, whole and in parts. `python -m benchmarks.coverage` tries all of them."""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from benchmarks.oracles import contract, judge, nodes, samples
from benchmarks.oracles.cases import Case
from benchmarks.oracles.contract import ADAPTERS, NODES
from benchmarks.oracles.judge import Trial
from benchmarks.oracles.placements import Placement, placements
from benchmarks.oracles.wishes import NODE_TYPES, OPERATORS
from tests.library.examples import EXAMPLES
from tests.library.ops import OPS

# Draws and constants: test_functions.py and test_layers.py in tests/library judge them by their
# statistics.
WITHOUT_COUNTERPART = {"gumbel_softmax", "normal", "ones", "rrelu", "sample",
                       "trunc_normal", "uniform"}
AMONG = 12  # samples of an operator from which one is drawn
GROUPS = 6  # whose kernels are compiled together
infos = functools.cache(samples.entries)


def check(cases: Sequence[tuple[Case, Iterable[Placement]]]) -> None:
    """Every case is right: none is refused, and none is wrong."""
    trials: list[Trial] = [judge.prepare(case, laid) for case, laid in cases]
    judge.compile_kernels(trials)
    verdicts = {trial.case.name: judge.conclude(trial) for trial in trials}
    assert {n: f"{v.kind}: {v.message}" for n, v in verdicts.items() if v.kind != "right"} == {}


def test_every_adapter_is_of_an_operator_that_torch_has_samples_of() -> None:
    assert ADAPTERS.keys() - infos().keys() == set()
    assert set(OPERATORS) - infos().keys() == set()


def test_every_node_adapter_is_of_a_node_that_onnx_has_tests_of() -> None:
    assert NODES.keys() - nodes.tests().keys() == set()
    assert set(NODE_TYPES) - nodes.tests().keys() == set()


def test_every_op_of_the_library_is_judged_by_someone_else() -> None:
    """By an adapter that speaks of it, or by the function of PyTorch that an example names."""
    folder = Path(contract.__file__).parent
    adapters = [*folder.glob("adapters_*.py"), *folder.glob("nodes_*.py")]
    spoken = set(re.findall(r"\w+", " ".join(path.read_text("utf-8") for path in adapters)))
    judged = spoken | {example.op for example in EXAMPLES}
    assert set(OPS) - judged - WITHOUT_COUNTERPART == set()


@pytest.mark.parametrize("group", range(GROUPS))
def test_operators_agree_with_torch(group: int) -> None:
    found = []
    for name in sorted(ADAPTERS)[group::GROUPS]:
        case = samples.first(name, infos()[name], AMONG)
        if case is not None:
            found.append((case, placements(case.operands, zlib.crc32(name.encode()), 2)))
    assert len(found) > 5
    check(found)


@pytest.mark.parametrize("group", range(2))
def test_nodes_agree_with_onnx(group: int) -> None:
    found = []
    for kind in sorted(NODES)[group::2]:
        cases = [case for case in nodes.cases(kind) if isinstance(case, Case)]
        if cases:
            case = cases[zlib.crc32(kind.encode()) % len(cases)]
            found.append((case, nodes.placements(case)[:1]))
    assert len(found) > 5
    check(found)
