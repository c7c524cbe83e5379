"""`anabranch check` tries what is derived, and finds what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anabranch import checking
from anabranch.checking import check_program
from anabranch.cli import main
from anabranch.frontend.program import loads
from anabranch.gradient_check import check_gradients
from anabranch.trials import small, usual

SOFTMAX = """
op soft(x: T[*I, N]) -> T[*I, N]:
    m[*i]    = max[n](x[*i, n])
    e[*i, n] = exp(x[*i, n] - stop(m[*i]))
    y[*i, n] = e[*i, n] / sum[n](e[*i, n])
    return y
"""


def op_of(text: str):
    program = loads(text, "op.ab")
    return program.scope.find(next(iter(program.functions)))


def test_sizes_do_not_divide_and_shards_are_empty() -> None:
    op = op_of(SOFTMAX)
    trial = usual(op)
    assert trial is not None
    assert all(n % 2 and n % 3 for a in trial.function.arguments for n in a.value.type.shape)
    shapes = [a.value.type.shape for each in small(op) for a in each.function.arguments]
    assert any(0 in shape for shape in shapes)
    assert any(0 < n < 3 for shape in shapes for n in shape)


def test_indices_are_drawn_from_their_tables() -> None:
    trial = usual(op_of("op pick(x: Int[N], t: T[V, D]) -> T[N, D]:\n"
                        "    y[n, d] = t[x[n], d]\n    return y\n"))
    ids, table = trial.arguments
    assert ids.max() < table.shape[0]


def test_a_stated_gradient_that_is_wrong_is_shown_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "square.ab"
    path.write_text("op square_(x: T[N]) -> T[N]:\n    z[n] = 2 * x[n]\n"
                    "    y[n] = stop(z[n] * z[n], grad=z[n]) + 1\n    return y\n")
    assert main(["check", str(path)]) == 1
    said = capsys.readouterr()
    assert "square.ab:3:12: error: along one direction of 'z' the derivative is" in said.err
    assert "           ^~~~~~~~~~~~~~~~~~~~~~~~~~~~\n" in said.err
    assert "op square_" in said.out


def test_a_stated_gradient_that_is_wrong_in_a_recurrence_is_the_users(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.ab"
    path.write_text("op wrong(x: f32[N]) -> f32[N]:\n"
                    "    y[n] = stop(y[n - 1, pad=1] * x[n], grad=y[n - 1, pad=1] + x[n])\n"
                    "    return y\n")
    assert main(["check", str(path)]) == 1
    error = capsys.readouterr().err
    assert "wrong.ab:2:12: error: along one direction of 'x' the derivative is" in error
    assert checking.STATED in error


SEVERAL = """
op a(x: T[N]) -> T[N]:
    z[n] = stop(x[n] * x[n], grad=x[n])
    y[n] = stop(z[n] * z[n], grad=z[n]) + 1
    return y

op b(x: T[N]) -> T[N]:
    y[n] = exp(z[n])
    return y

op c(x: T[N]) -> T[N]:
    y[n] = stop(exp(x[n]), grad=x[n]) * 0
    return y

op d(x: Float) -> Float:
    return stop(exp(x), grad=x)

def e(x: f32[N]) -> f32[N]:
    return stop(exp(x), grad=x)

model Net(dim: int):
    w: f32[dim] = zeros()

    def forward(x: f32[B, dim]) -> f32[B]:
        return stop(tanh(x @ w), grad=x @ w)

    def loss(x: f32[B, dim]) -> f32[]:
        return mean(forward(x))

train Net(dim=4):
    steps = 1
    data = arrays(batch=2)
    optimizer = sgd(lr=0.1)

train Lost(dim=4):
    steps = 1
"""


def test_one_mistake_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not one of a definition, not one of another statement, not the kind that comes first; and
    what a later statement multiplies by 0 is wrong all the same."""
    path = tmp_path / "several.ab"
    path.write_text(SEVERAL)
    assert main(["check", str(path)]) == 1
    said = capsys.readouterr()
    places = [line.split(": error: ")[0].split(":")[1] for line in said.err.splitlines()
              if ": error: " in line]
    assert sorted(map(int, places)) == [3, 4, 8, 12, 16, 19, 25, 35]
    assert "op b" not in said.out
    assert "'Lost' is not a model" in said.err


def test_the_gradient_is_shown_as_statements() -> None:
    (report,) = check_program(loads(SOFTMAX, "op.ab"))
    assert "  d.x[i0, i1, n] = d.e.1[i0, i1, n] * e[i0, i1, n]" in report.lines


def test_a_stated_gradient_that_is_right_is_not_a_mistake() -> None:
    trial = usual(op_of("op f(x: T[N]) -> T[N]:\n"
                        "    y[n] = stop(x[n] * x[n], grad=x[n] ** 2)\n    return y\n"))
    verdict = check_gradients(trial.function, trial.arguments)
    assert (verdict.fault, verdict.invented) == (None, ())


