"""Weights of other programs: every kind of file, renamed, and laid out anew."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from safetensors.torch import save_file

import anabranch as ab
from anabranch.runtime.errors import FeedError, WeightError
from anabranch.weights import Target, read_table
from tests.end_to_end.conftest import TINY

Array = np.ndarray[Any, Any]

DATA = next((path for parent in Path(__file__).resolve().parents
             if (path := parent / "shared" / "data").is_dir()), None)

TENSORS = {
    "a.weight": torch.arange(12.0).reshape(3, 4), "a.bias": torch.tensor([1.0, -2.0, 0.5]),
    "half": torch.tensor([[1.5, -0.25]], dtype=torch.float16), "count": torch.tensor(7),
    "mask": torch.tensor([True, False]), "empty": torch.zeros(0, 5),
    "small": torch.tensor([1.0, 1 / 3], dtype=torch.bfloat16),
}


def as_onnx(tensors: dict[str, torch.Tensor]) -> onnx.ModelProto:
    made = [numpy_helper.from_array(
        (t.float() if t.dtype == torch.bfloat16 else t).numpy(), name)
        for name, t in tensors.items()]
    return helper.make_model(helper.make_graph([], "g", [], [], initializer=made))


def save_onnx(path: Path) -> None:
    path.write_bytes(as_onnx(TENSORS).SerializeToString())


SAVE: dict[str, Callable[[Path], None]] = {
    "w.safetensors": lambda path: save_file(TENSORS, path),
    "w.npz": lambda path: np.savez(
        path, **{k: (t.float() if t.dtype == torch.bfloat16 else t).numpy()
                 for k, t in TENSORS.items()}),
    "w.pt": lambda path: torch.save(TENSORS, path),
    "w.bin": lambda path: torch.save(TENSORS, path, _use_new_zipfile_serialization=False),
    "w.onnx": save_onnx,
}


def saved(kind: str, folder: Path) -> Path:
    SAVE[kind](folder / kind)
    return folder / kind


def assert_same(found: dict[str, Array], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        wanted = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        assert found[name].dtype == wanted.numpy().dtype, name
        np.testing.assert_array_equal(found[name], wanted.numpy(), strict=True)
        assert found[name].flags.writeable


# ---- files


@pytest.mark.parametrize("kind", SAVE)
def test_what_is_saved_is_read(kind: str, tmp_path: Path) -> None:
    """bf16 as f32, exactly; everything else as it is."""
    assert_same(ab.load_weights(saved(kind, tmp_path)), TENSORS)


@pytest.mark.parametrize("kind", SAVE)
def test_a_file_is_known_by_what_it_holds(kind: str, tmp_path: Path) -> None:
    if kind == "w.onnx":
        pytest.skip("its first bytes may be anything")
    path = saved(kind, tmp_path).rename(tmp_path / "weights.dat")
    assert_same(ab.load_weights(path), TENSORS)


def test_a_folder_is_all_its_safetensors(tmp_path: Path) -> None:
    parts = [dict(list(TENSORS.items())[:3]), dict(list(TENSORS.items())[3:])]
    for number, part in enumerate(parts):
        save_file(part, tmp_path / f"part-{number}.safetensors")
    assert_same(ab.load_weights(tmp_path), TENSORS)
    save_file(parts[0], tmp_path / "again.safetensors")
    with pytest.raises(WeightError, match=r"'a\.bias' is in .*again.* and again in .*part-0"):
        ab.load_weights(tmp_path)


@pytest.mark.parametrize(("stem", "kind", "save"), [
    ("model", "safetensors", save_file), ("pytorch_model", "bin", torch.save)])
def test_a_folder_with_an_index_is_all_shards_that_it_names(
    stem: str, kind: str, save: Callable[..., None], tmp_path: Path
) -> None:
    names = [f"{stem}-0000{number}-of-00002.{kind}" for number in (1, 2)]
    items = list(TENSORS.items())
    for name, part in zip(names, (items[:3], items[3:]), strict=True):
        save(dict(part), tmp_path / name)
    index = tmp_path / f"{stem}.{kind}.index.json"
    index.write_text(json.dumps({"weight_map": {
        name: names[number >= 3] for number, name in enumerate(TENSORS)}}))
    torch.save({"x": torch.ones(1)}, tmp_path / "training_args.bin")
    assert_same(ab.load_weights(tmp_path), TENSORS)
    (tmp_path / names[1]).unlink()
    with pytest.raises(WeightError, match=f"names shards that are not there:\n  {names[1]}"):
        ab.load_weights(tmp_path)
    index.write_text('{"weight_map": 3}')
    with pytest.raises(WeightError, match="is no index of shards"):
        ab.load_weights(tmp_path)


def test_floats_are_converted_if_that_is_said_and_nothing_else_is(tmp_path: Path) -> None:
    path = saved("w.pt", tmp_path)
    found = ab.load_weights(path, dtype="f32")
    assert {name: array.dtype.name for name, array in found.items()} == {
        "a.weight": "float32", "a.bias": "float32", "half": "float32", "small": "float32",
        "empty": "float32", "count": "int64", "mask": "bool"}
    third = torch.tensor(1 / 3)
    for dtype, other in [("f16", torch.float16), ("bf16", torch.bfloat16)]:
        torch.save({"x": third}, path)
        assert ab.load_weights(path, dtype=dtype)["x"] == third.to(other).float().numpy()
    with pytest.raises(WeightError, match="cannot be made 'i64'; there are f64"):
        ab.load_weights(path, dtype="i64")


@pytest.mark.parametrize("kind", ["npz", "safetensors", "pt", "onnx"])
def test_integers_without_sign_are_read_to_the_last_bit(kind: str, tmp_path: Path) -> None:
    whole = {name: torch.tensor([0, 2**int(name[1:]) - 1], dtype=dtype) for name, dtype in
             [("u16", torch.uint16), ("u32", torch.uint32), ("u64", torch.uint64)]}
    path = tmp_path / f"w.{kind}"
    if kind == "npz":
        np.savez(path, **{name: t.numpy() for name, t in whole.items()})
    elif kind == "onnx":
        path.write_bytes(as_onnx(whole).SerializeToString())
    else:
        (save_file if kind == "safetensors" else torch.save)(whole, path)
    assert_same(ab.load_weights(path), whole)


def test_nested_tensors_of_torch_are_named_by_their_path(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.save({"model": layer.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3},
               tmp_path / "run.pt")
    found = ab.load_weights(tmp_path / "run.pt", {"model.*": "*", "optimizer.*": None})
    assert_same(found, {k: v.detach() for k, v in layer.state_dict().items()})


# ---- ONNX


def of_onnx_package(model: onnx.ModelProto) -> dict[str, Array]:
    constants = {t.name: t for t in model.graph.initializer}
    constants |= {node.output[0]: node.attribute[0].t for node in model.graph.node
                  if node.op_type == "Constant"}
    return {name: numpy_helper.to_array(tensor) for name, tensor in constants.items()}


@pytest.mark.skipif(DATA is None, reason="needs the shared data")
def test_all_constants_of_a_real_onnx_file_are_read() -> None:
    assert DATA is not None
    path = DATA / "silero_vad_16k_sequence.onnx"
    expected, found = of_onnx_package(onnx.load(path)), ab.load_weights(path)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("kind", [
    "FLOAT", "DOUBLE", "FLOAT16", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32",
    "UINT64", "BOOL", "BFLOAT16"])
def test_elements_of_onnx_tensors_are_read_however_they_are_written(
    kind: str, raw: bool, tmp_path: Path
) -> None:
    number = getattr(TensorProto, kind)
    dtype = helper.tensor_dtype_to_np_dtype(number)
    signed = kind[0] in "FDIB" and kind != "BOOL"
    values = np.array([[0, 1, 2], [-3 if signed else 3, 100, 1]]).astype(dtype)
    tensor = helper.make_tensor("x", number, (2, 3), values.tobytes() if raw else values.flatten(),
                                raw=raw)
    model = helper.make_model(helper.make_graph([], "g", [], [], initializer=[tensor]))
    (tmp_path / "x.onnx").write_bytes(model.SerializeToString())
    found = ab.load_weights(tmp_path / "x.onnx")["x"]
    expected = values.astype(np.float32) if kind == "BFLOAT16" else values
    np.testing.assert_array_equal(found, expected, strict=True)


def test_constants_inside_branches_are_named_after_their_node(tmp_path: Path) -> None:
    def branch(value: float) -> onnx.GraphProto:
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
        return helper.make_graph([helper.make_node("Constant", [], ["y"], value_float=value)],
                                 "b", [], [output])

    choice = helper.make_node("If", ["c"], ["z"], name="choose", then_branch=branch(1.0),
                              else_branch=branch(2.0))
    others = [helper.make_node("Constant", [], ["n"], value_int=-4),
              helper.make_node("Constant", [], ["f"], value_floats=[0.5, 2.0]),
              helper.make_node("Constant", [], ["k"], value_ints=[3, -1])]
    model = helper.make_model(helper.make_graph([choice, *others], "g", [], []))
    (tmp_path / "if.onnx").write_bytes(model.SerializeToString())
    found = ab.load_weights(tmp_path / "if.onnx")
    assert {name: array.tolist() for name, array in found.items()} == {
        "choose.then_branch.y": 1.0, "choose.else_branch.y": 2.0, "n": -4, "f": [0.5, 2.0],
        "k": [3, -1]}


def test_onnx_data_is_read_from_files_beside_it_and_from_no_others(tmp_path: Path) -> None:
    model = as_onnx({"big": torch.arange(600.0), "more": torch.arange(300.0)})
    path = tmp_path / "in" / "big.onnx"
    path.parent.mkdir()
    onnx.save(model, path, save_as_external_data=True, location="data.bin", size_threshold=0)
    assert_same(ab.load_weights(path), {"big": torch.arange(600.0), "more": torch.arange(300.0)})
    (path.parent / "data.bin").rename(tmp_path / "data.bin")
    with pytest.raises(WeightError, match="which is not there"):
        ab.load_weights(path)
    path.write_bytes(path.read_bytes().replace(b"data.bin", b"../d.bin"))
    with pytest.raises(WeightError, match="which is not beside it"):
        ab.load_weights(path)


# ---- renaming


def test_stars_stand_for_texts_and_the_most_particular_row_is_taken(tmp_path: Path) -> None:
    names = ["encoder.layer.0.q.weight", "encoder.layer.11.q.weight", "encoder.norm.bias",
             "pooler.weight", "head", "encoder.mask"]
    save_file({name: torch.full((1,), float(n)) for n, name in enumerate(names)},
              tmp_path / "w.safetensors")
    found = ab.load_weights(tmp_path / "w.safetensors", {
        "encoder.norm.bias": "scale.b", "encoder.*": "other.*",
        "encoder.layer.*.q.*": "blocks.*.query.*", "pooler.*": None})
    assert {name: int(array[0]) for name, array in found.items()} == {
        "blocks.0.query.weight": 0, "blocks.11.query.weight": 1, "scale.b": 2, "head": 4,
        "other.mask": 5}


@pytest.mark.parametrize(("table", "message"), [
    ({"a*": "x*", "*": None}, r"'a\*' renames no array: 'a' goes by '\*', which comes before it"),
    ({"*": "x.*", "a": None, "b": None}, r"'\*' renames no array: '.' goes by '.', which"),
])
def test_a_row_that_others_keep_from_renaming_is_reported(
    table: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_file({"a": torch.zeros(2), "b": torch.zeros(2)}, tmp_path / "w.safetensors")
    with pytest.raises(WeightError, match=message):
        ab.load_weights(tmp_path / "w.safetensors", table)


def test_a_row_that_renames_one_of_its_arrays_is_of_use(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2), "b": torch.zeros(2)}, tmp_path / "w.safetensors")
    assert ab.load_weights(tmp_path / "w.safetensors", {"*": "x*", "a": None}).keys() == {"xb"}


def test_a_function_may_rename(tmp_path: Path) -> None:
    save_file({"model.w": torch.ones(2)}, tmp_path / "w.safetensors")
    found = ab.load_weights(tmp_path / "w.safetensors", lambda name: name.removeprefix("model."))
    assert found.keys() == {"w"}


def test_arrays_are_laid_out_as_their_targets_say(tmp_path: Path) -> None:
    x = torch.arange(24.0).reshape(4, 6)
    save_file({"x": x, **{f"h.{i}.{n}": x + n for i in range(2) for n in range(3)}},
              tmp_path / "w.safetensors")
    found = ab.load_weights(tmp_path / "w.safetensors", {
        "x": ["same", ab.Target("turned", axes=(1, 0)), Target("row", index="1"),
              Target("corner", index="[:2, -3:]"), Target("one", index="-1, 0"),
              Target("flat", axes=(1, 0), shape=(-1,)), Target("gates", order=(1, 0))],
        "h.*.1": Target("fused.*", part=1, axis=1), "h.*.0": Target("fused.*", part=0, axis=1),
        "h.*.2": Target("fused.*", part=2, axis=1)})
    assert_same(found, {
        "same": x, "turned": x.T.contiguous(), "row": x[1], "corner": x[:2, -3:], "one": x[-1, 0],
        "flat": x.T.flatten(), "gates": torch.cat([x[2:], x[:2]]),
        **{f"fused.{i}": torch.cat([x, x + 1, x + 2], 1) for i in range(2)}})


@pytest.mark.skipif(DATA is None, reason="needs the shared data")
def test_an_lstm_of_onnx_becomes_that_of_torch() -> None:
    """ONNX has its gates in the order i o f c, PyTorch i f g o, and both biases in one array."""
    assert DATA is not None
    gates = (0, 2, 3, 1)
    found = ab.load_weights(DATA / "silero_vad_16k_sequence.onnx", {
        "onnx::LSTM_209": Target("weight_ih_l0", index="0", order=gates),
        "onnx::LSTM_210": Target("weight_hh_l0", index="0", order=gates),
        "onnx::LSTM_211": [Target("bias_ih_l0", index="0, :512", order=gates),
                           Target("bias_hh_l0", index="0, 512:", order=gates)],
        "*": None})
    theirs = torch.nn.LSTM(128, 128)
    theirs.load_state_dict({name: torch.from_numpy(array) for name, array in found.items()})
    model = onnx.load(DATA / "silero_vad_16k_sequence.onnx")
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    x = np.random.default_rng(0).normal(size=(5, 1, 128)).astype(np.float32)
    node = helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=128)
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xwrb"]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", inputs, [output])
    reference = ReferenceEvaluator(helper.make_model(graph))
    feeds = dict(zip("wrb", (weights[f"onnx::LSTM_{n}"] for n in (209, 210, 211)), strict=True))
    (expected,) = reference.run(None, {"x": x, **feeds})
    y, _ = theirs(torch.from_numpy(x))
    np.testing.assert_allclose(y.detach().numpy(), expected[:, 0], rtol=1e-5, atol=1e-6)


def test_everything_that_is_wrong_with_a_table_is_told_at_once(tmp_path: Path) -> None:
    save_file({name: torch.zeros(2, 3) for name in ("a.weight", "b.weight", "c.weight", "d")},
              tmp_path / "w.safetensors")
    with pytest.raises(WeightError) as failure:
        ab.load_weights(tmp_path / "w.safetensors", {
            "a.wieght": "x", "no.*": None, "b.weight": Target("y", axes=(0, 2)),
            "c.weight": Target("z", shape=(7,)), "d": Target("v", index="0, 0, 0"),
            "a.*": Target("u", order=(0, 1, 2))})
    text = str(failure.value)
    assert "no array is called 'a.wieght'; did you mean 'a.weight'?" in text
    assert "no.*" not in text
    for part in ("'b.weight' [2, 3] as 'y'", "'c.weight' [2, 3] as 'z'", "'d' [2, 3] as 'v'",
                 "'a.weight' [2, 3] as 'u': 2 rows are not 3 blocks in the order (0, 1, 2)"):
        assert part in text
    with pytest.raises(WeightError) as failure:
        ab.load_weights(tmp_path / "w.safetensors", {
            "a.weight": "x", "b.weight": "x", "c.weight": Target("y", part=0),
            "d": Target("y", part=2)})
    text = str(failure.value)
    assert "'x' would be 'a.weight' [2, 3], 'b.weight' [2, 3]; an array has one" in text
    assert "'y' would be 'c.weight' [2, 3] as part 0, 'd' [2, 3] as part 2" in text


@pytest.mark.parametrize(("row", "message"), [
    (3, "which is no name, Target or list"),
    ([None], "which is no name, Target or list"),
    ("*.*", r"'\*\.\*' has more stars than 'a\*'"),
    (Target("y", index="x"), "'x' is neither an integer nor a slice"),
])
def test_rows_without_a_meaning_are_refused(row: Any, message: str, tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "w.safetensors")
    with pytest.raises(WeightError, match=message):
        ab.load_weights(tmp_path / "w.safetensors", {"a*": row})


def test_a_name_without_stars_has_none_to_give(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "w.safetensors")
    with pytest.raises(WeightError, match=r"'b\.\*' has more stars than 'a'"):
        ab.load_weights(tmp_path / "w.safetensors", {"a": "b.*"})


@pytest.mark.parametrize("table", ["a", [("a", "b")], {3: "b"}, {None: "b"}])
def test_what_is_no_table_is_refused(table: Any, tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "w.safetensors")
    with pytest.raises(WeightError, match="rename table"):
        ab.load_weights(tmp_path / "w.safetensors", table)


@pytest.mark.parametrize(("text", "message"), [
    ("{", "is no JSON"), ("[]", "is no rename table"), ('{"a": 1}', "'a' goes to 1"),
    ('{"a": {"nam": "b"}}', "has 'nam', which is none of axes"),
    ('{"a": {"axes": [0]}}', "has no 'name'"), ('{"a": [null]}', "goes to None"),
    ('{"a": {"name": "b", "axes": [0.5]}}', "is no place for an array"),
    ('{"a": {"name": "b", "part": -1}}', "is no place for an array"),
    ('{"a": {"name": "b", "shape": [-2, 6]}}', "no size is below -1"),
])
def test_tables_without_a_meaning_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(WeightError, match=message):
        read_table(tmp_path / "t.json")


def test_a_table_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(
        {"a": "b", "c": None, "d": {"name": "e", "axes": [1, 0]}, "f": ["g", {"name": "h"}]}))
    assert read_table(tmp_path / "t.json") == {
        "a": "b", "c": None, "d": Target("e", axes=(1, 0)), "f": [Target("g"), Target("h")]}


# ---- files that are none


def test_what_torch_holds_and_numpy_does_not_is_refused(tmp_path: Path) -> None:
    """Complex numbers, sparse tensors, those of 8 bits or on no device; dicts within themselves."""
    odd: list[Any] = [torch.zeros(2, dtype=torch.complex64), torch.eye(2).to_sparse(),
                      torch.zeros(2).to(torch.float8_e4m3fn), torch.zeros(2, device="meta")]
    plan = ab.compile(ab.load(TINY.with_name("own_ops.ab")).train)
    with ab.Session(plan) as session:
        for value in odd:
            torch.save({"layer": {"w": value}}, tmp_path / "w.pt")
            with pytest.raises(WeightError, match=r"layer\.w is torch"):
                ab.load_weights(tmp_path / "w.pt")
            with pytest.raises((WeightError, FeedError), match="out"):
                session.load_state_dict({"out": value}, strict=False)
    endless: dict[str, Any] = {"w": torch.ones(2)}
    endless["again"] = endless
    torch.save(endless, tmp_path / "w.pt")
    with pytest.raises(WeightError, match="'again' is nested without an end"):
        ab.load_weights(tmp_path / "w.pt")


def test_what_is_no_file_of_weights_is_refused(tmp_path: Path) -> None:
    for content, message in [
        (b"", "is empty"), (b"hello world", "is no file of weights; safetensors"),
        (b"\x93NUMPY\x01\x00", "without a name"),
    ]:
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(WeightError, match=message):
            ab.load_weights(tmp_path / "x")
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(WeightError, match="there is no"):
            ab.load_weights(path)


@pytest.mark.parametrize("kind", SAVE)
def test_files_cut_short_are_refused(kind: str, tmp_path: Path) -> None:
    path = saved(kind, tmp_path)
    content = path.read_bytes()
    for length in {0, 1, 7, 8, 9, 30, *range(0, len(content), max(1, len(content) // 40))}:
        path.write_bytes(content[:length])
        with pytest.raises(WeightError):
            ab.load_weights(path)


@pytest.mark.parametrize("kind", SAVE)
def test_damaged_files_give_arrays_or_an_error_of_ours(kind: str, tmp_path: Path) -> None:
    path = saved(kind, tmp_path)
    content, random = path.read_bytes(), np.random.default_rng(0)
    for _ in range(150):
        wrong = bytearray(content)
        for place in random.integers(0, len(content), 3):
            wrong[place] = random.integers(0, 256)
        path.write_bytes(bytes(wrong))
        try:
            found = ab.load_weights(path)
        except WeightError:
            continue
        assert all(isinstance(array, np.ndarray) for array in found.values())


class Hostile:
    """Pickled, it makes its reader call a function."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.trace),)


