"""Command `suite run`: execute one run or the runs of an experiment.

    suite run system=axonn model=gpt_tiny grid.inter=2
    suite run experiment=axonn_fig10
    suite run experiment=axonn_fig10 --dry-run         # list what would run or be submitted

suite/core/exit_codes.py lists the exit statuses.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from suite.cli import DRY_RUN, LABEL, Arguments, argument, command
from suite.core.exit_codes import Exit, exit_code
from suite.core.reasons import headline
from suite.core.record import Outcome, Record
from suite.core.units import seconds
from suite.core.words import for_reports, format_count
from suite.runner.launch.signals import ending_ranks
from suite.runner.progress import Progress

if TYPE_CHECKING:
    from suite.runner.runs import Run


def run(overrides: Sequence[str], progress: Progress | None = None) -> list[Record]:
    """Execute the runs of one command line and print a line for each."""
    from suite.runner.runs import expand

    return execute(expand(overrides), progress)


def execute(runs: Sequence[Run], progress: Progress | None = None) -> list[Record]:
    """Execute runs and print a line for each. Returns their records."""
    from suite.report import expectations
    from suite.runner.interleave import measure

    progress = progress or Progress(float(runs[0].config.experiment.expected_seconds))
    with ending_ranks(), progress.ticking():
        records = measure(runs, progress)
    for line in (*map(summary, records), *(expectations.lines(records) if records else ())):
        progress.print_line(line)
    return records


def summary(record: Record) -> str:
    """One line for a record: label, outcome, and the result or the reason of the failure."""
    from suite.cli.result_line import format_result

    head = f"  {record.label:<18} {record.outcome.value:<12}"
    if record.outcome is Outcome.OK:
        return f"{head} {format_result(record)}"
    return f"{head} {headline(record.reason, nothing='no samples')}"


KEYS = {
    "reports": "FOLDER   records, traces and pages (default: reports)",
    "rerun": "WHICH      repeat runs with a record: stale (default), failed, timeout, all or keep",
    "on_error": "ACTION  after a failed run: record (default) continues, stop ends the command",
    "checkpoint.folder": "FOLDER   checkpoints of long runs (default: none)",
}


@command(
    "Run a system or an experiment, and write a record per run.",
    "system=axonn model=gpt_tiny grid.inter=2",
    DRY_RUN,
    LABEL,
    argument("--cfg", action="store_true", help="print the configuration, and start nothing"),
    keys=KEYS,
    config=True,
    resumes=True,
)
def main(arguments: Arguments) -> int:
    from suite.config.compose import composed
    from suite.runner.labels import FLAG
    from suite.runner.override_files import read_files

    if arguments.cfg:
        print(yaml.safe_dump(composed(read_files(arguments.words)), sort_keys=False, allow_unicode=True), end="")
        return Exit.OK
    return run_words([*arguments.words, *(f"{FLAG}{key}" for key in arguments.label)], arguments.dry_run)


def run_words(words: Sequence[str], dry: bool = False) -> int:
    """Execute, submit or list the runs of one command line. Returns the exit status."""
    from suite.cli.lines import combined_status, plan_runs, plan_summary, submit
    from suite.runner.runs import expand

    begin = time.monotonic()
    runs = expand(words)
    config = runs[0].config
    if config.launch.submit:
        return combined_status(submit([words], dry))
    if dry:
        return plan_summary(plan_runs(runs))
    records, folder = execute(runs), Path(config.reports)
    print(f"{format_count(records, 'record')} in {folder / 'records'}, {seconds(time.monotonic() - begin)}")
    print(f"{for_reports('report', folder)} makes the page")
    return exit_code(records, config.on_error)
