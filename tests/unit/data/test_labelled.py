"""Labelled texts: equal on every rank, and disjoint splits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suite.core.errors import InvalidRequest, UnknownName
from suite.data import sentiment, text
from suite.data.sentiment import imdb
from suite.data.snippets import PACKAGES, WORD, check_folder, check_shape, snippets
from suite.data.text_classification import UNKNOWN, Labelled, Texts, encoded, in_turn, vocabulary_of
from suite.workload import VGG, Transformer
from suite.workload.recurrent import GNMT, ResidualLSTM
from tests.support.refusals import fault, refused


def reader(sequence: int = 4, vocabulary: int = 100, classes: int = 10) -> ResidualLSTM:
    return ResidualLSTM(1, 2, 2, sequence=sequence, vocabulary=vocabulary, classes=classes)


def numbered(count: int) -> Labelled:
    """Texts of one word; the word is the text's position."""
    places = np.arange(count)
    part = Texts(places.astype(np.uint16), places + 1, places % 3)
    return Labelled("numbered", 3, count, part, part)


def drawn(data: Labelled, number: int, size: int, seed: int = 3) -> list[int]:
    tokens, classes = data.batch(number, size=size, seed=seed, shape=reader(1))
    assert tokens.shape == (size, 1)
    assert tokens.dtype == classes.dtype == np.int64
    assert classes.tolist() == (tokens[:, 0] % 3).tolist(), "a text keeps its class"
    return [int(place) for place in tokens[:, 0]]


# -- batches ----------------------------------------------------------------------------------------------------------


def test_epoch_contains_every_text_once() -> None:
    data = numbered(15)
    small = [place for number in range(8) for place in drawn(data, number, 4)]
    large = [place for number in range(4) for place in drawn(data, number, 8)]
    assert small == large
    assert sorted(small[:15]) == sorted(small[15:30]) == list(range(15))
    assert small[:15] != small[15:30]
    assert drawn(data, 0, 15, seed=4) != small[:15]
    assert (data.samples, data.held_out) == (15, 15)
    with refused(InvalidRequest, "seed", "-1"):
        data.batch(0, size=1, seed=-1, shape=reader())


def test_validation_is_every_whole_batch_in_order() -> None:
    batches = list(numbered(7).validation_batches(size=3, shape=reader(1)))
    assert [tokens[:, 0].tolist() for tokens, _ in batches] == [[0, 1, 2], [3, 4, 5]]
    assert list(numbered(7).validation_batches(size=8, shape=reader(1))) == []


def test_texts_are_cut_and_padded_at_their_ends() -> None:
    words = {"a": 2, "b": 3, "c": 4}
    part = encoded([["a", "b", "c"], [], ["c", "x"]], [0, 1, 0], words)
    assert part.rows([2, 0, 1], 2).tolist() == [[4, UNKNOWN], [2, 3], [0, 0]]
    assert part.rows([2, 0], 4).tolist() == [[4, UNKNOWN, 0, 0], [2, 3, 4, 0]]
    assert part.classes.tolist() == [0, 1, 0]


def test_a_vocabulary_is_the_most_frequent_words() -> None:
    texts = [["b", "a", "c"], ["c", "a", "d"], ["c"]]
    assert vocabulary_of(texts, 5) == {"c": 2, "a": 3, "b": 4}, "b and d are as frequent: by name"
    assert vocabulary_of(texts, 99) == {"c": 2, "a": 3, "b": 4, "d": 5}


def test_classes_take_turns() -> None:
    assert in_turn(["ab", "xyz"]) == (["a", "x", "b", "y", "z"], [0, 1, 0, 1, 1])


def test_provenance_is_of_tokens_and_of_classes() -> None:
    one, other = numbered(9), numbered(9)
    assert one.provenance() == other.provenance()
    assert (one.provenance()["name"], one.provenance()["bytes"]) == ("numbered", 2 * 9 * 2)
    part = Texts(one.train.tokens, one.train.ends, one.train.classes[::-1])
    changed = Labelled("numbered", 3, 9, part, one.validation)
    assert changed.provenance()["sha256"] != one.provenance()["sha256"]


# -- snippets ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Eight packages of nine files, each of seven words that name it; what must not be read says so."""
    for package in PACKAGES:
        for number in range(9):
            path = tmp_path / package / ("deep" if number % 2 else ".") / f"m{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{package} file {number} = ( ) end\n")
        for left_out in ("test/t.py", "tests/t.py", "__pycache__/c.py", "notes.txt"):
            path = tmp_path / package / left_out
            path.parent.mkdir(exist_ok=True)
            path.write_text("left out " * 9)
    return tmp_path


def test_snippets_of_a_file_are_on_one_side(library: Path) -> None:
    data = snippets(folder=library, length=3, train=14, validation=4)
    assert (data.classes, data.samples, data.held_out) == (8, 8 * 14, 8 * 4)
    files = [[f"{package} file {number}" for number in range(9)] for package in PACKAGES]
    words = vocabulary_of((WORD.findall(name) for names in files for name in names), 99)
    assert not set(words) & {"left", "out"}
    # of two snippets a file, the first names it: (package, "file", number)
    sides = []
    for part in (data.train, data.validation):
        rows = part.rows(range(len(part.classes)), 3)
        assert rows.min() >= UNKNOWN, "the rest of a file is no snippet"
        same = rows[[bool(row[1] == rows[0][1]) for row in rows]]
        sides.append({tuple(row) for row in same.tolist()})
    assert len(sides[0]) == 8 * 7
    assert len(sides[1]) == 8 * 2
    assert not sides[0] & sides[1]
    assert data.vocabulary == len({int(n) for row in data.train.rows(range(112), 3) for n in row} | {0, 1})


