"""The library's layers are those of PyTorch, weights by name, and right in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from anabranch.checking import backward, wrong_parts
from anabranch.frontend import syntax as s
from anabranch.frontend.check import sample
from anabranch.frontend.values import Function
from anabranch.ir.core import Function as IrFunction
from anabranch.ir.diagnostics import UserError
from anabranch.ir.reference import evaluate
from anabranch.lowering.differentiate import differentiate
from anabranch.trials import Trial, draw
from tests.frontend.running import call, program
from tests.library.ops import MODELS, library, model

Array = np.ndarray[Any, Any]
nn = torch.nn


def member(name: str, wanted: str) -> s.FuncDef | None:
    """A function of a model."""
    body = model(name).definition.body
    return next((m for m in body if isinstance(m, s.FuncDef) and m.name == wanted), None)


OF_PARTS = {"Sequential"}  # a layer that is nothing by itself
LAYERS = [name for name in MODELS if member(name, "forward") and name not in OF_PARTS]


def arguments_of(function: IrFunction) -> tuple[Array, ...]:
    """Running variances are no less than 0."""
    random = np.random.default_rng(4)
    drawn = [(a.value.name, draw(a.value.type, random, limit=2)) for a in function.arguments]
    return tuple(np.abs(x) if name.endswith("var") else x for name, x in drawn)


def layers(name: str) -> Iterator[Trial]:
    """The forward function of a model with sizes made up for it."""
    definition, forward = model(name).definition, member(name, "forward")
    assert forward is not None
    forward = replace(forward, params=tuple(p for p in forward.params if p.default is None))
    fixed = {p.name for p in definition.params} | {
        each.target.id for each in definition.body
        if isinstance(each, s.Assign) and isinstance(each.target, s.Name)}
    needed = [p for p in definition.params if p.default is None]
    for numbers in [(7, 5, 3), (2, 4, 3), (5, 7, 2, 3), (4, 2, 3, 5)]:
        arguments = {p.name: [n, 3, 2] if isinstance(p.type, s.List) else n
                     for p, n in zip(needed, numbers, strict=False)}
        arguments |= {"hidden": 6} if "hidden" in fixed else {}  # the default is large
        sizes = sample(Function(forward, model(name).scope), (5, *numbers), 1)
        assert sizes is not None
        sizes = {size: n for size, n in sizes.items() if size not in fixed}
        try:
            module = library().function(f"{name}.forward", sizes, model=arguments, training=True)
        except UserError:
            continue
        function = module.functions["forward"]
        yield Trial(function, arguments_of(function), arguments)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_right_in_parts(name: str) -> None:
    tried = min(layers(name), key=lambda each: sum(x.size for x in each.arguments))
    for made in (tried, *backward(tried)):
        assert [wrong for wrong in wrong_parts(made) if wrong] == []


def cross(theirs: nn.Module) -> Callable[..., torch.Tensor]:
    return lambda x, memory: theirs(x, memory, memory, need_weights=False)[0]


ATTENTION = nn.MultiheadAttention(6, 2, batch_first=True)
ENCODER = [nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, norm_first=first)
           for first in (False, True)]
DECODER = [nn.TransformerDecoderLayer(6, 2, 8, batch_first=True, norm_first=first)
           for first in (False, True)]
Shapes = tuple[tuple[int, ...], ...]
TORCH: dict[str, tuple[dict[str, object], nn.Module, Shapes]] = {
    "Linear": ({"inputs": 5, "outputs": 3}, nn.Linear(5, 3), ((2, 4, 5),)),
    "Linear without bias": (
        {"inputs": 5, "outputs": 3, "bias": False}, nn.Linear(5, 3, bias=False), ((5,),)),
    "Bilinear": ({"first": 5, "second": 2, "outputs": 3}, nn.Bilinear(5, 2, 3), ((4, 5), (4, 2))),
    "LayerNorm": ({"dim": 5}, nn.LayerNorm(5), ((2, 5),)),
    "LayerNorm of two axes": ({"dim": [3, 5]}, nn.LayerNorm([3, 5]), ((2, 3, 5),)),
    "LayerNorm without weights": (
        {"dim": 5, "affine": False}, nn.LayerNorm(5, elementwise_affine=False), ((2, 5),)),
    "RMSNorm": ({"dim": 5, "eps": 0.1}, nn.RMSNorm(5, 0.1), ((2, 5),)),
    "GroupNorm": ({"groups": 2, "channels": 4}, nn.GroupNorm(2, 4), ((3, 4, 5),)),
    "InstanceNorm": (
        {"channels": 4, "affine": True}, nn.InstanceNorm1d(4, affine=True), ((3, 4, 5),)),
    "BatchNorm": ({"channels": 4}, nn.BatchNorm2d(4).eval(), ((3, 4, 5, 2),)),
    "BatchNorm without statistics": (
        {"channels": 4, "track": False, "affine": False},
        nn.BatchNorm1d(4, affine=False, track_running_stats=False), ((3, 4),)),
    "PReLU": ({"count": 4}, nn.PReLU(4), ((3, 4, 5),)),
    "Dropout": ({"p": 0.5}, nn.Dropout(0.5).eval(), ((3, 4),)),
    "Conv1d": ({"inputs": 2, "outputs": 4, "size": 3}, nn.Conv1d(2, 4, 3), ((3, 2, 7),)),
    "Conv2d": (
        {"inputs": 4, "outputs": 6, "size": 3, "stride": 2, "padding": 1, "groups": 2},
        nn.Conv2d(4, 6, 3, 2, 1, groups=2), ((2, 4, 7, 6),)),
    "Conv2d without bias": (
        {"inputs": 2, "outputs": 3, "size": [2, 3], "dilation": 2, "bias": False},
        nn.Conv2d(2, 3, (2, 3), dilation=2, bias=False), ((2, 2, 7, 6),)),
    "Conv3d": ({"inputs": 2, "outputs": 3, "size": 2, "padding": "same"},
               nn.Conv3d(2, 3, 2, padding="same"), ((1, 2, 3, 4, 2),)),
    "ConvTranspose1d": ({"inputs": 2, "outputs": 3, "size": 3, "stride": 2},
                        nn.ConvTranspose1d(2, 3, 3, 2), ((2, 2, 4),)),
    "ConvTranspose2d": (
        {"inputs": 4, "outputs": 2, "size": 3, "stride": 2, "output_padding": 1, "groups": 2},
        nn.ConvTranspose2d(4, 2, 3, 2, output_padding=1, groups=2), ((2, 4, 3, 2),)),
    "ConvTranspose3d": ({"inputs": 1, "outputs": 2, "size": 2, "bias": False},
                        nn.ConvTranspose3d(1, 2, 2, bias=False), ((1, 1, 2, 3, 2),)),
    "Embedding": ({"count": 6, "dim": 3}, nn.Embedding(6, 3), ()),
    **{f"EmbeddingBag {mode}": ({"count": 6, "dim": 3, "mode": mode},
                                nn.EmbeddingBag(6, 3, mode=mode), ())
       for mode in ("mean", "sum", "max")},
    "MultiHeadAttention": ({"dim": 6, "heads": 2}, ATTENTION, ((2, 3, 6), (2, 4, 6))),
    "TransformerEncoderLayer": ({"dim": 6, "heads": 2, "hidden": 8}, ENCODER[0], ((2, 3, 6),)),
    "TransformerEncoderLayer, norms first": (
        {"dim": 6, "heads": 2, "hidden": 8, "norm_first": True}, ENCODER[1], ((2, 3, 6),)),
    "TransformerDecoderLayer": (
        {"dim": 6, "heads": 2, "hidden": 8}, DECODER[0], ((2, 3, 6), (2, 4, 6))),
    "TransformerDecoderLayer, norms first": (
        {"dim": 6, "heads": 2, "hidden": 8, "norm_first": True}, DECODER[1],
        ((2, 3, 6), (2, 4, 6))),
}


def drawn_weights(theirs: nn.Module) -> dict[str, Array]:
    """By PyTorch's names, which are the library's; given to their layer, too."""
    random = np.random.default_rng(0)
    weights = {k: np.abs(random.normal(size=tuple(v.shape))).astype(np.float32)
               for k, v in theirs.state_dict().items() if v.dtype.is_floating_point}
    theirs.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()}, strict=False)
    return weights


@pytest.mark.parametrize("case", TORCH)
def test_a_layer_is_that_of_pytorch_with_its_weights_by_name(case: str) -> None:
    arguments, theirs, shapes = TORCH[case]
    random = np.random.default_rng(0)
    name = case.replace(",", "").split()[0]
    forward = member(name, "forward")
    assert forward is not None
    given = ([random.normal(size=shape).astype(np.float32) for shape in shapes]
             or [random.integers(0, 6, (2, 3))])
    weights = drawn_weights(theirs)
    ours = call(library(), f"{name}.forward", model=arguments, states=weights,
                **dict(zip((p.name for p in forward.params), given, strict=False)))
    called = cross(theirs) if name == "MultiHeadAttention" else theirs.eval()
    expected = called(*map(torch.from_numpy, given))
    np.testing.assert_allclose(ours, expected.detach().numpy(), 1e-4, 1e-5)


BATCHES = """
model Net():
    norm: BatchNorm(3)

    def loss(x: f32[B, 3, 4]) -> f32[]:
        return mean(norm(x) ** 3)

