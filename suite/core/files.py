"""Atomic writes of files, and checks of folders before a run."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from suite.core.errors import InvalidRequest

PARTIAL = ".partial"  # suffix of a file that is being written
_LEFT = 3600.0  # seconds; the writer of an older partial file was killed


def write_atomically(path: Path, data: bytes, *, inside: Path | None = None, durable: bool = False) -> Path:
    """Write a file so that readers see the old or the new content, never a part. Returns `path`.

    A link at `path` is replaced, and its target is not changed.

    Args:
        path: Path of the file.
        data: Content.
        inside: Folder that must contain the file after links are resolved; None for no such limit.
        durable: Whether the content is on disk before the file has its name, so that a crash of the machine keeps it.

    Raises:
        InvalidRequest: The file would lie outside `inside`.
    """
    if inside is not None and not path.parent.resolve().is_relative_to(inside.resolve()):
        raise InvalidRequest(f"{path.parent} leads out of {inside}", rule="files are written inside their folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:80]}.", suffix=PARTIAL)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            if durable:
                stream.flush()
                os.fsync(handle)
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
    return path


def check_folder(folder: Path, setting: str) -> Path:
    """Create `folder` and a temporary file in it. Returns `folder`. Raises InvalidRequest if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".", suffix=PARTIAL) as file:
            file.write(b"\0")
    except (OSError, ValueError) as error:  # ValueError: a null character
        raise _unusable(folder, setting, error) from error
    return folder


def check_access(folder: Path, setting: str) -> None:
    """Like `check_folder`, but without writing.

    Raises InvalidRequest unless the nearest existing parent of `folder` is a folder that this process may write to, and
    its file system can hold files.
    """
    try:
        nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        for wrong, code in (
            (not nearest.is_dir(), errno.ENOTDIR),
            (not os.access(nearest, os.W_OK | os.X_OK), errno.EACCES),
            (os.statvfs(nearest).f_blocks == 0, errno.ENOTSUP),  # a virtual file system of the kernel, such as /proc
        ):
            if wrong:
                raise OSError(code, os.strerror(code))
    except (OSError, ValueError) as error:  # ValueError: a null character
        raise _unusable(folder, setting, error) from error


def _unusable(folder: Path, setting: str, error: OSError | ValueError) -> InvalidRequest:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return InvalidRequest(f"{setting}={folder}: {why}", rule="a folder that can be made and written")


def check_file(path: Path, setting: str) -> Path:
    """Return `path`. Raises InvalidRequest if no file can be written there."""
    if path.is_dir():
        raise InvalidRequest(f"{setting}={path} is a folder", rule="a file", legal=f"{setting}={path / 'FILE'}")
    check_folder(path.parent, f"folder of {setting}")
    return path


def tidy(folder: Path) -> None:
    """Remove partial files that killed writers have left in `folder`."""
    for partial in folder.glob(f".*{PARTIAL}"):
        with suppress(OSError):
            if time.time() - partial.lstat().st_mtime > _LEFT:
                partial.unlink()
