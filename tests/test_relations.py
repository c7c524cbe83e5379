"""What is right for equal sizes only, where a signature names them apart, is a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.checking import check_program
from anabranch.cli import main
from anabranch.frontend.check import sample
from anabranch.frontend.program import load, loads
from anabranch.frontend.scope import LIBRARY
from anabranch.frontend.values import Function
from anabranch.relations import unsaid

TRANSPOSED = """op f(x: f32[N], w: f32[M, N]) -> f32[M]:
    y[m] = sum[n](w[n, m] * x[n])
    return y
"""

MISTAKEN = {
    "a transposed index": (TRANSPOSED, "N = M"),
    "a mean without keepdims": ("op f(x: f32[N, D]) -> f32[N, D]:\n"
                                "    return x - mean(x, axis=-1)\n", "N = D"),
    "a product with itself": ("def f(x: f32[N, D]) -> f32[N, D]:\n    return x @ x\n", "N = D"),
    "two pairs": ("op f(a: f32[A, B], b: f32[C, D]) -> f32[A, B]:\n"
                  "    y[i, j] = a[i, j] + b[i, j]\n    return y\n", "A = C, B = D"),
    "three": ("op f(a: f32[A], b: f32[B], c: f32[C]) -> f32[A]:\n"
              "    y[i] = a[i] + b[i] * c[i]\n    return y\n", "A = B = C"),
    "beside what is right": (
        "op f(x: T[*I, N], w: T[M, N], b: T[K], h: T[G, K]) -> T[*I, M]:\n"
        "    y[*i, m] = sum[n](w[m, n] * x[*i, n]) + b[m] + sum[g](h[g, m])\n"
        "    return y\n", "M = K"),
}

RIGHT = {
    "an assertion says it": "op f(x: f32[N], w: f32[M]) -> f32[N]:\n"
                            "    assert N == M, 'as many'\n    return x + w\n",
    "groups divide channels": "op f(x: f32[N, C], w: f32[G]) -> f32[N, G]:\n"
                              "    return sum(reshape(x, [N, G, C // G]), axis=2) * w\n",
    "a window fits": "op f(x: f32[N], w: f32[K]) -> f32[N - K + 1]:\n"
                     "    y[n < N - K + 1] = sum[k](x[n + k] * w[k])\n    return y\n",
    "a scale is broadcast": "op f(x: f32[N, D], w: f32[M]) -> f32[N, D]:\n    return x * w\n",
    "tables have lengths": "op f(w: f32[K, L]) -> f32[K, L]:\n"
                           "    y[n, m] = w[n, m] * [1, 2, 3][n] * [3, 4, 5][m]\n    return y\n",
    "many names": "op f(a: f32[A, B], b: f32[B, C], c: f32[C, D], d: f32[D, E]) -> f32[A, E]:\n"
                  "    return a @ b @ c @ d\n",
}


@pytest.mark.parametrize(("text", "relation"), MISTAKEN.values(), ids=MISTAKEN)
def test_sizes_that_must_be_equal_are_named_alike(text: str, relation: str) -> None:
    (report,) = check_program(loads(text, "f.ab"))
    (mistake,) = report.mistakes
    assert f"this holds only where {relation}: with " in mistake.message
    assert mistake.span is not None
    assert mistake.span.line == 2
    assert "alike in the signature" in mistake.help


def test_a_transposed_index_is_shown_where_unequal_sizes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f.ab"
    path.write_text(TRANSPOSED)
    assert main(["check", "--quiet", str(path)]) == 1
    assert ("f.ab:2:31: error: this holds only where N = M: with N = 5, M = 7, "
            "the index 'n' has two ranges: 7 and 5\n") in capsys.readouterr().err


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT)
def test_other_relations_of_sizes_are_no_mistakes(text: str) -> None:
    (report,) = check_program(loads(text, "f.ab"))
    assert report.mistakes == []


@pytest.mark.parametrize("path", [*Path(LIBRARY).glob("*.ab"),
                                  Path(__file__).parent / "frontend" / "ops.ab"],
                         ids=lambda path: path.stem)
def test_the_library_names_alike_what_is_equal(path: Path) -> None:
    """Told of all sizes being alike, it finds for each that they may differ."""
    program = load(path)
    for name in program.functions:
        function = program.scope.find(name)
        assert isinstance(function, Function)
        sizes = sample(function, (5,), 1)
        assert sizes is None or unsaid(function, sizes) is None, name