train Net():
    steps     = 3
    data      = arrays(batch=6)
    optimizer = sgd(lr=0.1)
"""


def test_running_statistics_are_those_of_pytorch_on_any_mesh() -> None:
    """The biased variance normalizes, the unbiased one is kept."""
    import anabranch as ab

    random = np.random.default_rng(3)
    batches = [random.normal(1, 2, (6, 3, 4)).astype(np.float32) for _ in range(3)]
    theirs = nn.BatchNorm1d(3)
    optimizer = torch.optim.SGD(theirs.parameters(), 0.1)
    for x in batches:
        optimizer.zero_grad()
        (theirs(torch.from_numpy(x)) ** 3).mean().backward()
        optimizer.step()
    for mesh in (ab.Mesh(), ab.Mesh(data=4)):  # which 6 samples do not fill evenly
        with ab.Session(ab.compile(ab.loads(BATCHES).train, mesh=mesh)) as session:
            for x in batches:
                session.step(x=x)
            states = session.state_dict()
        for name in ("running_mean", "running_var", "weight", "bias"):
            expected = theirs.state_dict()[name].numpy()
            np.testing.assert_allclose(states[f"norm.{name}"], expected, 1e-4, 1e-5)


def test_layers_follow_one_another_and_lists_of_sizes_make_nets() -> None:
    source = program("""
        model Net():
            net: Sequential([Linear(4, 3), relu, Dropout(0.5), MLP([3, 5, 2], activation=gelu)])

            def forward(x: f32[B, 4]) -> f32[B, 2]:
                return net(x)
    """)
    theirs = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2))
    names = {"0": "net.layers.0", "2": "net.layers.3.layers.0", "4": "net.layers.3.layers.1"}
    states = {f"{names[k.split('.')[0]]}.{k.split('.')[1]}": v.detach().numpy()
              for k, v in theirs.state_dict().items()}
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    ours = call(source, "Net.forward", model={}, states=states, x=x)
    np.testing.assert_allclose(ours, theirs(torch.from_numpy(x)).detach().numpy(), 1e-4, 1e-5)


DRAWN = """
def channels(x: f32[B, C, N]):
    return channel_dropout(x, 0.25)

