"""Write the archive reproducibly: equal content gives equal bytes. `sha256sum -c MANIFEST.sha256` checks its files."""

from __future__ import annotations

import hashlib
import io
import stat
import zipfile
from collections.abc import Mapping

MANIFEST = "MANIFEST.sha256"


def pack(files: Mapping[str, bytes], top: str) -> bytes:
    """A zip of `files` below the folder `top`, sorted, with constant times and a manifest of SHA-256 sums."""
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}" for name, data in sorted(files.items())]
    contents = {**files, MANIFEST: ("\n".join(lines) + "\n").encode()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, data in sorted(contents.items()):
            entry = zipfile.ZipInfo(f"{top}/{name}", (1980, 1, 1, 0, 0, 0))
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, data)
    return buffer.getvalue()
