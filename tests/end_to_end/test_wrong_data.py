"""Whatever is wrong with the data of a run, the message names the file and says what would do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anabranch.cli import main

PROGRAMS = {
    "arrays": """
model Net(n: int, classes: int):
    head: Linear(n, classes)

    def loss(x: f32[B, n], label: i64[B]) -> f32[]:
        return cross_entropy(head(x), label)

train Net(n=4, classes=3):
    steps = 1
    data = arrays(batch=4)
    optimizer = sgd(lr=0.1)
""",
    "table": """
model Line():
    a: f32[] = ones()

    def loss(size: f32[B], price: f32[B]) -> f32[]:
        return mse(a * size, price)

train Line():
    steps = 1
    data = table(batch=4, columns=["size", "price"])
    optimizer = sgd(lr=0.1)
""",
    "images": """
model Dot():
    a: f32[3, 2, 2] = ones()

    def loss(images: f32[B, 3, 2, 2], labels: i64[B]) -> f32[]:
        return mean(a * images) + mean(f32(labels))

train Dot():
    steps = 1
    data = images(batch=4)
    optimizer = sgd(lr=0.1)
""",
    "text": """
model Bytes():
    a: f32[256, 8] = normal()

    def loss(tokens: i64[B, S], targets: i64[B, S]) -> f32[]:
        return cross_entropy(a[tokens] @ a.T, targets)

train Bytes():
    steps = 1
    data = text(window=16, batch=4)
    optimizer = sgd(lr=0.1)
""",
}
X = np.zeros((20, 4), np.float32)
LABEL = np.arange(20) % 3
ROWS = "".join(f"{i},{2 * i}\n" for i in range(20))
KIND = {"arrays": "numpy.savez", "table": "names in the first line", "images": "a folder of .png"}
Files = Mapping[str, Any]

CASES: list[tuple[str, Files, str, str, str]] = [
    # reader, files, which of them, what is wrong, what would do
    ("arrays", {"rows.npz": {"x": X}}, "row.npz", "there is no such file", "rows.npz?"),
    ("arrays", {"a.npz": b"text"}, "a.npz", "not an .npz file", KIND["arrays"]),
    ("arrays", {"a.npz": b"PK\x03\x04rest"}, "a.npz", "damaged or cut off", KIND["arrays"]),
    ("arrays", {"d/a.npz": {"x": X}}, "d", "it is a folder", KIND["arrays"]),
    ("arrays", {"a.npz": {}}, "a.npz", "there are no arrays", KIND["arrays"]),
    ("arrays", {"a.npz": {"x": X, "label": LABEL[:15]}}, "a.npz", "{'x': 20, 'label': 15}", "row"),
    ("arrays", {"a.npz": {"x": X[:3], "label": LABEL[:3]}}, "a.npz", "does not fit 2", "3 rows"),
    ("arrays", {"a.npz": {"x": X, "label": LABEL * 0.5}}, "a.npz", "label is float64",
     "label.astype(numpy.int64)"),
    ("arrays", {"a.npz": {"x": X, "label": LABEL.astype(str)}}, "a.npz", "label is <U",
     "holds no numbers"),
    ("table", {"a.csv": "size,price\n" + ROWS}, "b.csv", "there is no such file", "a.csv?"),
    ("table", {"a.csv": bytes(range(256))}, "a.csv", "not text in UTF-8", KIND["table"]),
    ("table", {"a.csv": ""}, "a.csv", "it is empty", KIND["table"]),
    ("table", {"a.csv": ROWS}, "a.csv", "names no columns: 0, 0", KIND["table"]),
    ("table", {"a.csv": "size;price\n"}, "a.csv", "names no columns: size;price", KIND["table"]),
    ("table", {"a.csv": "size,prize\n" + ROWS}, "a.csv", "has no column 'price'", "'prize'?"),
    ("table", {"a.csv": "size,price\n1,2\n3,n/a\n"}, "a.csv:3", "'n/a' is no number", "nan"),
    ("table", {"a.csv": "size,price\n1,2\n"}, "a.csv", "does not fit 0 training rows", "1 rows"),
    ("images", {"faces/a.ppm": b""}, "face", "there is no such folder", "faces?"),
    ("images", {"a.csv": "size"}, "a.csv", "it is a file", KIND["images"]),
    ("images", {"d/a.jpg": b""}, "d", "there are .jpg files", KIND["images"]),
    ("text", {"d/corpus.txt": "words"}, "d/corpse.txt", "neither a file nor", "corpus.txt?"),
]


def write(files: Files) -> None:
    for name, content in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        if isinstance(content, dict):
            np.savez(name, **content)
        else:
            Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())


def told(reader: str, data: str, capsys: pytest.CaptureFixture[str]) -> str:
    Path("net.ab").write_text(PROGRAMS[reader])
    assert main(["train", "net.ab", "--data", data.partition(":")[0], "--trace", "0"]) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize(("reader", "files", "data", "wrong", "help"), CASES,
                         ids=[f"{reader}: {wrong}" for reader, _, _, wrong, _ in CASES])
def test_data_that_do_not_do_are_named_with_what_would(
    workplace: Path, capsys: pytest.CaptureFixture[str], reader: str, files: Files, data: str,
    wrong: str, help: str,
) -> None:
    write(files)
    message, _, advice = told(reader, data, capsys).partition("\nhelp: ")
    assert data in message
    assert wrong in message
    assert help in advice
    assert "Errno" not in message


@pytest.mark.parametrize(("x", "given"), [(X[:, :3], "[4, 3]"), (X[:, 0], "[4]"),
                                          (X[:, :, None], "[4, 4, 1]")])
def test_data_of_another_shape_are_a_mistake_where_it_is_declared(
    workplace: Path, capsys: pytest.CaptureFixture[str], x: np.ndarray[Any, Any], given: str
) -> None:
    write({"a.npz": {"x": x, "label": LABEL}})
    message = told("arrays", "a.npz", capsys)
    assert (f"net.ab:5:14: error: 'x' is f32[4, 4] in a batch, and the reader 'arrays' gives "
            f"{given}\n") in message
    assert "note: the recipe says n = 4\n    train Net(n=4, classes=3):" in message
