"""Passages of claims: fingerprints, and where SUITE_PAPERS names the texts, that each stands in its paper.

A fingerprint is the number of words of a passage and their SHA-256, so no sentence of a paper is copied. Words are
separated by white space, after NFKC normalization and lower-casing. The environment variable SUITE_PAPERS is the
folder of the texts: `axonn.txt`, `samo.txt`, `pipeoptim.txt` and `sparse_gnn.txt`."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest

from suite.claims import load
from suite.claims.claim import Passage

ALL = load.claims()
TEXTS = sorted({claim.paper for claim in ALL if claim.passage})
LONGEST = 12  # words in a row that a restatement may share with its paper: formulas, names and numbers
TEXT = "The first sentence has 3.99 in it. The SECOND one\nspans ﬁve lines, and the\tthird ends."
NEAR = 40  # largest distance in words between a passage and its printed numbers


def words(text: str) -> list[str]:
    """Normalized words of a text."""
    return unicodedata.normalize("NFKC", text).lower().split()


def fingerprint(text: str) -> Passage:
    """Number of words of `text` and their SHA-256."""
    text_words = words(text)
    return Passage(len(text_words), _digest(text_words))


@cache
def paper_words(paper: str, where: Path) -> tuple[str, ...]:
    """Words of a paper."""
    return tuple(words((where / f"{paper}.txt").read_text(encoding="utf-8")))


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


@cache
def _windows(text: tuple[str, ...], count: int) -> dict[str, list[int]]:
    """First word of each window of `count` words, by digest."""
    windows: dict[str, list[int]] = {}
    for at in range(len(text) - count + 1):
        windows.setdefault(_digest(text[at : at + count]), []).append(at)
    return windows


def _digest(text_words: Sequence[str]) -> str:
    return sha256(" ".join(text_words).encode()).hexdigest()


@pytest.fixture
def texts() -> Path:
    if not (folder := os.environ.get("SUITE_PAPERS")):
        pytest.skip("papers: set SUITE_PAPERS to a folder with the papers' texts")
    return Path(folder)


def test_words_and_passages_ignore_case_white_space_and_ligatures() -> None:
    assert words("  ﬁve\nLINES, ") == ["five", "lines,"]
    assert fingerprint("Five lines,") == fingerprint("ﬁve   lines,")
    assert fingerprint("five lines,") != fingerprint("five lines")
    text = words(TEXT)
    for passage, places in (("the second one spans five", [7]), ("the", [0, 7, 14]), ("the second two", [])):
        assert passage_positions(text, fingerprint(passage)) == places
    assert passage_positions(text, Passage(40, "0" * 64)) == []


def test_printed_numbers_stand_near_the_passage_and_are_no_part_of_another() -> None:
    text = ["a"] * 50 + words("4.99 percent") + ["b"] * (NEAR - 1) + ["here", "stands"] + ["c"] * 60 + ["5.01"]
    at, passage = text.index("here"), fingerprint("here stands")
    assert numbers_nearby(text, at, passage, ["percent"])
    assert not numbers_nearby(text, at, passage, ["4.99"])  # 41 words before
    assert not numbers_nearby(text, at, passage, ["percent", "5.01"])
    text, passage = words("about 14.99 and 3.01, one sentence"), fingerprint("one sentence")
    assert numbers_nearby(text, 4, passage, ["14.99", "3.01"])
    assert numbers_nearby(words("on 646464 gpus"), 2, fingerprint("gpus"), ["64"])
    for other in ("4.99", "14.9", "3", "01"):
        assert not numbers_nearby(text, 4, passage, [other]), other


@pytest.mark.parametrize("paper", TEXTS)
def test_every_passage_stands_in_its_paper_and_no_sentence_is_copied(paper: str, texts: Path) -> None:
    text = paper_words(paper, texts)
    runs = {text[at : at + LONGEST] for at in range(len(text) - LONGEST + 1)}
    for claim in (each for each in ALL if each.paper == paper):
        assert claim.passage is not None
        positions = passage_positions(text, claim.passage)
        assert any(numbers_nearby(text, at, claim.passage, claim.printed) for at in positions), claim.id
        for prose in (claim.asserts, claim.note, claim.because, claim.limits):
            of_text = words(prose)
            assert not {tuple(of_text[at : at + LONGEST]) for at in range(len(of_text))} & runs, claim.id
