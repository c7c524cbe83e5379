"""A reader of images in folders, and the two kinds of files it decodes: PNG and PNM.

Both are read here, in a few lines each, so that images need no package more. Decoded are 8-bit
gray, RGB and palettes, with or without alpha, not interlaced; anything else is refused by name.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anabranch.runtime.errors import FeedError
from anabranch.runtime.rows import HELD, Batch, Order, RowReader, Rows, beside

Pixels = NDArray[np.uint8]  # [height, width, channels]
GRAY, RGB, PALETTE, GRAY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6
CHANNELS = {GRAY: 1, RGB: 3, PALETTE: 1, GRAY_ALPHA: 2, RGB_ALPHA: 4}
SIGNATURE = b"\x89PNG\r\n\x1a\n"


IMAGES = "images are read from a folder of .png, .pgm or .ppm files, or one with a folder a class"


class ImageReader(RowReader):
    """The images of a folder: `images` is f32[batch, channels, height, width], from 0 to 1. If it
    has a folder for each class, `labels` is i64[batch], their numbers in sorted order. Files are
    decoded when a batch wants them."""

    def __init__(self, source: str | Path, seed: int, *, batch: int, held: float = HELD) -> None:
        root = Path(source)
        self._paths = image_files(root)
        classes = sorted({p.parent for p in self._paths})
        self._labels = None if classes in ([root], []) else np.array(
            [classes.index(p.parent) for p in self._paths], np.int64)
        if not self._paths:
            raise _imageless(root)
        self._shape = read_image(self._paths[0]).shape
        super().__init__(self._read, Order(len(self._paths), seed, batch, held))

    def _read(self, rows: Rows) -> Batch:
        pixels = np.stack([self._one(self._paths[row]) for row in rows])
        batch: Batch = {"images": pixels.transpose(0, 3, 1, 2).astype(np.float32) / 255}
        if self._labels is not None:
            batch["labels"] = self._labels[rows]
        return batch

    def _one(self, path: Path) -> Pixels:
        pixels = read_image(path)
        if pixels.shape != self._shape:
            raise FeedError(f"{path} is {_size(pixels.shape)}, and {self._paths[0]} is "
                            f"{_size(self._shape)}: images of a batch have one size")
        return pixels


def _imageless(root: Path) -> FeedError:
    """What is wrong with a source that has no images."""
    if not root.exists():
        return FeedError(f"cannot read images from {root}: there is no such folder", beside(root))
    if not root.is_dir():
        return FeedError(f"cannot read images from {root}: it is a file", IMAGES)
    others = sorted({p.suffix for p in root.rglob("*") if p.is_file() and p.suffix})
    there = f"; there are {', '.join(others)} files" if others else ""
    return FeedError(f"there are no .png, .pgm or .ppm files in {root}{there}", IMAGES)


def _size(shape: Sequence[int]) -> str:
    height, width, channels = shape
    return f"{width} x {height} with {channels} channel{'s' if channels > 1 else ''}"


def image_files(root: Path) -> list[Path]:
    return sorted(p for p in root.rglob("*") if p.suffix.lower() in (".png", ".pgm", ".ppm"))


def read_image(path: Path) -> Pixels:
    """The pixels of a file, without its alpha."""
    try:
        data = path.read_bytes()
        return _png(data) if data.startswith(SIGNATURE) else _pnm(data)
    except (OSError, ValueError, IndexError, struct.error, zlib.error) as error:
        raise FeedError(f"cannot read an image from {path}: {error}") from error


# ---- PNM ----------------------------------------------------------------------------------------


def _pnm(data: bytes) -> Pixels:
    """Gray or RGB, binary: P5 or P6, then width, height and 255 with comments between them."""
    gap = rb"(?:\s|#[^\n]*\n)+"
    head = re.match(rb"P([56])" + gap + rb"(\d+)" + gap + rb"(\d+)" + gap + rb"255\s", data)
    if head is None:
        raise ValueError("it is neither PNG nor 8-bit binary PGM or PPM")
    width, height, channels = int(head[2]), int(head[3]), {b"5": 1, b"6": 3}[head[1]]
    pixels = np.frombuffer(data, np.uint8, height * width * channels, head.end())
    return pixels.reshape(height, width, channels)


# ---- PNG ----------------------------------------------------------------------------------------


def _png(data: bytes) -> Pixels:
    chunks = list(_chunks(data))
    width, height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[0][1])
    if depth != 8 or kind not in CHANNELS or interlaced:
        raise ValueError(f"PNG of {depth} bits, kind {kind}{', interlaced' * interlaced}; "
                         "8 bits, not interlaced, can be read")
    packed = zlib.decompress(b"".join(body for name, body in chunks if name == b"IDAT"))
    lines = np.frombuffer(packed, np.uint8).reshape(height, 1 + width * CHANNELS[kind])
    pixels = _unfiltered(lines, CHANNELS[kind]).reshape(height, width, CHANNELS[kind])
    if kind == PALETTE:
        palette = next(body for name, body in chunks if name == b"PLTE")
        return np.frombuffer(palette, np.uint8).reshape(-1, 3)[pixels[..., 0]]
    return pixels[..., :-1] if kind in (GRAY_ALPHA, RGB_ALPHA) else pixels


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(data):
        length, name = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        (checksum,) = struct.unpack_from(">I", data, at + 8 + length)
        if zlib.crc32(name + body) != checksum:
            raise ValueError(f"its chunk {name.decode('latin1')} is damaged")
        yield name, body
        at += 12 + length


def _unfiltered(lines: Pixels, channels: int) -> Pixels:
    """Each line is stored as differences from what its first byte says: the pixel to the left, the
    one above, the mean of both, or the nearest to `left + above - corner`."""
    before = np.zeros(lines.shape[1] - 1, np.uint8)
    rows = []
    for line in lines:
        match line[0]:
            case 0:
                row = line[1:]
            case 1:
                row = np.cumsum(line[1:].reshape(-1, channels), axis=0, dtype=np.uint8).ravel()
            case 2:
                row = line[1:] + before
            case 3 | 4:
                row = _by_pixel(line, before, channels)
            case other:
                raise ValueError(f"there is no PNG filter {other}")
        rows.append(row)
        before = row
    return np.stack(rows)


def _by_pixel(line: Pixels, above: Pixels, channels: int) -> Pixels:
    """Filters for which every pixel needs the one before it."""
    row = [0] * channels + line[1:].tolist()
    up = [0] * channels + above.tolist()
    for i in range(channels, len(row)):
        a, b, c = row[i - channels], up[i], up[i - channels]
        near = (a + b) // 2 if line[0] == 3 else _nearest(a, b, c)
        row[i] = (row[i] + near) & 255
    return np.array(row[channels:], np.uint8)


def _nearest(left: int, above: int, corner: int) -> int:
    guess = left + above - corner
    return min((left, above, corner), key=lambda value: abs(guess - value))
