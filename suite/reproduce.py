"""Decides what `make reproduce` does: the experiments of one scale, in order, then the page.

    python -m suite.reproduce scale=laptop
    python -m suite.reproduce scale=laptop reports=FOLDER    # any further override goes to every experiment
    python -m suite.reproduce scale=laptop --dry-run         # what would be made, or submitted

An entry of a scale is an experiment's name, or that and overrides of its own: "samo_fig1 launch.device=cuda".

What already has a record is not run again; killed at any moment, the same command goes on where it stopped. A run that
this machine cannot make is a row of the page with its reason, and no failure.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suite.__main__ import planned, run
from suite.bench.experiment import expand, well_formed
from suite.bench.interrupt import answered, ending_ranks
from suite.bench.progress import Progress
from suite.core.errors import Refused, SuiteError
from suite.core.exits import Exit, exit_code
from suite.core.record import CANNOT, Record
from suite.core.units import seconds
from suite.sweep import DRY, scheduled, together


def command(entry: Any, overrides: Sequence[str] = ()) -> list[str]:
    """The command line that an entry of a scale stands for; `overrides` come last. Raises Refused for what is none."""
    try:
        name, *own = shlex.split(entry) if isinstance(entry, str) else []
    except ValueError as error:
        raise Refused(
            f"scale.reproduce holds {entry!r}", rule="an experiment and overrides", legal="samo_fig1 seed=1"
        ) from error
    return [f"experiment={name}", *own, *overrides]


def reproduce(overrides: Sequence[str]) -> int:
    dry, overrides = DRY in overrides, [override for override in overrides if override != DRY]
    base = well_formed(overrides)
    commands = [command(entry, overrides) for entry in base["scale"]["reproduce"]]
    expected = sum(float(well_formed(arguments)["experiment"]["seconds"]) for arguments in commands)
    if base["launch"].get("submit"):
        status = together(scheduled(commands, dry))
        print("" if dry else f"The page: {_page(base)}")
        return status
    if dry:
        for entry, arguments in zip(base["scale"]["reproduce"], commands, strict=True):
            print("\n".join([str(entry), *planned(expand(arguments))]))
        return Exit.OK
    progress = Progress(expected)
    progress.say(f"{len(commands)} experiments at scale {base['scale']['name']}, about {seconds(progress.left)}")
    records: list[Record] = []
    refused = Exit.OK
    for number, (entry, arguments) in enumerate(zip(base["scale"]["reproduce"], commands, strict=True), 1):
        progress.say(f"[{number}/{len(commands)}] {entry}")
        try:
            records += run(arguments, progress)
        except SuiteError as error:
            progress.say(f"  refused: {error}")
            refused = Exit.SOME_FAILED
        if exit_code(records, base["on_error"]) is Exit.STOPPED:
            break
    page = _page(base)
    print(f"\n{len(records)} records in {seconds(progress.clock() - progress.begin)}. The page: {page}")
    tried = [record for record in records if record.outcome not in CANNOT]
    return max(refused, exit_code(tried, base["on_error"]))


def _page(config: Mapping[str, Any]) -> Path:
    from suite.report import write_report

    with ending_ranks():
        return write_report(Path(config["reports"]))


def main(overrides: Sequence[str]) -> int:
    return answered(reproduce, overrides)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
