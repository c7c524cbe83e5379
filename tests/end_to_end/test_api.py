"""Anabranch from Python: what the README shows, and what it refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import anabranch as ab
from anabranch.cli import main
from anabranch.generation import harmless
from anabranch.runtime.checkpoint import CheckpointError
from anabranch.runtime.errors import RunError, WeightError
from tests.end_to_end.conftest import TINY

ROOT = Path(__file__).resolve().parents[2]
torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def program() -> ab.api.Program:
    return ab.load(TINY)


@pytest.fixture(scope="module")
def plan(program: ab.api.Program) -> ab.Plan:
    return ab.compile(program.train, mesh=ab.Mesh(data=2), set={"drop": 0.0})


@pytest.fixture
def batch() -> dict[str, np.ndarray]:
    rows = np.random.default_rng(0).integers(0, 256, (4, 17))
    return {"tokens": rows[:, :-1], "targets": rows[:, 1:]}


def test_a_recipe_trains_with_arrays_and_with_tensors_alike(
    plan: ab.Plan, batch: dict[str, np.ndarray]
) -> None:
    tensors = {name: torch.from_numpy(array.copy()) for name, array in batch.items()}
    with ab.Session(plan) as one, ab.Session(plan) as other:
        for _ in range(3):
            loss, same = one.step(**batch), other.step(**tensors)
            assert isinstance(loss, np.float32)
            assert isinstance(same, torch.Tensor)
            assert loss == same.item()
        assert one.evaluate(**batch) < loss


def test_evaluation_changes_nothing(plan: ab.Plan, batch: dict[str, np.ndarray]) -> None:
    with ab.Session(plan) as session:
        before = session.state_dict(optimizer=True)
        session.evaluate(**batch)
        after = session.state_dict(optimizer=True)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_the_seed_decides_the_first_weights(plan: ab.Plan) -> None:
    def table(seed: int) -> np.ndarray:
        with ab.Session(plan, seed=seed) as session:
            return session.state_dict()["table"]

    assert np.array_equal(table(1), table(1))
    assert not np.array_equal(table(1), table(2))


def test_a_function_takes_its_shapes_from_arrays(program: ab.api.Program) -> None:
    x = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    with ab.Session(ab.compile(program.softmax, x=x)) as session:
        np.testing.assert_allclose(
            session(x=x), torch.softmax(torch.from_numpy(x), -1).numpy(), rtol=1e-5)
        assert torch.equal(session(x=torch.from_numpy(x)), torch.from_numpy(session(x=x)))


def test_a_function_takes_its_sizes_by_name_on_a_mesh(program: ab.api.Program) -> None:
    x, w, b = (np.random.default_rng(i).normal(size=shape).astype(np.float32)
               for i, shape in enumerate([(4, 6), (5, 6), (5,)]))
    plan = ab.compile(program.linear, mesh=ab.Mesh(model=2), I=[4], K=6, N=5)
    with ab.Session(plan) as session:
        np.testing.assert_allclose(session(x=x, w=w, b=b), x @ w.T + b, rtol=1e-5, atol=1e-6)


def test_a_models_function_runs_with_the_weights_of_training(
    program: ab.api.Program, plan: ab.Plan
) -> None:
    """And refuses to without."""
    forward = ab.compile(program.Tiny(vocab=256, dim=8).forward, B=1, S=16)
    tokens = np.arange(16)[None]
    with ab.Session(plan) as trained, ab.Session(forward) as session:
        with pytest.raises(RunError, match=r"states have no value yet.*load_state_dict"):
            session(tokens=tokens)
        weights = trained.state_dict(torch=True)
        session.load_state_dict(weights)
        scores = session(tokens=torch.from_numpy(tokens))
    x = weights["table"][tokens]
    inner = torch.nn.functional.linear(x, weights["inner.weight"], weights["inner.bias"])
    expected = (x + torch.nn.functional.gelu(inner)) @ weights["table"].T
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)


def test_text_and_tokens_are_generated_past_the_window(plan: ab.Plan) -> None:
    with ab.Session(plan) as session:
        made = session.generate(list(b"def "), 30)
        assert len(made) == 30
        assert made == session.generate(list(b"def "), 30)
        assert made == session.generate(np.frombuffer(b"def ", np.uint8), 30)
        text = session.generate("def ", 30)
        assert text == harmless(bytes(made).decode("utf-8", errors="replace"))


def test_weights_that_do_not_fit_are_listed_and_none_is_set(plan: ab.Plan) -> None:
    with ab.Session(plan) as session:
        before = session.state_dict()
        wrong = {"table": before["table"] + 1, "inner.weight": np.zeros((8, 7), np.float32),
                 "innner.bias": np.zeros(8, np.float32)}
        with pytest.raises(WeightError) as failure:
            session.load_state_dict(wrong)
        assert str(failure.value).splitlines()[1:] == [
            "  inner.weight is [8, 7] here; the program wants [8, 8]",
            "  missing: inner.bias",
            "  unknown: innner.bias; did you mean 'inner.bias'?",
            'help: load_weights(path, rename={"innner.bias": "inner.bias"}) takes the names of a '
            "file for those of the program; None leaves an array out"]
        assert np.array_equal(session.state_dict()["table"], before["table"])
        session.load_state_dict({"inner.bias": np.ones(8, np.float16)}, strict=False)
        assert (session.state_dict()["inner.bias"] == 1).all()


USED = """
model Net(n: int):
    body: Linear(n, n)
    head: Linear(n, n)

    def forward(x: f32[B, n]) -> f32[B, n]:
        return head(relu(body(x)))

    def features(x: f32[B, n]) -> f32[B, n]:
        return body(x)

    def loss(x: f32[B, n], y: f32[B, n]) -> f32[]:
        return mean((forward(x) - y) ** 2)

