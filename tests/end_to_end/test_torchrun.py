"""`torchrun -m anabranch train` with a rank a process is the run whose ranks are threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.end_to_end.conftest import TINY, Train
from tests.end_to_end.test_train import curve
from tests.ports import free_port

pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]


def torchrun(processes: int, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes),
               "--master_port", str(free_port()), "-m", "anabranch", "train", *arguments]
    return subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True, timeout=200, check=False)


def by_processes(processes: int, folder: Path, corpus: Path, *arguments: str) -> dict[str, Any]:
    done = torchrun(processes, folder, str(TINY), "--data", str(corpus), "--json", *arguments)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 1, "the first process alone prints"
    report: dict[str, Any] = json.loads(lines[0])
    return report


@pytest.mark.parametrize("mesh", ["data=2", "stage=2", "data=2,stage=2"])
def test_processes_compute_what_threads_do(
    trained: Train, workplace: Path, corpus: Path, mesh: str
) -> None:
    """In member order, hence bit for bit; and what they saved resumes as threads."""
    ranks = 2 ** mesh.count("=2")
    options = ("--mesh", mesh, "--micro", "2")
    threads = trained(*options, "--name", "threads")
    processes = by_processes(ranks, workplace, corpus, *options, "--name", "processes")
    assert curve(processes) == curve(threads)
    assert processes["val_loss"] == threads["val_loss"]
    if ranks == 2:
        longer = trained(*options, "--resume", processes["checkpoint"], "--steps", "14")
        np.testing.assert_array_equal(curve(longer)[:12], curve(threads))


def test_a_mistake_is_told_once(workplace: Path, corpus: Path) -> None:
    done = torchrun(2, workplace, str(TINY), "--data", str(corpus), "--mesh", "data=3")
    assert done.returncode != 0
    assert done.stderr.count("the mesh data=3 has 3 ranks, and there are 2 processes") == 1


def test_what_one_process_cannot_read_it_tells_and_all_end(
    workplace: Path, corpus: Path
) -> None:
    """Each on a machine of its own, with its own files; the others neither go on nor hang."""
    port = free_port()
    command = [sys.executable, "-m", "anabranch", "train", str(TINY), "--data", "here/corpus.txt",
               "--mesh", "data=2", "--steps", "4"]
    started = []
    for rank in range(2):
        folder = workplace / str(rank) / "here"
        folder.mkdir(parents=True)
        if rank == 0:
            (folder / "corpus.txt").write_bytes(corpus.read_bytes())
        job = {"WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank),
               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": str(ROOT)}
        started.append(subprocess.Popen(command, cwd=folder.parent, env=os.environ | job,
                                        text=True, stderr=subprocess.PIPE))
    try:
        told = [process.communicate(timeout=200)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [1, 1]
    assert "error" not in told[0]
    assert "here/corpus.txt is neither a file nor a folder" in told[1]
    assert "Traceback" not in told[1]
