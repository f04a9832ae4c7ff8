"""Passages of the papers, found by fingerprint.

A claim names its passage by the number of words and their SHA-256, so no sentence of a paper is copied. Words are
taken from the lower-cased text after NFKC, separated by white space. The environment variable SUITE_PAPERS names a
folder with the texts, `axonn.txt`, `samo.txt`, `pipeoptim.txt` and `sparse_gnn.txt`; without it no passage can be
looked up."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

from suite.core.claim import Claim, Passage
from suite.core.errors import InvalidRequest

VARIABLE = "SUITE_PAPERS"
NEAR = 40  # words on either side of a passage within which its printed numbers stand


def words(text: str) -> list[str]:
    return unicodedata.normalize("NFKC", text).lower().split()


def fingerprint(text: str) -> Passage:
    """The passage that `text` is."""
    text_words = words(text)
    return Passage(len(text_words), _digest(text_words))


def folder() -> Path | None:
    """The folder of texts that SUITE_PAPERS names; None where it names none."""
    name = os.environ.get(VARIABLE)
    return Path(name) if name else None


@cache
def paper_words(paper: str, where: Path) -> tuple[str, ...]:
    """The words of a paper. Raises InvalidRequest where the folder has no text of it."""
    path = where / f"{paper}.txt"
    try:
        return tuple(words(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{VARIABLE}={where}: {path.name} cannot be read: {error}") from error


def passage_positions(text: Sequence[str], passage: Passage) -> list[int]:
    """Indices of the words at which the passage begins."""
    return _windows(tuple(text), passage.words).get(passage.sha256, [])


def numbers_nearby(text: Sequence[str], at: int, passage: Passage, numbers: Sequence[str]) -> bool:
    """Whether all `numbers` stand, as written, within NEAR words of the passage that begins at `at`."""
    nearby = " ".join(text[max(0, at - NEAR) : at + passage.words + NEAR])
    return all(_stands(" ".join(words(number)), nearby) for number in numbers)


def _stands(number: str, text: str) -> bool:
    """Whether a number stands in a text on its own, not as digits of another. Extracted LaTeX may repeat it: 646464."""
    if not number.replace(".", "").isdigit():
        return number in text
    return re.search(rf"(?<![\d.])(?:{re.escape(number)})+(?!\d|\.\d)", text) is not None


def passage_lines(claim: Claim, where: Path, around: int = 12) -> Iterator[str]:
    """The passage of a claim in the text, with `around` words on either side. Raises InvalidRequest where it is not."""
    if claim.passage is None:
        raise InvalidRequest(f"claim {claim.id} names no passage", rule="a claim with a fingerprint")
    text = paper_words(claim.paper, where)
    lines = passage_positions(text, claim.passage)
    if not lines:
        rule = "the text that its fingerprint was taken from"
        raise InvalidRequest(f"the passage of {claim.id} is not in {claim.paper}.txt", rule=rule)
    for at in lines:
        end = at + claim.passage.words
        before, inside, after = text[max(0, at - around) : at], text[at:end], text[end : end + around]
        yield f"... {' '.join(before)} [{' '.join(inside)}] {' '.join(after)} ..."


@cache
def _windows(text: tuple[str, ...], count: int) -> dict[str, list[int]]:
    """By fingerprint, where each window of `count` words begins."""
    windows: dict[str, list[int]] = {}
    for at in range(len(text) - count + 1):
        windows.setdefault(_digest(text[at : at + count]), []).append(at)
    return windows


def _digest(found: Sequence[str]) -> str:
    return sha256(" ".join(found).encode()).hexdigest()
