"""Text corpora: published layouts, fixed splits, and batches that are equal on every rank.

Ranks draw their own data: two that disagree by one token, or a validation line seen in training, spoil a loss curve
without an error.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from suite.core.errors import InvalidRequest
from suite.data.text import (
    Text,
    batch_at,
    bookcorpus,
    standard_library,
    wikitext_103,
    windows,
)
from suite.workload import Transformer
from tests.support.refusals import fault, refused
from tests.unit.data.written import write

TOKENS = np.arange(200, dtype=np.uint8)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A small tree of sources, each file one line that names it, and everything that must be left out."""
    names = [f"module_{number:02d}.py" for number in range(30)] + ["package/__init__.py", "package/deep/inner.py"]
    left_out = ["site-packages/x.py", "test/test_x.py", "package/tests/t.py", "_sysconfigdata_x.py", "notes.txt"]
    write(tmp_path, {name: f"# LEFT OUT {name}\n" for name in left_out})
    return write(tmp_path, {name: f"# {name}\n" for name in names})


@pytest.fixture
def wikitext(tmp_path: Path) -> Path:
    parts = {"train": " = A = \n one\n", "valid": " = B = \n two\n", "test": "never read\n"}
    return write(tmp_path, {f"wiki.{part}.tokens": content for part, content in parts.items()})


@pytest.fixture
def books(tmp_path: Path) -> Path:
    lines = {part: [f"book {part} line {number}\n" for number in range(50)] for part in (1, 2)}
    return write(tmp_path, {f"books_large_p{part}.txt": "".join(lines[part]) for part in lines})


def words(tokens: np.ndarray) -> str:
    return tokens.tobytes().decode()


def test_standard_library_reads_sources_in_order_of_names(library: Path) -> None:
    text = standard_library(folder=library, validation=0.3)
    assert (text.vocabulary, text.train.dtype, text.validation.dtype) == (256, np.uint8, np.uint8)
    train, valid = words(text.train).splitlines(), words(text.validation).splitlines()
    assert "LEFT OUT" not in words(text.train) + words(text.validation)
    assert len(train) + len(valid) == 32
    assert (train, valid) == (sorted(train), sorted(valid))
    assert not set(train) & set(valid)
    write(library, {"aaa.py": "# aaa.py\n"})
    after = set(words(standard_library(folder=library, validation=0.3).validation).splitlines())
    assert after - {"# aaa.py"} == set(valid), "one more file moves none of the others"


def test_a_limit_moves_nothing_and_reads_no_more_files(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = standard_library(folder=library, validation=0.3)
    read: list[Path] = []
    true_read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (read.append(path), true_read(path))[1])
    part = standard_library(folder=library, validation=0.3, limit_bytes=150)
    assert (len(part.train), len(part.validation)) == (105, 45)
    assert words(whole.train).startswith(words(part.train))
    assert words(whole.validation).startswith(words(part.validation))
    assert [len(read), len(set(read))] == [10, 10], "files of 15 bytes, each part from its first name on"


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


def test_bookcorpus_holds_out_whole_blocks_of_lines(books: Path) -> None:
    """Lines of 14 or 15 bytes, blocks of at least 60: always whole lines, every fourth block of a file held out."""
    text = bookcorpus(books, block_bytes=60, held_out=4)
    train, valid = words(text.train).splitlines(), words(text.validation).splitlines()
    everything = [f"book {part} line {number}" for part in (1, 2) for number in range(50)]
    assert sorted(train + valid) == sorted(everything)
    # ten lines of 14 bytes in two blocks of five, the second one reaching into lines of 15 bytes, four to a block
    assert valid[:4] == [f"book 1 line {number}" for number in (14, 15, 16, 17)]
    assert any(line.startswith("book 2") for line in valid)
    part = bookcorpus(books, block_bytes=60, held_out=4, limit_bytes=400)
    assert 300 < len(part.train) + len(part.validation) <= 400
    assert words(text.train).startswith(words(part.train))
    assert words(text.validation).startswith(words(part.validation))
    (books / "books_large_p2.txt").write_text("a\nb\nthe end")
    text = bookcorpus(books, block_bytes=60, held_out=4)
    assert "a\nb\nthe end" in words(text.train) + words(text.validation), "a last line without an end"


def test_settings_that_leave_no_text_are_refused(library: Path, books: Path, tmp_path: Path) -> None:
    for load, settings, expected in (
        (standard_library, {"folder": library, "limit_bytes": 3}, fault(subject="limit_bytes=3")),
        (standard_library, {"folder": tmp_path / "absent"}, fault(subject="0 sources")),
        (bookcorpus, {"folder": books}, fault(subject="0 validation", rule="at least 20 blocks of 65536")),
    ):
        with refused(InvalidRequest, **expected):
            load(**settings)


def test_a_batch_depends_on_seed_and_number_only() -> None:
    keys = [(seed, k) for seed in (0, 1, 2) for k in (0, 1, 2, 3)]
    draws = {key: batch_at(TOKENS, key[1], batch=4, sequence=5, seed=key[0]) for key in keys}
    assert len({inputs.tobytes() for inputs, _ in draws.values()}) == len(draws)
    for seed, k in reversed(keys):
        inputs, targets = draws[seed, k]
        assert (batch_at(TOKENS, k, batch=4, sequence=5, seed=seed)[0] == inputs).all()
        assert inputs.shape == targets.shape == (4, 5)
        assert inputs.dtype == targets.dtype == np.int64
        assert (targets == inputs + 1).all(), "one token later: the tokens count up"
        assert (np.diff(inputs, axis=1) == 1).all()


def test_the_draw_is_the_same_on_every_machine() -> None:
    """Positions drawn once and written down: a change in the generator would make old records incomparable."""
    assert batch_at(TOKENS, 3, batch=4, sequence=5, seed=7)[0][:, 0].tolist() == [147, 33, 111, 130]


@pytest.mark.parametrize(("length", "batch", "sequence"), [(5, 2, 4), (9, 2, 4), (10, 1, 4), (119, 3, 7)])
def test_windows_tile_the_text(length: int, batch: int, sequence: int) -> None:
    pairs = list(windows(TOKENS[:length], batch=batch, sequence=sequence))
    inputs = np.concatenate([np.empty(0, int), *(given.ravel() for given, _ in pairs)])
    assert inputs.tolist() == list(range(len(inputs))), "in order, none twice"
    assert all((targets == given + 1).all() for given, targets in pairs)
    assert len(pairs) == (length - 1) // sequence // batch, "full batches alone"


def test_a_text_gives_batches_for_the_network_that_reads_it() -> None:
    shape = Transformer(1, 8, 2, sequence=7, vocabulary=256)
    text = Text("numbers", TOKENS, TOKENS[:31])
    inputs, _ = text.batch(3, size=5, seed=1, shape=shape)
    assert (inputs == batch_at(TOKENS, 3, batch=5, sequence=7, seed=1)[0]).all()
    with refused(InvalidRequest, subject="31 tokens for windows of 31", rule="one token more"):
        list(windows(TOKENS[:31], batch=1, sequence=31))
    (validation,) = text.validation_batches(size=3, shape=shape)  # four windows make one whole batch
    assert validation[0].shape == (3, 7)
