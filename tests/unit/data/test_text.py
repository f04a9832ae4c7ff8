"""Text corpora: published layouts, fixed splits, and batches that are equal on every rank.

Ranks draw their own data: two that disagree by one token, or a validation line seen in training, spoil a loss curve
without an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.core.errors import InvalidRequest, UnknownName
from suite.data import text as corpus
from suite.data.text import (
    Text,
    batch_at,
    batches,
    bookcorpus,
    check_folder,
    check_shape,
    standard_library,
    wikitext_103,
    windows,
)
from suite.workload import VGG, Transformer
from tests.support.refusals import fault, refused

TOKENS = np.arange(200, dtype=np.uint8)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A small tree of sources, each file one line that names it, and everything that must be left out."""
    names = [f"module_{number:02d}.py" for number in range(30)] + ["package/__init__.py", "package/deep/inner.py"]
    left_out = ["site-packages/x.py", "test/test_x.py", "package/tests/t.py", "_sysconfigdata_x.py", "notes.txt"]
    for name in names + left_out:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {'' if name in names else 'LEFT OUT '}{name}\n")
    return tmp_path


@pytest.fixture
def wikitext(tmp_path: Path) -> Path:
    for part, content in (("train", " = A = \n one\n"), ("valid", " = B = \n two\n"), ("test", "never read\n")):
        (tmp_path / f"wiki.{part}.tokens").write_text(content)
    return tmp_path


@pytest.fixture
def books(tmp_path: Path) -> Path:
    for part in (1, 2):
        lines = [f"book {part} line {number}\n" for number in range(50)]
        (tmp_path / f"books_large_p{part}.txt").write_text("".join(lines))
    return tmp_path


def words(tokens: np.ndarray) -> str:
    return tokens.tobytes().decode()


# Loaders


def test_standard_library_reads_sources_in_order_of_names(library: Path) -> None:
    text = standard_library(folder=library, validation=0.3)
    assert (text.vocabulary, text.train.dtype, text.validation.dtype) == (256, np.uint8, np.uint8)
    train, valid = words(text.train).splitlines(), words(text.validation).splitlines()
    assert "LEFT OUT" not in words(text.train) + words(text.validation)
    assert len(train) + len(valid) == 32
    assert train == sorted(train)
    assert valid == sorted(valid)
    assert not set(train) & set(valid)


def test_a_limit_moves_no_file_to_the_other_side(library: Path) -> None:
    whole, part = (standard_library(folder=library, validation=0.3, limit_bytes=limit) for limit in (None, 150))
    assert len(part.train) + len(part.validation) == 150
    assert words(whole.train).startswith(words(part.train))
    assert words(whole.validation).startswith(words(part.validation))


def test_a_file_more_moves_none_of_the_others(library: Path) -> None:
    before = set(words(standard_library(folder=library, validation=0.3).validation).splitlines())
    (library / "aaa.py").write_text("# aaa.py\n")
    after = set(words(standard_library(folder=library, validation=0.3).validation).splitlines())
    assert after - {"# aaa.py"} == before


def test_a_limit_reads_no_more_files_than_it_takes(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    true_read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (read.append(path), true_read(path))[1])
    standard_library(folder=library, validation=0.3, limit_bytes=150)
    # 45 and 105 bytes in files of 15, each part from its first name on
    assert [len(read), len(set(read))] == [10, 10]


def test_the_interpreters_own_library_is_there() -> None:
    text = standard_library(limit_bytes=400_000)
    assert len(text.train) + len(text.validation) == 400_000
    assert len(text.validation) == 40_000
    assert text.provenance() == standard_library(limit_bytes=400_000).provenance()


def test_provenance_is_name_bytes_and_digest() -> None:
    text = Text("tiny", np.array([1, 2], np.uint16), np.array([3], np.uint16), vocabulary=4)
    digest = hashlib.sha256(np.array([1, 2, 3], np.uint16).tobytes()).hexdigest()
    assert text.provenance() == {"name": "tiny", "bytes": 6, "sha256": digest}


