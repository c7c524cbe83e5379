"""Readers of tables and images: what the files say, or a message that names file and line."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from anabranch.runtime.data import make_reader, register
from anabranch.runtime.errors import FeedError
from anabranch.runtime.images import Pixels, read_image
from anabranch.runtime.rows import read_table

TABLE = "user,price,shop\n7,1.5,north\n8,2,south\n7,nan,north\n"


def test_a_table_has_integers_numbers_and_words(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TABLE)
    (tmp_path / "a.tsv").write_text(TABLE.replace(",", "\t"))
    for name in ("a.csv", "a.tsv"):
        table = read_table(tmp_path / name)
        assert table["user"].tolist() == [7, 8, 7]
        assert table["shop"].tolist() == [0, 1, 0]
        assert {column: str(array.dtype) for column, array in table.items()} == {
            "user": "int64", "price": "float32", "shop": "int64"}
        np.testing.assert_array_equal(table["price"], np.array([1.5, 2, np.nan], np.float32))


def test_a_recipe_chooses_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TABLE)
    reader = make_reader("table", tmp_path / "a.csv", 0, {"batch": 2, "columns": ["user", "shop"]})
    assert reader.batch(0).keys() == {"user", "shop"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3\n", "a.csv:3 has 1 entries, and there are 2 columns: a, b"),
        ("a,c\n1,2\n", "has no column 'b'; it has a, c"),
        ("a,b\n1,2\n1,two\n", "a.csv:3: 'two' is no number, and the column 'b' has some"),
        ("", "cannot read a table"), ("a,b\n", "a batch of 1 does not fit 0 training rows"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(FeedError) as refused:
        make_reader("table", tmp_path / "a.csv", 0, {"batch": 1, "columns": ["a", "b"]})
    assert message in str(refused.value)


# ---- images -------------------------------------------------------------------------------------

KINDS = {1: 0, 2: 4, 3: 2, 4: 6}  # PNG's number of a kind by its channels
HARD = np.random.default_rng(0).integers(0, 256, (5, 7, 4)).astype(np.uint8)


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(lines: bytes, width: int, height: int, kind: int, *more: bytes, depth: int = 8) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    return b"".join([b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", head), *more,
                     chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b"")])


def filtered(pixels: Pixels) -> bytes:
    """A line under each of PNG's five filters, from their definition."""
    height, width, channels = pixels.shape
    wide = np.zeros((height + 1, width + 1, channels), int)
    wide[1:, 1:] = pixels
    left, above, corner = wide[1:, :-1], wide[:-1, 1:], wide[:-1, :-1]
    guess = left + above - corner
    near = np.array([abs(guess - left), abs(guess - above), abs(guess - corner)]).argmin(axis=0)
    paeth = np.choose(near, [left, above, corner])
    guesses = [0 * left, left, above, (left + above) // 2, paeth]
    return b"".join(bytes([i % 5]) + (pixels - guesses[i % 5])[i].astype(np.uint8).tobytes()
                    for i in range(height))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_png_is_decoded_under_all_its_filters(tmp_path: Path, channels: int) -> None:
    pixels = HARD[..., :channels]
    (tmp_path / "a.png").write_bytes(png(filtered(pixels), 7, 5, KINDS[channels]))
    seen = pixels[..., :-1] if channels in (2, 4) else pixels
    np.testing.assert_array_equal(read_image(tmp_path / "a.png"), seen)


def test_colours_of_a_palette_are_looked_up(tmp_path: Path) -> None:
    palette = chunk(b"PLTE", bytes([1, 2, 3, 4, 5, 6]))
    (tmp_path / "a.png").write_bytes(png(bytes([0, 1, 0]), 2, 1, 3, palette))
    assert read_image(tmp_path / "a.png").tolist() == [[[4, 5, 6], [1, 2, 3]]]


def pgm(path: Path, pixels: Pixels) -> None:
    height, width = pixels.shape
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"P5\n# a comment\n%d %d\n255\n" % (width, height) + pixels.tobytes())


def test_folders_of_images_are_classes(tmp_path: Path) -> None:
    for i in range(20):
        pgm(tmp_path / ("even", "odd")[i % 2] / f"{i}.pgm", np.full((2, 3), i, np.uint8))
    reader = make_reader("images", tmp_path, 0, {"batch": 4})
    batch = reader.batch(0)
    assert batch["images"].shape == (4, 1, 2, 3)
    numbers = np.round(255 * batch["images"][:, 0, 0, 0]).astype(int)
    np.testing.assert_array_equal(batch["labels"], numbers % 2)
    assert make_reader("images", tmp_path / "odd", 0, {"batch": 4}).batch(0).keys() == {"images"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"P5 3 2 255 " + bytes(6), "is 3 x 2 with 1 channel, and"),
        (b"P5 3 2 255 ", "cannot read an image"), (b"GIF89a", "neither PNG nor 8-bit binary"),
        (png(bytes(5), 2, 2, 0, depth=16), "PNG of 16 bits, kind 0; 8 bits"),
        (png(bytes(6), 2, 2, 0)[:-20] + bytes(20), "cannot read an image"),
        (png(bytes([9, 0, 0, 9, 0, 0]), 2, 2, 0), "there is no PNG filter 9"),
    ],
)
def test_an_image_that_cannot_be_used_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    for i in range(8):
        pgm(tmp_path / f"{i}.pgm", np.zeros((2, 2), np.uint8))
    (tmp_path / "last.png").write_bytes(data)
    reader = make_reader("images", tmp_path, 0, {"batch": 8})
    with pytest.raises(FeedError, match=r"last\.png") as refused:
        [*map(reader.batch, range(2)), *reader.validation()]
    assert message in str(refused.value)


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FeedError, match="there are no"):
        make_reader("images", tmp_path, 0, {"batch": 1})


def test_a_user_can_add_a_reader() -> None:
    @register("countdown")
    class Countdown:
        def __init__(self, source: object, seed: int, *, start: int) -> None:
            self._start = start

        def batch(self, step: int) -> dict[str, int]:
            return {"n": self._start - step}

        def validation(self) -> list[tuple[dict[str, int], int]]:
            return []

    assert make_reader("countdown", None, 0, {"start": 3}).batch(1) == {"n": 2}
