"""Write the files of the report atomically, inside the reports folder, as text that no spreadsheet executes."""

from __future__ import annotations

from pathlib import Path

from suite.core.files import write_atomically


def write(folder: Path, name: str, content: str | bytes) -> Path:
    """Write `folder`/`name` by atomic rename. A link in its place is replaced, a folder that is a link is refused."""
    data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
    return write_atomically(folder / name, data, inside=folder)


def inert(cell: object) -> object:
    """A table's cell with an apostrophe before text that a spreadsheet would take for a formula; numbers stay."""
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