@pytest.mark.parametrize("suffix", ["tokens", "raw"])
def test_wikitext_keeps_its_authors_split(wikitext: Path, suffix: str) -> None:
    for path in list(wikitext.iterdir()):
        path.rename(path.with_suffix(f".{suffix}"))
    text = wikitext_103(wikitext)
    assert (text.name, text.vocabulary, text.train.dtype) == ("wikitext_103", 256, np.uint8)
    assert words(text.train) == " = A = \n one\n"
    assert words(text.validation) == " = B = \n two\n"
    assert words(wikitext_103(wikitext, limit_bytes=4).train) == " = A"
    assert text.provenance()["bytes"] == 26


def test_wikitext_batches_from_the_mapped_file(wikitext: Path) -> None:
    inputs, targets = next(windows(wikitext_103(wikitext).train, batch=2, sequence=4))
    assert [bytes(row.astype(np.uint8)) for row in inputs] == [b" = A", b" = \n"]
    assert [bytes(row.astype(np.uint8)) for row in targets] == [b"= A ", b"= \n "]


def test_bookcorpus_holds_out_whole_blocks_of_lines(books: Path) -> None:
    """Lines of 14 or 15 bytes, blocks of at least 60: always whole lines, every fourth block of a file held out."""
    text = bookcorpus(books, block_bytes=60, held_out=4)
    train, valid = words(text.train).splitlines(), words(text.validation).splitlines()
    everything = [f"book {part} line {number}" for part in (1, 2) for number in range(50)]
    assert sorted(train + valid) == sorted(everything)
    assert not set(train) & set(valid)
    # ten lines of 14 bytes in two blocks of five, the second one reaching into lines of 15 bytes, four to a block
    assert valid[:4] == [f"book 1 line {number}" for number in (14, 15, 16, 17)]
    assert any(line.startswith("book 2") for line in valid)


def test_bookcorpus_limit_keeps_the_split(books: Path) -> None:
    whole, part = (bookcorpus(books, block_bytes=60, held_out=4, limit_bytes=limit) for limit in (None, 400))
    assert 300 < len(part.train) + len(part.validation) <= 400
    assert words(whole.train).startswith(words(part.train))
    assert words(whole.validation).startswith(words(part.validation))


def test_a_last_line_without_an_end_is_kept(books: Path) -> None:
    (books / "books_large_p2.txt").write_text("a\nb\nthe end")
    text = bookcorpus(books, block_bytes=60, held_out=4)
    assert "a\nb\nthe end" in words(text.train) + words(text.validation)


# Refusals


@pytest.mark.parametrize(
    ("name", "load", "needed"),
    [("wikitext_103", wikitext_103, "wiki.train.tokens"), ("bookcorpus", bookcorpus, "books_large_p1.txt")],
)
def test_a_wrong_folder_is_refused(name: str, load: Callable[[Path], Text], needed: str, tmp_path: Path) -> None:
    for wrong in (tmp_path / "absent", tmp_path):
        for attempt in (load, lambda folder: check_folder(name, folder)):
            with refused(
                InvalidRequest, subject=f"{name}: ", rule=f"it holds {needed}", legal="the folder that"
            ) as caught:
                attempt(wrong)
            assert str(wrong) in str(caught.value)
    (tmp_path / "something.else").write_text("x")
    with refused(InvalidRequest, subject="holds something.else"):
        load(tmp_path)


def test_half_a_corpus_is_refused(wikitext: Path) -> None:
    check_folder("wikitext_103", wikitext)
    (wikitext / "wiki.test.tokens").unlink()
    check_folder("wikitext_103", wikitext)  # never read
    (wikitext / "wiki.valid.tokens").write_text("")
    with refused(
        InvalidRequest, subject="empty: wiki.valid.tokens", rule="it holds wiki.train.tokens or wiki.train.raw and"
    ):
        check_folder("wikitext_103", wikitext)
    (wikitext / "wiki.valid.tokens").unlink()
    with refused(
        InvalidRequest,
        subject="holds wiki.train.tokens",
        rule="it holds wiki.train.tokens or wiki.train.raw and wiki.valid.tokens",
    ):
        check_folder("wikitext_103", wikitext)


