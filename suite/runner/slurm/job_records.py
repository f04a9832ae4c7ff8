"""Records for Slurm jobs that end without writing their own.

The machine is part of a record's key, and the submitting process runs on another node than the job. Each job therefore
announces the keys of its runs in a file before it starts them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from suite.core.errors import SuiteError
from suite.core.files import write_atomically
from suite.core.reasons import headline
from suite.core.record import Outcome, Record
from suite.runner import provenance
from suite.runner.executors import in_process
from suite.runner.runs import Run
from suite.runner.store import Store, deciding_keys, key_of

Stamps = dict[Path, tuple[int, int]]


class AnnouncedRun(TypedDict):
    """A run that a job has announced.

    Attributes:
        label: Label of the run.
        key: Key of its record.
        config: Hash of its configuration.
        circumstances: Machine, library versions and source digests on the job's node.
    """

    label: str
    key: str
    config: str
    circumstances: provenance.Circumstances


def announce_runs(runs: Sequence[Run], keys: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Inside a job of a sweep, write the runs that follow and the keys of their records. Elsewhere do nothing."""
    environment = os.environ if environment is None else environment
    job_name = environment.get("SLURM_JOB_NAME", "")
    if not runs or not job_name.startswith("suite-") or "SLURM_ARRAY_TASK_ID" not in environment:
        return
    entries: list[AnnouncedRun] = [
        {
            "label": run.label,
            "key": key,
            "config": _config_hash(run),
            "circumstances": provenance.circumstances(run.config),
        }
        for run, key in zip(runs, keys, strict=True)
    ]
    job_id = f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    path = _announcements(Path(runs[0].config.reports)) / f"{job_id}.json"
    write_atomically(path, json.dumps({"name": job_name, "runs": entries}, indent=1, default=str).encode())


def announced_runs(runs: Sequence[Run], job_id: str, job_name: str) -> list[AnnouncedRun]:
    """Runs that a job has announced; empty before the job starts. Slurm reuses job ids, so the name must match too."""
    announcement = _read(_announcements(Path(runs[0].config.reports)) / f"{job_id}.json") if runs else {}
    return list(announcement.get("runs", ())) if announcement.get("name") == job_name else []


def record_stamps(reports: Path) -> Stamps:
    """Stamp of each record file in a reports folder. Stamps are compared for equality, as clocks of nodes differ."""
    store = Store(reports)
    return {path: stamp for path in (reports / "records").glob("*.json") if (stamp := store.stamp(path.stem))}


def complete_records(
    runs: Sequence[Run],
    job_id: str,
    job_name: str,
    ending: tuple[Outcome, str],
    *,
    stamps: Stamps | None = None,
    report: Callable[[str], None] | None = None,
) -> list[Record]:
    """Return the record of each run of an ended job, and write the missing ones.

    A missing record gets the key that the job announced, or the key of this machine if the job never started.

    Args:
        runs: Runs of the job.
        job_id: Slurm's number of the job.
        job_name: Slurm's name of the job.
        ending: Outcome and reason for missing records.
        stamps: Record files that existed at submission. Such a record counts only where it makes the run superfluous.
        report: Receives a line where an earlier good record stays in place of a missing one.
    """
    entries = {entry["config"]: entry for entry in announced_runs(runs, job_id, job_name)}
    records = []
    for run in runs:
        entry = entries.get(_config_hash(run))
        key = entry["key"] if entry else provenance.key(run)
        store = Store(Path(run.config.reports))
        record = store.find(key)
        if record is not None and store.stamp(key) == (stamps or {}).get(store.path(key)):
            record = None
        if record is None:
            record = store.reusable(run.settings, key, run.config.rerun)
        if record is None:
            early = "" if entry else ", before it started"
            record = in_process.unfinished_record(run, key, ending[0], f"job {job_id}{early}: {ending[1]}")
            if entry:
                record = replace(record, provenance={**record.provenance, **entry["circumstances"]})
            _write_unless_ok(store, record, report)
        records.append(record)
    return records


def write_refusals(runs: Sequence[Run], error: SuiteError | None, report: Callable[[str], None]) -> list[Record]:
    """Return the record of each run for which no job exists, and write the missing ones.

    `error` is the reason for runs that have no refusal of their own.
    """
    records = []
    for run in runs:
        store, key = Store(Path(run.config.reports)), provenance.key(run)
        record = store.reusable(run.settings, key, run.config.rerun)
        if record is None:
            record = in_process.refused_record(replace(run, refusal=run.refusal or error), key)
            _write_unless_ok(store, record, report)
        records.append(record)
    return records


def _write_unless_ok(store: Store, record: Record, report: Callable[[str], None] | None) -> None:
    """Write a record of a run that did not happen, unless an earlier record with outcome `ok` exists."""
    earlier = store.find(record.key)
    if earlier is None or earlier.outcome is not Outcome.OK:
        store.write(record)
    elif report is not None:
        reason = f"{record.outcome}, {headline(record.reason)}"
        report(f"slurm: {record.label}: {reason}; the record of an earlier run stays")


def reusable_records(runs: Sequence[Run]) -> list[Record]:
    """Records that make a job superfluous, one per run; empty where a run has none.

    A record counts if it was made on this machine, or by an earlier job of the same code on a node of the cluster.
    """
    if not runs:
        return []
    reports = Path(runs[0].config.reports)
    store, files = Store(reports), _announcements(reports).glob("*.json")
    announced = [entry for path in files for entry in _read(path).get("runs", ())]
    records = []
    for run in runs:
        here = provenance.circumstances(run.config)
        config_hash = _config_hash(run)
        node_keys = [entry["key"] for entry in announced if entry["config"] == config_hash and _same_code(entry, here)]
        candidates = (
            store.reusable(run.settings, key, run.config.rerun) for key in [key_of(run.settings, here), *node_keys]
        )
        record = next((record for record in candidates if record is not None), None)
        if record is None:
            return []
        records.append(record)
    return records


def _same_code(entry: AnnouncedRun, here: provenance.Circumstances) -> bool:
    """Whether a job ran under the circumstances `here`, apart from the machine."""
    there = {name: value for name, value in entry["circumstances"].items() if name != "machine"}
    return bool(there == json.loads(json.dumps({n: v for n, v in here.items() if n != "machine"}, default=str)))


def _config_hash(run: Run) -> str:
    text = json.dumps(deciding_keys(run.settings), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _announcements(reports: Path) -> Path:
    return reports / "slurm" / "jobs"


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
