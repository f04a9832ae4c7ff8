"""Passages of claims: fingerprints, and where SUITE_PAPERS names the texts, that each stands in its paper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from suite.claims import load, passages
from suite.claims.claim import Passage
from suite.claims.passages import (
    fingerprint,
    numbers_nearby,
    paper_words,
    passage_lines,
    passage_positions,
    words,
)
from suite.cli.claims import main
from suite.core.errors import InvalidRequest
from tests.support.refusals import refused

ALL = load.claims()
TEXTS = [paper for paper in load.PAPERS if paper not in load.WITHOUT_TEXT]
LONGEST = 12  # words in a row that a restatement may share with its paper: formulas, names and numbers
TEXT = "The first sentence has 3.99 in it. The SECOND one\nspans ﬁve lines, and the\tthird ends."


@pytest.fixture
def texts() -> Path:
    folder = passages.folder()
    if folder is None:
        pytest.skip("papers: set SUITE_PAPERS to a folder with the papers' texts")
    return folder


def test_words_and_passages_ignore_case_white_space_and_ligatures() -> None:
    assert words("  ﬁve\nLINES, ") == ["five", "lines,"]
    assert fingerprint("Five lines,") == fingerprint("ﬁve   lines,")
    assert fingerprint("five lines,") != fingerprint("five lines")
    text = words(TEXT)
    for passage, places in (("the second one spans five", [7]), ("the", [0, 7, 14]), ("the second two", [])):
        assert passage_positions(text, fingerprint(passage)) == places
    assert passage_positions(text, Passage(40, "0" * 64)) == []


def test_printed_numbers_stand_near_the_passage_and_are_no_part_of_another() -> None:
    text = ["a"] * 50 + words("4.99 percent") + ["b"] * (passages.NEAR - 1) + ["here", "stands"] + ["c"] * 60 + ["5.01"]
    at, passage = text.index("here"), fingerprint("here stands")
    assert numbers_nearby(text, at, passage, ["percent"])
    assert not numbers_nearby(text, at, passage, ["4.99"])  # 41 words before
    assert not numbers_nearby(text, at, passage, ["percent", "5.01"])
    text, passage = words("about 14.99 and 3.01, one sentence"), fingerprint("one sentence")
    assert numbers_nearby(text, 4, passage, ["14.99", "3.01"])
    assert numbers_nearby(words("on 646464 gpus"), 2, fingerprint("gpus"), ["64"])
    for other in ("4.99", "14.9", "3", "01"):
        assert not numbers_nearby(text, 4, passage, [other]), other


def test_missing_text_and_missing_passage_are_refused(tmp_path: Path) -> None:
    with refused(InvalidRequest, "SUITE_PAPERS", subject="axonn.txt cannot be read"):
        paper_words("axonn", tmp_path)
    (tmp_path / "axonn.txt").write_text(TEXT, encoding="utf-8")
    with refused(
        InvalidRequest,
        subject="passage of axonn.abstract.gpu_memory_reduction is not in axonn.txt",
        rule="the text that its fingerprint was taken from",
    ):
        list(passage_lines(ALL[0], tmp_path))


def test_command_shows_the_passage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(passages.VARIABLE, raising=False)
    assert main(["where", ALL[0].id]) == 2
    monkeypatch.setenv(passages.VARIABLE, str(tmp_path))
    passage = fingerprint("second one spans")
    row = replace(ALL[-1], id="samo.x", paper="samo", passage=passage)
    without = replace(row, id="samo.a", passage=None)
    monkeypatch.setattr(load, "claims", lambda: (without, row))
    (tmp_path / "samo.txt").write_text(TEXT, encoding="utf-8")
    capsys.readouterr()
    assert main(["where", "samo.x"]) == 0
    assert "it. the [second one spans] five lines," in capsys.readouterr().out
    assert main(["where", "samo.y"]) == main(["where"]) == 2
    for name in ("samo", "samo.?"):  # a claim without a passage does not hide the passages of other claims
        assert main(["where", name]) == 1
        assert capsys.readouterr().out.count("[second one spans]") == 1


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
