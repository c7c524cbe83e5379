"""`anabranch doctor` reports what is there, and fails only for what is needed."""

from __future__ import annotations

import json

import pytest

from anabranch.cli import doctor, main
from anabranch.cli.doctor import Finding


def test_doctor_is_content_where_the_tests_run(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    findings = json.loads(capsys.readouterr().out)
    assert [finding for finding in findings if finding["verdict"] == "problem"] == []
    assert code == 0
    assert {"python", "numpy", "cpu"} <= {finding["topic"] for finding in findings}


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
