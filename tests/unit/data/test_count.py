"""Counts of a data set in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.cli import dataset_info
from suite.core.errors import InvalidRequest, UnknownName
from tests.support.refusals import refused


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    for part, number in (("train/neg", 3), ("train/pos", 2), ("test/neg", 1), ("test/pos", 4)):
        (tmp_path / part).mkdir(parents=True)
        for place in range(number):
            (tmp_path / part / f"{place}_1.txt").write_text("a film of which nothing stays")
    return tmp_path


def test_samples_and_classes_are_counted_on_both_sides(reviews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dataset_info.counts("imdb", reviews) == {
        "training samples": 5,
        "validation samples": 5,
        "classes": 2,
        "training samples of the smallest class": 2,
        "training samples of the largest class": 3,
        "validation samples of the smallest class": 1,
        "validation samples of the largest class": 4,
    }
    assert dataset_info.main(["imdb", str(reviews)]) == 0
    assert "         5  training samples\n" in capsys.readouterr().out


def test_pairs_have_no_classes(tmp_path: Path) -> None:
    (tmp_path / "vocab.bpe.32000").write_text("a\nb\n")
    for side, lines in (("train.tok.clean.bpe.32000", 3), ("newstest2014.tok.bpe.32000", 2)):
        for language in ("en", "de"):
            (tmp_path / f"{side}.{language}").write_text("a b\n" * lines)
    assert dataset_info.counts("wmt16", tmp_path) == {"training samples": 3, "validation samples": 2}


def test_another_name_or_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with refused(UnknownName, "data set", "cifar_10", rule="cifar_100"):
        dataset_info.counts("cifar_10", tmp_path)
    with refused(InvalidRequest, subject="train", rule="it holds train/neg, train/pos, test/neg, test/pos"):
        dataset_info.counts("imdb", tmp_path)
    assert dataset_info.main(["imdb", str(tmp_path)]) == 2
    assert dataset_info.main(["imdb"]) == 2
    assert "usage" in capsys.readouterr().err
