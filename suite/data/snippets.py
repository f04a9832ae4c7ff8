"""Text classification without a download: snippets of Python's standard library, labelled by package.

The data are equal on every machine with one Python version: packages that no distribution strips, files in the order of
a hash of their names, and an equal number of snippets per package. A snippet is a run of words, numbers and signs.
Whole files are validation data, so no function is in both parts. The hash in a record identifies the sources.
"""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suite.config.base import Count
from suite.core.errors import refuse
from suite.data.reading import located, published
from suite.data.samples import Samples, check_network
from suite.data.text_classification import MARKS, encoded, in_turn, labelled, vocabulary_of

PACKAGES = ("asyncio", "email", "http", "importlib", "multiprocessing", "unittest", "urllib", "xml")
SKIPPED = frozenset({"__pycache__", "test", "tests"})
WORD = re.compile(r"[A-Za-z_]+|[0-9]+|[^\sA-Za-z_0-9]")
LENGTH, VOCABULARY, SHARE = 32, 1000, 0.2


def snippets(
    *,
    length: Count = LENGTH,
    vocabulary: Count = VOCABULARY,
    train: Count = 320,
    validation: Count = 64,
    folder: str | os.PathLike[str] | None = None,
) -> Samples:
    """Eight classes of snippets.

    Raises InvalidRequest if a package has too few snippets in one part.

    Args:
        length: Words of a snippet.
        vocabulary: Size of the vocabulary, including padding and unknown.
        train, validation: Snippets of each package in either part, at even distances in the available snippets. A
            fifth of each package is held out: files in the order of their hash, until the fifth is reached.
        folder: Another tree of packages; None for the standard library of this interpreter.
    """
    root = Path(sysconfig.get_path("stdlib") if folder is None else folder)
    parts: tuple[list[list[Sequence[str]]], ...] = ([], [])
    for package in PACKAGES:
        for held_out, pieces in enumerate(_divided(root, package, length)):
            limit = validation if held_out else train
            side = "validation" if held_out else "train"
            what = f"data.source.{side}={limit} of {package} in {root}"
            refuse([(len(pieces) < limit, what, f"its {len(pieces)} snippets of {length} words there")])
            parts[held_out].append([pieces[place * len(pieces) // limit] for place in range(limit)])
    learned, held_out_part = (in_turn(part) for part in parts)
    words = vocabulary_of(learned[0], vocabulary)
    train_part, validation_part = encoded(*learned, words), encoded(*held_out_part, words)
    return labelled("snippets", train_part, validation_part, len(PACKAGES), len(words) + MARKS)


def check_folder(name: str, folder: str | os.PathLike[str] | None = None) -> None:
    """Raise InvalidRequest for a tree without the packages, without reading them."""
    published(name, folder)
    located(name, sysconfig.get_path("stdlib") if folder is None else folder, PACKAGES)


def check_shape(name: str, folder: str | os.PathLike[str] | None, shape: Any) -> None:
    """Raise InvalidRequest for a network that does not classify texts, or has too few classes.

    The number of words of a config is only known when a rank reads them.
    """
    check_network(name, shape, "labelled_text", classes=len(PACKAGES), vocabulary=MARKS + 1)


def _divided(root: Path, package: str, length: int) -> tuple[list[Sequence[str]], list[Sequence[str]]]:
    """Snippets of a package, from training files and from held-out files."""
    files = [path for path in (root / package).rglob("*.py") if not SKIPPED & set(path.relative_to(root).parts)]
    paths_by_name = {path.relative_to(root).as_posix(): path for path in files}
    cut = {}
    for name in sorted(paths_by_name, key=lambda name: hashlib.sha256(name.encode()).digest()):
        words = WORD.findall(paths_by_name[name].read_text(encoding="utf-8", errors="replace"))
        cut[name] = [words[at : at + length] for at in range(0, len(words) - length + 1, length)]
    total = sum(map(len, cut.values()))
    train: list[Sequence[str]] = []
    validation: list[Sequence[str]] = []
    for pieces in cut.values():
        side = validation if len(validation) < SHARE * total else train
        side += pieces
    return train, validation
