"""Kernels: compiled once, trusted, cut the same way for any number of cores."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from anabranch.ir.plan import Arg, Kernel, Launch, Plan, Port, Source, Use, float_arg
from anabranch.runtime import build
from anabranch.runtime.arrays import STORAGE
from anabranch.runtime.build import find_toolchain, private_folder
from anabranch.runtime.errors import BuildError, RuntimeFailure
from anabranch.runtime.native import load_pool
from anabranch.runtime.session import Session
from tests.runtime.hand import KERNEL, Builder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("ANABRANCH_CACHE", str(folder))
    return folder


def product_plan(
    dtype: str, ints: list[int], sizes: tuple[int, int, int], alpha: float, beta: float
) -> Plan:
    """c <- gemm(a, b, c), where c is a state."""
    b = Builder()
    given = [b.value(name, n, dtype=dtype) for name, n in zip("abc", sizes, strict=True)]
    shown = b.value("shown", sizes[2], dtype=dtype)
    b.state("c", given[2], 0)
    io, cpu, out = b.stream(0, "io"), b.stream(0), b.stream(0, "io")
    feed, chain, fetch = (
        b.actor("feed", io, "feed"),
        b.actor("gemm", cpu),
        b.actor("f", out, "fetch"),
    )
    registers = [b.register(value, feed, Use(chain)) for value in given[:2]]
    registers.append(b.state_register("c", 0, chain, Use(chain, donate=True)))
    result = b.register(shown, chain, Use(fetch))
    pointers = tuple(Arg("reg", r) for r in registers)
    numbers = tuple(Arg("int", i) for i in ints)
    scalars = (float_arg(alpha), float_arg(beta))
    b.launch(chain, Launch(0, (*pointers, *numbers, *scalars), tiles=-1))
    identity = [1, sizes[2], 1, 1, sizes[2], sizes[2], 0, 0, 1, 1, 1, 1, *[0] * 12]
    one = b.register(b.value("one", 1, dtype=dtype), feed, Use(chain))
    copy = tuple(Arg("reg", r) for r in (one, registers[2], result))
    copied = (*copy, *(Arg("int", i) for i in identity), float_arg(1.0), float_arg(0.0))
    b.launch(chain, Launch(0, copied, tiles=-1))
    fed = [*zip("ab", given, registers, strict=False), ("one", len(b.values) - 1, one)]
    b.feeds += [Port(name, value, (register,)) for name, value, register in fed]
    b.fetches.append(Port("shown", shown, (result,)))
    return replace(b.plan(), kernels=(Kernel(0, "library", f"ab_gemm_{dtype}"),))


def numbers(random: np.random.Generator, count: int, dtype: str) -> NDArray[Any]:
    return random.integers(-4, 5, count).astype(STORAGE[dtype])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("transposed", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("shape", [(3, 5, 4), (1, 1, 1), (7, 2, 0), (0, 3, 2), (400, 300, 130)])
@pytest.mark.parametrize("python", [False, True])
def test_a_product_is_that_of_numpy(
    dtype: str, transposed: tuple[int, int], shape: tuple[int, int, int], python: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A batch of 2 x 3 products; A has no second batch dimension. C = 2 A B - C."""
    (m, n, k), (ta, tb) = shape, transposed
    lda, ldb = (m if ta else k), (k if tb else n)
    ints = [m, n, k, lda, ldb, n, ta, tb, 2, 3, 1, 1]
    ints += [m * k, 0, 0, 0, 3 * k * n, k * n, 0, 0, 3 * m * n, m * n, 0, 0]
    sizes = (2 * m * k, 6 * k * n, 6 * m * n)
    random = np.random.default_rng(0)
    a, b, c = (numbers(random, size, dtype) for size in sizes)
    if python:
        monkeypatch.setenv("ANABRANCH_CC", "none")
    with Session(product_plan(dtype, ints, sizes, 2.0, -1.0)) as session:
        session.set_state("c", c)
        got = session.step("train", {"a": a, "b": b, "one": np.ones(1)})["shown"]
    left = a.reshape(2, 1, *((k, m) if ta else (m, k)))
    right = b.reshape(2, 3, *((n, k) if tb else (k, n)))
    left, right = (left.swapaxes(2, 3) if ta else left), (right.swapaxes(2, 3) if tb else right)
    expected = 2 * (left @ right) - c.reshape(2, 3, m, n)
    np.testing.assert_array_equal(got.reshape(2, 3, m, n), expected)


def marking(tiles: int) -> Plan:
    b = Builder()
    y = b.value("y", tiles)
    cpu, out = b.stream(0), b.stream(0, "io")
    chain, fetch = b.actor("mark", cpu), b.actor("fetch", out, "fetch")
    register = b.register(y, chain, Use(fetch))
    zero = (Arg("reg", register), Arg("int", tiles), Arg("int", 0), float_arg(0.0))
    marks = Launch(KERNEL["mark"], (Arg("reg", register),), tiles=tiles, tile_scratch=64)
    b.launch(chain, Launch(KERNEL["put"], zero), *[marks] * 50)
    b.fetches.append(Port("y", y, (register,)))
    return b.plan()


