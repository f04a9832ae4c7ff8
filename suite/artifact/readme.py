"""README of the archive: content, machine, and the order of work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import yaml

from suite.artifact.claims import CONF, ClaimRow, expected_seconds
from suite.core.units import seconds
from suite.report.load import ReportStore, at

TASKS = (  # name, scale, command, requirements
    ("T2", "laptop", "make reproduce", "two cores, 4 GB"),
    ("T3", "evening", "make reproduce SCALE=evening", "two cores, 8 GB"),
    ("T4", "cluster", "make reproduce SCALE=cluster LAUNCH=slurm", "a Slurm cluster with GPUs, and a site file for it"),
)


def scale_seconds(name: str) -> tuple[float, int]:
    """Expected seconds of all experiments of a scale, and the number of its experiments."""
    path = CONF / "scale" / f"{name}.yaml"
    listed = yaml.safe_load(path.read_text(encoding="utf-8"))["reproduce"] if path.exists() else []
    times = expected_seconds()
    durations = [times[entry.split()[0]] for entry in listed if entry.split()[0] in times]
    return sum(durations), len(listed)


def readme(*, version: str, source: str, store: ReportStore, rows: Sequence[ClaimRow], left_out: int) -> str:
    """README.md of the archive.

    Args:
        version: Version of the suite and the commit.
        source: Description of the source.
        store: Records of the archive.
        rows: Claims.
        left_out: Number of files that could not be read.
    """
    lines = [f"# Artifact {version}", "", f"Source: {source}", ""]
    lines += ["`sha256sum -c MANIFEST.sha256` verifies the archive."]
    lines += ["", "## Content", ""]
    lines += [f"- {line}" for line in _content(store, rows, left_out)]
    lines += ["", "## Machines of the records", "", *(f"- {line}" for line in _hardware(machines_of(store))), ""]
    lines += ["## Order of work", "", "| task | command | requirements | expected time |", "|---|---|---|---|"]
    lines += ["| T1 | `make doctor` | Python 3.11, a C compiler for MPI's wheel | 5 minutes, most of it downloads |"]
    for name, scale, command, requirements in TASKS:
        total, count = scale_seconds(scale)
        recorded = _recorded_time(store, scale)
        lines.append(f"| {name} | `{command}` | {requirements} | {seconds(total)} for {count} experiments{recorded} |")
    lines += ["", "The same command resumes an interrupted run. `make report` writes the page again.", ""]
    lines += ["`CLAIMS.md` lists the command of each claim and its row on the page."]
    return "\n".join([*lines, ""])


def _content(store: ReportStore, rows: Sequence[ClaimRow], left_out: int) -> list[str]:
    verdicts = Counter(row.verdict for row in rows)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    without = sum(row.ours == "no record" for row in rows)
    records = f"{len(store.entries)} records" if store.entries else "no record: nothing has run here"
    lines = [f"{records} in reports/records and reports/measured, with {_traces(store)} traces"]
    lines.append(
        "the page, reports/index.html, with records.csv, claims.csv and claims.json next to it, made from these records"
    )
    lines.append(f"{len(rows)} claims in CLAIMS.md and CLAIMS.csv: {counts}; {without} have no record here")
    if left_out:
        lines.append(f"{left_out} files of the reports folder could not be read and are left out")
    lines.append("environment/: the installed packages, this machine, and the findings of make doctor")
    lines.append("LICENSE, CITATION.cff, and the source from git archive")
    lines.append("paths, user and host names of the machine are replaced in all texts by PATH/, LIBRARIES/, NAME")
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
    for machine in machines:
        hardware = f"{machine.processor}, {machine.cores} cores, {machine.memory_bytes / 1e9:.0f} GB"
        lines.append(f"{hardware}, {machine.system}, Python {machine.python}")
    return lines


def machines_of(store: ReportStore) -> list[Hardware]:
    """Each machine of the records once, the most frequent first."""
    run_counts: Counter[str] = Counter()
    hardware: dict[str, Hardware] = {}
    for entry in store.entries:
        machine = at(entry.record.provenance, "machine")
        if isinstance(machine, dict):
            size = float(machine.get("memory_bytes") or 0)
            texts = {name: str(machine.get(name)) for name in ("cores", "system", "python")}
            processor = str(machine.get("processor") or "an unknown processor")
            key = str(sorted(machine.items(), key=str))
            hardware[key] = Hardware(processor=processor, **texts, memory_bytes=size)
            run_counts[key] += 1
    return [hardware[name] for name, _ in sorted(run_counts.items(), key=lambda pair: (-pair[1], pair[0]))]


def _recorded_time(store: ReportStore, scale: str) -> str:
    """Duration of the records of a scale on this machine, as text."""
    reported = [
        entry.record.provenance.get("seconds")
        for entry in store.entries
        if not entry.machine and at(entry.record.config, "scale", "name") == scale
    ]
    durations = [float(value) for value in reported if isinstance(value, int | float) and 0 <= value < 1e9]
    return f"; {len(durations)} records here took {seconds(sum(durations))}" if durations else "; no record of it here"