def test_first_validation_batches_see_every_package(library: Path) -> None:
    data = snippets(folder=library, length=3, train=14, validation=4)
    _, classes = next(data.validation_batches(size=8, shape=reader(3)))
    assert classes.tolist() == list(range(8))


def test_what_stands_beside_a_package_moves_nothing(library: Path) -> None:
    before = snippets(folder=library, length=3, train=14, validation=4).provenance()
    (library / "another").mkdir()
    (library / "another" / "m.py").write_text("a b c d e f")
    assert snippets(folder=library, length=3, train=14, validation=4).provenance() == before
    (library / "xml" / "m0.py").write_text("xml file 0 = [ ]")
    assert snippets(folder=library, length=3, train=14, validation=4).provenance()["sha256"] != before["sha256"]


def test_snippets_that_are_not_there_are_refused(library: Path, tmp_path: Path) -> None:
    with refused(InvalidRequest, "data.source.train", "15", rule="it has 14 snippets of 3 words", legal="14"):
        snippets(folder=library, length=3, train=15, validation=4)
    with refused(InvalidRequest, "data.source.validation", "5"):
        snippets(folder=library, length=3, train=14, validation=5)
    with refused(InvalidRequest, "data.source.vocabulary", "2", rule="at least 3"):
        snippets(vocabulary=2)
    check_folder("snippets", library)
    check_folder("snippets")
    with refused(InvalidRequest, subject="has no asyncio", rule="it holds asyncio, email, http, importlib"):
        check_folder("snippets", tmp_path / "nothing")
    with pytest.raises(UnknownName):
        check_folder("snippet", library)


def test_the_interpreters_own_library_is_there() -> None:
    data = snippets()
    assert (data.samples, data.held_out, data.vocabulary) == (8 * 320, 8 * 64, 1000)
    for part in (data.train, data.validation):
        assert np.bincount(part.classes).tolist() == [len(part.classes) // 8] * 8
        known_share = (part.tokens != UNKNOWN).mean()
        assert 0.6 < known_share < 0.97, "most words have a number, and not all"
    tokens, _ = data.batch(0, size=4, seed=0, shape=reader(32, vocabulary=1000))
    assert tokens.min() >= UNKNOWN, "a snippet is as long as it says"


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (VGG(), fault("data", "snippets", legal="model=residual_lstm_narrow")),
        (Transformer(1, 8, 2, 4, 300), fault("data", "snippets")),
        (GNMT(), fault("data", "snippets")),
        (
            reader(classes=7),
            fault("model.shape.classes", "7", rule="data=snippets has 8", legal="model.shape.classes=8"),
        ),
        (reader(vocabulary=2), fault("model.shape.vocabulary", "2")),
    ],
)
def test_networks_that_cannot_read_them_are_refused(shape: Any, expected: dict[str, object]) -> None:
    with refused(InvalidRequest, **expected):
        check_shape("snippets", None, shape)


def test_a_network_of_fewer_words_is_refused_by_the_batch() -> None:
    with refused(InvalidRequest, "model.shape.vocabulary", "8", rule="data=numbered has 9"):
        numbered(9).batch(0, size=1, seed=0, shape=reader(vocabulary=8))


# -- IMDb -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """aclImdb as it unpacks: reviews and other files."""
    written = {
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
    }
    for name, content in written.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return tmp_path


def test_imdb_reads_its_published_folders(reviews: Path) -> None:
    data = imdb(reviews)
    # bad, film 3 times each; good twice; it, wasn't once
    assert (data.name, data.classes, data.vocabulary) == ("imdb", 2, 7)
    bad, film, good, it, was = range(2, 7)
    assert data.train.classes.tolist() == [0, 1, 0]
    assert data.train.rows([0, 1, 2], 7).tolist() == [
        [bad, bad, film, it, was, good, 0],
        [good, film, 0, 0, 0, 0, 0],
        [bad, film, 0, 0, 0, 0, 0],
    ]
    ((tokens, classes),) = data.validation_batches(size=3, shape=reader(5))
    assert tokens.tolist() == [[bad, UNKNOWN, 0, 0, 0], [good, it, was, bad, UNKNOWN], [good, 0, 0, 0, 0]]
    assert classes.tolist() == [0, 1, 1]
    assert imdb(reviews, vocabulary=4).vocabulary == 4
    sentiment.check_folder("imdb", reviews)
    sentiment.check_shape("imdb", reviews, ResidualLSTM())


def test_a_folder_of_another_form_is_refused(reviews: Path, tmp_path: Path) -> None:
    with refused(
        InvalidRequest, subject="imdb: there is no folder", rule="it holds train/neg", legal="the folder aclImdb"
    ):
        imdb(reviews / "nowhere")
    with refused(
        InvalidRequest,
        subject="has no train/neg; it holds neg, pos, unsup",
        rule="it holds train/neg, train/pos, test/neg, test/pos",
    ):
        sentiment.check_folder("imdb", reviews / "train")
    (reviews / "test/neg/0_2.txt").unlink()
    with refused(InvalidRequest, subject="neg", rule="at least one in each part"):
        sentiment.check_folder("imdb", reviews)
    with refused(InvalidRequest, "data.source.vocabulary", "2"):
        imdb(reviews, vocabulary=2)
    with pytest.raises(UnknownName):
        sentiment.check_folder("imdbs", tmp_path)


def test_a_language_model_is_not_what_classifies() -> None:
    for shape in (ResidualLSTM(), GNMT()):
        with refused(InvalidRequest, "data", rule="text is for a language model"):
            text.check_shape("standard_library", None, shape)
    text.check_shape("standard_library", None, Transformer(1, 8, 2, 4, 256))
