"""Files of models and checkpoints: each has its name once its whole content is on disk.

Tensors are in the safetensors format, which unpickles nothing. A checkpoint is a folder that gets its name after all of
its files, so a folder with the name of a checkpoint is complete.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from suite.core.errors import InvalidRequest

Tensors = dict[str, torch.Tensor]
_STEP = re.compile(r"step-(\d{6,})")
_UNFINISHED = ".unfinished"  # suffix of a hidden folder, which the next save removes


def write(path: Path, tensors: Mapping[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors and metadata to a file, which has its name once its content has reached the disk."""
    unfinished = path.with_name(f".{path.name}{_UNFINISHED}")
    save_file(dict(_on_host(tensors)), unfinished, metadata)
    _sync(unfinished)
    unfinished.replace(path)


def _on_host(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors on the host. The format has no tensors that share memory."""
    seen: set[int] = set()
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        yield name, value.clone() if value.data_ptr() in seen else value
        seen.add(value.data_ptr())


def read(path: Path, wanted: Callable[[str], bool]) -> tuple[Tensors, dict[str, str]]:
    """The tensors of a file whose names are `wanted`, and its metadata. Raises ValueError that names a damaged file."""
    if not path.is_file():  # to open a pipe would wait for its writer
        raise ValueError(f"{path.name} is missing")
    try:
        with safe_open(path, framework="pt") as file:
            names = filter(wanted, file.keys())
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except Exception as error:  # safetensors has error classes of its own
        raise ValueError(f"{path.name} is damaged ({error})") from error


def names(path: Path) -> list[str]:
    """Names of the tensors of a file."""
    with safe_open(path, framework="pt") as file:
        return list(file.keys())


def check_shared(folder: Path, written: Iterable[str]) -> None:
    """Raises InvalidRequest unless the files that the ranks have `written` are there."""
    if missing := [name for name in written if not (folder / name).exists()]:
        rule = "all ranks share the folder of a model or a checkpoint"
        raise InvalidRequest(f"rank 0 finds no {missing[0]} in {folder}", rule=rule)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, have reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- folders of checkpoints ------------------------------------------------------------------------------------------


def folder_of(path: Any) -> Path:
    """A folder as a path. Raises InvalidRequest for anything else than text or a path."""
    if not isinstance(path, str | os.PathLike):
        raise InvalidRequest(f"folder={path!r}", rule="text or a path", legal='folder="checkpoints"')
    return Path(path)


def check_keep(keep: int | None) -> None:
    """Raises InvalidRequest unless `keep` is a number of at least 1, or None."""
    if keep is not None and (not isinstance(keep, int) or isinstance(keep, bool) or keep < 1):
        raise InvalidRequest(f"keep={keep}", rule="at least 1 checkpoint, or None for all", legal="keep=2")


def step_of(path: Path) -> int | None:
    """Updates before the checkpoint that `path` names; None for another folder."""
    match = _STEP.fullmatch(path.name)
    return int(match[1]) if match else None


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:06d}"


def steps(folder: Path) -> list[int]:
    """Updates before each checkpoint in a folder, from the oldest to the newest."""
    folders = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()] if folder.is_dir() else []
    return sorted(step for path in folders if (step := step_of(path)) is not None)


def unfinished_of(path: Path) -> Path:
    """Hidden folder in which the checkpoint `path` is written."""
    return path.with_name(f".{path.name}{_UNFINISHED}")


def begin(path: Path) -> None:
    """Create the hidden folder of the checkpoint `path`. What killed processes have left next to it is removed."""
    folder = path.parent
    if folder.exists() and not folder.is_dir():
        raise InvalidRequest(f"folder={str(folder)!r}, a file", rule="a folder", legal='folder="checkpoints"')
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".step-*"):
        shutil.rmtree(leftover)
    unfinished_of(path).mkdir()


def finish(path: Path, keep: int | None) -> None:
    """Give the checkpoint its name, in place of one that has it. Only the newest `keep` checkpoints stay.

    A checkpoint that goes is hidden before it is removed, so a partly removed one has no name. A crash between the two
    renames of a replaced checkpoint leaves the earlier checkpoints."""
    _sync(unfinished_of(path))
    hidden = [_hide(path)] if path.exists() else []
    unfinished_of(path).rename(path)
    _sync(path.parent)
    hidden += [_hide(path_of(path.parent, step)) for step in steps(path.parent)[: -keep if keep else 0]]
    for folder in hidden:
        shutil.rmtree(folder)


def _hide(path: Path) -> Path:
    return path.rename(path.with_name(f".{path.name}.removed"))
