"""C text to loaded code, through a cache that can be trusted.

Every unit (one text with its functions) has a key: the hash of everything its code depends on,
the text, what is put before it, flags, compiler and processor. The cache holds

    kernels/KEY        the name of the library that has the unit
    objects/HASH.so    a library, named by the hash of its own bytes, with its C text beside it

so one compilation can serve many units, and a damaged file never loads: its name gives it away.
Units that are missing are compiled together, in as many parallel translation units as there are
cores. Files appear whole (written aside, then renamed). The folder belongs to the user alone,
since what is in it gets executed; a folder others can write to is refused.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from anabranch.runtime import settings
from anabranch.runtime.errors import BuildError

# No -ffast-math: it would flush denormals in the whole process and break nan and -inf masks. Nor
# -fno-signed-zeros: GCC 12 then takes 0 * x for 0 in vectors, also where x is infinite or nan. The
# parameter is GCC's (clang passes it over): what GCC 12 makes of the last few elements of a loop
# may read before a tensor in spite of the condition around the read.
FLAGS = (
    "-O2", "-march=native", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=fast", "-fwrapv", "-fopenmp-simd", "-shared", "-fPIC",
    "--param=vect-epilogues-nomask=0",
)  # fmt: skip
COMPILERS = ("cc", "clang", "gcc")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A C compiler and the folder where what it made is kept."""

    command: tuple[str, ...]
    identity: str
    folder: Path

    def key(self, before: str, text: str) -> str:
        parts = [self.identity, " ".join(FLAGS), _processor(), before, text]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def find_toolchain(cache: Path | None = None) -> Toolchain | None:
    """The user's compiler, or None where there is none; the cache folder (the user's, or the one
    given) is checked."""
    command = _command(settings.compiler_command())
    if not command:
        return None
    folder = _kernel_folder(cache or settings.cache_folder())
    return Toolchain(command, _identity(command[0]), folder)


def _command(chosen: str) -> tuple[str, ...]:
    """How to call the compiler chosen, one on the path, or a packaged one; () if there is none."""
    if chosen == "none":
        return ()
    for name in (chosen,) if chosen else COMPILERS:
        path = shutil.which(name)
        if path:
            return (path,)
    if chosen:
        raise BuildError(f"ANABRANCH_CC names {chosen!r}, which is not a program on the path")
    return _packaged_command()


def _packaged_command() -> tuple[str, ...]:
    """The compiler that comes as the Python package ziglang, without the sanitizer it adds."""
    package = find_spec("ziglang")
    program = Path(package.origin).with_name("zig") if package and package.origin else None
    return (str(program), "cc", "-fno-sanitize=undefined") if program and program.is_file() else ()


def build(toolchain: Toolchain, before: str, texts: Sequence[str]) -> list[Path]:
    """The library of each text, in order; what the cache lacks is compiled first."""
    keys = [toolchain.key(before, text) for text in texts]
    missing = {k: t for k, t in zip(keys, texts, strict=True) if not _cached(toolchain.folder, k)}
    groups = _balanced(missing, settings.cores())
    with ThreadPoolExecutor(max_workers=max(1, len(groups))) as threads:
        list(threads.map(lambda group: _compile(toolchain, before, group), groups))
    found = [_cached(toolchain.folder, key) for key in keys]
    if not all(found):
        raise BuildError(f"the kernel cache {toolchain.folder} loses files while it is used")
    return [path for path in found if path]


def _cached(folder: Path, key: str) -> Path | None:
    """The library of a key, if it is there and whole."""
    entry = folder / "kernels" / key
    if not entry.is_file():
        return None
    library = folder / "objects" / f"{entry.read_text(encoding='utf-8')}.so"
    return library if library.is_file() and _is_whole(library) else None


def _is_whole(library: Path) -> bool:
    return _hash(library.read_bytes()) == library.stem


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _balanced(units: dict[str, str], count: int) -> list[dict[str, str]]:
    """Groups of about equal length of text, longest units first."""
    groups: list[dict[str, str]] = [{} for _ in range(min(count, len(units)))]
    for key, text in sorted(units.items(), key=lambda unit: -len(unit[1])):
        min(groups, key=lambda group: sum(map(len, group.values())))[key] = text
    return groups


def _compile(toolchain: Toolchain, before: str, units: dict[str, str]) -> None:
    text = "\n".join([before, *units.values()])
    objects, kernels = toolchain.folder / "objects", toolchain.folder / "kernels"
    with (
        writing_to(toolchain.folder),
        tempfile.TemporaryDirectory(dir=toolchain.folder, prefix="building.") as folder,
    ):
        source, library = Path(folder, "kernels.c"), Path(folder, "kernels.so")
        source.write_text(text, encoding="utf-8")
        said = _call([*toolchain.command, *FLAGS, "-o", str(library), str(source),
                      "-lpthread", "-lm"])
        if said is not None or not library.is_file():
            kept = objects / f"failed-{_hash(text.encode())[:16]}.c"
            os.replace(source, kept)
            raise BuildError(f"{' '.join(toolchain.command)} refused {kept}:\n"
                             f"{said or 'it made no library and said nothing'}")
        name = _hash(library.read_bytes())
        os.replace(source, objects / f"{name}.c")
        os.replace(library, objects / f"{name}.so")
        entry = Path(folder, "entry")
        for key in units:
            entry.write_text(name, encoding="utf-8")
            os.replace(entry, kernels / key)


def _call(command: Sequence[str]) -> str | None:
    """What a compiler says that fails, None if it does its work."""
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be started: {error.strerror}") from error
    return done.stderr.decode(errors="replace")[:4000] if done.returncode else None


def _kernel_folder(folder: Path) -> Path:
    for part in (folder, folder / "kernels", folder / "objects"):
        private_folder(part)
    return folder


def private_folder(folder: Path) -> Path:
    """The folder, made if need be; refused if anyone else could put something into it."""
    with writing_to(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    if status.st_uid != os.getuid():
        raise BuildError(f"the cache {folder} belongs to another user: set ANABRANCH_CACHE")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BuildError(f"others may write to the cache {folder}: chmod 700 it")
    return folder


@contextlib.contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """What the system refuses while a cache is written is told as that."""
    try:
        yield
    except OSError as error:
        raise BuildError(f"the cache {folder} cannot be written to ({error.strerror}): "
                         "set ANABRANCH_CACHE to a folder that can") from error


def _identity(compiler: str) -> str:
    """Changes when the compiler is replaced, without starting it."""
    real = os.path.realpath(compiler)
    status = os.stat(real)
    return f"{real} {status.st_size} {status.st_mtime_ns}"


@functools.cache
def _processor() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))
