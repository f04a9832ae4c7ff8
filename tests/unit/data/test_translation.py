"""Sentence pairs: published layouts, number names, and BLEU."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from suite.core.errors import InvalidRequest, MissingDependency
from suite.data import translation
from suite.data.reading import LAYOUTS
from suite.data.translation import check_shape, number_names, wmt16
from suite.workload.recurrent import BEGIN, END, GNMT, PADDING, UNKNOWN
from tests.support.refusals import fault, refused
from tests.unit.data.written import write

READER = GNMT(2, 2, 2, sequence=12, vocabulary=64)


def english(data: translation.Translation, row: np.ndarray) -> str:
    return " ".join(data.words[token] for token in row if token > UNKNOWN)


def test_a_pair_is_a_number_in_both_languages() -> None:
    data = number_names(limit=200, train=190, validation=10)
    (sources, inputs), targets = data.batch(0, size=190, seed=0, shape=READER)
    pairs = {
        english(data, s[s != END]).removeprefix("<s> "): data.text(t) for s, t in zip(sources, targets, strict=True)
    }
    expected = {
        "one": "eins",
        "seventeen": "siebzehn",
        "thirty": "dreißig",
        "sixty six": "sechsundsechzig",
        "one hundred and one": "einhunderteins",
        "one hundred and ninety seven": "einhundertsiebenundneunzig",
    }
    assert len(pairs) == 190
    seen = {name: pairs[name] for name in expected if name in pairs}
    assert seen == {name: expected[name] for name in seen}
    assert len(seen) >= 4
    for source, given, target in zip(sources, inputs, targets, strict=True):
        words = int((target != PADDING).sum()) - 1
        assert target[words] == END
        assert given.tolist() == [BEGIN, *target[:words], *[PADDING] * (11 - words)], "a target, one token later"
        assert source[0] == BEGIN
        assert END in source
    short = GNMT(2, 2, 2, sequence=2, vocabulary=57)
    (short_sources, short_inputs), short_targets = data.batch(0, size=190, seed=0, shape=short)
    for cut, whole in ((short_sources, sources), (short_inputs, inputs), (short_targets, targets)):
        assert (cut == whole[:, :2]).all(), "cut to the network's length"


def test_numbers_that_are_held_out_are_never_trained_on() -> None:
    data = number_names(limit=300, train=250, validation=50)
    learned, validation = ({tuple(part.pair(n)[0]) for n in range(len(part))} for part in (data.train, data.validation))
    assert (len(learned), len(validation), len(learned & validation)) == (250, 50, 0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"limit": 1_000_001}, fault("data.source.limit", "1000001")),
        ({"limit": 10, "train": 8, "validation": 3}, fault("data.source.train", "8", rule="10 in all")),
    ],
)
def test_numbers_that_are_not_there_are_refused(given: dict[str, int], expected: dict[str, object]) -> None:
    with refused(InvalidRequest, **expected):
        number_names(**given)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = number_names(limit=10, train=5, validation=5)
    monkeypatch.setitem(sys.modules, "num2words", None)
    with pytest.raises(MissingDependency, match="pip install num2words"):
        number_names()
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(MissingDependency, match="pip install sacrebleu"):
        data.score([], [])


def test_bleu_is_of_whole_texts() -> None:
    data = number_names(limit=200, train=150, validation=50)
    batches = list(data.validation_batches(size=25, shape=READER))
    right = [targets for _, targets in batches]
    assert data.score(right, batches)["bleu"] == pytest.approx(100.0)
    behind = [np.where(np.cumsum(t == END, 1) > 0, np.where(t == END, END, 9), t) for t in right]
    assert data.score(behind, batches)["bleu"] == pytest.approx(100.0), "nothing behind the end counts"
    wrong = [np.roll(t, 1, axis=0) for t in right]
    assert 5.0 < data.score(wrong, batches)["bleu"] < 80.0
    with refused(InvalidRequest, subject="25 translations of 50 sentences"):
        data.score(right[:1], batches)


@pytest.fixture
def wmt(tmp_path: Path) -> Path:
    """The files of the published form, a few lines each."""
    return write(
        tmp_path,
        {
            "vocab.bpe.32000": "the\nhouse\ndas\nHa@@\nus\n.\n",
            "train.tok.clean.bpe.32000.en": "the house .\nhouse\n\nthe the\n",
            "train.tok.clean.bpe.32000.de": "das Ha@@ us .\nHa@@ us\ndas\nzwei das\n",
            "newstest2014.tok.bpe.32000.en": "the house\nthe",
            "newstest2014.tok.bpe.32000.de": "das Ha@@ us\ndas\n",
            "newstest2013.tok.bpe.32000.en": "never read\n",
        },
    )


def test_wmt16_reads_its_published_files(wmt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = wmt16(wmt)
    assert (data.name, data.samples, data.held_out, data.needs["vocabulary"]) == ("wmt16", 4, 2, 10)
    the, house, das, ha, us, dot = range(4, 10)
    pairs = [([the, house, dot], [das, ha, us, dot]), ([house], [ha, us]), ([], [das]), ([the, the], [UNKNOWN, das])]
    assert [tuple(data.train.pair(n)) for n in range(4)] == pairs
    (((sources, inputs), targets),) = data.validation_batches(size=2, shape=GNMT(2, 2, 2, sequence=5, vocabulary=10))
    assert sources.tolist() == [[BEGIN, the, house, END, PADDING], [BEGIN, the, END, PADDING, PADDING]]
    assert inputs.tolist() == [[BEGIN, das, ha, us, PADDING], [BEGIN, das, PADDING, PADDING, PADDING]]
    assert targets.tolist() == [[das, ha, us, END, PADDING], [das, END, PADDING, PADDING, PADDING]]
    assert data.text(targets[0]) == "das Haus"
    assert data.text([das, ha, END]) == "das Ha", "an open piece at the end"
    assert data.text([das, 10**6, END]) == "das <unk>", "a number of a network with more words"
    provenance = data.provenance()
    assert provenance["bytes"] == sum((wmt / str(name)).stat().st_size for name in LAYOUTS["wmt16"][1:])
    monkeypatch.setattr(translation, "CHUNK", 7)
    assert [tuple(wmt16(wmt).train.pair(n)) for n in range(4)] == pairs, "lines across pieces of a file"
    write(wmt, {"newstest2014.tok.bpe.32000.de": "das\ndas\n", "train.tok.clean.bpe.32000.de": "das\n"})
    assert wmt16(wmt).provenance()["sha256"] != provenance["sha256"]
    with refused(InvalidRequest, subject="train.tok.clean.bpe.32000.de of 1"):
        _ = wmt16(wmt).samples
    write(wmt, {"vocab.bpe.32000": ""})
    with refused(InvalidRequest, subject="no vocab.bpe.32000"):
        wmt16(wmt)


def test_words_of_a_vocabulary_file_are_counted(wmt: Path) -> None:
    check_shape("wmt16", wmt, GNMT(2, 2, 2, 3, vocabulary=10))
    with refused(InvalidRequest, "model.shape.vocabulary", 9, legal="10"):
        check_shape("wmt16", wmt, GNMT(2, 2, 2, 3, vocabulary=9))