@pytest.mark.parametrize("cores", [1, 2, 5])
@pytest.mark.parametrize("tiles", [1, 2, 7, 1000])
def test_every_tile_runs_once_on_any_number_of_cores(cores: int, tiles: int) -> None:
    """Each of 50 launches adds tile + 1 to its element; a tile run twice or never would show."""
    with Session(marking(tiles), cores=cores) as session:
        for _ in range(20):
            got = session.step("train")["y"]
            np.testing.assert_array_equal(got, 50.0 * np.arange(1, tiles + 1))


def test_ranks_that_run_at_once_share_the_pool() -> None:
    """Four chains at a time on three cores: helpers go from one to the other."""
    b = Builder(4)
    for rank in range(4):
        cpu, out = b.stream(rank), b.stream(rank, "io")
        chain, fetch = b.actor("mark", cpu), b.actor("fetch", out, "fetch")
        register = b.register(b.value(f"y{rank}", 64), chain, Use(fetch))
        zero = (Arg("reg", register), Arg("int", 64), Arg("int", 0), float_arg(0.0))
        marks = Launch(KERNEL["mark"], (Arg("reg", register),), tiles=64, tile_scratch=64)
        b.launch(chain, Launch(KERNEL["put"], zero), *[marks] * (20 + rank))
        b.fetches.append(Port(f"y{rank}", rank, (register,)))
    with Session(b.plan(), cores=3) as session:
        for _ in range(100):
            for rank in range(4):
                got = session.step("train")[f"y{rank}"]
                np.testing.assert_array_equal(got, (20.0 + rank) * np.arange(1, 65))


def test_a_launch_over_an_empty_shard_does_nothing() -> None:
    plan = marking(3)
    actor = plan.programs[0].actors[0]
    empty = tuple(replace(x, tiles=0) if x.tile_scratch else x for x in actor.launches)
    program = replace(
        plan.programs[0], actors=(replace(actor, launches=empty), plan.programs[0].actors[1])
    )
    with Session(replace(plan, programs=(program,))) as session:
        assert session.step("train")["y"].tolist() == [0, 0, 0]


def test_kernels_are_compiled_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Session(marking(2)).close()
    monkeypatch.setattr(build, "_compile", None)
    with Session(marking(2)) as session:
        assert session.step("train")["y"].tolist() == [50, 100]


def test_a_damaged_library_is_compiled_again(cache: Path) -> None:
    Session(marking(2)).close()
    libraries = list((cache / "objects").glob("*.so"))
    for library in libraries:
        library.unlink()
        library.write_bytes(b"\x7fELF damaged")
    load_pool.cache_clear()
    with Session(marking(2)) as session:
        assert session.step("train")["y"].tolist() == [50, 100]
    assert all(build._is_whole(library) for library in libraries)
    assert len(libraries) == 2


def test_a_cache_that_others_may_write_to_is_refused(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(BuildError, match="others may write to the cache"):
        Session(marking(2))


def test_the_cache_is_made_for_the_user_alone(cache: Path) -> None:
    Session(marking(2)).close()
    assert {part.stat().st_mode & 0o777 for part in (cache, cache / "objects")} == {0o700}


def test_a_text_that_does_not_compile_shows_what_the_compiler_said(cache: Path) -> None:
    plan = replace(marking(2), sources=(Source("broken", "c", "void put(void) { nonsense }"),))
    with pytest.raises(BuildError, match="nonsense") as refused:
        Session(plan)
    kept = next(word for word in str(refused.value).split() if word.endswith(".c:"))
    assert "nonsense" in Path(kept.rstrip(":")).read_text()


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077])
def test_no_umask_makes_a_cache_that_is_refused(cache: Path, umask: int) -> None:
    usual = os.umask(umask)
    try:
        find_toolchain()
        private_folder(cache)
    finally:
        os.umask(usual)


def test_a_cache_that_cannot_be_made_is_told_of(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.touch()
    monkeypatch.setenv("ANABRANCH_CACHE", str(cache / "below"))
    with pytest.raises(BuildError, match=r"below cannot be written to \(Not a directory\): set"):
        Session(marking(2))


def test_a_user_without_a_home_has_to_say_where_the_cache_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ANABRANCH_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 987654321)
    with pytest.raises(RuntimeFailure, match="no home folder: set ANABRANCH_CACHE"):
        Session(marking(2))


