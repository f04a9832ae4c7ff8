"""Labelled texts: vocabulary, padding, disjoint splits, IMDb, and counts of data sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.cli import dataset_info
from suite.core.errors import InvalidRequest, UnknownName
from suite.data.labelled_text import CODE_WORD, PACKAGES, UNKNOWN, imdb, snippets, vocabulary_of
from tests.support.refusals import refused
from tests.unit.data.written import lstm, write


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Eight packages of nine files, each of seven words that name it; the other files say that they are left out."""
    for package in PACKAGES:
        names = [f"{package}/{'deep' if number % 2 else '.'}/m{number}.py" for number in range(9)]
        write(tmp_path, {name: f"{package} file {number} = ( ) end\n" for number, name in enumerate(names)})
        others = ("test/t.py", "tests/t.py", "__pycache__/c.py", "notes.txt")
        write(tmp_path, {f"{package}/{name}": "left out " * 9 for name in others})
    return tmp_path


def test_snippets_of_a_file_are_on_one_side(library: Path) -> None:
    data = snippets(folder=library, length=3, train=14, validation=4)
    assert (data.needs["classes"], data.samples, data.held_out) == (8, 8 * 14, 8 * 4)
    files = [[f"{package} file {number}" for number in range(9)] for package in PACKAGES]
    words = vocabulary_of((CODE_WORD.findall(name) for names in files for name in names), 99)
    assert not set(words) & {"left", "out"}
    sides = []
    for part in (data.train, data.validation):
        rows = part.rows(range(len(part.classes)), 3)
        assert rows.min() >= UNKNOWN, "the rest of a file is no snippet"
        same = rows[[bool(row[1] == rows[0][1]) for row in rows]]  # first snippet of a file: package, "file", number
        sides.append({tuple(row) for row in same.tolist()})
    assert [len(side) for side in sides] == [8 * 7, 8 * 2]
    assert not sides[0] & sides[1]
    assert data.needs["vocabulary"] == len({int(n) for row in data.train.rows(range(112), 3) for n in row} | {0, 1})
    write(library, {"another/m.py": "a b c d e f"})
    again = snippets(folder=library, length=3, train=14, validation=4)
    assert again.provenance() == data.provenance(), "no other package is read"
    _, classes = next(data.validation_batches(size=8, shape=lstm(3, 100)))
    assert classes.tolist() == list(range(8)), "the first batches see every package"


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """aclImdb as it unpacks: reviews and other files."""
    return write(
        tmp_path,
        {
            "train/neg/0_3.txt": "Bad, bad film!<br /><br />It wasn't GOOD.",
            "train/neg/1_1.txt": "bad film",
            "train/pos/0_9.txt": "good film",
            "train/unsup/0_0.txt": "never read",
            "train/pos/0_9.txt~": "never read",
            "test/neg/0_2.txt": "bad plot",
            "test/pos/0_10.txt": "Good; it wasn't bad at all",
            "test/pos/1_7.txt": "good",
            "train/urls_neg.txt": "http",
            "imdb.vocab": "the",
        },
    )


def test_imdb_reads_its_published_folders(reviews: Path) -> None:
    data = imdb(reviews)
    # bad, film 3 times each; good twice; it, wasn't once
    assert (data.name, data.needs) == ("imdb", {"classes": 2, "vocabulary": 7})
    bad, film, good, it, was = range(2, 7)
    assert data.train.classes.tolist() == [0, 1, 0]
    assert data.train.rows([0, 1, 2], 7).tolist() == [
        [bad, bad, film, it, was, good, 0],
        [good, film, 0, 0, 0, 0, 0],
        [bad, film, 0, 0, 0, 0, 0],
    ]
    ((tokens, classes),) = data.validation_batches(size=3, shape=lstm(5, 100))
    assert tokens.tolist() == [[bad, UNKNOWN, 0, 0, 0], [good, it, was, bad, UNKNOWN], [good, 0, 0, 0, 0]]
    assert classes.tolist() == [0, 1, 1]
    assert imdb(reviews, vocabulary=3).needs["vocabulary"] == 3


def test_parts_without_reviews_are_refused(reviews: Path) -> None:
    (reviews / "test/neg/0_2.txt").unlink()
    with refused(InvalidRequest, subject="neg"):
        imdb(reviews)


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


def test_another_name_or_folder_is_refused(tmp_path: Path) -> None:
    with refused(UnknownName, "data set", "cifar_10", rule="cifar_100"):
        dataset_info.counts("cifar_10", tmp_path)
    assert dataset_info.main(["imdb", str(tmp_path)]) == 2
