"""Records for Slurm jobs that end without writing their own.

The machine of a node is part of a record's name, and the submitting process runs on another node: only the job knows
the names."""

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
from suite.runner.store import Store, decisive, key_of

Stamps = dict[Path, tuple[int, int]]


class AnnouncedRun(TypedDict):
    """A run that a job has announced.

    Attributes:
        config: Hash of its configuration.
        key: The name of its record.
    """

    label: str
    key: str
    config: str
    circumstances: provenance.Circumstances


def announced(runs: Sequence[Run], keys: Sequence[str], told: Mapping[str, str] | None = None) -> None:
    """Inside a job of a sweep: writes down which runs it is going to make, and how their records will be named. Nothing
    elsewhere."""
    told = os.environ if told is None else told
    name = told.get("SLURM_JOB_NAME", "")
    if not runs or not name.startswith("suite-") or "SLURM_ARRAY_TASK_ID" not in told:
        return
    entries: list[AnnouncedRun] = [
        {"label": run.label, "key": key, "config": _digest(run), "circumstances": provenance.circumstances(run.outline)}
        for run, key in zip(runs, keys, strict=True)
    ]
    job = f"{told['SLURM_ARRAY_JOB_ID']}_{told['SLURM_ARRAY_TASK_ID']}"
    path = _announcements(Path(runs[0].outline.reports)) / f"{job}.json"
    write_atomically(path, json.dumps({"name": name, "runs": entries}, indent=1, default=str).encode())


def begun(runs: Sequence[Run], job: str, name: str) -> list[AnnouncedRun]:
    """The runs that a job has announced; empty before it has begun. name: of its sweep, as job numbers are reused."""
    announcement = _read(_announcements(Path(runs[0].outline.reports)) / f"{job}.json") if runs else {}
    return list(announcement.get("runs", ())) if announcement.get("name") == name else []


def stamps(reports: Path) -> Stamps:
    """Of the records that are there, by file. Clocks are not compared: clocks of nodes differ."""
    store = Store(reports)
    return {path: stamp for path in (reports / "records").glob("*.json") if (stamp := store.stamp(path.stem))}


def leave(
    runs: Sequence[Run],
    job: str,
    name: str,
    ended: tuple[Outcome, str],
    *,
    before: Stamps | None = None,
    say: Callable[[str], None] | None = None,
) -> list[Record]:
    """The records that a job has made of its runs. Those that it left no record of get one now: by the name that the
    job has announced, or, of one that has never begun, by the name that they would have here.

    before: what was there when the job was submitted, which is not its work: it counts where it stands, so that the job
    had not to make it again.
    """
    entries = {entry["config"]: entry for entry in begun(runs, job, name)}
    records = []
    for run in runs:
        entry = entries.get(_digest(run))
        key = entry["key"] if entry else provenance.key(run)
        store = Store(Path(run.outline.reports))
        record = store.find(key)
        if record is not None and store.stamp(key) == (before or {}).get(store.path(key)):
            record = None
        if record is None:
            record = store.standing(run.settings, key, run.outline.rerun)
        if record is None:
            early = "" if entry else ", before it had begun"
            record = in_process.lost(run, key, ended[0], f"job {job}{early}: {ended[1]}")
            if entry:
                record = replace(record, provenance={**record.provenance, **entry["circumstances"]})
            _write(store, record, say)
        records.append(record)
    return records


def refused(runs: Sequence[Run], error: SuiteError | None, say: Callable[[str], None]) -> list[Record]:
    """The records of runs of which no job is made. error: why, for those that have no refusal of their own."""
    records = []
    for run in runs:
        store, key = Store(Path(run.outline.reports)), provenance.key(run)
        record = store.standing(run.settings, key, run.outline.rerun)
        if record is None:
            record = in_process.refused(replace(run, refusal=run.refusal or error), key)
            _write(store, record, say)
        records.append(record)
    return records


def _write(store: Store, record: Record, say: Callable[[str], None] | None) -> None:
    """A run that was not made takes no earlier one's good record away."""
    earlier = store.find(record.key)
    if earlier is None or earlier.outcome is not Outcome.OK:
        store.write(record)
    elif say is not None:
        why = f"{record.outcome}, {headline(record.reason)}"
        say(f"slurm: {record.label}: {why}; the record of an earlier run is still there")


def standing(runs: Sequence[Run]) -> list[Record]:
    """The records of a job's runs, where every one has one that stands, made here or by an earlier job of this code on
    a node of the cluster; empty where one is missing."""
    if not runs:
        return []
    reports = Path(runs[0].outline.reports)
    store, files = Store(reports), _announcements(reports).glob("*.json")
    earlier = [entry for path in files for entry in _read(path).get("runs", ())]
    standing_records = []
    for run in runs:
        here = provenance.circumstances(run.outline)
        alike = [entry["key"] for entry in earlier if entry["config"] == _digest(run) and _alike(entry, here)]
        keys = [key_of(run.settings, here), *alike]
        records = (store.standing(run.settings, key, run.outline.rerun) for key in keys)
        record = next((record for record in records if record is not None), None)
        if record is None:
            return []
        standing_records.append(record)
    return standing_records


def _alike(entry: AnnouncedRun, here: provenance.Circumstances) -> bool:
    """Whether a job's circumstances were these, but for the machine: a node is not where one submits from."""
    theirs = {name: value for name, value in entry["circumstances"].items() if name != "machine"}
    return bool(theirs == json.loads(json.dumps({n: v for n, v in here.items() if n != "machine"}, default=str)))


def _digest(run: Run) -> str:
    text = json.dumps(decisive(run.settings), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _announcements(reports: Path) -> Path:
    return reports / "slurm" / "jobs"


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
