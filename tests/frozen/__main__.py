"""Compute the frozen values, and compare them with the files of this folder.

    python -m tests.frozen                  # prints each value that differs; the exit status is their number, at most 1
    python -m tests.frozen write            # writes the files
    python -m tests.frozen claims refusals  # some of them

claims.csv holds the values of every answer function, measured ones as their verdict alone; schedules.csv the ticks,
bubble and peaks of every system's schedule; clusters.csv its simulated times and predicted bytes; accuracy.csv the
simulator's time of every public measurement; refusals.csv the key that each wrong command is refused for.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from suite.claims import load
from suite.claims.claim import Evidence
from suite.claims.verdicts_now import judge_with_records
from suite.cli.run import run
from suite.core.errors import InvalidRequest, SuiteError
from suite.runner.runs import expand
from suite.simulate.validation.accuracy import scorable_cells, score
from suite.simulate.validation.cells import CELLS
from tests.conf import test_wrong_commands as wrong
from tests.support.refusals import setting
from tests.support.systems import every_system

FOLDER = Path(__file__).parent
Rows = Iterator[tuple[str, ...]]
GRIDS = ("grid.inter=2", "grid.inter=4", "grid.inter=4 batch.size=8 batch.microbatch=1")


def of_claims() -> Rows:
    names = [claim.id for claim in load.claims() if any(row.computed for row in claim.answers)]
    for name, judged in sorted(judge_with_records(names).items()):
        for each in (judged, *judged.others):
            values = "" if each.evidence in (Evidence.MEASURED, None) else repr(each.ours)
            yield name, str(each.evidence and each.evidence.value), each.verdict.value, values


def _records(*executor: str) -> Rows:
    with tempfile.TemporaryDirectory() as folder:
        for system, overrides in sorted(every_system().items()):
            for grid in GRIDS:
                try:
                    (record,) = run([*overrides, *executor, *grid.split(), f"reports={folder}"])
                except InvalidRequest as error:
                    yield system, grid, "refused", setting(error)[0]
                    continue
                found = {name: metric.values for name, metric in record.metrics.items()}
                yield system, grid, record.outcome.value, repr(sorted(found.items())), repr(record.memory)


def of_schedules() -> Rows:
    return _records("executor=check")


def of_clusters() -> Rows:
    return _records("executor=simulated", "machine=summit", "efficiency=summit")


def of_accuracy() -> Rows:
    steps = score(scorable_cells(CELLS), varied=False).steps
    yield from map(tuple, csv.reader(steps.to_csv(index=False, float_format="%.6g").splitlines()))


def of_refusals() -> Rows:
    with tempfile.TemporaryDirectory() as folder:
        wrong.write_own_files(Path(folder))
        for command in [*wrong.REFUSED, *wrong.ACCEPTED]:
            try:
                errors = [entry.refusal for entry in expand(wrong.words_of(command, folder))]
            except SuiteError as error:
                errors = [error]
            yield (
                command,
                "; ".join(setting(error)[0] if isinstance(error, InvalidRequest) else str(error) for error in errors),
            )


PARTS = {
    "claims": of_claims,
    "schedules": of_schedules,
    "clusters": of_clusters,
    "accuracy": of_accuracy,
    "refusals": of_refusals,
}


def main(words: list[str]) -> int:
    different = 0
    for part in [word for word in words if word in PARTS] or PARTS:
        rows, path = [*PARTS[part]()], FOLDER / f"{part}.csv"
        if "write" in words:
            with path.open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)
            continue
        with path.open(newline="") as file:
            frozen = {tuple(row) for row in csv.reader(file)}
        for sign, lines in (("-", frozen - {*rows}), ("+", {*rows} - frozen)):
            for line in sorted(lines):
                print(sign, part, *line)
                different += 1
    return bool(different)


sys.exit(main(sys.argv[1:]))
