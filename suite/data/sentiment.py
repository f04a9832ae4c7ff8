"""IMDb reviews (PipeOptim's sentiment task), read from the published folder.

A review is lower-cased and divided into words, of which a network reads the first ones. The vocabulary has 10,000
numbers: padding, unknown, and the most frequent words of the training reviews. The published split is kept: train for
training, test for validation. Nothing is downloaded or unpickled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suite.core.errors import InvalidRequest, UnknownName
from suite.data.reading import located, text_of
from suite.data.text_classification import MARKS, Labelled, check, encoded, in_turn, vocabulary_of

LAYOUTS: dict[str, tuple[str, ...]] = {"imdb": ("train/neg", "train/pos", "test/neg", "test/pos")}
CLASSES, VOCABULARY = 2, 10_000
BREAK = "<br />"  # line break inside a review
WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")


def imdb(folder: str | os.PathLike[str], *, vocabulary: int = VOCABULARY) -> Labelled:
    """Reviews of aclImdb/{train,test}/{neg,pos}/*.txt. Class 0 is negative. `vocabulary` is its number of words."""
    if vocabulary <= MARKS:
        raise InvalidRequest(
            f"data.source.vocabulary={vocabulary}", rule=f"at least {MARKS + 1}", legal=str(VOCABULARY)
        )
    read = [[_words(path) for path in _reviews(part)] for part in _paths("imdb", folder)]
    learned, validation = in_turn(read[:CLASSES]), in_turn(read[CLASSES:])
    words = vocabulary_of(learned[0], vocabulary)
    return Labelled("imdb", CLASSES, len(words) + MARKS, encoded(*learned, words), encoded(*validation, words))


def check_folder(name: str, folder: str | os.PathLike[str] | None = None) -> None:
    """Raise InvalidRequest for a folder of another layout, without reading its reviews."""
    for part in _paths(name, folder):
        _reviews(part)


def check_shape(name: str, folder: str | os.PathLike[str] | None, shape: Any) -> None:
    """Raise InvalidRequest for a network that does not classify texts."""
    check(name, shape, classes=CLASSES, vocabulary=MARKS + 1)


def _words(path: Path) -> Sequence[str]:
    return WORD.findall(text_of(path).replace(BREAK, " ").lower())


def _reviews(part: Path) -> list[Path]:
    """Return the paths of the reviews, sorted by name. Raises InvalidRequest for a part without reviews."""
    paths = sorted(part.glob("*.txt"))
    if not paths:
        raise InvalidRequest(f"imdb: no reviews in {part}", rule="at least one in each part", legal="0_9.txt")
    return paths


def _paths(name: str, folder: str | os.PathLike[str] | None) -> list[Path]:
    """The four folders of the published layout. Raises InvalidRequest with the existing content instead."""
    if name not in LAYOUTS:
        raise UnknownName("data set of reviews", name, list(LAYOUTS))
    return located(name, folder, LAYOUTS[name])
