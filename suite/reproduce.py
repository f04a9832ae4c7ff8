"""Decides what `make reproduce` does: the experiments of one scale, in order, then the page.

    python -m suite.reproduce scale=laptop
    python -m suite.reproduce scale=laptop reports=FOLDER    # any further override goes to every experiment

What already has a record is not run again; killed at any moment, the same command goes on where it stopped. A run that
this machine cannot make is a row of the page with its reason, and no failure.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from suite.__main__ import exit_code, run
from suite.bench.experiment import resolve
from suite.bench.interrupt import ending_ranks
from suite.bench.progress import Progress
from suite.core.errors import SuiteError
from suite.core.record import Outcome, Record
from suite.core.units import seconds

CANNOT = (Outcome.UNSUPPORTED, Outcome.MISSING_DEPENDENCY)


def main(overrides: Sequence[str]) -> int:
    try:
        base = resolve(overrides)
        names = base["scale"]["reproduce"]
        expected = {name: float(resolve([f"experiment={name}", *overrides])["experiment"]["seconds"]) for name in names}
    except SuiteError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    progress = Progress(sum(expected.values()))
    progress.say(f"{len(names)} experiments at scale {base['scale']['name']}, about {seconds(progress.left)}")
    records: list[Record] = []
    refused = 0
    for number, name in enumerate(names, 1):
        progress.say(f"[{number}/{len(names)}] {name}")
        try:
            records += run([f"experiment={name}", *overrides], progress)
        except SuiteError as error:
            progress.say(f"  refused: {error}")
            refused = 1
    from suite.report import write_report

    with ending_ranks():
        page = write_report(Path(base["reports"]))
    print(f"\n{len(records)} records in {seconds(progress.clock() - progress.begin)}. The page: {page}")
    return max(refused, exit_code([record for record in records if record.outcome not in CANNOT]))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
