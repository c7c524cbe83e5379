"""Models and recipes: fields and their paths, sharing, buffers, draws, and training like torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anabranch.frontend.program import load
from anabranch.ir.diagnostics import UserError
from anabranch.ir.ops import Pin
from anabranch.ir.printer import print_module
from anabranch.ir.reference import evaluate
from anabranch.ir.types import tensor
from anabranch.ir.verifier import verify
from anabranch.lowering.differentiate import differentiate
from tests.frontend.running import call, program

GPT = Path(__file__).parents[2] / "examples" / "gpt.ab"
SMALL = {"depth": 2, "dim": 32, "context": 16, "data": "text(window=16, batch=4)"}
RECIPE = '''
train {model}:
    steps = 10
    data = text(window=4, batch=3)
    optimizer = sgd(lr=0.1)
'''


def test_a_parameter_may_have_one_of_several_types() -> None:
    source = program("""
        def width(size: int | [int] | str | None = None, base=0):
            is_number = isinstance(size, int) or isinstance(size, float)
            return 9 if size in [None, "all"] or is_number else sum(size)
        def f(x: f32[N]) -> f32[4]:
            return f32(stack([width(), width(3), width("all"), width([1, 2])]))
    """)
    assert list(call(source, "f", x=np.zeros(1, np.float32))) == [9, 9, 9, 3]


def initial(training, seed=0):
    function = training.module.functions["init"]
    given = [np.int64(seed) if a.role == "seed" else np.zeros(a.value.type.shape, np.float32)
             for a in function.arguments]
    return dict(zip(function.body.last.states, evaluate(function, given), strict=True))


def run(training, name, values):
    function = training.module.functions[name]
    results = evaluate(function, [values[a.value.name] for a in function.arguments])
    last = function.body.last
    count = len(last.values)
    return results[:count], dict(zip(last.states, results[count:], strict=True))


def recipe(text, model, **overrides):
    training = program(text + RECIPE.format(model=model)).training(overrides=overrides)
    verify(training.module)
    return training


def gpt(p, tokens, targets, depth=2, heads=4):
    """The example in torch."""
    batch, window = tokens.shape
    x = p["tokens_table"][tokens] + p["position_table"][:window]
    dim = x.shape[-1]
    for i in range(depth):
        b = f"blocks.{i}."
        h = F.layer_norm(x, (dim,), p[b + "norm1.weight"], p[b + "norm1.bias"])
        h = F.linear(h, p[b + "attn.qkv.weight"], p[b + "attn.qkv.bias"])
        q, k, v = h.view(batch, window, 3, heads, dim // heads).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        h = h.reshape(batch, window, dim)
        x = x + F.linear(h, p[b + "attn.proj.weight"], p[b + "attn.proj.bias"])
        h = F.layer_norm(x, (dim,), p[b + "norm2.weight"], p[b + "norm2.bias"])
        h = F.gelu(F.linear(h, p[b + "mlp.up.weight"], p[b + "mlp.up.bias"]))
        x = x + F.linear(h, p[b + "mlp.down.weight"], p[b + "mlp.down.bias"])
    x = F.layer_norm(x, (dim,), p["norm.weight"], p["norm.bias"])
    return F.cross_entropy((x @ p["tokens_table"].T).flatten(0, 1), targets.flatten())


def test_the_example_trains_like_torch():
    """Forward, gradients, clipping, AdamW and the schedule: four steps, ignored targets too."""
    training = load(GPT).training(overrides=SMALL)
    verify(training.module)
    states = initial(training)
    rng = np.random.default_rng(0)
    tokens, targets = rng.integers(0, 256, (4, 16)), rng.integers(0, 256, (4, 16))
    targets[0, :3] = -100
    p = {k: torch.tensor(v, requires_grad=True)
         for k, v in states.items() if not k.startswith("optimizer.")}
    adamw = torch.optim.AdamW(p.values(), lr=1, betas=(0.9, 0.95), weight_decay=0.1)
    differentiate(training.module)
    for step in range(4):
        adamw.param_groups[0]["lr"] = 3e-3 * (step + 1) / 50
        adamw.zero_grad()
        expected = gpt(p, torch.tensor(tokens), torch.tensor(targets))
        expected.backward()
        torch.nn.utils.clip_grad_norm_(p.values(), 1.0)
        adamw.step()
        given = {**states, "tokens": tokens, "targets": targets, "step": np.int64(step),
                 "seed": np.int64(0)}
        (loss,), new = run(training, "train", given)
        assert loss == pytest.approx(expected.item(), rel=1e-5)
        states.update(new)
    for path in ("tokens_table", "blocks.1.mlp.up.weight", "blocks.0.attn.proj.bias"):
        np.testing.assert_allclose(states[path], p[path].detach(), rtol=1e-4, atol=1e-6)


def test_generation_takes_one_window_and_the_place_of_its_last_token():
    training = load(GPT).training(overrides=SMALL)
    function = training.module.functions["next"]
    types = {a.value.name: str(a.value.type) for a in function.arguments if a.role == "input"}
    assert types == {"tokens": "i64[1, 16]", "last": "i64[1]"}
    assert str(function.body.last.values[0].type) == "i64[1]"


def test_what_generation_may_choose_can_be_set():
    training = load(GPT).training(overrides={**SMALL, "temperature": 0.375})
    assert "/ 0.375" in print_module(training.module)


def test_dropout_only_drops_in_training():
    training = load(GPT).training(overrides={**SMALL, "drop": 0.5})
    roles = {name: {a.role for a in f.arguments} for name, f in training.module.functions.items()}
    assert "seed" in roles["train"]
    assert "seed" not in roles["eval"]


def test_settings_may_use_earlier_lines_and_be_overridden():
    training = load(GPT).training(overrides={"micro": 2, "steps": "50 * 2", **SMALL})
    assert (training.micro, training.steps) == (2, 100)
    assert training.settings["clip"] == 1.0
    assert dict(training.reader.arguments) == {"window": 16, "batch": 4}
    with pytest.raises(UserError, match="no 'mikro' to set"):
        load(GPT).training(overrides={"mikro": 2})


def test_arguments_of_the_batch_may_be_given_by_the_caller():
    types = {"tokens": tensor("i64", (2, 8)), "targets": tensor("i64", (2, 8))}
    training = load(GPT).training(overrides=SMALL, inputs=types)
    assert training.inputs == tuple(types.items())


TIED = '''
model Head(table: f32[V, D]):
    def forward(x: f32[*I, D]) -> f32[*I, V]:
        return x @ table.T

model Net(dim: int):
    embed: Embedding(5, dim)
    head: Head(embed.weight)
    extra: Linear(dim, dim)

    def loss(tokens: i64[B, S], targets: i64[B, S]) -> f32[]:
        return cross_entropy(head(embed(tokens)), targets)
'''


def test_a_tensor_passed_to_a_model_is_shared():
    training = recipe(TIED, "Net(dim=4)")
    paths = [path for path, _ in training.states]
    assert paths[:2] == ["embed.weight", "extra.weight"]
    assert "head.table" not in paths


def test_a_parameter_that_the_loss_does_not_use_is_left_alone():
    training = recipe(TIED, "Net(dim=4)")
    assert training.module.functions["train"].body.last.states == ("embed.weight",)
    assert "extra.weight" in training.module.functions["init"].body.last.states


LISTS = '''
model Net(sizes: [int], deep: bool = False):
    tables: [f32[n, 2] for n in sizes] = normal(std=0.01)
    layers: [[Linear(2, 2, bias=False) for _ in range(2)] for _ in sizes]
    if deep:
        more: Linear(2, 2)
    gone: f32[3] = zeros() if deep else None

    def loss(tokens: i64[B, S], targets: i64[B, S]) -> f32[]:
        assert gone is None, "absent"
        x = sum([embedding(tokens % n, t) for n, t in zip(sizes, tables)])
        for pair in layers:
            for layer in pair:
                x = layer(x)
        return mean(x) + 0 * mean(f32(targets))
'''


def test_lists_of_parameters_and_models_have_numbered_paths():
    training = recipe(LISTS, "Net(sizes=[3, 4])")
    paths = [path for path, _ in training.states]
    assert paths == ["tables.0", "tables.1", "layers.0.0.weight", "layers.0.1.weight",
                     "layers.1.0.weight", "layers.1.1.weight"]
    with pytest.raises(UserError, match="absent"):
        recipe(LISTS, "Net(sizes=[3, 4], deep=True)")


def test_lists_of_parameters_may_be_empty():
    empty = "none: [[f32[n] for n in sizes[2:]], []] = normal()\n    "
    source = LISTS.replace("tables:", f"{empty}tables:")
    assert recipe(source, "Net(sizes=[3])").states == recipe(LISTS, "Net(sizes=[3])").states


@pytest.mark.parametrize(("expression", "value"), [
    ("ws[1]", 2), ("pairs[1][0] * ws[-1]", 30), ("inner.ws[0]", 1), ("list[1].ws[2]", 3),
    ("sum(ws)", 6), ("sum(stack(ws, axis=0))", 6), ("max(ws[0], pairs[0][1])", 10),
    ("sum(concat([w[None] for w in ws[1:]]))", 5), ("(ws + pairs[0])[3]", 10),
    ("in_an_op(ws[1])", 2), ("ws[0] if len(ws) == 3 else ws[1]", 1),
])
def test_items_of_lists_of_parameters_are_parameters(expression, value):
    source = program(f"""
        op in_an_op(x: T[]) -> T[]:
            y[] = x[]
            return y

        model Inner():
            ws: [f32[] for _ in range(3)] = zeros()

        model Net():
            ws: [f32[] for _ in range(3)] = zeros()
            pairs: [[f32[] for _ in range(2)] for _ in range(2)] = zeros()
            inner: Inner()
            list: [inner for _ in range(2)]

            def f() -> f32[]:
                return {expression}
    """)
    module = source.function("Net.f")
    given = {**{f"ws.{i}": i + 1 for i in range(3)}, **{f"inner.ws.{i}": i + 1 for i in range(3)},
             **{f"pairs.{i}.{j}": 10 for i in range(2) for j in range(2)}}
    function = module.functions["f"]
    assert evaluate(function, [np.float32(given[a.value.name]) for a in function.arguments]) == [
        value]


BUFFERS = '''
model Net():
    w: f32[] = constant(3.0)
    buffer seen: f32[] = zeros()
    buffer count: i64[] = zeros()

    def loss(tokens: i64[B, S], targets: i64[B, S]) -> f32[]:
        if training:
            seen := 0.5 * seen + stop(mean(f32(tokens)))
            count := count + 1
        return w * seen + 0 * mean(f32(targets))
'''


def test_a_buffer_is_seen_new_from_there_on_and_kept_for_the_next_step():
    training = recipe(BUFFERS, "Net()")
    assert training.module.functions["eval"].body.last.states == ()
    differentiate(training.module)
    states = initial(training)
    tokens = np.full((3, 4), 6)
    given = {**states, "tokens": tokens, "targets": tokens}
    (loss,), new = run(training, "train", given)
    assert loss == 18
    assert (new["seen"], new["count"]) == (6, 1)
    assert new["count"].dtype == np.int64
    assert new["w"] == pytest.approx(3 - 0.1 * 6)
    (loss,), new = run(training, "train", {**given, **new})
    assert (new["seen"], new["count"]) == (9, 2)


@pytest.mark.parametrize("literal", ["2", "True"])
def test_a_literal_gives_way_to_the_dtype_of_a_buffer(literal):
    training = recipe(BUFFERS.replace("0.5 * seen + stop(mean(f32(tokens)))", literal), "Net()")
    differentiate(training.module)
    tokens = np.full((3, 4), 6)
    _, new = run(training, "train", {**initial(training), "tokens": tokens, "targets": tokens})
    assert new["seen"] == eval(literal)
    assert new["seen"].dtype == np.float32


@pytest.mark.parametrize("value", ["0.5", "count + 0.5", "300000 * 2.0"])
def test_a_buffer_of_integers_takes_no_fractions(value):
    with pytest.raises(UserError, match=r"is i64\[\], and its next value is f32\[\]"):
        recipe(BUFFERS.replace("count + 1", value), "Net()")


def test_momentum_is_torchs():
    text = TIED.replace("lr=0.1", "lr=0.1")
    source = program(text + RECIPE.format(model="Net(dim=4)").replace(
        "sgd(lr=0.1)", "sgd(lr=0.1, momentum=0.9, weight_decay=0.01)"))
    training = source.training()
    differentiate(training.module)
    states = initial(training)
    w = torch.tensor(states["embed.weight"], requires_grad=True)
    sgd = torch.optim.SGD([w], lr=0.1, momentum=0.9, weight_decay=0.01)
    tokens, targets = np.arange(12).reshape(3, 4) % 5, np.arange(12).reshape(3, 4) % 3
    for _ in range(3):
        sgd.zero_grad()
        expected = F.cross_entropy((w[tokens] @ w.T).flatten(0, 1), torch.tensor(targets).flatten())
        expected.backward()
        sgd.step()
        (loss,), new = run(training, "train", {**states, "tokens": tokens, "targets": targets})
        states.update(new)
        assert loss == pytest.approx(expected.item(), rel=1e-5)
    np.testing.assert_allclose(states["embed.weight"], w.detach(), rtol=1e-5)


def test_initial_values_depend_on_the_seed_and_the_path_only():
    first = initial(load(GPT).training(overrides=SMALL))
    again = initial(load(GPT).training(overrides={**SMALL, "depth": 1}))
    assert all(np.array_equal(first[k], v) for k, v in again.items())
    other = initial(load(GPT).training(overrides=SMALL), seed=1)
    assert not np.array_equal(first["tokens_table"], other["tokens_table"])
    assert not np.array_equal(first["blocks.0.mlp.up.weight"], first["blocks.1.mlp.up.weight"])
    assert first["tokens_table"].std() == pytest.approx(0.02, rel=0.05)


STAGED = '''
model Net(dim: int):
    table: f32[256, dim] @ {model: S(0)} = normal()
    layers: [Linear(dim, dim) for _ in range(4)]

    def forward(x: f32[B, S, dim] @ {data: S(0), model: B}) -> f32[B, S, dim]:
        for i, layer in enumerate(layers):
            with stage(i * stages // 4), recompute:
                x = to(relu(layer(x)), {model: S(-1)})
        return x

    def loss(tokens: i64[B, S], targets: i64[B, S]) -> f32[]:
        return mean(forward(embedding(tokens, table))) + 0 * mean(f32(targets))
'''


def test_pins_stages_and_recomputation_are_recorded():
    source = program(STAGED + RECIPE.format(model="Net(dim=4)"))
    function = source.training(stages=2).module.functions["train"]
    table = next(a for a in function.states() if a.value.name == "table")
    assert str(table.pin) == "{model: S(0)}"
    pins = [op for op in function.body if isinstance(op, Pin)]
    assert [str(op.layout) for op in pins] == ["{data: S(0), model: B}"] + ["{model: S(2)}"] * 4
    assert [op.stage for op in pins[1:]] == [0, 0, 1, 1]
    assert len({op.recompute for op in pins[1:]}) == 4


def test_locations_name_the_users_line_and_the_path_of_definitions():
    training = load(GPT).training(overrides=SMALL)
    locs = {op.loc.path: op.loc for op in training.module.functions["eval"].body}
    loc = locs["blocks.1.attn causal_attention attention"]
    assert Path(loc.file) == GPT
    assert "causal_attention" in GPT.read_text().splitlines()[loc.line - 1]


def test_functions_of_a_model_can_be_called_on_their_own():
    source = program('''
        model Scale(by: float):
            def forward(x: f32[N]) -> f32[N]:
                return by * x
    ''')
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(call(source, "Scale.forward", model={"by": 2.0}, x=x), 2 * x)


def test_imports_read_files_beside_the_program(tmp_path):
    (tmp_path / "blocks.ab").write_text("from more import twice\n\ndef four(x):\n"
                                        "    return twice(twice(x))\n")
    (tmp_path / "more.ab").write_text("def twice(x):\n    return 2 * x\n")
    main = tmp_path / "main.ab"
    main.write_text("from blocks import four as times\n\ndef f(x: f32[N]) -> f32[N]:\n"
                    "    return times(x)\n")
    np.testing.assert_array_equal(call(load(main), "f", x=np.ones(2, np.float32)), [4, 4])
    (tmp_path / "more.ab").write_text("from blocks import four\n\ndef twice(x):\n    return x\n")
    with pytest.raises(UserError, match="circle"):
        load(main)
    (tmp_path / "more.ab").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"more.ab is not text in UTF-8"):
        load(main)


def test_a_byte_order_mark_is_no_part_of_a_program(tmp_path):
    for name, text in {"twice": "def twice(x):\r\n    return 2 * x\r\n",
                       "main": "from twice import twice\r\ndef f(x: f32[N]):\r\n"
                               "    return twice(x)\r\n"}.items():
        (tmp_path / f"{name}.ab").write_text(f"\ufeff{text}", newline="")
    source = load(tmp_path / "main.ab")
    np.testing.assert_array_equal(call(source, "f", x=np.ones(2, np.float32)), [2, 2])


@pytest.mark.parametrize(("line", "message"), [
    ("precision = bf16", "precision"), ("micro = 0", "positive integer"),
    ("clip = -1.0", "positive number"), ("clip = nan", "positive number"),
    ("steps = 5", "set twice"),
    ("emma = 0.9", "nothing uses the line 'emma'"),
    ("metrics = [hits]", r"\n.*\n.*\nhelp: a metric is a function of the model.* def hits\("),
    ('optimizer["*"] = sgd', r"'sgd' is not called\n.*\n.*\nhelp: write sgd\(lr=...\)"),
    ('optimizer["*"] = adamw', r"help: write adamw\(\)"),
])
def test_lines_of_a_recipe_that_are_refused(line, message):
    text = TIED + RECIPE.format(model="Net(dim=4)") + f"    {line}\n"
    with pytest.raises(UserError, match=message) as caught:
        program(text).training()
    assert "^" in str(caught.value)


def test_a_name_of_another_library_is_told_by_what_it_does_here():
    text = "def f(x: f32[3]):\n    return torch.no_grad(x)\n"
    with pytest.raises(UserError, match=r"'torch' is not defined(\n.*){2}\nhelp: stop\(x\) is x"):
        program(text)


def test_a_loss_whose_arguments_the_reader_does_not_give():
    text = TIED.replace("targets: i64[B, S]) -> f32[]", "labels: i64[B, S]) -> f32[]").replace(
        "targets)", "labels)")
    with pytest.raises(UserError, match="gives no 'labels'"):
        recipe(text, "Net(dim=4)")


def test_arrays_take_their_types_from_the_loss():
    training = program('''
        model Net():
            head: Linear(7, 3)

            def loss(x: f32[B, 7], label: i64[B]) -> f32[]:
                return cross_entropy(head(x), label)

        train Net():
            steps = 3
            data = arrays(batch=5)
            optimizer = adamw(lr=1e-3)
    ''').training()
    assert [str(t) for _, t in training.inputs] == ["f32[5, 7]", "i64[5]"]


def test_functions_of_a_recipe_call_one_another():
    text = TIED + RECIPE.format(model="Net(dim=4)") + (
        "\n    def update(tokens, targets):\n        minimize(doubled(tokens, targets))\n"
        "\n    def doubled(x, y):\n        return 2 * loss(x, y)\n")
    assert "train" in program(text).training().module.functions


def test_an_override_of_a_line_uses_what_the_line_could():
    """Earlier lines and the model's functions; a line that is always there need not be written."""
    text = TIED.replace("\n    def loss", """
    def hits(tokens: i64[B, S], targets: i64[B, S]) -> f32[]:
        return mean(argmax(head(embed(tokens)), axis=2) == targets)

    def loss""") + RECIPE.format(model="Net(dim=4)").replace(
        "    optimizer", "    rate = 0.5\n    optimizer").replace("lr=0.1", "lr=rate")
    source = program(text)
    training = source.training(overrides={"metrics": "[hits]", "optimizer": "adamw(lr=rate / 2)",
                                          "clip": "rate * dim", "steps": "dim + 1"})
    assert training.results["eval"] == ("loss", "hits")
    assert training.steps == 5
    assert training.settings["clip"] == 2.0
    assert any(path.startswith("optimizer.embed.weight.") for path, _ in training.states)
    with pytest.raises(UserError, match="'hots' is not defined"):
        source.training(overrides={"metrics": "[hots]"})
