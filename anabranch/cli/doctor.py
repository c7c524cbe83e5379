"""Show what this machine offers and whether all that Anabranch needs of it works.

Every line is something that was tried or read just now. Exit code 1 if anything is a problem.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.table import Table

from anabranch import __version__

REQUIRED = ("numpy", "sympy", "lark", "highspy", "rich", "safetensors")
OPTIONAL = {"torch": "torch arrays, torchrun, library kernels", "triton": "kernels for GPUs"}
COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: ok, note (something optional is missing) or problem."""

    topic: str
    verdict: str
    text: str


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON list")


def run(args: argparse.Namespace) -> int:
    findings = [finding for check in CHECKS for finding in check()]
    if args.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings]))
    else:
        Console().print(report(findings))
    return 1 if any(finding.verdict == "problem" for finding in findings) else 0


def report(findings: list[Finding]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for finding in findings:
        colour = COLOURS[finding.verdict]
        table.add_row(finding.topic, f"[{colour}]{finding.verdict}[/]", finding.text)
    return table


def versions() -> Iterator[Finding]:
    yield Finding("anabranch", "ok", f"{__version__} in {Path(__file__).parent.parent}")
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.platform()}")
    for package in REQUIRED:
        yield installed(package) or Finding(package, "problem", "not installed: pip install it")
    for package, use in OPTIONAL.items():
        yield installed(package) or Finding(package, "note", f"not installed (for {use})")


def installed(package: str) -> Finding | None:
    try:
        return Finding(package, "ok", version(package))
    except PackageNotFoundError:
        return None


def devices() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield Finding("cpu", "ok", f"{processor()}, {cores} cores for us, {memory:.1f} GiB")
    yield from gpus()


def processor() -> str:
    """The processor's name and its widest vectors, as Linux tells them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    facts = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    flags = facts.get("flags", facts.get("Features", "")).split()
    vectors = next((flag for flag in ("avx512f", "avx2", "avx", "asimd") if flag in flags), "")
    return f"{facts.get('model name', platform.machine()).strip()} {vectors}".strip()


def gpus() -> Iterator[Finding]:
    if find_spec("torch") is None:
        yield Finding("gpu", "note", "not looked for: torch is not installed")
        return
    import torch

    count = torch.cuda.device_count()
    for index in range(count):
        properties = torch.cuda.get_device_properties(index)
        memory = properties.total_memory / 2**30
        yield Finding(f"gpu {index}", "ok", f"{properties.name}, {memory:.0f} GiB")
    if count == 0:
        yield Finding("gpu", "note", f"torch {torch.__version__} sees none")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (versions, devices)
