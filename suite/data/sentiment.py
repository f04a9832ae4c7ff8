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

from suite.config.base import Count
from suite.core.errors import refuse
from suite.data.reading import published, text_of
from suite.data.samples import Samples, check_network
from suite.data.text_classification import MARKS, encoded, in_turn, labelled, vocabulary_of

CLASSES, VOCABULARY = 2, 10_000
BREAK = "<br />"  # line break inside a review
WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")


def imdb(folder: str | os.PathLike[str], *, vocabulary: Count = VOCABULARY) -> Samples:
    """Reviews of aclImdb/{train,test}/{neg,pos}/*.txt. Class 0 is negative. `vocabulary` is its number of words."""
    read = [[_words(path) for path in _reviews(part)] for part in published("imdb", folder)]
    learned, validation = in_turn(read[:CLASSES]), in_turn(read[CLASSES:])
    words = vocabulary_of(learned[0], vocabulary)
    train, test = encoded(*learned, words), encoded(*validation, words)
    return labelled("imdb", train, test, CLASSES, len(words) + MARKS)


def check_folder(name: str, folder: str | os.PathLike[str] | None = None) -> None:
    """Raise InvalidRequest for a folder of another layout, without reading its reviews."""
    for part in published(name, folder):
        _reviews(part)


def check_shape(name: str, folder: str | os.PathLike[str] | None, shape: Any) -> None:
    """Raise InvalidRequest for a network that does not classify texts."""
    check_network(name, shape, "labelled_text", classes=CLASSES, vocabulary=MARKS + 1)


def _words(path: Path) -> Sequence[str]:
    return WORD.findall(text_of(path).replace(BREAK, " ").lower())


def _reviews(part: Path) -> list[Path]:
    """Return the paths of the reviews, sorted by name. Raises InvalidRequest for a part without reviews."""
    paths = sorted(part.glob("*.txt"))
    refuse([(not paths, f"imdb: no reviews in {part}", "at least one in each part, such as 0_9.txt")])
    return paths
