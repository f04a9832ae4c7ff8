"""Command lines of runs: their dry run, their jobs in a scheduler, and their exit status together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from suite.core.errors import SuiteError
from suite.core.exit_codes import Exit
from suite.core.files import check_access
from suite.core.reasons import headline
from suite.core.words import format_count
from suite.runner.interleave import with_checkpoint_folder
from suite.runner.runs import Run, expand
from suite.runner.store import Store


def plan_line(command: Sequence[str]) -> Counter[str]:
    """Like `plan_runs` for the runs of a command line. A command line that does not compose counts as refused."""
    try:
        return plan_runs(expand(command))
    except SuiteError as error:
        print(f"  refused: {error}")
        return Counter(refused=1)


def plan_runs(runs: Sequence[Run]) -> Counter[str]:
    """Print what would happen to each run. Returns how many would run, have a record and are refused.

    Raises InvalidRequest if records cannot be written to the reports folder.
    """
    counts = Counter[str]()
    for reports in {str(run.config.reports) for run in runs}:
        check_access(Path(reports), "reports")
    for run in runs:
        if record := Store(Path(run.config.reports)).reusable(run):
            kind, state = "recorded", f"has a record ({record.outcome})"
        elif refusal := with_checkpoint_folder(run, check_access).refusal:
            kind, state = "refused", f"refused: {headline(str(refusal))}"
        else:
            kind, state = "would run", f"would run on {format_count(run.ranks, 'rank')}"
        counts[kind] += 1
        print(f"  {run.label:<18} {state}")
    return counts


def plan_summary(counts: Counter[str]) -> Exit:
    """Print the last line of a dry run. Returns the exit status of its runs, as far as refusals decide it."""
    recorded, refused = counts["recorded"], counts["refused"]
    print(
        f"dry run of {format_count(counts.total(), 'run')}: {counts['would run']} would run, "
        f"{recorded} {'has' if recorded == 1 else 'have'} a record, {refused} refused; nothing was run"
    )
    if not refused:
        return Exit.OK
    return Exit.NOTHING if refused == counts.total() else Exit.SOME_FAILED


def submit(commands: Sequence[Sequence[str]], dry: bool = False) -> list[int]:
    """Submit command lines to the scheduler and wait for them. Returns their exit statuses."""
    if not commands:
        return []
    from suite.runner import slurm  # loads submitit

    return [*slurm.submit(commands, dry_run=dry, report=lambda text: print(text, flush=True))]


def combined_status(codes: Sequence[int]) -> int:
    """The exit status for several commands together."""
    kinds = set(codes)
    if len(kinds) <= 1:
        return next(iter(kinds), Exit.NOTHING)
    return Exit.STOPPED if Exit.STOPPED in kinds else Exit.SOME_FAILED
