"""Vocabulary and batches of labelled texts, equal on every rank and determined by seed and batch number.

A text is a row of token numbers. Number 0 is padding, and number 1 stands for words outside the vocabulary. The
vocabulary holds the most frequent words of the training texts. Texts longer than the network's `sequence` are
truncated, shorter texts are padded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from suite.data.samples import Samples

Text = TypeVar("Text")
Tokens = NDArray[np.int64]
Batch = tuple[Tokens, NDArray[np.int64]]  # tokens [batch, sequence], classes [batch]

PADDING, UNKNOWN, MARKS = 0, 1, 2


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


def labelled(name: str, train: Texts, validation: Texts, classes: int, vocabulary: int) -> Samples:
    """A data set of texts; `vocabulary` counts padding and unknown too."""
    return Samples(name, train, validation, "labelled_text", {"classes": classes, "vocabulary": vocabulary})


def vocabulary_of(texts: Iterable[Sequence[str]], size: int) -> dict[str, int]:
    """Numbers of the most frequent words, `size` including padding and unknown.

    Equally frequent words are sorted by name.
    """
    counted = Counter(word for text in texts for word in text)
    ranked = sorted(counted, key=lambda word: (-counted[word], word))
    return {word: number for number, word in enumerate(islice(ranked, size - MARKS), MARKS)}


def in_turn(classes: Sequence[Sequence[Text]]) -> tuple[list[Text], list[int]]:
    """Texts and classes, interleaved by class: the first of each class, the second of each class, and so on.

    The first validation batches thus contain all classes.
    """
    order = sorted((at, label) for label, texts in enumerate(classes) for at in range(len(texts)))
    return [classes[label][at] for at, label in order], [label for _, label in order]


def encoded(texts: Iterable[Sequence[str]], classes: Sequence[int], vocabulary: Mapping[str, int]) -> Texts:
    """One part of a data set as numbers of a vocabulary."""
    rows = [[vocabulary.get(word, UNKNOWN) for word in text] for text in texts]
    tokens = np.array([number for row in rows for number in row], np.uint16)
    return Texts(tokens, np.cumsum([len(row) for row in rows], dtype=np.int64), np.array(classes, np.int64))