train Net(n=3):
    steps     = 9
    data      = arrays(batch=4)
    optimizer = adamw(lr=1e-1)
"""


@pytest.mark.parametrize("more", ["", "    ema = 0.5\n", '    optimizer["body.*"] = None\n'])
def test_what_does_not_train_takes_a_checkpoint_of_training(more: str, tmp_path: Path) -> None:
    """It is the model as `state_dict` gives it: averages where they are kept, no optimizer."""
    program = ab.loads(USED + more)
    path, x = tmp_path / "c.safetensors", np.ones((4, 3), np.float32)
    with ab.Session(ab.compile(program.train)) as session:
        for _ in range(3):
            session.step(x=x, y=3 * x)
        session.save(path)
        model = session.state_dict()
        everything = session.state_dict(optimizer=True)
    net = program.Net(n=3)
    with ab.Session(ab.compile(net.forward, B=4)) as session:
        session.load_state_dict(model)
        expected = session(x=x)
    for take in (lambda s: s.resume(path), lambda s: s.load_state_dict(ab.load_weights(path)),
                 lambda s: s.load_state_dict(everything)):
        with ab.Session(ab.compile(net.forward, B=4)) as session:
            take(session)
            np.testing.assert_array_equal(session(x=x), expected)
    with ab.Session(ab.compile(net.features, B=4)) as session:
        with pytest.raises(CheckpointError, match=r"not in the program: head.weight\nhelp: "):
            session.resume(path)
        with pytest.raises(WeightError, match=r"unknown: head.weight") as failure:
            session.load_state_dict(ab.load_weights(path))
        assert "optimizer" not in str(failure.value)


def test_an_unknown_name_in_a_checkpoint_is_a_mistake_where_it_trains(tmp_path: Path) -> None:
    program = ab.loads(USED)
    with ab.Session(ab.compile(program.train)) as session:
        session.save(tmp_path / "c")
    plain = ab.loads(USED.replace("adamw(lr=1e-1)", "sgd(lr=0.1)"))
    with ab.Session(ab.compile(plain.train)) as session, pytest.raises(
        CheckpointError, match=r"not in the program: optimizer.body.bias.m"):
        session.resume(tmp_path / "c")


def test_a_checkpoint_from_python_resumes(
    plan: ab.Plan, batch: dict[str, np.ndarray], tmp_path: Path
) -> None:
    with ab.Session(plan) as session:
        session.step(**batch)
        session.save(tmp_path / "one.safetensors")
        expected = session.step(**batch)
    with ab.Session(plan) as session:
        session.resume(tmp_path / "one.safetensors")
        assert (session.steps, session.step(**batch)) == (1, expected)


RUN_SAVED = """
import sys
import numpy as np
import anabranch as ab
from anabranch.generation import harmless
with ab.Session(ab.Plan.load(sys.argv[1])) as session:
    print(float(session.step(**np.load(sys.argv[2]))))