def slopes(x: f32[N]):
    return rrelu(x)

def choices(x: f32[N, K], w: f32[N, K]):
    y = gumbel_softmax(x, 0.5, hard=True)
    return y, grad(sum(y * w), x)
"""


def test_channels_are_dropped_whole() -> None:
    y = call(program(DRAWN), "channels", x=np.ones((50, 40, 3), np.float32), training=True)
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    assert (y == y[..., :1]).all()
    assert (y == 0).mean() == pytest.approx(0.25, abs=0.03)
    kept = call(program(DRAWN), "channels", x=np.ones((2, 4, 3), np.float32))
    assert (kept == 1).all()


def test_slopes_below_zero_are_drawn_in_training_and_their_mean_after_it() -> None:
    x = -np.ones(2000, np.float32)
    y = call(program(DRAWN), "slopes", x=x, training=True)
    assert -1 / 3 <= y.min() < y.max() <= -1 / 8
    np.testing.assert_allclose(call(program(DRAWN), "slopes", x=x), -11 / 48, 1e-6)


def test_hard_choices_are_drawn_by_their_probability_and_have_the_gradient_of_soft_ones() -> None:
    scores = np.log(np.tile(np.array([0.2, 0.7, 0.1], np.float32), (3000, 1)))
    w = np.random.default_rng(0).normal(size=scores.shape).astype(np.float32)
    source = program(DRAWN)
    module = source.function("choices", {"N": 3000, "K": 3}, training=True)
    differentiate(module)
    function = module.functions["choices"]
    given = {"x": scores, "w": w, "step": np.int64(0), "seed": np.int64(0)}
    y, slope = evaluate(function, [given[a.value.name] for a in function.arguments])
    assert (y.sum(-1) == 1).all()
    assert set(np.unique(y)) == {0, 1}
    np.testing.assert_allclose(y.mean(0), [0.2, 0.7, 0.1], atol=0.03)
    assert np.isfinite(slope).all()
    assert np.abs(slope).max() > 0.01


STARTS: dict[str, tuple[dict[str, object], Callable[[], nn.Module]]] = {
    "Linear": ({"inputs": 50, "outputs": 400}, lambda: nn.Linear(50, 400)),
    "Conv2d": ({"inputs": 20, "outputs": 400, "size": 3, "groups": 2},
               lambda: nn.Conv2d(20, 400, 3, groups=2)),
    "ConvTranspose2d": ({"inputs": 20, "outputs": 400, "size": 3},
                        lambda: nn.ConvTranspose2d(20, 400, 3)),
    "Bilinear": ({"first": 30, "second": 20, "outputs": 400}, lambda: nn.Bilinear(30, 20, 400)),
    "Embedding": ({"count": 90, "dim": 40}, lambda: nn.Embedding(90, 40)),
    "BatchNorm": ({"channels": 8}, lambda: nn.BatchNorm1d(8)),
    "MultiHeadAttention": ({"dim": 60, "heads": 3}, lambda: nn.MultiheadAttention(60, 3)),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_layer_starts_as_that_of_pytorch(name: str) -> None:
    """Its weights spread as far: to the same bound, or with the same variance."""
    arguments, build = STARTS[name]
    theirs = build()
    made = ", ".join(f"{k}={v}" for k, v in arguments.items())
    first = next(iter(theirs.state_dict()))
    training = program(f"""
        model Net():
            layer: {name}({made})

            def loss(x: f32[B]) -> f32[]:
                return mean(x) * sum(layer.{first})

        train Net():
            steps = 1
            data = arrays(batch=1)
            optimizer = sgd(lr=0.1)
    """).training()
    function = training.module.functions["init"]
    nothing = {k: np.zeros(type.shape, np.float32) for k, type in training.states}
    results = evaluate(function, [{**nothing, "seed": np.int64(0)}[a.value.name]
                                  for a in function.arguments])
    ours = dict(zip(function.body.last.states, results, strict=True))
    for key, value in theirs.state_dict().items():
        if value.dtype.is_floating_point and "out_proj" not in key:
            expected = value.numpy()
            found = ours[f"layer.{key}"]
            assert found.std() == pytest.approx(expected.std(), rel=0.12, abs=1e-6), key