def test_check_folder_knows_every_corpus(books: Path) -> None:
    check_folder("standard_library")
    check_folder("bookcorpus", books)
    with refused(
        InvalidRequest, subject="there is no folder 'None'", rule="it holds books_large_p1.txt and books_large_p2.txt"
    ):
        check_folder("bookcorpus")
    with refused(UnknownName, "corpus", "wikitext_2", legal="did you mean 'wikitext_103'?"):
        check_folder("wikitext_2")


def test_check_folder_reads_nothing(books: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_reading(*_: object, **__: object) -> None:
        raise AssertionError("a file was opened")

    monkeypatch.setattr(Path, "open", no_reading)
    monkeypatch.setattr(Path, "read_bytes", no_reading)
    check_folder("bookcorpus", books)


def test_a_split_without_both_parts_is_refused(library: Path, books: Path, tmp_path: Path) -> None:
    with refused(InvalidRequest, rule="both parts hold at least one file", legal="limit_bytes="):
        standard_library(folder=library, limit_bytes=3)
    with refused(InvalidRequest, subject="0 sources", rule="both parts hold at least one file"):
        standard_library(folder=tmp_path / "absent")
    with refused(InvalidRequest, rule="at least 20 blocks of 65536 bytes"):
        bookcorpus(books)


@pytest.mark.parametrize("limit", [0, -1])
def test_limits_are_positive(limit: int, wikitext: Path, books: Path) -> None:
    for load in (
        lambda: standard_library(limit_bytes=limit),
        lambda: wikitext_103(wikitext, limit_bytes=limit),
        lambda: bookcorpus(books, limit_bytes=limit),
    ):
        with refused(InvalidRequest, "limit_bytes", str(limit), legal="4000000"):
            load()


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5])
def test_shares_are_inside_zero_and_one(share: float) -> None:
    with refused(InvalidRequest, "validation", legal="0.1"):
        standard_library(validation=share)


@pytest.mark.parametrize(("block_bytes", "held_out"), [(0, 20), (60, 1)])
def test_blocks_are_not_empty(books: Path, block_bytes: int, held_out: int) -> None:
    with refused(InvalidRequest, "block_bytes", legal="65536, 20"):
        bookcorpus(books, block_bytes=block_bytes, held_out=held_out)


# Batches


def test_targets_are_the_inputs_one_token_later() -> None:
    for k in range(5):
        inputs, targets = batch_at(TOKENS, k, batch=3, sequence=7, seed=1)
        assert inputs.shape == targets.shape == (3, 7)
        assert inputs.dtype == targets.dtype == np.int64
        np.testing.assert_array_equal(targets, inputs + 1)  # the tokens count up
        np.testing.assert_array_equal(np.diff(inputs, axis=1), 1)


def test_a_batch_depends_on_seed_and_number_only() -> None:
    draws = {
        (seed, k): batch_at(TOKENS, k, batch=4, sequence=5, seed=seed)[0].tobytes()
        for seed in (0, 1, 2)
        for k in (0, 1, 2, 3)
    }
    assert len(set(draws.values())) == len(draws)
    for (seed, k), drawn in reversed(draws.items()):
        assert batch_at(TOKENS, k, batch=4, sequence=5, seed=seed)[0].tobytes() == drawn


def test_the_draw_is_the_same_on_every_machine() -> None:
    """Positions drawn once and written down: a change in the generator would make old records incomparable."""
    assert batch_at(TOKENS, 3, batch=4, sequence=5, seed=7)[0][:, 0].tolist() == [147, 33, 111, 130]


