"""Build the archive: redacted records, a page made from them, a table of claims, and a README with the order of work.

Equal content gives equal bytes. `sha256sum -c MANIFEST.sha256` checks the files of an unpacked archive.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import platform
import re
import stat
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import yaml

from suite.artifact import redact
from suite.config.families import content, groups
from suite.core.record import LINES
from suite.core.resources import ROOT, conf_folder
from suite.core.trace import Trace
from suite.core.units import seconds
from suite.regression.committed import changed_settings
from suite.report import write_report
from suite.report.files import write
from suite.report.load import ReportStore, StoredRecord, read_store
from suite.report.tables.claim_tables import anchor
from suite.runner import provenance
from suite.simulate.validation.tables import ACCURACY, CONSTANTS

MANIFEST = "MANIFEST.sha256"
CLAIMS_PAGE = "reports/claims.html"
PAGES = ("*.html", "report.*", "records.csv", "claims.csv", "claims.json", "**/*.perfetto.json.gz")
TASKS = (  # command, requirements, scale
    ("make reproduce", "two cores, 4 GB", "laptop"),
    ("make reproduce SCALE=evening", "two cores, 8 GB", "evening"),
    ("make reproduce SCALE=cluster LAUNCH=slurm", "a Slurm cluster with GPUs, and a site file for it", "cluster"),
)
_CLAIMS = """# Claims

{count} claims; {without} have no record here. `reports/claims.json` has all that is known of each.

The time of a run is the time of its whole experiment on two quiet cores. The time of an answer is the time of its
function on this machine, rounded up and without the start of the program. Work that several answers share counts for
the first one, so the time of the experiment is listed too.

| claim | where | says | command | expected | row of the page | verdict |
|---|---|---|---|---|---|---|
"""
_README = """# Artifact {version}

Source: {source}

`sha256sum -c MANIFEST.sha256` verifies the archive.

## Content

- {records} in reports/records and reports/measured, with their traces
- the pages, reports/index.html first, with records.csv, claims.csv and claims.json, made from these records
- CLAIMS.md: the command of each claim and its row on the page; {left_out} files of the folder could not be read
- environment/: the installed packages, this machine, and the findings of make doctor
- LICENSE, CITATION.cff, and the source from git archive
- paths, user and host names of the machine are replaced in all texts by PATH/, LIBRARIES/, NAME

## Order of work

| command | requirements | expected time |
|---|---|---|
| `make doctor` | Python 3.11, a C compiler for MPI's wheel | 5 minutes, most of it downloads |
{tasks}

The same command resumes an interrupted run. `make report` writes the page again.
"""


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
    name, names, stored = f"ae-bundle-{version()}", redact.names_here(), read_store(reports)
    with tempfile.TemporaryDirectory() as scratch:
        files = _report_files(stored, Path(scratch) / "reports", names)
    source, source_state = _source()
    records = f"{len(stored.entries)} records" if stored.entries else "no record: nothing has run here"
    files |= {
        "CLAIMS.md": _claims(json.loads(files["reports/claims.json"])).encode(),
        "README.md": _README.format(
            version=version(), source=source, records=records, left_out=len(stored.aside), tasks=_tasks()
        ).encode(),
        "environment/packages.txt": _packages().encode(),
        "environment/machine.json": _text(redact.value(provenance.machine(), names)).encode(),
        "environment/doctor.txt": _doctor(doctor, names).encode(),
        **source_state,
        **{each: (ROOT / each).read_bytes() for each in ("LICENSE", "CITATION.cff") if (ROOT / each).exists()},
    }
    return write(reports, f"{name}.zip", pack(files, name))


def pack(files: Mapping[str, bytes], top: str) -> bytes:
    """A zip of `files` below the folder `top`, sorted, with constant times and a manifest of SHA-256 sums."""
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}" for name, data in sorted(files.items())]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, data in sorted({**files, MANIFEST: ("\n".join(lines) + "\n").encode()}.items()):
            entry = zipfile.ZipInfo(f"{top}/{name}", (1980, 1, 1, 0, 0, 0))
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


@cache
def _expected_seconds() -> Mapping[str, float]:
    """Seconds of each experiment on two quiet cores, from its YAML."""
    named = {name: content("experiment", name).keys["experiment"] for name in groups()["experiment"]}
    return {name: float(keys["expected_seconds"]) for name, keys in named.items() if "expected_seconds" in keys}


def scale_seconds(name: str) -> tuple[float, int]:
    """Expected seconds of all experiments of a scale, and their number."""
    listed = yaml.safe_load((conf_folder() / "scale" / f"{name}.yaml").read_text(encoding="utf-8"))["reproduce"]
    return sum(_expected_seconds().get(entry.split()[0], 0.0) for entry in listed), len(listed)


def _tasks() -> str:
    """The rows of `make reproduce` at each scale."""
    rows = []
    for command, requirements, scale in TASKS:
        total, count = scale_seconds(scale)
        rows.append(f"| `{command}` | {requirements} | {seconds(total)} for {count} experiments |")
    return "\n".join(rows)


def _claims(rows: Sequence[Any]) -> str:
    """CLAIMS.md, from the entries of claims.json."""
    lines = []
    for row in rows:
        command, says = row["command"] or "none: no run here answers it", f"{row['asserts']}: {row['printed']}"
        link = f"[row]({CLAIMS_PAGE}#{anchor(row['id'])})"
        cells = (row["id"], row["where"], says, f"`{command}`", expected(row), link, row["verdict"])
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    without = sum(row["record"] is None for row in rows)
    return _CLAIMS.format(count=len(rows), without=without) + "\n".join([*lines, ""])


def expected(row: Any) -> str:
    """The time of the function that answers, as in '3 s; its experiment 2 min 00 s', or of the experiment alone."""
    named = re.search(r"experiment=(\w+)", row["command"] or "")
    experiment = row["experiment_seconds"] or _expected_seconds().get(named[1] if named else "")
    answer = row["answer_seconds"]
    times = [seconds(math.ceil(answer))] if answer is not None else []
    times += [f"{'its experiment ' if times else ''}{seconds(experiment)}"] if experiment else []
    return "; ".join(times) or "unknown"


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def _report_files(stored: ReportStore, folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Redacted records and traces, and the page that is made from them in `folder`."""
    folder.mkdir(parents=True)
    files: dict[str, bytes] = {}
    for entry in stored.entries:
        for name, data in _record_files(entry, names).items():
            earlier = files.get(f"reports/{name}", b"")  # records may share a file, one per line: append
            write(folder, name, earlier + data)
            files[f"reports/{name}"] = earlier + data
    for name in (ACCURACY, CONSTANTS):
        if (stored.folder / name).is_file():
            text = (stored.folder / name).read_text(encoding="utf-8", errors="replace")
            write(folder, name, redact.text(text, names))
            files[f"reports/{name}"] = (folder / name).read_bytes()
    write_report(folder, changed_settings)
    written = sorted(path for pattern in PAGES for path in folder.glob(pattern))
    return files | {f"reports/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in written}


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
