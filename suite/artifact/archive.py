"""Write the archive reproducibly, and verify a received archive.

Equal content gives equal bytes. Verification unpacks nothing, and refuses entries that would leave the folder or fill a
disk before it reads them.
"""

from __future__ import annotations

import hashlib
import io
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from suite.core.errors import InvalidRequest

MANIFEST = "MANIFEST.sha256"
MAX_FILES, MAX_BYTES = 100_000, 4 << 30  # an archive of the suite has a thousandth of both
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_CHUNK = 1 << 20


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


def verify(path: Path) -> int:
    """Compare every file of an archive with its manifest. Returns the number of files.

    Raises InvalidRequest for a damaged or incomplete archive, an entry outside its folder, and an archive beyond
    MAX_FILES or MAX_BYTES.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _verify(archive)
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise InvalidRequest(f"{path.name} cannot be read: {error}", rule="a zip that suite artifact wrote") from error


def _verify(archive: zipfile.ZipFile) -> int:
    entries = archive.infolist()
    if len(entries) > MAX_FILES:
        raise InvalidRequest(f"{len(entries)} files", rule=f"at most {MAX_FILES}")
    if (size := sum(entry.file_size for entry in entries)) > MAX_BYTES:
        raise InvalidRequest(f"{size} bytes unpacked", rule=f"at most {MAX_BYTES}")
    entries_by_name: dict[str, zipfile.ZipInfo] = {}
    for entry in entries:
        name = _name_in_folder(entry)
        if name in entries_by_name:
            raise InvalidRequest(f"the archive has {name} twice", rule="each name once")
        entries_by_name[name] = entry
    if MANIFEST not in entries_by_name:
        raise InvalidRequest(f"the archive has no {MANIFEST}", rule="the SHA-256 of every file")
    text = _read(archive, entries_by_name.pop(MANIFEST)).decode("utf-8")
    digests: dict[str, str] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if not match:
            raise InvalidRequest(f"{MANIFEST} has the line {line[:80]!r}", rule="SHA256, two blanks, NAME")
        digests[match[2]] = match[1]
    if unmatched := sorted(digests.keys() ^ entries_by_name.keys()):
        where = "in the manifest alone" if unmatched[0] in digests else "not in the manifest"
        raise InvalidRequest(f"{unmatched[0]} is {where}", rule="the manifest names every file")
    for name, entry in entries_by_name.items():
        if (digest := _digest(archive, entry)) != digests[name]:
            raise InvalidRequest(
                f"{name} has SHA-256 {digest[:12]}..., the manifest {digests[name][:12]}...", rule="the same"
            )
    return len(entries_by_name)


def _name_in_folder(entry: zipfile.ZipInfo) -> str:
    """Name of an entry below the top folder. Raises InvalidRequest for an entry that is no plain file."""
    name, path = entry.filename, PurePosixPath(entry.filename)
    outside = name.startswith("/") or "\\" in name or ".." in path.parts or len(path.parts) < 2 or ":" in path.parts[0]
    if outside or "\0" in entry.orig_filename:
        raise InvalidRequest(f"{name[:80]!r} leads out of the archive's folder", rule="FOLDER/NAME, without ..")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if entry.is_dir() or kind not in (0, stat.S_IFREG):
        raise InvalidRequest(f"{name[:80]!r} is a link, a folder or a device", rule="plain files only")
    return str(PurePosixPath(*path.parts[1:]))


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    return b"".join(_chunks(archive, entry))


def _digest(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(archive, entry):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[bytes]:
    """Unpack an entry in chunks, and never more than its declared size."""
    remaining = entry.file_size
    with archive.open(entry) as file:
        while chunk := file.read(_CHUNK):
            remaining -= len(chunk)
            if remaining < 0:
                raise InvalidRequest(
                    f"{entry.filename} unpacks to more than its declared size", rule=f"{entry.file_size} bytes"
                )
            yield chunk