def test_batches_resume_where_they_are_told() -> None:
    fresh = list(islice(batches(TOKENS, batch=2, sequence=4, seed=3), 6))
    resumed = list(islice(batches(TOKENS, batch=2, sequence=4, seed=3, first=4), 2))
    for (left, _), (right, _) in zip(fresh[4:], resumed, strict=True):
        np.testing.assert_array_equal(left, right)


def test_every_position_can_be_drawn_and_none_beyond() -> None:
    """Six tokens, windows of four and the token after: only starts 0 and 1 are legal."""
    tokens = np.arange(6, dtype=np.uint8)
    starts = {int(batch_at(tokens, k, batch=1, sequence=4, seed=0)[0][0, 0]) for k in range(40)}
    assert starts == {0, 1}


def test_two_byte_tokens_keep_their_values() -> None:
    tokens = np.arange(60000, 60010, dtype=np.uint16)
    inputs, targets = next(windows(tokens, batch=1, sequence=9))
    assert (inputs[0, 0], targets[0, -1]) == (60000, 60009)


@given(st.integers(2, 120), st.integers(1, 5), st.integers(1, 20))
def test_windows_tile_the_text(length: int, batch: int, sequence: int) -> None:
    tokens = TOKENS[:length]
    if length <= sequence:
        with refused(InvalidRequest, legal=f"sequence={length - 1}"):
            next(windows(tokens, batch=batch, sequence=sequence))
        return
    batch_list = list(windows(tokens, batch=batch, sequence=sequence))
    inputs = np.concatenate([pair[0].ravel() for pair in batch_list])
    np.testing.assert_array_equal(inputs, np.arange(len(inputs)))  # in order, none twice
    assert length - 1 - len(inputs) < sequence  # and no whole window is left
    for given_, targets in batch_list:
        np.testing.assert_array_equal(targets, given_ + 1)
    assert all(len(pair[0]) == batch for pair in batch_list[:-1])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"batch": 0}, fault("batch", 0)),
        ({"sequence": 0}, fault("sequence", 0)),
        ({"seed": -1}, fault("seed", -1)),
        ({"k": -2}, fault("k", -2)),
        ({"sequence": 200}, fault(subject="200 tokens for windows of 200", rule="a window and the token after it")),
    ],
)
def test_batches_that_cannot_be_are_refused(arguments: dict[str, int], expected: dict[str, object]) -> None:
    with refused(InvalidRequest, **expected) as refusal:
        batch_at(TOKENS, **{"k": 0, "batch": 1, "sequence": 4, "seed": 0, **arguments})
    assert refusal.value.legal


def test_the_module_says_what_it_leaves_out() -> None:
    assert {"test", "site-packages"} <= corpus.SKIPPED_FOLDERS


# As every rank reads it


def test_a_text_gives_batches_for_the_network_that_reads_it() -> None:
    shape = Transformer(1, 8, 2, sequence=7, vocabulary=256)
    text = Text("numbers", TOKENS, TOKENS[:31])
    for one, other in zip(text.batch(3, size=5, seed=1, shape=shape), _batch(3), strict=True):
        assert (one == other).all()
    batch_list = list(text.validation_batches(size=3, shape=shape))
    assert [len(inputs) for inputs, _ in batch_list] == [3], "four windows make one whole batch"
    assert (batch_list[0][0] == next(windows(TOKENS[:31], batch=3, sequence=7))[0]).all()


def _batch(number: int) -> tuple[np.ndarray, np.ndarray]:
    return batch_at(TOKENS, number, batch=5, sequence=7, seed=1)


def test_networks_that_cannot_read_bytes_are_refused() -> None:
    check_shape("standard_library", None, Transformer(1, 8, 2, sequence=7, vocabulary=256))
    with refused(InvalidRequest, "model.shape.vocabulary", "255", rule="at least 256"):
        check_shape("standard_library", None, Transformer(1, 8, 2, sequence=7, vocabulary=255))
    with refused(InvalidRequest, "data", "wikitext_103", rule="text is for a language model"):
        check_shape("wikitext_103", None, VGG())