def test_a_whole_module_is_refused_with_what_to_save_instead(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "net.pt")
    with pytest.raises(WeightError) as failure:
        ab.load_weights(tmp_path / "net.pt")
    assert str(failure.value) == (
        f"{tmp_path / 'net.pt'} holds more than tensors, which could run code: "
        "torch.nn.modules.linear.Linear\n"
        "help: of a module, save its state_dict(), as in torch.save(net.state_dict(), path)")


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    torch.save({"w": torch.ones(2), "x": Hostile(trace)}, tmp_path / "new.pt")
    torch.save({"x": Hostile(trace)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "bare.pkl").write_bytes(pickle.dumps({"x": Hostile(trace)}))
    np.savez(tmp_path / "w.npz", w=np.array([Hostile(trace)], dtype=object))
    for name in ("new.pt", "old.pt", "bare.pkl", "w.npz"):
        with pytest.raises(WeightError, match="holds more than"):
            ab.load_weights(tmp_path / name)
    assert not trace.exists()


def test_torchs_files_need_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(TENSORS, tmp_path / "w.pt")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(WeightError, match="which is not installed"):
        ab.load_weights(tmp_path / "w.pt")


def test_reading_needs_neither_torch_nor_onnx_nor_the_compiler(tmp_path: Path) -> None:
    paths = [str(saved(kind, tmp_path)) for kind in ("w.safetensors", "w.npz", "w.onnx")]
    code = ("import sys, anabranch as ab\n"
            "for path in sys.argv[1:]: assert len(ab.load_weights(path)) == 7\n"
            "assert not {'torch', 'onnx', 'lark', 'anabranch.ir.core'} & set(sys.modules)\n")
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(Path(ab.__file__).parents[1])},
                          check=False)
    assert done.returncode == 0, done.stderr