RIGHT = {
    "a table is read in each part": """op f(ids: Int[N], t: T[V, D]) -> T[N, D]:
    y[n, d] = stop(t[ids[n], d] ** 3, grad=3 * stop(t[ids[n], d] ** 2) * t[ids[n], d])
    return y""",
    "a sum is made in each part": """op f(x: T[*I, N], w: T[N]) -> T[*I]:
    y[*i] = stop(sum[n](x[*i, n] * w[n]) ** 2,
                 grad=2 * stop(sum[n](x[*i, n] * w[n])) * sum[n](x[*i, n] * w[n]))
    return y""",
    "the largest, by its place": """op f(x: T[I, N]) -> T[I]:
    k[i] = argmax[n](x[i, n])
    y[i] = stop(max[n](x[i, n]), grad=x[i, k[i]])
    return y""",
    "by the argument, not by what is made of it": """op f(x: T[*I, N]) -> T[*I]:
    m[*i]    = max[n](x[*i, n])
    z[*i]    = sum[n](exp(x[*i, n] - m[*i]))
    p[*i, n] = exp(x[*i, n] - m[*i]) / z[*i]
    y[*i]    = stop(log(z[*i]) + m[*i], grad=sum[n](stop(p[*i, n]) * x[*i, n]))
    return y""",
    "a recurrence, by what it multiplied": """op f(x: T[B, S]) -> T[B]:
    h[b, t] = x[b, t] * h[b, t - 1, pad=1]
    y[b]    = stop(h[b, S - 1], grad=sum[t](stop(h[b, S - 1] / x[b, t]) * x[b, t]))
    return y""",
    "by what is drawn nothing is asked": """op f(x: T[N], key: Key) -> T[N]:
    r[n < N] = rand(key)
    y[n]     = stop(x[n] ** 2 * r[n], grad=2 * stop(x[n]) * x[n] * r[n])
    return y""",
    "an argument may be called as what the runtime gives": """op f(seed: T[N], key: Key) -> T[N]:
    y[n] = seed[n] * rand(key)
    return y""",
    "large numbers beside small slopes": """op f(x: T[N], b: T[N]) -> T[N]:
    y[n] = stop(x[n] ** 8 + b[n], grad=8 * stop(x[n] ** 7) * x[n] + b[n])
    return y""",
}

WRONG = {
    "under a mask": """op f(x: f32[N], m: bool[N]) -> f32[N]:
    y[n] = stop(where(m[n], x[n] ** 3, 0), grad=3 * stop(x[n] ** 2) * x[n])
    return y""",
    "past a limit": """op f(x: T[N]) -> T[N]:
    y[n] = stop(clamp(x[n], -4.0, 4.0), grad=x[n])
    return y""",
    "at another place": """op f(x: T[N]) -> T[N]:
    v, i = sort(x)
    y[n] = stop(v[n] ** 2, grad=2 * stop(v[n]) * x[n])
    return y""",
    "at one place": """op f(x: T[N], w: T[N]) -> T[N]:
    y[n] = stop(x[n] * w[n], grad=stop(w[n]) * x[n] + where(n == 0, 0, stop(x[n]) * w[n]))
    return y""",
    "by what was rounded before": """op f(x: T[N]) -> T[N]:
    q[n] = stop(round(x[n]), grad=x[n])
    y[n] = stop(q[n] * x[n], grad=stop(q[n]) * x[n] + 0.5 * stop(x[n]) * q[n])
    return y""",
    "by one of two numbers made of one": """op f(x: T[*I, N], w: T[N]) -> T[*I]:
    y[*i] = stop(sum[n](x[*i, n] * w[n]) ** 2,
                 grad=2 * stop(sum[n](x[*i, n] * w[n])) * sum[n](x[*i, n] * stop(w[n])))
    return y""",
}


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT)
def test_what_a_right_gradient_is_written_with_does_not_matter(text: str) -> None:
    (report,) = check_program(loads(f"{text}\n", "f.ab"))
    assert report.mistakes == []


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_a_gradient_that_is_wrong_somewhere_is_found(text: str) -> None:
    (report,) = check_program(loads(f"{text}\n", "f.ab"))
    (mistake,) = report.mistakes
    assert "stop(" in text.splitlines()[mistake.span.line - 1]