compiler = ("frontend", "lowering", "codegen", "ir.core", "driver", "api")
dear = {*(f"anabranch.{part}" for part in compiler), "lark", "sympy", "highspy", "torch"}
assert not dear & set(sys.modules), dear & set(sys.modules)
"""


def test_a_saved_plan_runs_without_the_compiler(
    plan: ab.Plan, batch: dict[str, np.ndarray], tmp_path: Path
) -> None:
    plan.save(tmp_path / "tiny.plan")
    np.savez(tmp_path / "batch.npz", **batch)
    command = [sys.executable, "-c", RUN_SAVED, str(tmp_path / "tiny.plan")]
    done = subprocess.run([*command, str(tmp_path / "batch.npz")], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0, done.stderr
    with ab.Session(plan) as session:
        assert float(done.stdout) == session.step(**batch)


def test_a_plan_that_no_machine_can_hold_says_what_it_needs(program: ab.api.Program) -> None:
    with pytest.raises(RunError, match=r"rank 0 needs 1,125,899.9 GB of memory"):
        ab.Session(ab.compile(program.relu, x=np.broadcast_to(np.float32(0), (2**47,))))


def test_what_cannot_be_compiled_says_why(program: ab.api.Program) -> None:
    with pytest.raises(AttributeError, match="did you mean 'Tiny'"):
        _ = program.Tinny
    with pytest.raises(ab.UserError, match="the size of the dimension"):
        ab.compile(program.linear, I=[4], K=6)
    with pytest.raises(ab.UserError, match="the recipe has no 'dmi' to set"):
        ab.compile(program.train, set={"dmi": 4})
    with pytest.raises(ab.UserError, match=r"takes no argument 'dim'\n.*set={'dim': 4}"):
        ab.compile(program.train, dim=4)
    with pytest.raises(ab.UserError, match="takes no 'sets'\nhelp: did you mean 'set'"):
        ab.compile(program.train, sets={"dim": 4})
    for mistaken in ({"set": {"batch": 64}}, {"batch": 64}):
        with pytest.raises(ab.UserError) as wrong:
            ab.compile(program.train, **mistaken)
        (text,) = re.findall(r"set={'data': '(.*)'}", str(wrong.value))
        tokens = ab.compile(program.train, set={"data": text}).values
        assert any(value.shape[:1] == (64,) for value in tokens)
    with pytest.raises(ab.UserError, match="the model Tiny cannot be compiled"):
        ab.compile(program.Tiny)
    with pytest.raises(ab.UserError, match="reserved"):
        ab.Mesh(micro=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"B": 1, "S": 16, "Z": 3}, "takes no 'Z'"),
        ({"B": 1, "S": 16, "dim": 16}, "takes no 'dim'"),
        ({"tokens": np.zeros((2, 3), "f4")}, "'tokens' is an array f32.2, 3., and .* takes i64"),
        ({"B": 1, "tokens": np.zeros((2, 3), "i8")}, r"takes i64\[1, 3\]"),
        ({"tokens": np.zeros((2, 3, 4), "i8")}, r"takes i64\[2, 3\]"),
        ({"B": 1, "S": 16, "token": np.zeros((1, 16), "i8")}, "did you mean 'tokens'?"),
        ({"B": -1, "S": 16}, "at least 0"), ({"B": 1.5, "S": 16}, "an integer"),
        ({"B": 1, "S": 16, "micro": 0}, "'micro' is an integer of at least 1, not 0"),
        ({"B": 1, "S": 16, "slots": "2"}, "'slots' is an integer of at least 1, not '2'"),
    ],
)
def test_what_a_function_does_not_take_is_refused(
    program: ab.api.Program, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ab.UserError, match=message):
        ab.compile(program.Tiny(vocab=256, dim=8).forward, **arguments)


@pytest.mark.parametrize("dtype", ["f8", "f2", "i8", "?"])
def test_a_shape_is_told_by_an_array_that_a_session_takes(dtype: str) -> None:
    """NumPy's own arrays are f64: what a session converts tells a shape as well."""
    double = ab.loads("def double(x: f32[B, 3], k: i32[B]) -> f32[B]:\n"
                      "    return 2 * x[:, 0] + k\n").double
    given = {"x": np.ones((4, 3), dtype), "k": np.arange(4)}
    with ab.Session(ab.compile(double, **given, cached=False)) as session:
        np.testing.assert_array_equal(session(**given), [2, 3, 4, 5])
    with pytest.raises(ab.UserError, match=r"'k' is an array f32\[4\], and .* takes i32\[4\]"):
        ab.compile(double, x=given["x"], k=np.ones(4, "f4"))


