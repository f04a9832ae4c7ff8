"""Files of pages: templates, and atomic writes inside the reports folder, as text that no spreadsheet executes."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from suite.core.files import write_atomically


def templates(folder: Path) -> Environment:
    """The templates in a folder. They escape all text, and an unknown name is an error."""
    loader = FileSystemLoader(folder)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def write(folder: Path, name: str, content: str | bytes) -> Path:
    """Write `folder`/`name` atomically. Replaces a link of this name. Raises InvalidRequest outside of `folder`."""
    data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
    return write_atomically(folder / name, data, inside=folder)


def inert(cell: object) -> object:
    """A cell of a CSV table. Text that a spreadsheet would execute as a formula gets an apostrophe in front."""
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
