"""Small folders of files in a published form."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write the files, by their path under `folder`; text that ends in .gz is compressed. Returns `folder`."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") and isinstance(content, str) else data)
    return folder