def test_a_full_disk_is_told_of_and_leaves_nothing_half_done(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(BuildError, match=r"\(No space left on device\): set ANABRANCH_CACHE"):
            Session(marking(2))
    assert [path for path in cache.rglob("*") if path.is_file()] == []
    with Session(marking(2)) as session:
        assert session.step("train")["y"].tolist() == [50, 100]


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_text_may_have_any_letters_in_any_locale(cache: Path) -> None:
    text = "int größe; /* 大きさ */"
    code = ("from anabranch.runtime.build import build, find_toolchain\n"
            f"print(build(find_toolchain(), '', [{text!a}])[0])")
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | ascii_only, text=True,
                          capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert text in Path(done.stdout.strip()).with_suffix(".c").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("script", "message"),
    [("exit 1", "said nothing"), ("exit 0", "it made no library"),
     ('while [ "$1" != -o ]; do shift; done; echo nonsense >"$2"', "cannot be loaded")],
)
def test_a_compiler_that_does_not_do_its_work_is_told_of(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("ANABRANCH_CC", str(compiler))
    with pytest.raises(BuildError, match=message):
        Session(marking(2))


def test_a_compiler_that_cannot_be_started_is_told_of(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("\0")
    compiler.chmod(0o755)
    monkeypatch.setenv("ANABRANCH_CC", str(compiler))
    with pytest.raises(BuildError, match="cc cannot be started: Exec format error"):
        Session(marking(2))


def test_a_number_of_threads_that_is_none_is_told_of(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_THREADS", "many")
    with pytest.raises(RuntimeFailure, match="ANABRANCH_THREADS is an integer, not 'many'"):
        Session(marking(2))


def test_units_are_shared_out_by_length() -> None:
    groups = build._balanced({"a": "x" * 90, "b": "x" * 50, "c": "x" * 40}, 2)
    assert [sorted(group) for group in groups] == [["a"], ["b", "c"]]


def test_a_packaged_compiler_is_found_where_there_is_no_other(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in that is called as the package is: `zig cc ...`."""
    package = tmp_path / "ziglang"
    package.mkdir()
    (package / "__init__.py").touch()
    program = package / "zig"
    program.write_text(f'#!/bin/sh\n[ "$1" = cc ] && shift && exec {shutil.which("cc")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.delenv("ANABRANCH_CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.syspath_prepend(tmp_path)
    found = find_toolchain()
    assert found is not None
    assert found.command[:2] == (str(program), "cc")
    with Session(marking(2)) as session:
        assert session.step("train")["y"].tolist() == [50, 100]


def doubling(source: str) -> Any:
    """An interpreter for the tests: the body is the factor."""

    def run(ints: Any, floats: Any, buffers: Any) -> None:
        values = buffers[0][: 8 * ints[0]].view(np.float64)
        values *= float(source)

    return run


def test_a_reference_kernel_cuts_a_chain_and_joins_in() -> None:
    """put 3; double in Python; add to the output in C."""
    b = Builder()
    cpu, out = b.stream(0), b.stream(0, "io")
    b.scratch(cpu, 8 * 4)
    chain, fetch = b.actor("mixed", cpu), b.actor("fetch", out, "fetch")
    register = b.register(b.value("y", 4), chain, Use(fetch))
    b.fetches.append(Port("y", 0, (register,)))
    own, count = Arg("scratch", 0), Arg("int", 4)
    number = len(KERNEL)
    b.launch(
        chain,
        Launch(KERNEL["put"], (own, count, Arg("step"), float_arg(3.0))),
        Launch(number, (own, count)),
        Launch(KERNEL["add"], (Arg("reg", register), own, count, float_arg(0.0))),
    )
    plan = b.plan()
    plan = replace(
        plan,
        kernels=(*plan.kernels, Kernel(number, "reference", "double", 1)),
        sources=(*plan.sources, Source("double", "json", "2.0")),
    )
    with Session(plan, interpret=doubling) as session:
        assert session.step("train", step=1)["y"].tolist() == [8.0] * 4


def test_without_a_compiler_bodies_are_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_CC", "none")
    b = Builder()
    cpu, out = b.stream(0), b.stream(0, "io")
    chain, fetch = b.actor("double", cpu), b.actor("fetch", out, "fetch")
    b.state("w", b.value("w", 2), 0)
    state = b.state_register("w", 0, chain, Use(chain, donate=True), Use(fetch))
    b.fetches.append(Port("w", 0, (state,)))
    b.launch(chain, Launch(0, (Arg("reg", state), Arg("int", 2))))
    plan = replace(
        b.plan(),
        kernels=(Kernel(0, "c", "double", 0, body=1),),
        sources=(Source("c", "c", "void twice(void) {}"), Source("body", "json", "2.0")),
    )
    bare = replace(plan, kernels=(Kernel(0, "c", "double", 0),))
    with (
        pytest.raises(BuildError, match="can run kernel double: it needs a C compiler"),
        pytest.warns(UserWarning, match="no C compiler was found"),
    ):
        Session(bare)
    with pytest.warns(UserWarning, match="no C compiler was found"):
        session = Session(plan, interpret=doubling)
    with session:
        session.set_state("w", [1.0, 2.0])
        session.step("train")
        assert session.state("w").tolist() == [2, 4]
