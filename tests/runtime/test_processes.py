"""Two processes over Gloo do what two threads do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anabranch.runtime.session import Session
from tests.ports import free_port
from tests.runtime.collectives import channel, examples, inputs, transfer_plan
from tests.runtime.models import WIDTH, counter
from tests.runtime.worker import plain

pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]


Ended = list[subprocess.CompletedProcess[str]]


def run_pair(what: str, folder: Path, ranks: int = 2) -> Ended:
    """Both processes, or more, as torchrun would start them."""
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-m", "tests.runtime.worker", what, str(folder)]
    started = [
        subprocess.Popen(
            command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]  # fmt: skip
    ended = []
    for process in started:
        try:
            out, err = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        ended.append(subprocess.CompletedProcess(command, process.returncode, out, err))
    return ended


def seconds_together(folder: Path) -> float:
    """Since the last of the processes was there: how long a start takes is the machine's affair."""
    return time.time() - max(path.stat().st_mtime for path in folder.glob("*.there"))


def found(folder: Path, rank: int) -> Any:
    return json.loads((folder / f"{rank}.json").read_text())


@pytest.fixture(scope="module")
def under_torchrun(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What both ranks of a healthy run report; one start for all tests of it."""
    folder = tmp_path_factory.mktemp("healthy")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    command += ["--master_port", str(free_port()), "-m", "tests.runtime.worker", "healthy"]
    done = subprocess.run(
        [*command, str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return [found(folder, rank) for rank in range(2)]


def test_every_transfer_gives_the_bits_that_threads_give(under_torchrun: list[Any]) -> None:
    every = [*examples(2), channel("f32", 5), channel("bf16", 0)]
    for i, parts in enumerate(every):
        with Session(transfer_plan(parts)) as session:
            by_threads = plain(session.step("train", inputs(parts, seed=1)))
        by_processes = [rank["collectives"][i] for rank in under_torchrun]
        assert by_processes == [by_threads, by_threads], parts[0]


def test_training_gives_the_bits_that_threads_give(under_torchrun: list[Any]) -> None:
    """The reader runs dry in the middle, and both processes stop at the same step."""
    (done, losses), other = (rank["train"] for rank in under_torchrun)
    assert [done, losses] == other
    assert done == 17
    expected: list[Any] = []
    with Session(counter(2)) as session:
        for step in [*range(17), 0]:
            x = np.random.default_rng(step).normal(size=(2, WIDTH))
            expected.append(plain(session.step("train", {"x": x})))
        expected.append(plain(session.step("eval")))
    assert losses[:-2] == expected
    assert losses[-1] == plain({"w": np.arange(WIDTH, dtype=float)})


def test_interrupted_processes_stop_at_the_same_step(under_torchrun: list[Any]) -> None:
    (raised, state), other = (rank["interrupted"] for rank in under_torchrun)
    assert [raised, state] == other
    assert raised
    assert 2 * 3 <= state[0] <= 2 * 10


def test_a_failure_in_one_process_reaches_the_other_with_its_reason(tmp_path: Path) -> None:
    for process in run_pair("planted", tmp_path):
        assert process.returncode == 0, process.stderr
    assert seconds_together(tmp_path) < 30
    for rank in range(2):
        message = found(tmp_path, rank)
        assert "hand.ab:40: error: index 12 is outside 0..9, in embedding table[ids]" in message


def test_a_killed_process_ends_the_other_with_an_error(tmp_path: Path) -> None:
    alive, dead = run_pair("killed", tmp_path)
    assert seconds_together(tmp_path) < 30
    assert (alive.returncode, dead.returncode) == (0, 9), alive.stderr
    message = found(tmp_path, 0)
    assert "gone" in message or "cannot meet" in message or "silent" in message


def test_a_mistake_in_the_reader_of_one_rank_ends_all_with_its_name_and_words(
    tmp_path: Path,
) -> None:
    """Nobody handles it: every process fails soon, and only its own shows the line of the user."""
    ended = run_pair("raising", tmp_path, ranks=4)
    assert seconds_together(tmp_path) < 30
    for rank, process in enumerate(ended):
        assert process.returncode == 1, process.stderr
        assert process.stderr.count('raise ValueError("boom")') == (rank == 2)
        assert rank == 2 or "process 2 failed: ValueError: boom" in process.stderr


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What both processes say of programs and checkpoints that are not the same for both."""
    folder = tmp_path_factory.mktemp("refused")
    for process in run_pair("refused", folder):
        assert process.returncode == 0, process.stderr
    return [found(folder, rank) for rank in range(2)]


def test_processes_that_were_given_different_programs_say_where_they_differ(
    refused: list[Any],
) -> None:
    """Other parameters, other sizes, another call: on both, at once, with the first of them."""
    messages, others = (rank["different"] for rank in refused)
    assert messages == others
    assert all("the processes were given different programs" in each for each in messages)
    for message, words in zip(messages, (
        ["process 1 has the parameter extra, f32[3] @ B"],
        ["the parameter w, f32[3] @ B", "where process 1 has the parameter w, f32[4] @ B"],
        ["on rank 0 in train, net.ab:7 loss"],
    ), strict=True):
        assert all(each in message for each in words), message


def test_a_checkpoint_that_one_process_cannot_read_is_refused_by_all(refused: list[Any]) -> None:
    """With the name of the file; and so is one that is not the same for all."""
    for rank in range(2):
        garbled, another = refused[rank]["unreadable"]
        assert "checkpoint.safetensors is not a checkpoint" in garbled
        assert ("process 1 cannot go on" in garbled) == (rank == 0)
        assert f"{rank}.safetensors is not the same checkpoint for all processes" in another