def test_what_is_not_compiled_is_said_to_be_compiled_first(
    program: ab.api.Program, plan: ab.Plan
) -> None:
    for given in (program, program.train, program.softmax):
        with pytest.raises(RunError, match=r"not a \w+; compile it first, as in .*program\.train"):
            ab.Session(given)  # type: ignore[arg-type]
    with pytest.raises(ab.UserError, match=r"'gelu' is not called.*\n.*compile\(program\.gelu, x="):
        program.gelu(x=np.zeros(3))
    with pytest.raises(ab.UserError, match=r"softmax, x=\.\.\.\)\) as session: session\(x="):
        program.softmax(np.zeros(3))
    with pytest.raises(ab.UserError, match=r"Tiny\(vocab=\.\.\.\)\.forward, tokens=\.\.\."):
        program.Tiny(vocab=256).forward(np.zeros(3))
    with pytest.raises(ab.UserError, match=r"train\)\) as session: session\.step\(x=\.\.\."):
        program.train(x=np.zeros(3))
    with ab.Session(plan) as session, pytest.raises(WeightError, match=r"load_weights\(path\)"):
        session.load_state_dict("weights.safetensors")  # type: ignore[arg-type]


def test_arguments_of_a_model_go_by_their_names(program: ab.api.Program) -> None:
    with pytest.raises(ab.UserError, match=r"Tiny takes no 'dmi'\n.*did you mean 'dim'\?"):
        program.Tiny(vocab=256, dmi=8)
    with pytest.raises(ab.UserError, match=r"go by name\n.*Tiny\(vocab=\.\.\., dim=\.\.\."):
        program.Tiny(256, 8)


def test_arrays_go_by_name(program: ab.api.Program) -> None:
    x = np.zeros((2, 3), "f4")
    with pytest.raises(ab.UserError, match=r"go by name\n.*x=array"):
        ab.compile(program.softmax, x)
    with (ab.Session(ab.compile(program.softmax, x=x)) as session,
          pytest.raises(RunError, match=r"arrays go by name, as in x=\.\.\.")):
        session(x)


def test_what_is_no_array_of_a_function_is_said_to_be_none(program: ab.api.Program) -> None:
    forward = program.Tiny(vocab=256, dim=8).forward
    with pytest.raises(ab.UserError, match=r"takes no array 'y'\n.*it takes tokens"):
        ab.compile(forward, y=np.zeros((1, 16), "i8"))
    with pytest.raises(ab.UserError, match="'tokens' is a list; give an array"):
        ab.compile(forward, tokens=[[1, 2, 3]])


def test_numbers_of_numpy_are_numbers(program: ab.api.Program) -> None:
    plan = ab.compile(program.linear, I=[np.int64(4)], K=np.int32(6), N=5)
    assert plan.programs[0].feeds[0].name == "x"
    ab.compile(program.train, set={"dim": np.int64(4), "drop": np.float32(0)})
    half = ab.loads("def half(x: T[]):\n    return x / 2\n").half
    with ab.Session(ab.compile(half, x=np.float64(3))) as session:
        assert session(x=np.float64(3)) == 1.5


@pytest.mark.parametrize("size", [0, -1, 2.0, "2", True, None])
def test_an_axis_of_a_mesh_has_a_whole_number_of_ranks(size: object) -> None:
    with pytest.raises(ab.UserError, match="at least 1 rank"):
        ab.Mesh(data=size)


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1])
def test_a_seed_has_64_bits(plan: ab.Plan, seed: int) -> None:
    with pytest.raises(RunError, match="64 bits"):
        ab.Session(plan, seed=seed)


