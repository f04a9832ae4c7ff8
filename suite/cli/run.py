"""Command `suite run`: make the run or experiment that the command line describes.

    suite run system=axonn model=gpt_tiny grid.inter=2
    suite run experiment=axonn_fig10
    suite sweep system=axonn,gpipe grid.inter=1,2     # a sweep, by Hydra: each job in a process of its own
    suite run experiment=axonn_fig10 --dry-run         # what would be made, or submitted

What it ends with stands in suite/core/exit_codes.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suite.cli import Arguments, Command
from suite.core.exit_codes import exit_code
from suite.core.reasons import headline
from suite.core.record import Outcome, Record
from suite.core.units import seconds
from suite.core.words import count, for_reports
from suite.runner.launch.signals import ending_ranks
from suite.runner.progress import Progress
from suite.runner.result_line import format_result

if TYPE_CHECKING:
    from suite.runner.runs import Run


def run(overrides: Sequence[str], progress: Progress | None = None) -> list[Record]:
    """Makes the runs of one command line; says a line for each."""
    from suite.runner.runs import expand

    return made(expand(overrides), progress)


def made(runs: Sequence[Run], progress: Progress | None = None) -> list[Record]:
    """The records of these runs; says a line for each."""
    from suite.runner.interleave import measure

    progress = progress or Progress(float(runs[0].outline.experiment.expected_seconds))
    with ending_ranks():
        records = measure(runs, progress)
    for record in records:
        progress.print_line(summary(record))
    return records


def summary(record: Record) -> str:
    """One line: label, outcome, and the result of the run or the reason of its failure."""
    head = f"  {record.label:<18} {record.outcome.value:<12}"
    if record.outcome is Outcome.OK:
        return f"{head} {format_result(record)}"
    return f"{head} {headline(record.reason, nothing='no samples')}"


def command(arguments: Arguments) -> int:
    from suite.cli.hydra_sweep import counted, planned, scheduled, sweep, together
    from suite.config.compose import register
    from suite.runner.labels import FLAG
    from suite.runner.runs import expand

    register()
    options = arguments.options
    words = [*arguments.words, *(f"{FLAG}{key}" for key in options.label)]
    dry = bool(options.dry_run)
    if options.cfg or options.package or options.resolve or options.info or options.hydra_help:
        return sweep(for_hydra(arguments.given), dry, options.label)
    begun = Progress(1.0)
    runs = expand(words)
    if runs and runs[0].outline.launch.submit:
        return together(scheduled([words], dry))
    if dry:
        plan = planned(runs)
        print("\n".join([*plan.lines, counted([plan])]))
        return plan.exit
    records = made(runs)
    folder = Path(runs[0].outline.reports) if runs else Path("reports")
    print(f"{count(records, 'record')} in {folder / 'records'}, {seconds(begun.clock() - begun.begin)}")
    print(f"{for_reports('report', folder)} makes the page")
    return exit_code(records, runs[0].outline.on_error if runs else "record")


def for_hydra(arguments: Sequence[str]) -> list[str]:
    """The arguments that Hydra reads itself: all but --dry-run, and --label with its key."""
    overrides, is_key = [], False
    for argument in arguments:
        if not is_key and argument != "--dry-run" and argument.partition("=")[0] != "--label":
            overrides.append(argument)
        is_key = not is_key and argument == "--label"
    return overrides


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print what would be run or submitted, and run nothing")
    parser.add_argument("-c", "--cfg", metavar="PART", help="print the config (job, hydra or all), and run nothing")
    parser.add_argument("-p", "--package", metavar="KEY", help="with --cfg: only this part of the config")
    parser.add_argument("--resolve", action="store_true", help="with --cfg: interpolated values as they are")
    parser.add_argument("--info", nargs="?", const="all", metavar="PART", help="print where Hydra finds configs")
    parser.add_argument("--label", action="append", default=[], metavar="KEY", help="show this key in labels")
    parser.add_argument("--hydra-help", action="store_true", help="print the help of Hydra itself")


COMMAND = Command(
    "run",
    "Run a system or an experiment, and write a record of each run.",
    command,
    "system=axonn model=gpt_tiny grid.inter=2",
    keys={
        "reports": "FOLDER   records, traces and pages (default: reports)",
        "rerun": "WHAT       runs that are repeated although they have a record: stale, failed, timeout, all or keep",
        "on_error": "WHAT    record: go on with the other runs; stop: end at the first that fails",
        "checkpoint.folder": "FOLDER   checkpoints of long runs (default: none)",
    },
    config=True,
    options=options,
    resumes=True,
)
main = COMMAND.main
