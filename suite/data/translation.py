"""Sentence pairs for translation, and the BLEU score.

The default pairs are English and German number names, which num2words writes on every machine. Held-out numbers are
never trained on. WMT16 loads from the files of its published, tokenized form. Sources, decoder inputs and targets have
one fixed length: BEGIN, the words, END and padding; longer sentences are truncated. The score is sacrebleu's corpus
BLEU between joined texts, so it does not depend on the pieces.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suite.config.base import Count
from suite.core.errors import MissingDependency, refuse
from suite.data.reading import check_folder, published, text_of
from suite.data.samples import Samples, check_network, order
from suite.workload.recurrent import BEGIN, END, PADDING, UNKNOWN

__all__ = ["Translation", "check_folder", "check_shape", "number_names", "wmt16"]

Tokens = NDArray[np.int64]
Batch = tuple[tuple[Tokens, Tokens], Tokens]  # (sources, decoder's inputs), targets, each [batch, sequence]

MARKS = ("<pad>", "<unk>", "<s>", "</s>")  # the first four numbers of every vocabulary
ENGLISH = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty", "thirty", "forty"),
    *("fifty", "sixty", "seventy", "eighty", "ninety", "hundred", "thousand", "and"),
)
GERMAN = (
    *("null", "ein", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sech", "sieben", "sieb", "acht", "neun"),
    *("zehn", "elf", "zwölf", "zwan", "zig", "ßig", "und", "hundert", "tausend"),
)
LIMIT = 1_000_000  # from which on German names have spaces
CONTINUED = "@@"  # ends a piece that the next one belongs to
CHUNK = 1 << 26  # bytes of a file that are searched for lines at a time


class Sentences:
    """Training or validation pairs."""

    def pair(self, place: int) -> tuple[Sequence[int], Sequence[int]]:
        """Words of a source and of its translation."""
        raise NotImplementedError

    def batch(self, places: Sequence[int], shape: Any) -> Batch:
        sources, inputs, targets = (np.full((len(places), shape.sequence), PADDING, np.int64) for _ in range(3))
        for row, place in enumerate(places):
            source, target = self.pair(place)
            for translated, words in (
                (sources, (BEGIN, *source, END)),
                (inputs, (BEGIN, *target)),
                (targets, (*target, END)),
            ):
                translated[row, : len(words)] = words[: shape.sequence]
        return (sources, inputs), targets


@dataclass(frozen=True, slots=True, eq=False)
class Translation(Samples):
    """One data set of pairs.

    Attributes:
        words: Vocabulary of both languages, one word per number.
        joined: Text of a translation's words.
        tokenize: Tokenization of sacrebleu.
    """

    words: Sequence[str]
    joined: Callable[[Sequence[str]], str]
    tokenize: str

    def head(self) -> bytes:
        return "\n".join(self.words).encode()

    def score(self, decoded: Sequence[Any], batches: Sequence[Batch]) -> dict[str, float]:
        """Corpus BLEU, 0 to 100, of the decoded tokens (batch, length) of each batch against its targets."""
        try:
            from sacrebleu.metrics import BLEU
        except ImportError as error:
            raise MissingDependency("sacrebleu", "pip install sacrebleu to score translations") from error
        sentences = [self.text(row) for rows in decoded for row in np.asarray(rows)]
        right = [self.text(row) for _, targets in batches for row in np.asarray(targets)]
        uneven = len(sentences) != len(right) or not right
        refuse([(uneven, f"{len(sentences)} translations of {len(right)} sentences", "one of each, at least 1")])
        return {"bleu": float(BLEU(tokenize=self.tokenize).corpus_score(sentences, [right]).score)}

    def text(self, tokens: Sequence[int]) -> str:
        """Text of a translation's numbers up to END. A number without a word, which a network may have, is unknown."""
        words: list[str] = []
        for token in tokens:
            if token == END:
                break
            if token not in (PADDING, BEGIN):
                words.append(self.words[token] if token < len(self.words) else MARKS[1])
        return self.joined(words)


# -- number names ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class SentencesInMemory(Sentences):
    """Pairs in memory."""

    pairs: Sequence[tuple[Sequence[int], Sequence[int]]]

    def __len__(self) -> int:
        return len(self.pairs)

    def pair(self, place: int) -> tuple[Sequence[int], Sequence[int]]:
        return self.pairs[place]

    def update(self, digest: Any) -> int:
        content = repr([(tuple(source), tuple(target)) for source, target in self.pairs]).encode()
        digest.update(content)
        return sum(len(source) + len(target) for source, target in self.pairs)


