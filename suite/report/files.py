"""Decides how the report's files reach the disk: whole or not at all, never outside the reports folder, and as text
that no spreadsheet runs.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from suite.core.errors import Refused


def write(folder: Path, name: str, content: str | bytes) -> Path:
    """Write `folder`/`name` by atomic rename. A link in its place is replaced, a folder that is a link is refused."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.parent.resolve().is_relative_to(folder.resolve()):
        raise Refused(f"{path.parent} leads out of {folder}", rule="reports are written inside their folder")
    data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def inert(cell: object) -> object:
    """A table's cell with an apostrophe before text that a spreadsheet would take for a formula; numbers stay."""
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
