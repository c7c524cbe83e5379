"""Show what this machine offers and whether all that Anabranch needs of it works.

Every line is something that was tried or read just now. Exit code 1 if anything is a problem.
It imports what it examines only when it examines it: a broken installation is what it is for.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from anabranch import __version__

if TYPE_CHECKING:
    from anabranch.runtime.blas import Blas

REQUIRED = ("numpy", "sympy", "lark", "highspy", "rich", "safetensors")
OPTIONAL = {"torch": "torch arrays, torchrun, library kernels", "triton": "kernels for GPUs"}
COLOURS = {"ok": 32, "note": 33, "problem": 31}  # of a terminal: green, yellow, red

TOLERANCE = 1e-4  # of the self-test, in f32
PROBE = "int anabranch_doctor_probe(int x) { return 7 * x; }"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: ok, note (something optional is missing) or problem."""

    topic: str
    verdict: str
    text: str


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON list")


def run(args: argparse.Namespace) -> int:
    findings = [finding for check in CHECKS for finding in examine(check)]
    if args.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings]))
    else:
        print(report(findings, colour=sys.stdout.isatty()))
    return 1 if any(finding.verdict == "problem" for finding in findings) else 0


def examine(check: Check) -> Iterator[Finding]:
    """What a check finds; that it cannot be carried out is a finding too."""
    try:
        yield from check()
    except Exception as failure:
        yield Finding(check.__name__, "problem", f"{type(failure).__name__}: {failure}")


def report(findings: list[Finding], *, colour: bool) -> str:
    width = max(len(finding.topic) for finding in findings)
    return "\n".join(
        f"{finding.topic:{width}}  {verdict_text(finding.verdict, colour=colour)}  {finding.text}"
        for finding in findings
    )


def verdict_text(verdict: str, *, colour: bool) -> str:
    padded = f"{verdict:7}"
    return f"\033[{COLOURS[verdict]}m{padded}\033[0m" if colour else padded


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


def kernels() -> Iterator[Finding]:
    """The whole way of a kernel: compiler, cache, loading, the thread pool and BLAS."""
    from anabranch.runtime import build, native

    toolchain = build.find_toolchain()
    if toolchain is None:
        yield Finding("C compiler", "note", "none: kernels are interpreted, slowly; install cc, "
                      "clang or gcc, or pip install ziglang")
        return
    yield Finding("cache", "ok", cache_contents(toolchain.folder))
    yield try_compiler(" ".join(toolchain.command))
    yield blas(native.load_pool(toolchain).blas)


def try_compiler(command: str) -> Finding:
    """Compile, load and call a function, past the cache."""
    from anabranch.runtime import build, native

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        toolchain = build.find_toolchain(cache=Path(folder))
        (library,) = build.build(toolchain, "", [PROBE]) if toolchain else (None,)
        answer = native.load(library).anabranch_doctor_probe(6) if library else None
    took = time.perf_counter() - began
    if answer != 42:
        return Finding("C compiler", "problem", f"{command}: a probe gave {answer} instead of 42")
    return Finding("C compiler", "ok", f"{command}, a probe compiled and ran in {took:.2f} s")


def cache_contents(folder: Path) -> str:
    libraries = list((folder / "objects").glob("*.so"))
    size = sum(library.stat().st_size for library in libraries) / 2**20
    return f"{folder}, {len(libraries)} libraries, {size:.1f} MiB"


def blas(found: Blas | None) -> Finding:
    if found is None:
        return Finding("BLAS", "note", "NumPy's exports no cblas_sgemm: products go through NumPy")
    name = f"{found.prefix}cblas_sgemm{found.suffix}"
    return Finding("BLAS", "ok", f"NumPy's, by pointer: {name}, {found.index_bits}-bit sizes")


def self_test() -> Iterator[Finding]:
    """A small program through compiler and runtime, against the reference evaluator."""
    from anabranch.selftest import deviation

    began = time.perf_counter()
    found = deviation()
    verdict = "ok" if found < TOLERANCE else "problem"
    yield Finding("self-test", verdict, "a program compiled for 2 ranks and run: within "
                  f"{found:.0e} of what it means, in {time.perf_counter() - began:.1f} s")


Check = Callable[[], Iterator[Finding]]
CHECKS: tuple[Check, ...] = (versions, devices, kernels, self_test)
