"""README of the archive: content, machine, and the order of work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import yaml

from suite.artifact.claims import CONF, ClaimRow, expected_seconds
from suite.core.units import seconds
from suite.report.load import ReportStore, at

TASKS = (  # name, scale, what, on what
    ("T2", "laptop", "make reproduce", "two cores, 4 GB"),
    ("T3", "evening", "make reproduce SCALE=evening", "two cores, 8 GB"),
    ("T4", "cluster", "make reproduce SCALE=cluster LAUNCH=slurm", "a Slurm cluster with GPUs, and a site file for it"),
)


def scale_seconds(name: str) -> tuple[float, int]:
    """Of a scale's experiments together, and how many of them say how long they take."""
    path = CONF / "scale" / f"{name}.yaml"
    listed = yaml.safe_load(path.read_text(encoding="utf-8"))["reproduce"] if path.exists() else []
    times = expected_seconds()
    durations = [times[entry.split()[0]] for entry in listed if entry.split()[0] in times]
    return sum(durations), len(listed)


def readme(*, version: str, source: str, store: ReportStore, rows: Sequence[ClaimRow], left_out: int) -> str:
    """README.md of the archive."""
    lines = [f"# Artifact {version}", "", f"Source: {source}", ""]
    lines += ["`suite artifact --check FILE` verifies the archive, and so does `sha256sum -c MANIFEST.sha256`."]
    lines += ["", "## What is in it", ""]
    lines += [f"- {line}" for line in _content(store, rows, left_out)]
    lines += ["", "## On what it was measured", "", *(f"- {line}" for line in _hardware(machines_of(store))), ""]
    lines += ["## What to do, in this order", "", "| task | command | wants | expected |", "|---|---|---|---|"]
    lines += ["| T1 | `make doctor` | Python 3.11, a C compiler for MPI's wheel | 5 minutes, most of it downloads |"]
    for name, scale, command, wants in TASKS:
        total, count = scale_seconds(scale)
        took = _took(store, scale)
        lines.append(f"| {name} | `{command}` | {wants} | {seconds(total)} for {count} experiments{took} |")
    lines += ["", "The same command goes on where it was ended. `make report` makes the page anew.", ""]
    lines += ["Then `CLAIMS.md` says of each claim which command answers it and where its row is on the page."]
    return "\n".join([*lines, ""])


def _content(store: ReportStore, rows: Sequence[ClaimRow], left_out: int) -> list[str]:
    verdicts = Counter(row.verdict for row in rows)
    said = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    without = sum(row.ours == "no record" for row in rows)
    records = f"{len(store.entries)} records" if store.entries else "no record: nothing has been run here"
    lines = [f"{records} in reports/records and reports/measured, with {_traces(store)} traces"]
    lines.append(
        "the page, reports/index.html, with records.csv, claims.csv and claims.json next to it, made from these records"
    )
    lines.append(f"{len(rows)} claims in CLAIMS.md and CLAIMS.csv: {said}; {without} have no record here")
    if left_out:
        lines.append(f"{left_out} files of the reports folder could not be used, and are left out")
    lines.append("environment/: the installed packages, this machine, and what make doctor found")
    lines.append("LICENSE, CITATION.cff, and the source as git archives it")
    lines.append("paths, user and host names of the machine are taken out of all texts: PATH/, LIBRARIES/, NAME")
    return lines


def _traces(store: ReportStore) -> int:
    return sum(entry.trace is not None for entry in store.entries)


class Hardware(NamedTuple):
    """A machine of the records, as text."""

    processor: str
    cores: str
    system: str
    python: str
    memory_bytes: float


def _hardware(machines: Sequence[Hardware]) -> list[str]:
    if not machines:
        return ["nothing was measured"]
    lines = []
    for one in machines:
        what = f"{one.processor}, {one.cores} cores, {one.memory_bytes / 1e9:.0f} GB"
        lines.append(f"{what}, {one.system}, Python {one.python}")
    return lines


def machines_of(store: ReportStore) -> list[Hardware]:
    """Each once, the most frequent first."""
    run_counts: Counter[str] = Counter()
    hardware: dict[str, Hardware] = {}
    for entry in store.entries:
        one = at(entry.record.provenance, "machine")
        if isinstance(one, dict):
            size = float(one.get("memory_bytes") or 0)
            texts = {name: str(one.get(name)) for name in ("cores", "system", "python")}
            processor = str(one.get("processor") or "an unknown processor")
            hardware[str(sorted(one.items(), key=str))] = Hardware(processor=processor, **texts, memory_bytes=size)
            run_counts[str(sorted(one.items(), key=str))] += 1
    return [hardware[name] for name, _ in sorted(run_counts.items(), key=lambda pair: (-pair[1], pair[0]))]


def _took(store: ReportStore, scale: str) -> str:
    """Duration of the records of a scale on this machine."""
    reported = [
        entry.record.provenance.get("seconds")
        for entry in store.entries
        if not entry.machine and at(entry.record.config, "scale", "name") == scale
    ]
    durations = [float(one) for one in reported if isinstance(one, int | float) and 0 <= one < 1e9]
    return f"; {len(durations)} records here took {seconds(sum(durations))}" if durations else "; no record of it here"
