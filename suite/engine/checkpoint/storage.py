"""Files of checkpoints: each checkpoint is complete, with a digest per file, or absent.

A checkpoint is written to a hidden folder, which is renamed once, when all files have reached the disk. The manifest is
the last file: it holds the SHA-256 of the other files and its own. So a folder with a checkpoint's name is complete,
and later changes are found and reported by file name. This module reads and writes bytes, without torch.
"""

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
from suite.engine.optim.torch_optimizer import OptimizerSettings

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 256 << 20  # a manifest has a line for each weight
_STEP = re.compile(r"step-(\d{6,})(\.old)?")
_UNFINISHED = ".unfinished"  # suffix of a hidden folder, which the next save removes


class Damaged(Exception):
    """A file of a checkpoint is missing, or has other content than was written."""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def folder_of(path: Any) -> Path:
    """A folder as a path. Raises InvalidRequest for anything else than text or a path."""
    if not isinstance(path, str | os.PathLike):
        raise InvalidRequest(f"folder={path!r}", rule="text or a path", legal='folder="checkpoints"')
    return Path(path)


def check_folder(folder: Path) -> None:
    """Raises InvalidRequest for a file in place of a folder."""
    if folder.exists() and not folder.is_dir():
        raise InvalidRequest(f"folder={str(folder)!r}, a file", rule="a folder", legal='folder="checkpoints"')


def is_step(path: Path) -> bool:
    """Whether `path` names one checkpoint, and not a folder of checkpoints."""
    return _STEP.fullmatch(path.name) is not None


# -- writing ---------------------------------------------------------------------------------------------------------


class FileDigest(TypedDict):
    """Size in bytes and SHA-256 of a file."""

    bytes: int
    sha256: str


class Fingerprint(TypedDict):
    """Settings that two runs share if one resumes the other. Its keys stand in the manifests of checkpoints.

    `optimizer`, `loss_scale` and `stream` are in the form of `run_fingerprint.to_plain_data`.
    """

    layers: int
    ties: list[Any]
    seed: int
    microbatch: int
    half: str | None
    clip: float | None
    optimizer: Json
    loss_scale: Json
    stream: Json


class Manifest(TypedDict):
    """Manifest of a checkpoint, collected from all ranks.

    Attributes:
        run: Fingerprint of the run.
        split: First layer, and one past the last layer, of each stage.
        homes: Pipeline rank of each stage.
        steps: Updates without those that overflowed.
        optimizer: Settings of an optimizer of torch.optim and its scheduler; None for a rule of the suite.
        pruned: Updates before the pruning.
        layers: Dtype and shape of each state, by layer and name.
        extra: Data that each rank saved.
    """

    schema: int
    run: Fingerprint
    split: list[list[int]]
    homes: list[int]
    replicas: int
    updates: int
    steps: int
    skipped: int
    pruned: int | None
    microbatches: int
    evaluated: int
    optimizer: OptimizerSettings | None
    loss_scale: dict[str, float] | None
    layers: dict[str, dict[str, list[Any]]]
    files: dict[str, FileDigest]
    extra: list[Mapping[str, Json]]


def unfinished_path(folder: Path, updates: int) -> Path:
    """Hidden folder in which the checkpoint after `updates` updates is written."""
    return folder / f".step-{updates:06d}{_UNFINISHED}"


def finished_path(unfinished: Path) -> Path:
    """The folder that an unfinished checkpoint is renamed to."""
    return unfinished.with_name(unfinished.name.removeprefix(".").removesuffix(_UNFINISHED))


def begin(unfinished: Path) -> None:
    """Create an empty hidden folder. Unfinished checkpoints of killed processes next to it are removed."""
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    for leftover in unfinished.parent.glob(f".step-*{_UNFINISHED}"):
        shutil.rmtree(leftover)
    unfinished.mkdir()


