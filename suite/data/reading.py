"""Find and read the files of a data set under their published names, without unpickling."""

from __future__ import annotations

import hashlib
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suite.core.errors import InvalidRequest, UnknownName, refuse

PIECE = 1 << 22  # bytes hashed per read

# Exceptions that numpy, scipy and the decompression of .gz and .npz raise for a damaged file. RuntimeError means an
# encrypted archive; its subclass NotImplementedError means an unknown compression. MemoryError is not included.
UNPACKING = (EOFError, RuntimeError, struct.error, zlib.error, zipfile.BadZipFile)
DAMAGED = (ValueError, TypeError, OSError, OverflowError, StopIteration, *UNPACKING)

WORDS, TRAINED, TESTED = "vocab.bpe.32000", "train.tok.clean.bpe.32000", "newstest2014.tok.bpe.32000"
# files and folders of published data sets; of a group of names, the first that exists is read
LAYOUTS: Mapping[str, Sequence[str | Sequence[str]]] = {
    "wikitext_103": (("wiki.train.tokens", "wiki.train.raw"), ("wiki.valid.tokens", "wiki.valid.raw")),
    "bookcorpus": ("books_large_p1.txt", "books_large_p2.txt"),
    "cifar_100": ("train.bin", "test.bin"),
    "tiny_imagenet": ("wnids.txt", "train", "val/images", "val/val_annotations.txt"),
    "imagenet": ("train", "val"),
    "imdb": ("train/neg", "train/pos", "test/neg", "test/pos"),
    "wmt16": (WORDS, *(f"{part}.{language}" for part in (TRAINED, TESTED) for language in ("en", "de"))),
}
OWN = ("standard_library", "digits", "noise", "snippets", "number_names")  # data sets without files of the user


@contextmanager
def readable(what: object, rule: str) -> Iterator[None]:
    """Raise InvalidRequest for errors of numpy and scipy at a damaged file, and for arrays that it lacks."""
    try:
        yield
    except (*DAMAGED, KeyError, IndexError, AttributeError) as error:
        raise InvalidRequest(f"{what}: {error}", rule=rule) from error


def located(name: str, folder: str | os.PathLike[str] | None, wanted: Sequence[str | Sequence[str]]) -> list[Path]:
    """Return the paths of the files and folders `wanted` in a folder. Of several names, the first existing one is used.

    Raises InvalidRequest with the missing and the existing files.
    """
    groups = [(names,) if isinstance(names, str) else tuple(names) for names in wanted]
    expected = ", ".join(" or ".join(names) for names in groups)
    missing = folder is None or not Path(folder).is_dir()
    refuse([(missing, f"{name}: there is no folder {str(folder)!r}", f"a folder that holds {expected}")])
    root, paths = Path(str(folder)), []
    for names in groups:
        here = [path for path in map(root.joinpath, names) if path.is_dir() or (path.is_file() and path.stat().st_size)]
        inside = sorted(path.name for path in (root / names[0]).parent.glob("*"))
        listing = ", ".join(inside[:8]) + (", ..." if len(inside) > 8 else "")
        what = f"{name}: {root} has no {names[0]}, or an empty one; its folder holds {listing or 'nothing'}"
        refuse([(not here, what, f"it holds {expected}")])
        paths.append(here[0])
    return paths


def published(name: str, folder: str | os.PathLike[str] | None) -> list[Path]:
    """Files of a data set; none for a data set without files of the user.

    Raises UnknownName for another name, and InvalidRequest with the existing files in place of missing ones.
    """
    if name not in (*OWN, *LAYOUTS):
        raise UnknownName("data set", name, [*OWN, *LAYOUTS])
    return located(name, folder, LAYOUTS[name]) if name in LAYOUTS else []


def check_folder(name: str, folder: str | os.PathLike[str] | None = None) -> None:
    """Raise InvalidRequest if files of a data set are missing, without reading them."""
    published(name, folder)


def text_of(path: Path) -> str:
    """Text of a file. Raises InvalidRequest for a file that is no UTF-8 text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path}: {error}", rule="UTF-8 text") from error


def file_provenance(name: str, paths: Iterable[Path]) -> dict[str, str | int]:
    """Provenance of files: name, total bytes, and one SHA-256 over the files in order."""
    digest, size = hashlib.sha256(), 0
    for path in paths:
        with path.open("rb") as file:
            while piece := file.read(PIECE):
                digest.update(piece)
                size += len(piece)
    return {"name": name, "bytes": size, "sha256": digest.hexdigest()}


def table(path: Path, kind: Any, *, columns: int | None = None, delimiter: str | None = ",") -> NDArray[Any]:
    """Table (rows, columns) from a text file of numbers, plain or .gz; text after # or % is a comment.

    Args:
        columns: Required number of columns; None for any.
    """
    with readable(path, f"rows of {np.dtype(kind).name} numbers"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a file without a line: no rows is an answer
        rows = np.loadtxt(path, dtype=kind, delimiter=delimiter, comments=("#", "%"), ndmin=2)
    if not rows.size:
        rows = rows.reshape(0, columns or 0)
    what = f"{path}: {rows.shape[1]} columns in {rows.shape[0]} rows"
    refuse([(columns not in (None, rows.shape[1]), what, f"{columns} of them")])
    return rows


def archive(path: Path, names: Collection[str]) -> list[NDArray[Any]]:
    """Arrays of these names in an .npz, without pickles. Raises InvalidRequest for a damaged file or a missing name."""
    with readable(path, f"an archive of the arrays {', '.join(names)}"), np.load(path, allow_pickle=False) as file:
        return [file[name] for name in names]


def classes_of(path: Path, raw: NDArray[Any], vertices: int) -> tuple[NDArray[np.int64], int]:
    """Labels and number of classes, from one number per vertex; NaN and negative numbers mean no label."""
    shaped = raw.shape in ((vertices,), (vertices, 1)) and raw.dtype.kind in "biuf"
    refuse([(not shaped, f"{path}: labels are {raw.dtype} of shape {raw.shape}", f"numbers, ({vertices}, 1)")])
    flat = raw.reshape(-1)
    finite = np.isfinite(flat) & (flat >= 0)
    odd = flat[finite & (flat != np.floor(np.where(finite, flat, 0)))]
    refuse(
        [
            (len(odd), f"{path}: label {odd[:1]}", "whole numbers"),
            (not finite.any(), f"{path}: no vertex of {vertices} has a label", "at least one"),
        ]
    )
    labels = np.where(finite, np.where(finite, flat, 0), -1).astype(np.int64)
    return labels, int(labels.max()) + 1


def mask_of(path: Path, ids: NDArray[Any], vertices: int) -> NDArray[np.bool_]:
    """[n] bool from vertex numbers. Raises InvalidRequest for a number out of range."""
    bad = ids[(ids < 0) | (ids >= vertices)]
    refuse([(len(bad), f"{path}: vertex {bad[:1]} of a graph of {vertices}", f"vertices are 0 to {vertices - 1}")])
    mask = np.zeros(vertices, np.bool_)
    mask[ids] = True
    return mask