@pytest.mark.parametrize(("factor", "lines"), [(2, []), (1.5, [7])])
def test_what_a_model_states_is_tried_with_numbers_that_go_together(
    factor: float, lines: list[int]
) -> None:
    reports = check_program(loads(f"""model Net(dim: int):
    layer: Linear(dim, dim)

    def loss(x: f32[B, dim]) -> f32[]:
        h = tanh(layer(x))
        m, k = max(h, axis=1), argmax(h, axis=1)
        y[i] = stop(m[i] ** 2, grad={factor} * stop(m[i]) * h[i, k[i]])
        return mean(y)

train Net(dim=5):
    steps = 1
    data = arrays(batch=2)
    optimizer = sgd(lr=0.1)
""", "net.ab"))
    assert [m.span.line for report in reports for m in report.mistakes] == lines


def test_a_gradient_for_what_has_none_is_mentioned_and_no_mistake() -> None:
    """The straight-through estimator: rounding has no derivative that a stated one could miss."""
    (report,) = check_program(loads(
        "op q(x: T[N]) -> T[N]:\n    r[n] = stop(round(4 * x[n]) / 4, grad=x[n])\n"
        "    y[n] = r[n] * r[n]\n    return y\n", "q.ab"))
    assert report.mistakes == []
    assert "line 2 gives a gradient to a value that has none" in report.lines


def test_a_derivative_is_stated_as_an_expression_that_has_it() -> None:
    """The derivative itself, where an expression is meant, is shown with what to write instead."""
    text = "op cube(x: T[N]) -> T[N]:\n    y[n] = stop(x[n] ** 3, grad={})\n    return y\n"
    (wrong,) = check_program(loads(text.format("3 * x[n] ** 2"), "cube.ab"))
    (mistake,) = wrong.mistakes
    assert (mistake.span.line, mistake.span.col) == (2, 12)
    assert "a derivative d by x is stated as grad=stop(d) * x" in mistake.help
    (right,) = check_program(loads(text.format("stop(3 * x[n] ** 2) * x[n]"), "cube.ab"))
    assert right.mistakes == []


@pytest.mark.parametrize("expression", [
    "stop(sign(x), grad=x)", "sigmoid(f32(x > 0))", "erfc(stop(x))", "sigmoid(ones([3]))",
    "stop(x, grad=2 * x)", "stop(stop(x), grad=stop(x))", "stop(i64(x), grad=i64(x)) * x",
])
def test_what_states_a_gradient_may_be_used_on_what_has_none(expression: str) -> None:
    loads(f"def f(x: f32[N, 3]) -> f32[N, 3]:\n    return {expression} + x\n", "f.ab")


def test_a_model_that_states_a_number_as_its_gradient_is_refused() -> None:
    """It would train nothing, and say nothing of it."""
    reports = check_program(loads(STACK.replace("mse(x, y)", "sum(stop(sign(table), grad=1))")))
    (mistake,) = [each for report in reports for each in report.mistakes]
    assert "no gradient comes of it" in mistake.message


def test_what_is_stopped_may_have_another_derivative() -> None:
    trial = usual(op_of("op f(x: T[N]) -> T[N]:\n"
                        "    y[n] = x[n] * stop(exp(x[n]))\n    return y\n"))
    assert check_gradients(trial.function, trial.arguments).fault is None


@pytest.mark.parametrize(("body", "why"), [
    ("return x, 1.0", "'f' does not give tensors only"),
    ("assert x.shape[0] == 600, 'many'\n    return x", "many (line 2)"),
    ("return x[6] if x.shape[0] < 6 else x[x.shape[0]]",
     "no arguments were found with which it gives tensors"),
])
def test_what_cannot_be_tried_says_why(body: str, why: str) -> None:
    (report,) = check_program(loads(f"def f(x: f32[N]):\n    {body}\n"))
    assert (report.lines, report.mistakes) == ([f"not tried: {why}"], [])


@pytest.mark.parametrize(("body", "notes"), [
    ("return reshape(x, [x.shape[0] + 1, 5])", ["tried with N = 5"]),
    ("return x @ zeros([4, 5])", ["tried with N = 5"]),
    ("return relu(x)[:, :4] + x", ["tried with N = 5"]),
    ("return x.item()", ["tried with N = 5"]), ("return x * 1.0, x", []), ("y = x + 1", []),
])
def test_what_no_sizes_make_right_is_a_mistake(body: str, notes: list[str]) -> None:
    _, reports = checking.check_file(f"def f(x: f32[N, 5]) -> f32[N, 5]:\n    {body}\n", "f.ab")
    (mistake,) = [each for report in reports for each in report.mistakes]
    assert mistake.span is not None
    assert [note.message for note in mistake.notes] == notes