@pytest.mark.parametrize(("settings", "message"), [
    ({"seed": "one"}, "64 bits, not 'one'"), ({"cores": 0}, "'cores' is an integer of at least 1"),
    ({"trace": -1}, "'trace' is an integer of at least 0"), ({"trace": 1.5}, "not 1.5"),
])
def test_settings_of_a_session_are_numbers(
    plan: ab.Plan, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(RunError, match=message):
        ab.Session(plan, **settings)


@pytest.mark.parametrize("mesh", [{}, {"model": 2}])
def test_an_index_out_of_range_is_reported_with_its_place_or_clamped(
    program: ab.api.Program, mesh: dict[str, int]
) -> None:
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    ids = np.array([0, 5, -1, 4])
    sizes = {"ids": ids, "table": table, "mesh": ab.Mesh(**mesh)}
    with (
        ab.Session(ab.compile(program.embedding, **sizes)) as session,
        pytest.raises(RunError, match=r"indexing.ab:\d+.*\b5\b"),
    ):
        session(ids=ids, table=table)
    with ab.Session(ab.compile(program.embedding, checked=False, **sizes)) as session:
        np.testing.assert_array_equal(session(ids=ids, table=table), table[[0, 4, 0, 4]])


def test_a_mesh_is_not_written_as_a_dict(program: ab.api.Program) -> None:
    with pytest.raises(ab.UserError, match=r"is not a mesh\n.*Mesh\(data=2, model=2\)"):
        ab.compile(program.train, mesh={"data": 2})


def test_a_plan_is_printed_in_one_line(plan: ab.Plan) -> None:
    assert repr(plan).startswith("<Plan of train, eval, init, next on Mesh(data=2): ")
    assert "\n" not in repr(plan)


MODES = """
model Net(mode: str, act):
    scale: f32[3] = constant(2.0)

    def forward(x: f32[3]) -> f32[3]:
        return act(x * scale) if mode == "softmax" else x + scale

    def loss(x: f32[3]) -> f32[]:
        return mean(forward(x) ** 2)

train Net(mode="softmax", act=relu):
    steps     = 1
    data      = arrays(batch=3)
    optimizer = sgd(lr=0.0)
"""
ROW = np.array([-1, 2, 3], "f4")


@pytest.mark.parametrize("mode", ["softmax", "no name", "1 +", "f32"])
def test_a_text_given_to_a_model_is_that_text(mode: str) -> None:
    """Even if it is the name of something."""
    program = ab.loads(MODES)
    expected = np.maximum(2 * ROW, 0) if mode == "softmax" else 2 + ROW
    forward = program.Net(mode=mode, act=ab.Expression("relu")).forward
    with ab.Session(ab.compile(forward, x=ROW, cached=False)) as session:
        session.load_state_dict({"scale": np.full(3, 2, "f4")})
        np.testing.assert_allclose(session(x=ROW), expected)
    with ab.Session(ab.compile(program.train, set={"mode": mode}, cached=False)) as session:
        assert session.step(x=ROW) == pytest.approx(float(np.mean(expected ** 2)))


def test_a_text_is_not_called_as_the_function_of_its_name() -> None:
    with pytest.raises(ab.UserError, match=r"from Python: Expression\('relu'\)"):
        ab.compile(ab.loads(MODES).Net(mode="softmax", act="relu").forward, x=ROW)


def test_a_shell_gives_expressions_and_texts_in_quotes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "modes.ab"
    path.write_text(MODES)
    command = ["dump", str(path), "--function", "loss", "--set"]
    assert main([*command, 'mode="double"']) == 0
    assert "+ %scale" in capsys.readouterr().out
    assert main([*command, "act=sigmoid"]) == 0
    assert "exp(" in capsys.readouterr().out
    assert main([*command, "mode=double"]) == 1
    error = capsys.readouterr().err
    assert "<mode>:1:1: error: 'double' is not defined\n    double\n    ^~~~~~" in error
    assert 'a text has quotes of its own: mode="double"' in error
