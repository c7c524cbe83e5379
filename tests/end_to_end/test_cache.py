"""Plans come from the cache exactly when nothing they depend on has changed."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

import anabranch as ab
from anabranch import cache
from anabranch.runtime.errors import BuildError
from tests.end_to_end.conftest import TINY
from tests.measuring import cpu_seconds


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANABRANCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "plans"


def kept(folder: Path) -> int:
    return len(list(folder.glob("*.plan")))


def test_the_second_compilation_is_the_first_one_read_back(folder: Path) -> None:
    found = []
    first = ab.compile(ab.load(TINY).train, mesh=ab.Mesh(data=2))
    (path,) = folder.glob("*.plan")
    written = path.stat().st_ino
    assert cpu_seconds(lambda: found.append(
        ab.compile(ab.load(TINY).train, mesh=ab.Mesh(data=2)))) < 2
    assert found == [first]
    assert kept(folder) == 1
    assert path.stat().st_ino == written


def test_everything_a_plan_depends_on_makes_another(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ab.compile(ab.load(TINY).train)
    ab.compile(ab.load(TINY).train, mesh=ab.Mesh(data=2))
    ab.compile(ab.load(TINY).train, set={"drop": 0.0})
    ab.compile(ab.load(TINY).train, micro=2)
    ab.compile(ab.load(TINY).train, checked=False)
    assert kept(folder) == 5
    monkeypatch.setattr(cache, "compiler_digest", lambda: "another compiler")
    ab.compile(ab.load(TINY).train)
    assert kept(folder) == 6


def test_a_change_in_an_imported_file_makes_another_plan(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.ab"
    main = tmp_path / "main.ab"
    main.write_text("from other import twice\n\n"
                    "op four(x: f32[N]) -> f32[N]:\n    y = twice(twice(x))\n    return y\n")
    text = "op twice(x: f32[N]) -> f32[N]:\n    y[i] = 2.0 * x[i]\n    return y\n"
    other.write_text(text)
    first = ab.compile(ab.load(main).four, N=3)
    other.write_text(text.replace("2.0", "3.0"))
    assert ab.compile(ab.load(main).four, N=3) != first
    other.write_text(text)
    assert ab.compile(ab.load(main).four, N=3) == first
    assert kept(folder) == 2


def test_a_damaged_plan_is_made_again(folder: Path) -> None:
    first = ab.compile(ab.load(TINY).train)
    (path,) = folder.glob("*.plan")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert ab.compile(ab.load(TINY).train) == first
    assert path.read_bytes() == whole


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077])
def test_a_plan_and_its_kernels_share_a_cache_under_any_umask(folder: Path, umask: int) -> None:
    usual = os.umask(umask)
    try:
        with ab.Session(ab.compile(ab.load(TINY).softmax, I=[2], N=3)) as session:
            session(x=np.zeros((2, 3), np.float32))
    finally:
        os.umask(usual)


def test_a_plan_is_not_kept_where_others_may_write(folder: Path) -> None:
    folder.parent.mkdir()
    folder.parent.chmod(0o777)
    with pytest.raises(BuildError, match="others may write to the cache"):
        ab.compile(ab.load(TINY).train)


def test_a_cache_that_can_only_be_read_serves_and_says_what_it_lacks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    program = ab.load(TINY)
    first = ab.compile(program.softmax, I=[2], N=3)
    for name in ("touch", "unlink"):
        monkeypatch.setattr(Path, name, refuse)
    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    assert ab.compile(program.softmax, I=[2], N=3) == first
    with pytest.raises(BuildError, match=r"\(Read-only file system\): set ANABRANCH_CACHE"):
        ab.compile(program.softmax, I=[2], N=4)


def test_only_the_newest_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "KEPT", 2)
    program = ab.load(TINY)
    plans = [ab.compile(program.softmax, I=[2], N=n) for n in (3, 4, 5)]
    assert kept(folder) == 2
    assert ab.compile(program.softmax, I=[2], N=5) == plans[2]
    assert kept(folder) == 2


def test_a_mistake_in_a_program_is_all_that_its_traceback_shows(folder: Path) -> None:
    with pytest.raises(ab.UserError) as failure:
        ab.compile(ab.load(TINY).train, set={"no": 1})
    assert failure.value.__context__ is None