def test_a_definition_is_tried_with_sizes_that_it_speaks_of() -> None:
    """Of lists, and of a split by a number that divides few others."""
    numbers = [*range(1, 14)]
    weighted, by_hand, turned = check_program(loads(
        f"op weighted(x: T[N]) -> T[N]:\n    y[n] = x[n] * {numbers}[n]\n    return y\n"
        "op by_hand(k: int) -> i64[k]:\n    y[i] = [2, 3, 5, 7, 11][i]\n    return y\n"
        "op turned(x: T[N]) -> T[N]:\n    y[(a, b < 7)] = x[(b, a)]\n    return y\n", "own.ab"))
    assert weighted.mistakes == by_hand.mistakes == turned.mistakes == []
    assert "tried with x: f32[13] -> f32[13]" in weighted.lines
    assert "tried with no arguments -> i64[5]" in by_hand.lines
    assert "tried with x: f32[7] -> f32[7]" in turned.lines


def test_what_differs_in_parts_is_a_mistake_of_its_statement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = checking.in_parts

    def off_by_one(op, operands, layouts, result, mesh, random, *, double):
        parts = known(op, operands, layouts, result, mesh, random, double=double)
        return parts + (result["axis"].kind == "P")

    monkeypatch.setattr(checking, "in_parts", off_by_one)
    (report,) = check_program(loads("op f(x: T[N]) -> T[N]:\n    y[n] = x[n] * 2\n    return y\n"))
    (mistake,) = report.mistakes
    assert "on 2 ranks, P -> P (carries P of operands 0)" in mistake.message
    assert mistake.span.line == 2


def test_mistakes_of_a_recipe_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.ab"
    path.write_text("""
model Net(dim: int):
    w: f32[dim] = zeros()

    def loss(x: f32[B, dim]) -> f32[]:
        return x @ w

train Net(dim=4):
    steps = 1
    data = arrays(batch=2)
    optimizer = sgd(lr=0.1)
""")
    assert main(["check", "--quiet", str(path)]) == 1
    assert "net.ab:" in capsys.readouterr().err


def test_wrong_slopes_are_told_from_right_ones_by_much() -> None:
    trial = usual(op_of(SOFTMAX))
    verdict = check_gradients(trial.function, trial.arguments)
    assert verdict.by == ("x",)
    assert verdict.error < 1e-6
    assert np.isfinite(verdict.error)


STACK = """
model Layer(n: int):
    up: Linear(n, n)
    buffer seen: f32[] = zeros()

    def forward(x: f32[B, n]) -> f32[B, n]:
        seen := seen + 1
        return x + relu(up(x))

model Stack(n: int, depth: int, words: int):
    table:  f32[words, n] = normal()
    layers: [Layer(n) for _ in range(depth)]

    def loss(word: i64[B, S], y: f32[B, n]) -> f32[]:
        x = mean(embedding(word, table), axis=1)
        for layer in layers:
            x = layer(x)
        return mse(x, y)

model Spare(n: int):
    w: f32[n] = ones()

train Stack(n=4, depth=3, words=10):
    steps = 1
    data = arrays(batch=8)
    optimizer = adamw(lr=0.1)
"""


def test_a_recipe_is_shown_with_what_its_model_holds_and_what_is_known_of_it() -> None:
    train, spare = check_program(loads(STACK))
    assert train.mistakes == []
    assert train.lines == [
        "tried with S = 8, which the data will say",
        "10 tensors, 103 numbers of the model:",
        "  table               f32[10, 4]  40",
        "  layers.*.up.weight  f32[4, 4]   16 x 3",
        "  layers.*.up.bias    f32[4]      4 x 3",
        "  layers.*.seen       f32[]       1 x 3",
        "14 tensors, 200 numbers of training: the state of optimizers, averages",
        *(f"{name}: {statements} statements; shapes and types agree; reads stay inside {where}"
          for name, statements, where in (
              ("train", 52, "but for indices in line 15, which every run checks"),
              ("eval", 16, "but for indices in line 15, which every run checks"),
              ("init", 22, "everywhere")))]
    assert spare.lines == ["not tried: no recipe of this file makes one"]


def test_what_is_wrong_with_one_size_of_the_data_is_shown() -> None:
    """It is no mistake: another size may do."""
    report, _ = check_program(loads(STACK.replace("axis=1)", "axis=1) @ table")))
    assert report.lines == ["not tried without data; with S = 8: '@' of f32[8, 4] and f32[10, 4]: "
                            "the inner sizes are 4 and 10 (line 15)"]
    assert report.mistakes == []


@pytest.mark.parametrize(("call", "message"), [
    ("x, y = layer(x)", "2 names take a list"), ("x, y = layer(x)", "one name takes it"),
    ("x = layer.forwrd(x)", "has no field or function"),
    ("x = layer(x).item()", "has no 'item'"),
])
def test_what_is_wrong_whatever_the_size_is_a_mistake(call: str, message: str) -> None:
    report, _ = check_program(loads(STACK.replace("x = layer(x)", call)))
    (mistake,) = report.mistakes
    assert message in f"{mistake.message}; {mistake.help}"
