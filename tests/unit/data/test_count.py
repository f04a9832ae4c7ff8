"""Counts of a data set in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.cli import dataset_info
from suite.core.errors import InvalidRequest, UnknownName
from tests.support.refusals import refused
from tests.unit.data.written import write


def test_samples_and_classes_are_counted_on_both_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part, number in (("train/neg", 3), ("train/pos", 2), ("test/neg", 1), ("test/pos", 4)):
        write(tmp_path, {f"{part}/{place}_1.txt": "a film of which nothing stays" for place in range(number)})
    assert dataset_info.counts("imdb", tmp_path) == {
        "training samples": 5,
        "validation samples": 5,
        "classes": 2,
        "training samples of the smallest class": 2,
        "training samples of the largest class": 3,
        "validation samples of the smallest class": 1,
        "validation samples of the largest class": 4,
    }
    assert dataset_info.main(["imdb", str(tmp_path)]) == 0
    assert "         5  training samples\n" in capsys.readouterr().out


def test_pairs_have_no_classes(tmp_path: Path) -> None:
    sides = {"train.tok.clean.bpe.32000": "a b\n" * 3, "newstest2014.tok.bpe.32000": "a b\n" * 2}
    write(tmp_path, {f"{side}.{language}": text for side, text in sides.items() for language in ("en", "de")})
    write(tmp_path, {"vocab.bpe.32000": "a\nb\n"})
    assert dataset_info.counts("wmt16", tmp_path) == {"training samples": 3, "validation samples": 2}


def test_another_name_or_folder_is_refused(tmp_path: Path) -> None:
    with refused(UnknownName, "data set", "cifar_10", rule="cifar_100"):
        dataset_info.counts("cifar_10", tmp_path)
    with refused(InvalidRequest, subject="train"):
        dataset_info.counts("imdb", tmp_path)
    assert dataset_info.main(["imdb", str(tmp_path)]) == 2
    assert dataset_info.main(["imdb"]) == 2
