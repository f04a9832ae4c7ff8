"""Labelled texts: snippets of Python's standard library by package, and IMDb reviews (PipeOptim's sentiment task).

A text is a row of token numbers. Number 0 is padding, and number 1 stands for words outside the vocabulary, which holds
the most frequent words of the training texts. Texts longer than the network's `sequence` are truncated, shorter texts
are padded. Batches are equal on every rank and determined by seed and batch number.

Snippets need no download and are equal on every machine with one Python version: packages that no distribution strips,
files in the order of a hash of their names, and an equal number of snippets per package. A snippet is a run of words,
numbers and signs. Whole files are validation data, so no function is in both parts. The hash in a record identifies the
sources.
"""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suite.config.base import Count
from suite.core.errors import refuse
from suite.data.reading import check_folder, published, text_of
from suite.data.samples import Samples, check_network

__all__ = ["check_folder", "check_shape", "imdb", "snippets"]

Words = Sequence[str]
Tokens = NDArray[np.int64]
Batch = tuple[Tokens, NDArray[np.int64]]  # tokens [batch, sequence], classes [batch]

PADDING, UNKNOWN, MARKS = 0, 1, 2
PACKAGES = ("asyncio", "email", "http", "importlib", "multiprocessing", "unittest", "urllib", "xml")
SKIPPED = frozenset({"__pycache__", "test", "tests"})
CODE_WORD = re.compile(r"[A-Za-z_]+|[0-9]+|[^\sA-Za-z_0-9]")
HELD_OUT = 0.2  # share of a package's snippets
SIDES = ("negative", "positive")  # classes of IMDb
BREAK = "<br />"  # line break inside a review
REVIEW_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """One part of a data set: the concatenated tokens of all texts, the end of each text, and its class."""

    tokens: NDArray[np.uint16]
    ends: NDArray[np.int64]
    classes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.classes)

    def batch(self, places: Sequence[int], shape: Any) -> Batch:
        return self.rows(places, shape.sequence), self.classes[list(places)]

    def update(self, digest: Any) -> int:
        for array in (self.tokens, self.ends, self.classes):
            digest.update(np.ascontiguousarray(array).tobytes())
        return self.tokens.nbytes

    def rows(self, places: Sequence[int], length: int) -> Tokens:
        """Texts at `places`, shape (n, length)."""
        padded = np.full((len(places), length), PADDING, np.int64)
        for row, place in enumerate(places):
            start = self.ends[place - 1] if place else 0
            text = self.tokens[start : min(self.ends[place], start + length)]
            padded[row, : len(text)] = text
        return padded


def snippets(
    *,
    length: Count = 32,
    vocabulary: Count = 1000,
    train: Count = 320,
    validation: Count = 64,
    folder: str | os.PathLike[str] | None = None,
) -> Samples:
    """Eight classes of snippets.

    Raises InvalidRequest if a package has too few snippets in one part.

    Args:
        length: Words of a snippet.
        vocabulary: Size of the vocabulary, including padding and unknown.
        train, validation: Snippets of each package in either part, at even distances in the available snippets. A
            fifth of each package is held out: files in the order of their hash, until the fifth is reached.
        folder: Another tree of packages; None for the standard library of this interpreter.
    """
    root = Path(sysconfig.get_path("stdlib") if folder is None else folder)
    parts: tuple[list[list[Words]], list[list[Words]]] = ([], [])
    for package in PACKAGES:
        for part, side, limit, pieces in zip(
            parts, ("train", "validation"), (train, validation), _divided(root, package, length), strict=True
        ):
            what = f"data.source.{side}={limit} of {package} in {root}"
            refuse([(len(pieces) < limit, what, f"its {len(pieces)} snippets of {length} words there")])
            part.append([pieces[place * len(pieces) // limit] for place in range(limit)])
    return _labelled("snippets", *parts, vocabulary)


def imdb(folder: str | os.PathLike[str], *, vocabulary: Count = 10_000) -> Samples:
    """Reviews of aclImdb/{train,test}/{neg,pos}/*.txt with the published split. Class 0 is negative.

    A review is lower-cased and divided into words. `vocabulary` is their number, including padding and unknown.
    """
    read: list[list[Words]] = []
    for part in published("imdb", folder):
        paths = sorted(part.glob("*.txt"))
        refuse([(not paths, f"imdb: no reviews in {part}", "at least one in each part, such as 0_9.txt")])
        read.append([REVIEW_WORD.findall(text_of(path).replace(BREAK, " ").lower()) for path in paths])
    return _labelled("imdb", read[: len(SIDES)], read[len(SIDES) :], vocabulary)


def check_shape(name: str, folder: str | os.PathLike[str] | None, shape: Any) -> None:
    """Raise InvalidRequest for a network that does not classify texts, or has too few classes.

    The number of words of a config is only known when a rank reads them.
    """
    classes = SIDES if name == "imdb" else PACKAGES
    check_network(name, shape, "labelled_text", classes=len(classes), vocabulary=MARKS + 1)


def vocabulary_of(texts: Iterable[Words], size: int) -> dict[str, int]:
    """Numbers of the most frequent words, `size` including padding and unknown.

    Equally frequent words are sorted by name.
    """
    counted = Counter(word for text in texts for word in text)
    ranked = sorted(counted, key=lambda word: (-counted[word], word))
    return {word: number for number, word in enumerate(islice(ranked, size - MARKS), MARKS)}


def _labelled(name: str, train: Sequence[Sequence[Words]], validation: Sequence[Sequence[Words]], size: int) -> Samples:
    """A data set of the texts of each class, with a vocabulary of at most `size` numbers.

    The texts are interleaved by class: the first of each class, the second of each class, and so on. The first
    validation batches thus contain all classes.
    """
    numbers = vocabulary_of((text for texts in train for text in texts), size)
    parts = []
    for classes in (train, validation):
        order = sorted((at, label) for label, texts in enumerate(classes) for at in range(len(texts)))
        rows = [[numbers.get(word, UNKNOWN) for word in classes[label][at]] for at, label in order]
        tokens = np.array([number for row in rows for number in row], np.uint16)
        ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
        parts.append(Texts(tokens, ends, np.array([label for _, label in order], np.int64)))
    needs = {"classes": len(train), "vocabulary": len(numbers) + MARKS}
    return Samples(name, parts[0], parts[1], "labelled_text", needs)


def _divided(root: Path, package: str, length: int) -> tuple[list[Words], list[Words]]:
    """Snippets of a package, from training files and from held-out files."""
    files = [path for path in (root / package).rglob("*.py") if not SKIPPED & set(path.relative_to(root).parts)]
    paths_by_name = {path.relative_to(root).as_posix(): path for path in files}
    cut = []
    for name in sorted(paths_by_name, key=lambda name: hashlib.sha256(name.encode()).digest()):
        words = CODE_WORD.findall(paths_by_name[name].read_text(encoding="utf-8", errors="replace"))
        cut.append([words[at : at + length] for at in range(0, len(words) - length + 1, length)])
    total = sum(map(len, cut))
    train: list[Words] = []
    validation: list[Words] = []
    for pieces in cut:
        side = validation if len(validation) < HELD_OUT * total else train
        side += pieces
    return train, validation
