"""Command `suite gpu`: measure one GPU in a given time, the most useful parts first.

    suite gpu                                   # conf/scale/gpu.yaml, within 480 seconds
    suite gpu --seconds 240 reports=FOLDER
    suite gpu scale=gpu_rehearsal               # the same experiments on a CPU, with tiny shapes
    suite gpu --collect FOLDER                  # sort FOLDER's records into reports/measured/CARD/EXPERIMENT.jsonl

A part starts only if 1.3 times its expected duration remains: a run of an experiment with together=false, or else all
runs of an experiment. Each record is on disk as soon as its part has ended, and the same command goes on where the last
one stopped. It ends with a table of results and of parts that did not start.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suite.cli import Arguments, argument, command
from suite.cli.run import execute, summary
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit, exit_code
from suite.core.files import write_atomically
from suite.core.record import CANNOT, LINES, Outcome, Record
from suite.core.units import seconds
from suite.core.words import format_count
from suite.runner.progress import Progress
from suite.runner.store import Store

if TYPE_CHECKING:
    from suite.runner.runs import Run

SECONDS = 480.0  # that a GPU is lent for, less its start
ALLOWANCE = 1.3  # a part may take this many times its expected duration


@command(
    "Measure one GPU in a given time, the most useful parts first.",
    "reports=FOLDER",
    argument("--seconds", type=float, default=SECONDS, help="time of the GPU (%(default)g)"),
    argument("--collect", type=Path, metavar="FOLDER", help="sort the records of this folder, measure none"),
    keys={
        "scale": "NAME       list of experiments: gpu (default), or gpu_rehearsal on a CPU",
        "reports": "FOLDER   records and traces (default: reports)",
    },
    config=True,
    resumes=True,
)
def main(given: Arguments) -> int:
    from suite.cli.reproduce import expand_entries
    from suite.config.compose import resolve
    from suite.runner.interleave import parts_of
    from suite.runner.runs import expand

    if given.collect is not None:
        return collect(given.collect, given.reports)
    compiled = given.reports.absolute() / "compiled"  # kernels of torch.compile, which another machine may use again
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled))
    overrides = [*(["scale=gpu"] if given.value("scale", "") == "" else []), *given.words]
    deadline = time.monotonic() + given.seconds
    entries = expand_entries(resolve(overrides).scale.reproduce, overrides)
    expanded = [expand(arguments) for arguments in entries]
    parts = [(part, seconds_each(runs)) for runs in expanded for part in parts_of(runs)]
    progress = Progress(min(given.seconds, sum(len(waiting(part)) * each for part, each in parts)))
    records: list[Record] = []
    rows: list[str] = []
    try:
        for part, each in parts:
            needed, left = len(waiting(part)) * each, deadline - time.monotonic()
            if needed and needed * ALLOWANCE > left:
                labels = ", ".join(run.label for run in part)
                rows.append(f"  {labels:<18} not started: needs {seconds(needed)}, {seconds(max(left, 0.0))} remain")
            else:
                made = execute(part, progress)
                records += made
                rows += map(summary, made)
    finally:
        print("\n".join([f"\n{format_count(records, 'record')} in {given.reports / 'records'}", *rows]))
    return exit_code(records)


def seconds_each(runs: Sequence[Run]) -> float:
    """Expected seconds of each run of an experiment."""
    return float(runs[0].config.experiment.expected_seconds) / len(runs)


def waiting(runs: Sequence[Run]) -> list[Run]:
    """The runs that have no record to reuse."""
    store = Store(Path(runs[0].config.reports))
    return [run for run in runs if store.reusable(run) is None]


def collect(folder: Path, reports: Path) -> Exit:
    """Add the records of `folder` to `reports`/measured/CARD/EXPERIMENT.jsonl, with their traces.

    A record of the same run on the same card is replaced. Runs that were cancelled or could not start are left out.
    Raises InvalidRequest for a folder without other records.
    """
    from suite.report.load import check_records, read_store

    lines: dict[Path, dict[str, str]] = {}
    for entry in read_store(check_records(folder)).entries:
        record = entry.record
        if entry.machine or record.outcome in (Outcome.CANCELLED, *CANNOT):
            continue
        path = reports / "measured" / card(record) / f"{record.experiment}{LINES}"
        kept = lines.setdefault(path, _lines(path))
        kept[record.label] = record.to_json(indent=None)
        if record.trace is not None:
            target = path.parent / record.trace
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / record.trace, target)
    if not lines:
        raise InvalidRequest(f"{folder} holds no record of a run that ended", rule="a folder of `suite gpu`")
    for path, kept in sorted(lines.items()):
        write_atomically(path, "".join(f"{line}\n" for line in kept.values()).encode(), inside=reports)
        print(f"{format_count(kept, 'record')} in {path}")
    return Exit.OK


def card(record: Record) -> str:
    """Folder of a record's first GPU: nvidia-h200 for "NVIDIA H200, driver 580.159"; of its processor without a GPU."""
    gpus = record.provenance.get("gpus") or [record.provenance["machine"]["processor"]]
    return re.sub(r"[^a-z0-9]+", "-", gpus[0].partition(",")[0].lower()).strip("-")


def _lines(path: Path) -> dict[str, str]:
    """The lines of a file of records by label; empty without the file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {json.loads(line)["label"]: line for line in lines}
