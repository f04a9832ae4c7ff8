"""Command `suite reproduce`: run the experiments of one scale in order, then write the page.

    suite reproduce scale=laptop
    suite reproduce scale=laptop reports=FOLDER    # any further override goes to every experiment
    suite reproduce scale=laptop --dry-run         # what would be made, or submitted
    suite reproduce scale=laptop --blind           # hide what the papers print until the records are written

An entry of a scale is an experiment's name, or that and overrides of its own: "samo_fig1 launch.device=cuda".

Runs that have a record are not repeated. After a kill, the same command continues. A run that this machine cannot
make is a row of the page with its reason, and no failure."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suite.cli import Arguments, Command
from suite.cli.run import run
from suite.core import blind
from suite.core.errors import InvalidRequest, SuiteError
from suite.core.exit_codes import Exit, exit_code
from suite.core.files import check_access, check_folder
from suite.core.record import CANNOT, Record
from suite.core.units import seconds
from suite.core.words import count
from suite.runner.keys_read import BOOKKEEPING, CHOICES, below
from suite.runner.progress import Progress
from suite.runner.store import Store

if TYPE_CHECKING:
    from suite.config.run import RunConfig
    from suite.runner.runs import Run


def command(entry: Any, overrides: Sequence[str] = ()) -> list[str]:
    """The command line that an entry of a scale stands for; `overrides` come last. Raises InvalidRequest for an
    unknown scale.
    """
    try:
        name, *options = shlex.split(entry) if isinstance(entry, str) else []
    except ValueError as error:
        raise InvalidRequest(
            f"scale.reproduce holds {entry!r}", rule="an experiment and overrides", legal="samo_fig1 seed=1"
        ) from error
    return [f"experiment={name}", *options, *overrides]


def shared(entries: Sequence[Any], overrides: Sequence[str]) -> list[list[str]]:
    """The command line of each entry of a scale, with the `overrides` that at least one of its runs reads. Raises
    InvalidRequest for an override that none of the entries reads.
    """
    from suite.config.compose import key_of
    from suite.runner.runs import expand

    commands = [command(entry, overrides) for entry in entries]
    if all((key := key_of(override)) in CHOICES or below(key, BOOKKEEPING) for override in overrides):
        return commands
    expanded = [expand(arguments) for arguments in commands]
    idle = [{o for run in runs for o in unread(run)} & {*overrides} for runs in expanded]
    for override in overrides:
        if all(override in one for one in idle):
            raise next(run.refusal for run in expanded[0] if run.refusal and override in unread(run))
    return [[o for o in one if o not in out] for one, out in zip(commands, idle, strict=True)]


def unread(run: Run) -> Sequence[str]:
    """The overrides that a run does not read, for which it is refused."""
    return (run.checked.unread or ()) if run.checked else ()


def reproduce(given: Arguments) -> int:
    from suite.cli.hydra_sweep import counted, plan_of, scheduled, together
    from suite.config.compose import resolve

    dry, overrides = bool(given.options.dry_run), list(given.words)
    base = resolve(overrides)
    commands = shared(base.scale.reproduce, overrides)
    expected = sum(resolve(arguments).experiment.expected_seconds for arguments in commands)
    if base.launch.submit and given.options.blind:
        raise InvalidRequest(
            f"--blind with launch.submit={base.launch.submit}",
            rule="the command that hides printed outcomes waits for the records",
            legal="launch.submit=false, inside an allocation",
        )
    if base.launch.submit:
        status = together(scheduled(commands, dry))
        print("" if dry else f"The page: {_page(base)}")
        return status
    if dry:
        check_access(Path(base.reports), "reports")
        plans = [plan_of(arguments) for arguments in commands]
        for entry, plan in zip(base.scale.reproduce, plans, strict=True):
            print("\n".join([str(entry), *plan.lines]))
        print(counted(plans))
        return Exit.OK  # a run that this machine refuses is a row of the page
    check_folder(Path(base.reports), "reports")
    hides, progress = bool(given.options.blind) or blind.active(), Progress(expected)
    if hides:
        check_all_blind(Store(Path(base.reports)))
    with blind.hiding() if hides else nullcontext():
        records, status = _made(base, commands, progress)
    if hides:
        _fill(base, commands)
    page = _page(base)
    print(f"\n{count(records, 'record')} in {seconds(progress.clock() - progress.begin)}. The page: {page}")
    tried = [record for record in records if record.outcome not in CANNOT]
    return max(status, exit_code(tried, base.on_error))


def _made(base: RunConfig, commands: Sequence[list[str]], progress: Progress) -> tuple[list[Record], Exit]:
    """The records of all experiments in order, and whether one was refused."""
    progress.print_line(
        f"{count(commands, 'experiment')} at scale {base.scale.name}, about {seconds(progress.remaining)}"
    )
    records: list[Record] = []
    refused = Exit.OK
    for number, (entry, arguments) in enumerate(zip(base.scale.reproduce, commands, strict=True), 1):
        progress.print_line(f"[{number}/{len(commands)}] {entry}")
        try:
            records += run(arguments, progress)
        except SuiteError as error:
            progress.print_line(f"  refused: {error}")
            refused = Exit.SOME_FAILED
        if exit_code(records, base.on_error) is Exit.STOPPED:
            break
    return records, refused


def check_all_blind(store: Store) -> None:
    """Raises InvalidRequest for a folder with a record that was made with printed outcomes in sight: it would stand."""
    for path in sorted(store.folder.glob("records/*.json")):
        record = store.find(path.stem)
        if record is not None and blind.MARK not in record.provenance:
            raise InvalidRequest(
                f"--blind with reports={store.folder}, which holds {path.name}, made without --blind",
                rule="every record of a blind reproduction is made blind",
                legal="reports=reports/blind",
            )


def _fill(base: RunConfig, commands: Sequence[list[str]]) -> None:
    """Add what the papers print to the records, now that they are written."""
    from suite.papers.common.fill import fill_printed_values
    from suite.runner.runs import expand

    for arguments in commands:
        try:
            fill_printed_values(expand(arguments), Store(Path(base.reports)))
        except SuiteError as error:
            print(f"  not filled in: {error}")


def _page(config: RunConfig) -> Path:
    from suite.report import write_report

    return write_report(Path(config.reports))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print what would be run or submitted, and run nothing")
    parser.add_argument(
        "--blind",
        action="store_true",
        help="hide the papers' printed outcomes from every process until its records are written",
    )


COMMAND = Command(
    "reproduce",
    "Run the experiments of one scale in order, then make the page.",
    reproduce,
    "scale=laptop",
    keys={
        "scale": "NAME       list of experiments, a file in conf/scale (default: laptop)",
        "reports": "FOLDER   records, traces and pages (default: reports)",
    },
    config=True,
    options=options,
    resumes=True,
)
main = COMMAND.main