def number_names(*, limit: Count = 10_000, train: Count = 2000, validation: Count = 256) -> Translation:
    """Names of numbers below `limit`: a fixed random selection for training, and others for validation.

    German names are one word, so they are divided into the fixed pieces above and scored by letter. Raises
    MissingDependency without num2words.
    """
    refuse(
        [
            (limit > LIMIT, f"data.source.limit={limit}", f"at most {LIMIT}, above which names have spaces"),
            (train + validation > limit, f"data.source.train={train}, validation={validation}", f"{limit} in all"),
        ]
    )
    try:
        from num2words import num2words
    except ImportError as error:
        raise MissingDependency("num2words", "pip install num2words to use data=number_names") from error
    words = (*MARKS, *ENGLISH, *GERMAN)
    number_of = {word: number for number, word in enumerate(words)}
    english, german = re.compile("[a-z]+"), re.compile("|".join(sorted(GERMAN, key=len, reverse=True)))

    def pair(number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        written = num2words(number, lang="de")
        source, target = english.findall(num2words(number, lang="en")), german.findall(written)
        strange = "".join(target) != written or not set(source) <= number_of.keys()
        refuse([(strange, f"num2words writes {number} as {written!r}", "the known pieces of num2words 0.5.14")])
        return tuple(number_of[word] for word in source), tuple(number_of[piece] for piece in target)

    drawn = order(limit, 0, 0)[: train + validation].tolist()
    held_out, learned = (
        SentencesInMemory([pair(number) for number in part]) for part in (drawn[:validation], drawn[validation:])
    )
    needs = {"vocabulary": len(words)}
    return Translation("number_names", learned, held_out, "sentence_pairs", needs, words, "".join, "char")


# -- WMT16 -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SentenceFiles(Sentences):
    """Two memory-mapped files with an equal number of lines. A rank reads only the lines of its batches."""

    source: Path
    target: Path
    number_of: dict[str, int]

    @cached_property
    def lines(self) -> tuple[tuple[NDArray[np.uint8], NDArray[np.int64]], ...]:
        """Bytes of each file and the ends of its lines. Raises InvalidRequest if one file has more lines."""
        pair = tuple(_lines(path) for path in (self.source, self.target))
        counts = [len(ends) for _, ends in pair]
        what = f"{self.source.name} of {counts[0]} lines and {self.target.name} of {counts[1]}"
        refuse([(counts[0] != counts[1], what, "a line of one is the translation of the other's")])
        return pair

    def __len__(self) -> int:
        return len(self.lines[0][1])

    def pair(self, place: int) -> tuple[Sequence[int], Sequence[int]]:
        source, target = (self._words(text, ends, place) for text, ends in self.lines)
        return source, target

    def update(self, digest: Any) -> int:
        total = 0
        for path in (self.source, self.target):
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            total += size
        return total

    def _words(self, text: NDArray[np.uint8], ends: NDArray[np.int64], place: int) -> list[int]:
        start = ends[place - 1] + 1 if place else 0
        line = text[start : ends[place]].tobytes().decode("utf-8")
        return [self.number_of.get(word, UNKNOWN) for word in line.split()]


def wmt16(folder: str | os.PathLike[str]) -> Translation:
    """WMT16 English to German in pieces of a joint vocabulary of 32,000, validated on newstest2014 (PipeOptim V-A).

    The number of a piece is its line in the vocabulary file after the four special tokens. Both sides are already
    tokenized, so sacrebleu splits joined pieces at spaces. The score is not comparable with scores of raw texts.
    """
    listed, *paths = published("wmt16", folder)
    words = (*MARKS, *_vocabulary(listed))
    number_of = {word: number for number, word in enumerate(words)}
    train, validation = (SentenceFiles(paths[at], paths[at + 1], number_of) for at in (0, 2))
    needs = {"vocabulary": len(words)}
    return Translation("wmt16", train, validation, "sentence_pairs", needs, words, _whole_words, "none")


def check_shape(name: str, folder: str | os.PathLike[str] | None, shape: Any) -> None:
    """Raise InvalidRequest for a network that does not translate, or has too few words."""
    paths = published(name, folder)
    words = _vocabulary(paths[0]) if paths else (*ENGLISH, *GERMAN)
    check_network(name, shape, "sentence_pairs", vocabulary=len(MARKS) + len(words))


def _vocabulary(path: Path) -> list[str]:
    return text_of(path).split()


def _whole_words(pieces: Sequence[str]) -> str:
    return f"{' '.join(pieces)} ".replace(f"{CONTINUED} ", "").strip()


def _lines(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    text = np.memmap(path, dtype=np.uint8, mode="r")
    starts = [start + np.flatnonzero(text[start : start + CHUNK] == ord("\n")) for start in range(0, len(text), CHUNK)]
    ends = np.concatenate(starts)
    if text[-1] != ord("\n"):
        ends = np.append(ends, len(text))
    return text, ends
