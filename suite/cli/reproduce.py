"""Command `suite reproduce`: run the experiments of one scale in order, then write the page.

    suite reproduce scale=laptop
    suite reproduce scale=laptop reports=FOLDER    # further overrides apply to every experiment
    suite reproduce scale=laptop --dry-run         # list the runs or jobs
    suite reproduce scale=laptop --blind           # hide printed outcomes until the records are written

An entry of a scale is the name of an experiment, optionally with overrides: "samo_fig1 executor.widths=[128]".

A scale with accuracy=true then scores the simulator on public measurements (suite.cli.accuracy), which takes about half
a minute. With launch.submit or --dry-run it does not.

Runs with a record are not repeated, so the same command continues after an interrupt. A run that this machine cannot
execute does not fail the command; the page shows it with the reason.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from suite.claims import blind
from suite.cli import DRY_RUN, Arguments, argument, command
from suite.cli.run import run
from suite.core.errors import InvalidRequest, MissingDependency, SuiteError
from suite.core.exit_codes import Exit, exit_code
from suite.core.files import check_access, check_folder
from suite.core.reasons import headline
from suite.core.record import CANNOT, Outcome, Record
from suite.core.units import seconds
from suite.core.words import format_count
from suite.runner.progress import Progress
from suite.runner.store import Store

if TYPE_CHECKING:
    from suite.config.run import RunConfig

ACCURACY_SECONDS = 25.0  # expected duration of scoring the simulator on all public cells, on two otherwise idle cores


def command_line(entry: str, overrides: Sequence[str] = ()) -> list[str]:
    """The command line of an entry of a scale, followed by `overrides`."""
    name, *options = shlex.split(entry) or [""]
    return [f"experiment={name}", *options, *overrides]


def expand_entries(entries: Sequence[str], overrides: Sequence[str]) -> list[list[str]]:
    """The command line of each entry of a scale, with the `overrides` that at least one of its runs reads.

    Raises InvalidRequest for an override that no entry reads.
    """
    from suite.config.compose import key_of
    from suite.runner.keys_read import BOOKKEEPING, CHOICES, below
    from suite.runner.runs import unread_overrides

    commands = [command_line(entry, overrides) for entry in entries]
    if all((key := key_of(override)) in CHOICES or below(key, BOOKKEEPING) for override in overrides):
        return commands
    unread = [unread_overrides(arguments) for arguments in commands]
    for override in overrides:
        if all(override in refusals for refusals in unread):
            raise unread[0][override]
    return [
        [o for o in arguments if o not in overrides or o not in refusals]
        for arguments, refusals in zip(commands, unread, strict=True)
    ]


@command(
    "Run the experiments of one scale in order, then write the page.",
    "scale=laptop",
    DRY_RUN,
    argument("--blind", action="store_true", help="hide the papers' printed outcomes until the records are written"),
    keys={
        "scale": "NAME       list of experiments and their overrides, by duration: conf/scale/",
        "reports": "FOLDER   records and page (default: reports)",
        "rerun": "WHICH      repeat runs with a record: stale (default), failed, timeout, all or keep",
    },
    config=True,
    resumes=True,
)
def main(given: Arguments) -> int:
    from suite.cli.lines import combined_status, plan_line, plan_summary, submit
    from suite.config.compose import resolve

    dry, overrides = bool(given.dry_run), list(given.words)
    base = resolve(overrides)
    commands = expand_entries(base.scale.reproduce, overrides)
    expected = sum(resolve(arguments).experiment.expected_seconds for arguments in commands)
    expected += ACCURACY_SECONDS * base.scale.accuracy
    if base.launch.submit and given.blind:
        raise InvalidRequest(
            f"--blind with launch.submit={base.launch.submit}",
            rule="the command that hides printed outcomes waits for the records",
            legal="launch.submit=false, inside an allocation",
        )
    if base.launch.submit:
        status = combined_status(submit(commands, dry))
        print("" if dry else f"The page: {_page(base)}")
        return status
    if dry:
        check_access(Path(base.reports), "reports")
        counts = Counter[str]()
        for entry, arguments in zip(base.scale.reproduce, commands, strict=True):
            print(entry)
            counts += plan_line(arguments)
        plan_summary(counts)
        return Exit.OK  # a refused run is a row of the page
    check_folder(Path(base.reports), "reports")
    hides, progress = bool(given.blind) or blind.active(), Progress(expected)
    if hides:
        check_all_blind(Store(Path(base.reports)))
    with blind.hiding() if hides else nullcontext():
        records, status = _run_experiments(base, commands, progress)
    if hides:
        _fill_printed_values(base, commands)
    if base.scale.accuracy:
        score_simulator(Path(base.reports), progress)
    page = _page(base)
    for record in records:
        if record.outcome is not Outcome.OK:
            line = f"{record.provenance.get('command', 'the same command')} rerun=failed"
            print(f"{record.label}: {record.outcome}, {headline(record.reason)}; to repeat it: {line}")
    print(f"\n{format_count(records, 'record')} in {seconds(progress.clock() - progress.begin)}. The page: {page}")
    tried = [record for record in records if record.outcome not in CANNOT]
    return max(status, exit_code(tried, base.on_error))


def _run_experiments(base: RunConfig, commands: Sequence[list[str]], progress: Progress) -> tuple[list[Record], Exit]:
    """Run all experiments in order. Returns their records, and SOME_FAILED if one was refused."""
    progress.print_line(
        f"{format_count(commands, 'experiment')} at scale {base.scale.name}, about {seconds(progress.remaining)}"
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
    """Raises InvalidRequest for a folder that holds a record of a run that could read printed outcomes."""
    for path in sorted(store.folder.glob("records/*.json")):
        record = store.find(path.stem)
        if record is not None and blind.MARK not in record.provenance:
            raise InvalidRequest(
                f"--blind with reports={store.folder}, which holds {path.name}, made without --blind",
                rule="every record of a blind reproduction comes from a blind run",
                legal="reports=reports/blind",
            )


def _fill_printed_values(base: RunConfig, commands: Sequence[list[str]]) -> None:
    """Add the paper's curves and the null models to the records of runs without ranks, by computing them again."""
    from suite.runner.executors.in_process import run_in_process
    from suite.runner.runs import expand

    store, runs = Store(Path(base.reports)), []
    for arguments in commands:
        with suppress(SuiteError):  # printed when its runs were to begin
            runs += expand(arguments)
    for one in runs:
        record = None if one.refusal or one.config.executor.starts_ranks else store.find(one.key)
        if record is None or record.outcome is not Outcome.OK or record.provenance.get(blind.MARK) != blind.OPEN:
            continue
        seen = run_in_process(one, store)
        if seen.outcome is not Outcome.OK:
            print(f"  not filled in: {one.label}: {seen.reason}")
            continue
        nulls = {name: replace(each, null=seen.metrics[name].null) for name, each in record.metrics.items()}
        pairs = zip(record.panels, seen.panels, strict=True)
        panels = [{**panel, "ours": before.get("ours", {})} for before, panel in pairs]
        facts = {**record.provenance, blind.MARK: blind.FILLED}
        store.write(replace(record, metrics=nulls, panels=panels, provenance=facts))


def score_simulator(folder: Path, progress: Progress) -> None:
    """Score the simulator on public measurements, for the page of `folder`. A refusal is printed."""
    from suite.simulate.validation.accuracy import scorable_cells, score
    from suite.simulate.validation.cells import CELLS
    from suite.simulate.validation.tables import groups

    progress.print_line(f"simulator against public measurements, about {seconds(ACCURACY_SECONDS)}")
    try:
        accuracy = score(scorable_cells(CELLS), varied=False)
        accuracy.write(folder)
    except SuiteError as error:
        progress.print_line(f"  refused: {error}")
    else:
        errors = groups(accuracy.steps)["mean error"]
        progress.print_line(
            f"  mean error over {format_count(errors, 'group')}: {100 * errors.mean():.1f} %, simulated"
        )
    progress.advance(ACCURACY_SECONDS)


def _page(config: RunConfig) -> Path:
    """Write the what-if page, to which the report links, and the report. Returns the report's front page."""
    from suite.regression.committed import changed_settings
    from suite.report import write_report
    from suite.whatif.site import write_site

    try:
        write_site(Path(config.reports))
    except (MissingDependency, OSError) as error:
        print(f"no what-if page: {error}")
    return write_report(Path(config.reports), changed_settings)
