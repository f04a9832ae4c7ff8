"""Build the archive from redacted records and a page made from those records."""

from __future__ import annotations

import gzip
import json
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from suite.artifact import archive, readme, redact
from suite.artifact.claims import as_csv, as_markdown, rows
from suite.claims import judge, load
from suite.core.record import LINES
from suite.core.resources import ROOT
from suite.core.trace import Trace
from suite.papers.public.league_file import ANSWERS, LEAGUE
from suite.regression.committed import changed_settings
from suite.report import write_report
from suite.report.files import write
from suite.report.load import ReportStore, StoredRecord, read_store
from suite.runner import provenance

PAGE_FILES = ("index.html", "records.csv", "claims.csv", "claims.json")


def version() -> str:
    """Version of the suite and the first digits of the commit."""
    commit = provenance.commit()
    number = next((package.version for package in distributions(name="parallel-training-suite")), "0")
    return f"{number}-{commit['hash'][:8]}{'-dirty' if commit['dirty'] else ''}" if commit else number


def make(reports: Path, doctor: Sequence[str] = ()) -> Path:
    """Write reports/ae-bundle-VERSION.zip. Raises OSError or InvalidRequest.

    Args:
        reports: Folder of the records.
        doctor: Lines of `make doctor`.
    """
    version_name, names, stored = version(), redact.names_here(), read_store(reports)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "reports"
        files = _report_files(stored, folder, names)
        store = read_store(folder, changed_settings)
    judged = judge.judge(load.claims(), store)
    claim_rows = rows(judged, store)
    source, source_state = _source()
    totals = [f"{len(claim_rows)} claims; {sum(row.ours == 'no record' for row in claim_rows)} have no record here."]
    files |= {
        "CLAIMS.md": as_markdown(claim_rows, totals).encode(),
        "CLAIMS.csv": as_csv(claim_rows).encode(),
        "README.md": readme.readme(
            version=version_name, source=source, store=store, rows=claim_rows, left_out=len(stored.aside)
        ).encode(),
        "environment/packages.txt": _packages().encode(),
        "environment/machine.json": _text(redact.value(provenance.machine(), names)).encode(),
        "environment/doctor.txt": _doctor(doctor, names).encode(),
        **source_state,
    }
    for name in ("LICENSE", "CITATION.cff"):
        if (ROOT / name).exists():
            files[name] = (ROOT / name).read_bytes()
    return write(reports, f"ae-bundle-{version_name}.zip", archive.pack(files, f"ae-bundle-{version_name}"))


def _report_files(stored: ReportStore, folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Redacted records and traces, and the page that is made from them in `folder`."""
    folder.mkdir(parents=True)
    files: dict[str, bytes] = {}
    for entry in stored.entries:
        for name, data in _record_files(entry, names).items():
            earlier = files.get(f"reports/{name}", b"")  # records may share a file, one per line: append
            write(folder, name, earlier + data)
            files[f"reports/{name}"] = earlier + data
    for name in (LEAGUE, ANSWERS):
        if (stored.folder / name).is_file():
            text = (stored.folder / name).read_text(encoding="utf-8", errors="replace")
            write(folder, name, redact.text(text, names))
            files[f"reports/{name}"] = (folder / name).read_bytes()
    write_report(folder, changed_settings)
    exported = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.perfetto.json.gz"))
    return files | {f"reports/{name}": (folder / name).read_bytes() for name in (*PAGE_FILES, *exported)}


def _record_files(entry: StoredRecord, names: Sequence[str]) -> dict[str, bytes]:
    """Redacted files of a record and its trace, written from parsed data, so that no other content is copied."""
    data = redact.value(json.loads(entry.record.to_json()), names)
    base = f"measured/{entry.machine}" if entry.machine else "."
    files: dict[str, bytes] = {}
    data["trace"] = None
    if entry.trace is not None:
        data["trace"] = f"traces/{entry.record.key}.json.gz"
        name = (Path(base) / data["trace"]).as_posix()
        files[name] = _pack_trace(entry.trace.spans, entry.trace.grid, names)
    stem, line, _ = entry.file.partition(f"{LINES}#")  # a file with a record per line
    return {f"{stem}{LINES}": _line(data), **files} if line else {entry.file: _text(data).encode(), **files}


def _pack_trace(spans: Trace, grid: Any, names: Sequence[str]) -> bytes:
    content = {
        "grid": {"data": grid.data, "inter": grid.inter, "tensor": grid.tensor},
        "spans": [redact.value(span.row(), names) for span in spans],
    }
    return gzip.compress(json.dumps(content).encode(), mtime=0)


def _text(data: Any) -> str:
    return json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n"


def _line(data: Any) -> bytes:
    return json.dumps(data, sort_keys=True, allow_nan=False).encode() + b"\n"


def _packages() -> str:
    """Names and versions of the installed packages, without their folders."""
    packages = {(package.metadata["Name"] or "", package.version) for package in distributions()}
    lines = [f"{name}=={number}" for name, number in sorted(packages, key=lambda pair: pair[0].lower()) if name]
    return "\n".join([f"# Python {platform.python_version()}", *lines, ""])


def _doctor(lines: Sequence[str], names: Sequence[str]) -> str:
    return "\n".join([*(redact.text(line, names) for line in lines or ["make doctor did not run"]), ""])


def _source() -> tuple[str, dict[str, bytes]]:
    """Description of the source, and its archive; without a git checkout there is none."""
    commit = provenance.commit()
    if not commit:
        return "no git checkout, so the archive has no source", {}
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", "--prefix=source/", commit["hash"]]
    try:
        data = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"commit {commit['hash']}, which git cannot archive ({type(error).__name__})", {}
    changed = "; uncommitted changes are not included" if commit["dirty"] else ""
    return f"source.tar.gz, commit {commit['hash']}{changed}", {"source.tar.gz": gzip.compress(data, mtime=0)}


def doctor(reports: Path) -> list[str]:
    """Report of make doctor, without its measurements."""
    from suite.doctor.checks import checks

    return [check.report()[1] for check in checks(reports)]
