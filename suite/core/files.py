"""Decides how a file appears: whole or not at all, and never outside of the folder it belongs to."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from suite.core.errors import Refused

PARTIAL = ".partial"  # ends the name of a file that is being written
_LEFT = 3600.0  # seconds after which its writer was killed


def write_atomically(path: Path, data: bytes, *, inside: Path | None = None) -> Path:
    """The file is there whole, or as it was before. A link in its place is replaced. Returns `path`.

    inside: a folder out of which no link among the file's own folders leads. Raises Refused for one that does.
    """
    if inside is not None and not path.parent.resolve().is_relative_to(inside.resolve()):
        raise Refused(f"{path.parent} leads out of {inside}", rule="files are written inside their folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:80]}.", suffix=PARTIAL)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
    return path


def tidy(folder: Path) -> None:
    """Takes away what killed writers have left in `folder`."""
    for partial in folder.glob(f".*{PARTIAL}"):
        with suppress(OSError):
            if time.time() - partial.lstat().st_mtime > _LEFT:
                partial.unlink()
