"""Search for cited passages in the papers' texts by fingerprint.

A fingerprint is the number of words of a passage and their SHA-256, so no sentence of a paper is copied. Words are
separated by white space, after NFKC normalization and lower-casing. The environment variable SUITE_PAPERS is the
folder of the texts: `axonn.txt`, `samo.txt`, `pipeoptim.txt` and `sparse_gnn.txt`. The search needs this folder."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

from suite.claims.claim import Claim, Passage
from suite.core.errors import InvalidRequest

VARIABLE = "SUITE_PAPERS"
NEAR = 40  # largest distance in words between a passage and its printed numbers


def words(text: str) -> list[str]:
    """Normalized words of a text."""
    return unicodedata.normalize("NFKC", text).lower().split()


def fingerprint(text: str) -> Passage:
    """Number of words of `text` and their SHA-256."""
    text_words = words(text)
    return Passage(len(text_words), _digest(text_words))


def folder() -> Path | None:
    """Folder of the texts from SUITE_PAPERS, or None if the variable is not set."""
    name = os.environ.get(VARIABLE)
    return Path(name) if name else None


@cache
def paper_words(paper: str, where: Path) -> tuple[str, ...]:
    """Words of a paper. Raises InvalidRequest if its text cannot be read."""
    path = where / f"{paper}.txt"
    try:
        return tuple(words(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{VARIABLE}={where}: {path.name} cannot be read: {error}") from error


def passage_positions(text: Sequence[str], passage: Passage) -> list[int]:
    """Indices of the words at which the passage begins."""
    # a paper may print the same passage twice
    return _windows(tuple(text), passage.words).get(passage.sha256, [])


def numbers_nearby(text: Sequence[str], at: int, passage: Passage, numbers: Sequence[str]) -> bool:
    """Whether all `numbers` occur as written within NEAR words of the passage that begins at word `at`."""
    nearby = " ".join(text[max(0, at - NEAR) : at + passage.words + NEAR])
    return all(_occurs(" ".join(words(number)), nearby) for number in numbers)


def _occurs(number: str, text: str) -> bool:
    """Whether a number occurs by itself and not inside a longer one. Extracted LaTeX may repeat it: 646464."""
    if not number.replace(".", "").isdigit():
        return number in text
    return re.search(rf"(?<![\d.])(?:{re.escape(number)})+(?!\d|\.\d)", text) is not None


def passage_lines(claim: Claim, where: Path, around: int = 12) -> Iterator[str]:
    """Every occurrence of a claim's passage, in brackets, with `around` words on either side.

    Raises:
        InvalidRequest: The claim has no fingerprint, or the text has no such passage.
    """
    if claim.passage is None:
        raise InvalidRequest(f"claim {claim.id} names no passage", rule="a claim with a fingerprint")
    text = paper_words(claim.paper, where)
    positions = passage_positions(text, claim.passage)
    if not positions:
        rule = "the text that its fingerprint was taken from"
        raise InvalidRequest(f"the passage of {claim.id} is not in {claim.paper}.txt", rule=rule)
    for at in positions:
        end = at + claim.passage.words
        before, inside, after = text[max(0, at - around) : at], text[at:end], text[end : end + around]
        yield f"... {' '.join(before)} [{' '.join(inside)}] {' '.join(after)} ..."


@cache
def _windows(text: tuple[str, ...], count: int) -> dict[str, list[int]]:
    """First word of each window of `count` words, by digest."""
    windows: dict[str, list[int]] = {}
    for at in range(len(text) - count + 1):
        windows.setdefault(_digest(text[at : at + count]), []).append(at)
    return windows


def _digest(text_words: Sequence[str]) -> str:
    return sha256(" ".join(text_words).encode()).hexdigest()
