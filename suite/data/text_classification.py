"""Vocabulary and batches of labelled texts, equal on every rank and determined by seed and batch number.

A text is a row of token numbers. Number 0 is padding, and number 1 stands for words outside the vocabulary. The
vocabulary holds the most frequent words of the training texts. Texts longer than the network's `sequence` are
truncated, shorter texts are padded.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from suite.core.errors import InvalidRequest
from suite.core.protocols import DataSource
from suite.data.epochs import places

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

    def rows(self, places: Sequence[int], length: int) -> Tokens:
        """Texts at `places`, shape (n, length)."""
        padded = np.full((len(places), length), PADDING, np.int64)
        for row, place in enumerate(places):
            start = self.ends[place - 1] if place else 0
            text = self.tokens[start : min(self.ends[place], start + length)]
            padded[row, : len(text)] = text
        return padded


@dataclass(frozen=True, slots=True, eq=False)
class Labelled(DataSource):
    """One data set of texts.

    Attributes:
        classes: Number of classes.
        vocabulary: Number of words, including padding and unknown.
    """

    name: str
    classes: int
    vocabulary: int
    train: Texts
    validation: Texts

    @property
    def samples(self) -> int:
        """Texts of one epoch."""
        return len(self.train.classes)

    @property
    def held_out(self) -> int:
        return len(self.validation.classes)

    def batch(self, number: int, *, size: int, seed: int, shape: Any) -> Batch:
        """Batch `number` of a training run.

        An epoch contains every text once, in an order drawn from (seed, epoch). A batch continues where the one before
        it ended. Raises InvalidRequest for a network without these classes or words.
        """
        return self._cut(self.train, places(self.samples, number, size=size, seed=seed), shape)

    def validation_batches(self, *, size: int, shape: Any) -> Iterator[Batch]:
        """Every full batch of validation texts, in order."""
        for start in range(0, self.held_out - size + 1, size):
            yield self._cut(self.validation, range(start, start + size), shape)

    def provenance(self) -> dict[str, str | int]:
        """Name, bytes and SHA-256 of tokens and classes, training before validation."""
        arrays = [a for part in (self.train, self.validation) for a in (part.tokens, part.ends, part.classes)]
        digest = hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))
        size = self.train.tokens.nbytes + self.validation.tokens.nbytes
        return {"name": self.name, "bytes": size, "sha256": digest.hexdigest()}

    def _cut(self, part: Texts, chosen: Sequence[int], shape: Any) -> Batch:
        check(self.name, shape, classes=self.classes, vocabulary=self.vocabulary)
        return part.rows(chosen, shape.sequence), part.classes[list(chosen)]


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


def check(name: str, shape: Any, *, classes: int, vocabulary: int) -> None:
    """Raise InvalidRequest for a network that does not classify texts, or has too few classes or words."""
    if shape.content != "labelled_text":
        kind = type(shape).__name__
        what = f"data={name} with a {kind}"
        raise InvalidRequest(
            what, rule="labelled texts are for a classifier of texts", legal="model=residual_lstm_narrow"
        )
    for field, least in (("classes", classes), ("vocabulary", vocabulary)):
        if getattr(shape, field) < least:
            what, rule = f"model.shape.{field}={getattr(shape, field)}", f"data={name} has {least}"
            raise InvalidRequest(what, rule=rule, legal=f"model.shape.{field}={least}")
