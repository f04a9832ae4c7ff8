"""Text of a language model as bytes, with a fixed split into training and validation.

Bytes need no tokenizer and no download, and every corpus has the same 256 tokens. The default corpus is the source of
Python's standard library, which every machine has. WikiText-103 and BookCorpus (AxoNN VI-D, SAMO V-B) load from their
published files. Splits depend on names and positions only. A smaller limit, another reading order or another rank
therefore cannot move a line from training to validation.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suite.config.base import Count, Share
from suite.core.errors import refuse
from suite.core.protocols import DataSource
from suite.data.reading import check_folder, published
from suite.data.samples import check_network

__all__ = ["Text", "bookcorpus", "check_folder", "check_shape", "standard_library", "wikitext_103"]

Tokens = NDArray[np.uint8] | NDArray[np.uint16]
Batch = tuple[NDArray[np.int64], NDArray[np.int64]]  # inputs and targets, both [batch, sequence]

VOCABULARY = 256  # one token per byte
BLOCK = 1 << 16  # bytes of a BookCorpus block, before it is stretched to the end of its line
HELD_OUT = 20  # every twentieth block is validation
LINE_END = b"\n"
# tests are left out because many distributions strip them, and the last one is written by the machine's own build
SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
SKIPPED_PREFIX = "_sysconfigdata"


@dataclass(frozen=True, slots=True, eq=False)
class Text(DataSource):
    """One corpus: 1-D token arrays, every token below `vocabulary`."""

    name: str
    train: Tokens
    validation: Tokens
    vocabulary: int = VOCABULARY

    def provenance(self) -> dict[str, str | int]:
        """Name, bytes and SHA-256 of the tokens, training before validation. Only the parent process reads all of
        them."""
        digest = hashlib.sha256()
        for part in (self.train, self.validation):
            digest.update(np.ascontiguousarray(part).data)
        return {"name": self.name, "bytes": self.train.nbytes + self.validation.nbytes, "sha256": digest.hexdigest()}

    def batch(self, number: int, *, size: int, seed: int, shape: Any) -> Batch:
        """Training batch `number` for a network that reads `shape.sequence` tokens: see batch_at."""
        return batch_at(self.train, number, batch=size, sequence=shape.sequence, seed=seed)

    def validation_batches(self, *, size: int, shape: Any) -> Iterator[Batch]:
        """Every full batch of validation windows, in order."""
        return windows(self.validation, batch=size, sequence=shape.sequence)


def standard_library(
    *, limit_bytes: Count | None = None, validation: Share = 0.1, folder: str | os.PathLike[str] | None = None
) -> Text:
    """Python sources of the standard library (about 12 MB), concatenated in the order of their names.

    Third-party packages and test folders are left out.

    Args:
        limit_bytes: Largest number of bytes; the last file of either part is truncated.
        validation: Share of files to hold out, chosen by a hash of the relative name, and their share of the limit.
        folder: Another tree of .py files; None for the standard library of this interpreter.
    """
    root = Path(sysconfig.get_path("stdlib") if folder is None else folder)
    names = sorted(_sources(root)) if root.is_dir() else []
    share = None if limit_bytes is None else round(limit_bytes * validation)
    rest = None if limit_bytes is None or share is None else limit_bytes - share
    train = _concatenated(root, [name for name in names if _draw(name) >= validation], rest)
    valid = _concatenated(root, [name for name in names if _draw(name) < validation], share)
    found = f"{len(train)} bytes of training and {len(valid)} of validation text in {len(names)} sources of {root}"
    what = f"{found}, limit_bytes={limit_bytes}"
    refuse([(not train or not valid, what, "both parts hold a file: a larger limit_bytes, or more sources")])
    return Text("standard_library", _as_tokens(train), _as_tokens(valid))


def wikitext_103(folder: str | os.PathLike[str], *, limit_bytes: Count | None = None) -> Text:
    """WikiText-103 from its published files, wiki.{train,valid}.{tokens,raw}, with the authors' split.

    The files are memory-mapped: a rank reads only the pages of its batches. wiki.test is not used.

    Args:
        limit_bytes: Number of bytes to use from the start of the training file.
    """
    train, valid = (np.memmap(path, dtype=np.uint8, mode="r") for path in published("wikitext_103", folder))
    return Text("wikitext_103", train[:limit_bytes], valid)


def bookcorpus(
    folder: str | os.PathLike[str],
    *,
    limit_bytes: Count | None = None,
    block_bytes: Count = BLOCK,
    held_out: Count = HELD_OUT,
) -> Text:
    """BookCorpus from books_large_p1.txt and books_large_p2.txt, one sentence per line.

    The corpus has no published split. Each file is cut into blocks of `block_bytes`, which are extended to the end of a
    line. Every `held_out`-th block of a file is validation. Both parts are copied into memory (4.6 GB without a limit).

    Args:
        limit_bytes: Largest number of bytes of both parts together; a block is never cut.
    """
    parts: dict[bool, list[bytes]] = {False: [], True: []}
    total = 0
    for path in published("bookcorpus", folder):
        for number, block in enumerate(_line_blocks(path, block_bytes)):
            if limit_bytes is not None and total + len(block) > limit_bytes:
                break
            parts[number % held_out == held_out - 1].append(block)
            total += len(block)
    what = f"{len(parts[False])} training and {len(parts[True])} validation blocks in {folder}"
    refuse([(not all(parts.values()), what, f"at least {held_out} blocks of {block_bytes} bytes")])
    return Text("bookcorpus", _as_tokens(b"".join(parts[False])), _as_tokens(b"".join(parts[True])))


def check_shape(name: str, folder: str | os.PathLike[str] | None, shape: Any) -> None:
    """Raise InvalidRequest for a network of images, classes or sentence pairs, or with fewer than 256 tokens."""
    check_network(name, shape, "text", vocabulary=VOCABULARY)


def batch_at(tokens: Tokens, k: int, *, batch: int, sequence: int, seed: int) -> Batch:
    """Batch number `k` of a training run: `batch` windows at random positions, and the same windows one token later.

    The batch is a function of (seed, k) and the tokens, so every rank draws the same at any time. It uses the
    generator's raw stream, which numpy keeps across releases.
    """
    _fits(tokens, sequence)
    draws = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(k,))).random_raw(batch)
    starts = (draws % np.uint64(len(tokens) - sequence)).astype(np.int64)
    return _cut(tokens, starts, sequence)


def windows(tokens: Tokens, *, batch: int, sequence: int) -> Iterator[Batch]:
    """Full batches of the windows of `sequence` tokens, in order, without overlap."""
    _fits(tokens, sequence)
    starts = np.arange(0, len(tokens) - sequence, sequence, dtype=np.int64)
    for at in range(0, len(starts) - batch + 1, batch):
        yield _cut(tokens, starts[at : at + batch], sequence)


def _cut(tokens: Tokens, starts: NDArray[np.int64], sequence: int) -> Batch:
    positions = starts[:, None] + np.arange(sequence + 1)  # [batch, sequence + 1]
    window = tokens[positions].astype(np.int64)
    return np.ascontiguousarray(window[:, :-1]), np.ascontiguousarray(window[:, 1:])


def _fits(tokens: Tokens, sequence: int) -> None:
    what = f"{len(tokens)} tokens for windows of {sequence}"
    refuse([(len(tokens) <= sequence, what, "a window and one token more")])


def _as_tokens(text: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(text, dtype=np.uint8)


def _concatenated(root: Path, names: Iterable[str], limit: int | None) -> bytes:
    """Concatenation of the files up to `limit` bytes; files beyond the limit are not opened."""
    text = bytearray()
    for name in names:
        if limit is not None and len(text) >= limit:
            break
        text += (root / name).read_bytes()
    return bytes(text[:limit])


def _draw(name: str) -> float:
    """Return a number in [0, 1) determined by the name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2.0**64


def _sources(root: Path) -> Iterable[str]:
    for here, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        for name in files:
            if name.endswith(".py") and not name.startswith(SKIPPED_PREFIX):
                yield Path(here, name).relative_to(root).as_posix()


def _line_blocks(path: Path, size: int) -> Iterator[bytes]:
    """Blocks of at least `size` bytes of a file that end at line ends."""
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        start = 0
        while start < len(text):
            end = text.find(LINE_END, min(start + size, len(text)) - 1) + 1
            stop = end or len(text)
            yield text[start:stop]
            start = stop
