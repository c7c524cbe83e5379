"""`anabranch doctor` reports what is there, and fails only for what is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anabranch.cli import doctor, main
from anabranch.cli.doctor import Finding


def test_doctor_is_content_where_the_tests_run(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    findings = json.loads(capsys.readouterr().out)
    assert [finding for finding in findings if finding["verdict"] == "problem"] == []
    assert code == 0
    assert {"python", "numpy", "cpu", "C compiler", "cache", "BLAS", "self-test"} <= {
        finding["topic"] for finding in findings
    }


def test_a_missing_optional_package_is_a_note_and_a_missing_required_one_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "REQUIRED", ("no-such-package-a",))
    monkeypatch.setattr(doctor, "OPTIONAL", {"no-such-package-b": "nothing"})
    verdicts = {finding.topic: finding.verdict for finding in doctor.versions()}
    assert verdicts["no-such-package-a"] == "problem"
    assert verdicts["no-such-package-b"] == "note"


def test_a_problem_gives_exit_code_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (lambda: iter([Finding("disk", "problem", "full")]),))
    assert main(["doctor"]) == 1
    assert "full" in capsys.readouterr().out


def test_a_machine_without_a_compiler_is_told_what_that_means(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANABRANCH_CC", "none")
    (finding,) = doctor.kernels()
    assert (finding.verdict, "slowly" in finding.text) == ("note", True)


def test_a_compiler_that_fails_is_a_problem_with_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho no such header >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("ANABRANCH_CC", str(broken))
    last = list(doctor.examine(doctor.kernels))[-1]
    assert (last.verdict, "no such header" in last.text) == ("problem", True)


def test_a_wrong_result_of_the_self_test_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.selftest.deviation", lambda: 0.5)
    (finding,) = doctor.self_test()
    assert (finding.topic, finding.verdict) == ("self-test", "problem")
    monkeypatch.setattr("anabranch.selftest.deviation", lambda: float("nan"))
    assert next(doctor.self_test()).verdict == "problem"