def write_file(path: Path, data: bytes) -> FileDigest:
    """Write a file and wait until it has reached the disk."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": len(data), "sha256": digest(data)}


def finish(unfinished: Path, body: Manifest, keep: int | None) -> None:
    """Write the manifest and rename the checkpoint to its final name. Only the newest `keep` checkpoints stay."""
    text = _canonical_json(body)
    write_file(unfinished / MANIFEST, json.dumps({"sha256": digest(text), "body": body}, indent=1).encode())
    _sync_folder(unfinished)
    folder, path = unfinished.parent, finished_path(unfinished)
    old = path.with_name(f"{path.name}.old")
    if path.exists():  # training was repeated from an earlier checkpoint: the old one stays until the new one is named
        if old.exists():
            _remove(old)
        path.rename(old)
    unfinished.rename(path)
    _sync_folder(folder)
    if old.exists():
        _remove(old)
    if keep is not None:
        for order in checkpoint_orders(folder)[:-keep]:
            _remove(path_of(folder, order))


def _remove(path: Path) -> None:
    """Remove a checkpoint. It is renamed first, so that a partly removed one has no checkpoint's name."""
    hidden = path.with_name(f".{path.name}{_UNFINISHED}")
    path.rename(hidden)
    shutil.rmtree(hidden)


def _sync_folder(folder: Path) -> None:
    """Wait until the names in a folder have reached the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _canonical_json(body: Manifest) -> bytes:
    return json.dumps(body, sort_keys=True).encode()


# -- reading ---------------------------------------------------------------------------------------------------------


def checkpoint_orders(folder: Path) -> list[int]:
    """The checkpoints in a folder as numbers from the oldest to the newest; `path_of` turns them into paths."""
    folders = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()] if folder.is_dir() else []
    matches = [_STEP.fullmatch(path.name) for path in folders]
    return sorted(2 * int(match[1]) + (match[2] is None) for match in matches if match)


def path_of(folder: Path, order: int) -> Path:
    return folder / f"step-{order // 2:06d}{'' if order % 2 else '.old'}"


def manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint. Raises Damaged."""
    body: Manifest
    try:
        _check_regular_file(path / MANIFEST, MAX_MANIFEST_BYTES)
        content = json.loads((path / MANIFEST).read_bytes())
        body, checksum = content["body"], content["sha256"]
    except FileNotFoundError:
        raise Damaged(f"{path.name} has no {MANIFEST}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{path.name}/{MANIFEST} cannot be read ({error})") from None
    if not isinstance(body, dict) or digest(_canonical_json(body)) != checksum:
        raise Damaged(f"{path.name}/{MANIFEST} does not have its own SHA-256, {str(checksum)[:12]}...")
    return body


def read_file(path: Path, name: str, written: FileDigest) -> bytes:
    """The content of a file of a checkpoint. Raises Damaged unless it is what was `written`."""
    try:
        _check_regular_file(path / name, written["bytes"])
        data = (path / name).read_bytes()
    except OSError as error:
        raise Damaged(f"{path.name}/{name} cannot be read ({error.strerror})") from None
    if len(data) != written["bytes"]:
        raise Damaged(f"{path.name}/{name} has {len(data)} bytes, {written['bytes']} were written")
    if digest(data) != written["sha256"]:
        raise Damaged(f"{path.name}/{name} has SHA-256 {digest(data)[:12]}..., {written['sha256'][:12]}... was written")
    return data


def _check_regular_file(path: Path, max_bytes: int) -> None:
    """Raises Damaged for links, pipes and files of more than `max_bytes`, without reading them."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise Damaged(f"{path.parent.name}/{path.name} is a link, a folder or a device, not a regular file")
    if status.st_size > max_bytes:
        raise Damaged(f"{path.parent.name}/{path.name} has {status.st_size} bytes, {max_bytes} were written")


def check_keep(keep: int | None) -> None:
    """Raises InvalidRequest unless `keep` is a number of at least 1, or None."""
    if keep is not None and (not isinstance(keep, int) or isinstance(keep, bool) or keep < 1):
        raise InvalidRequest(f"keep={keep}", rule="at least 1 checkpoint, or None for all", legal="keep=2")
