"""Folder of checkpoints: each is complete with a digest per file, or absent.

A checkpoint is written below a hidden name and renamed once, when everything in it has reached the disk; its manifest,
the last file, holds the digests of the others and its own. So a named checkpoint is always complete, and later
changes are reported by file name. No tensor and no torch here."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from suite.core.errors import InvalidRequest
from suite.core.values import Json
from suite.engine.checkpoint.run_fingerprint import Identity

MANIFEST = "manifest.json"
_STEP = re.compile(r"step-(\d{6,})(\.old)?")
MOST = 256 << 20  # bytes of a manifest: a line for each weight of a model
_UNFINISHED = ".unfinished"  # the end of a hidden name: cleared by the next checkpoint


class Damaged(Exception):
    """A file of a checkpoint is missing or is not what was written."""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def folder_of(path: Any) -> Path:
    """A path as the user gives it. Raises InvalidRequest for anything but text or a path."""
    if not isinstance(path, str | os.PathLike):
        raise InvalidRequest(f"a folder that is {path!r}", rule="text or a path", legal="checkpoints")
    return Path(path)


def is_step(path: Path) -> bool:
    """Whether `path` names one checkpoint, not a folder of them."""
    return _STEP.fullmatch(path.name) is not None


# -- writing ---------------------------------------------------------------------------------------------------------


class Written(TypedDict):
    """A file of a checkpoint: its size in bytes and its SHA-256."""

    bytes: int
    sha256: str


class Manifest(TypedDict):
    """The manifest of a checkpoint, of all ranks' parts.

    Attributes:
        run: Identity of the run.
        split: First and last layer of each stage.
        steps: Updates without those that overflowed.
        pruned: Batches before the pruning.
        layers: Type and shape of each state by layer and name.
        extra: State that each rank saved.
    """

    schema: int
    run: Identity
    split: list[list[int]]
    replicas: int
    updates: int
    steps: int
    skipped: int
    pruned: int | None
    microbatches: int
    evaluated: int
    loss_scale: dict[str, float] | None
    layers: dict[str, dict[str, list[Any]]]
    files: dict[str, Written]
    extra: list[Mapping[str, Json]]


def place_of(folder: Path, updates: int) -> Path:
    """Where the checkpoint after `updates` updates is written before it has its name."""
    return folder / f".step-{updates:06d}{_UNFINISHED}"


def named(place: Path) -> Path:
    """Where it stands afterwards."""
    return place.with_name(place.name.removeprefix(".").removesuffix(_UNFINISHED))


def begin(place: Path) -> None:
    """Makes the place, empty. Unfinished files of killed processes in its folder are removed."""
    place.parent.mkdir(parents=True, exist_ok=True)
    for unfinished in place.parent.glob(f".step-*{_UNFINISHED}"):
        shutil.rmtree(unfinished)
    place.mkdir()


def put(path: Path, data: bytes) -> Written:
    """Writes a file through to the disk: its size in bytes and its SHA-256."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": len(data), "sha256": digest(data)}


def finish(place: Path, body: Manifest, keep: int | None) -> None:
    """Adds the manifest and gives the checkpoint its name; of all that have one, the newest `keep` stay."""
    text = _text(body)
    put(place / MANIFEST, json.dumps({"sha256": digest(text), "body": body}, indent=1).encode())
    _through(place)
    folder, path = place.parent, named(place)
    old = path.with_name(f"{path.name}.old")
    if path.exists():  # trained again from one before: it stands as .old until this one has its name
        if old.exists():
            _discard(old)
        path.rename(old)
    place.rename(path)
    _through(folder)
    if old.exists():
        _discard(old)
    if keep is not None:
        for order in standing(folder)[:-keep]:
            _discard(path_of(folder, order))


def _discard(path: Path) -> None:
    """Takes its name away first: half of a checkpoint is none."""
    hidden = path.with_name(f".{path.name}{_UNFINISHED}")
    path.rename(hidden)
    shutil.rmtree(hidden)


def _through(folder: Path) -> None:
    """The names in a folder reach the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _text(body: Manifest) -> bytes:
    return json.dumps(body, sort_keys=True).encode()


# -- reading ---------------------------------------------------------------------------------------------------------


def standing(folder: Path) -> list[int]:
    """The checkpoints in a folder as numbers in order of age, the newest last; `path_of` names them."""
    inside = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()] if folder.is_dir() else []
    names = [_STEP.fullmatch(path.name) for path in inside]
    return sorted(2 * int(name[1]) + (name[2] is None) for name in names if name)


def path_of(folder: Path, order: int) -> Path:
    return folder / f"step-{order // 2:06d}{'' if order % 2 else '.old'}"


def manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint. Raises Damaged."""
    body: Manifest
    try:
        _check_plain(path / MANIFEST, MOST)
        content = json.loads((path / MANIFEST).read_bytes())
        body, checksum = content["body"], content["sha256"]
    except FileNotFoundError:
        raise Damaged(f"{path.name} has no {MANIFEST}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{path.name}/{MANIFEST} cannot be read ({error})") from None
    if not isinstance(body, dict) or digest(_text(body)) != checksum:
        raise Damaged(f"{path.name}/{MANIFEST} does not have its own SHA-256, {str(checksum)[:12]}...")
    return body


def fetch(path: Path, name: str, told: Written) -> bytes:
    """A file of a checkpoint, which is what was written. Raises Damaged."""
    try:
        _check_plain(path / name, told["bytes"])
        data = (path / name).read_bytes()
    except OSError as error:
        raise Damaged(f"{path.name}/{name} cannot be read ({error.strerror})") from None
    if len(data) != told["bytes"]:
        raise Damaged(f"{path.name}/{name} has {len(data)} bytes, {told['bytes']} were written")
    if digest(data) != told["sha256"]:
        raise Damaged(f"{path.name}/{name} has SHA-256 {digest(data)[:12]}..., {told['sha256'][:12]}... was written")
    return data


def _check_plain(path: Path, most: int) -> None:
    """Links, pipes and oversized files are refused without being read. Raises Damaged, OSError where there is
    nothing.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise Damaged(f"{path.parent.name}/{path.name} is no file of its own: a link, a folder or a device")
    if status.st_size > most:
        raise Damaged(f"{path.parent.name}/{path.name} has {status.st_size} bytes, {most} were written")


def check_keep(keep: int | None) -> None:
    if keep is not None and (not isinstance(keep, int) or isinstance(keep, bool) or keep < 1):
        raise InvalidRequest(f"keep={keep}", rule="at least 1 checkpoint, or None for all", legal="keep=2")
