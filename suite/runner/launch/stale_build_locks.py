"""Stale build locks of torch extensions.

torch builds an extension (DeepSpeed has several) behind a file named `lock`, which its builder keeps open and removes
at the end. A killed builder leaves the file, and every later build of that extension waits for it without a message.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil


def build_folders(environment: Mapping[str, str] | None = None) -> list[Path]:
    """Folders in which torch builds extensions: TORCH_EXTENSIONS_DIR if it is set, and the user's cache."""
    environ = os.environ if environment is None else environment
    home = Path(environ.get("HOME") or Path.home())
    cache = (
        home / "Library" / "Caches"
        if sys.platform == "darwin"
        else Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    )
    folders = [Path(environ["TORCH_EXTENSIONS_DIR"])] if environ.get("TORCH_EXTENSIONS_DIR") else []
    return [*folders, cache / "torch_extensions"]


def stale_locks(folders: Iterable[Path]) -> list[Path]:
    """The locks below `folders` that no process on this machine has open, in sorted order. Nothing is removed."""
    locks = {lock for folder in folders for lock in folder.glob("**/lock") if lock.is_file()}
    open_files = _open_files() if locks else set()
    # a builder that ended in the meantime has removed its lock
    return sorted(lock for lock in locks if lock.resolve() not in open_files and lock.exists())


def _open_files() -> set[Path]:
    """Files that processes have open, as far as this user may see them. Builders run as the owner of the cache."""
    files: set[Path] = set()
    for process in psutil.process_iter():
        try:
            files.update(Path(file.path) for file in process.open_files())
        except (psutil.Error, OSError):
            continue
    return files
