"""A nightly run: repeats, comparison, confirmation and pages. The same command with the same code resumes an
incomplete run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from suite.config import nightly
from suite.config.nightly import NightlySettings
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.files import write_atomically
from suite.core.reasons import headline
from suite.core.record import CANNOT, Outcome, Record, Source
from suite.regression import format, record_sets
from suite.regression.comparison import Comparison, compare
from suite.regression.decide import ChangeVerdict
from suite.regression.matching import config_key
from suite.regression.nightly import night, page
from suite.regression.nightly.confirm import UNPAIRED, confirm, rule_of
from suite.regression.nightly.night import Night, NightlyStatus
from suite.regression.nightly.repeat import CommandResult, make_repeats
from suite.regression.nightly.results import write_merged
from suite.regression.record_sets import RecordSet
from suite.runner import provenance

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class NightlyResult:
    """Result of a nightly run, with its comparisons, the accepted baseline first, and the page of all runs."""

    night: Night
    comparisons: list[Comparison]
    page: Path

    @property
    def exit(self) -> Exit:
        """Exit status of the command."""
        return Exit(self.night.exit)


def run(settings: NightlySettings, tree: Path, report: Report) -> NightlyResult:
    """Make or resume a nightly run. Raises InvalidRequest if another one is running or there is no such baseline."""
    folder = settings.folder
    with night.lock(folder):
        nights, _ = night.read(folder)
        further = record_sets.place_of(settings.baseline, folder) if settings.baseline else None
        base = night.accepted_baseline(folder, nights)
        baselines = [(base.name, folder / base.name)] if base else []
        if further and not any(further.resolve() == place.resolve() for _, place in baselines):
            baselines.append((str(settings.baseline), further))
        sets = [record_sets.read_place(name, place) for name, place in baselines]
        origin = json.dumps(settings.resume_key() | {"source": provenance.source()})
        tonight = night.begin(folder, nights, origin, _commit())
        place = folder / tonight.name
        page.write_index(folder)
        report(f"nightly run {tonight.name} in {place}")
        planned, first = plan(settings, place), len(settings.commands)
        commands = make_repeats(tree, planned[:first], settings.deadline, report)
        missing = missing_metrics(settings, [*sets, _samples(place)])  # before the hours of the other repeats
        commands += make_repeats(tree, planned[first:], settings.deadline, report)
        samples = _samples(place)
        compared = [each for each in sets if each.samples and samples.samples]
        comparisons = [compare(each, samples, rule_of(settings)) for each in compared]
        shutil.rmtree(place / "rounds", ignore_errors=True)
        comparisons = confirm(comparisons, samples, tree, place / "rounds", settings, report)
        _end(tonight, settings, samples, commands, comparisons, base, missing)
        _write_pages(place, samples, comparisons, tonight, report)
        night.write(folder, tonight)
        night.remove_old(folder, settings.keep, further)
        return NightlyResult(tonight, comparisons, page.write_index(folder))


def plan(settings: NightlySettings, place: Path) -> list[tuple[str, Path]]:
    """Commands in order, each with its folder `repeats/REPEAT/COMMAND`."""
    planned = []
    for number in range(settings.repeats):
        commands = settings.commands if number == 0 else settings.repeated
        planned += [(command, place / "repeats" / f"{number:02d}" / str(n)) for n, command in enumerate(commands)]
    return planned


def _samples(place: Path) -> RecordSet:
    return record_sets.load(place.name, record_sets.files_of_repeats(record_sets.finished_repeats(place)))


def missing_metrics(settings: NightlySettings, sets: list[RecordSet]) -> list[str]:
    """A sentence per default metric that no run of the baselines and of tonight, the last set, has.

    Raises InvalidRequest for any other metric that no run has, and if no judged metric remains. A failed run may have
    had any metric.
    """
    records = [sample.record for sample in sets[-1].samples]
    names = {name for record in records for name in record.metrics}
    known = names | {name for each in sets for sample in each.samples for name in sample.record.metrics}
    missing = [name for name in settings.metrics if name not in known]
    if not names or any(map(_has_failed, records)):
        return []
    wrong = [name for name in missing if name not in nightly.read([]).metrics]
    if wrong or (missing and len(missing) == len(settings.metrics)):
        raise InvalidRequest(
            f"metrics: no run has {', '.join(wrong or missing)}",
            rule=f"of {', '.join(sorted(names))}",
            legal=f"metrics=[{'batch_time' if 'batch_time' in names else min(names)}]",
        )
    return [f"no run has a metric {name}, so none is judged by it" for name in missing]


def _commit() -> str:
    commit = provenance.commit()
    return f"{commit['hash'][:12]}{'+' if commit['dirty'] else ''}" if commit else ""


def _end(
    tonight: Night,
    settings: NightlySettings,
    samples: RecordSet,
    commands: list[CommandResult],
    comparisons: list[Comparison],
    base: Night | None,
    missing: list[str],
) -> None:
    """Give the nightly run its status, exit status, regressions and notes."""
    inconclusive = ChangeVerdict.INCONCLUSIVE
    failures = [result.problem for result in commands if result.problem] + new_failures(samples, comparisons)
    outcomes = [change for each in comparisons for change in each.outcomes]
    failures += [format.outcome_text(change) for change in outcomes if change.verdict is inconclusive]
    first = comparisons[0] if base and comparisons else None
    lost = [*format.lost_lines(first)] if first else []
    changes = [change for each in comparisons for change in each.select(inconclusive)]
    undecided = [format.sentence(change) for change in changes if change.metric in settings.metrics]
    tonight.regressions = list(dict.fromkeys(text for each in comparisons for text in format.regressions(each)))
    if tonight.regressions:
        status, exit_status = NightlyStatus.REGRESSION, Exit.REGRESSION
    elif not any(sample.record.outcome is Outcome.OK for sample in samples.samples):
        status, exit_status = NightlyStatus.FAILED, Exit.NOTHING
    elif failures:
        status, exit_status = NightlyStatus.FAILED, Exit.SOME_FAILED
    elif undecided:
        status, exit_status = NightlyStatus.INCONCLUSIVE, Exit.NOT_COMPARABLE
    elif base is None:
        status, exit_status = NightlyStatus.FIRST, Exit.OK
    elif lost or first is None or not (first.changes or first.outcomes):
        status, exit_status = NightlyStatus.BASELINE_RESET, Exit.NOT_COMPARABLE
    else:
        status, exit_status = NightlyStatus.PASSED, Exit.OK
    tonight.status, tonight.exit, tonight.ended = status, int(exit_status), night.now()
    tonight.machine = {name: str(fact) for name, fact in provenance.machine().items()}
    tonight.base = base.name if base else ""
    unpaired = [change.why for each in comparisons for change in each.changes if change.why.startswith(UNPAIRED)]
    tonight.notes = list(dict.fromkeys([*failures, *lost, *undecided, *missing, *unpaired]))
    tonight.threshold, tonight.metrics = settings.threshold, list(settings.metrics)


def new_failures(samples: RecordSet, comparisons: list[Comparison]) -> list[str]:
    """A sentence per failed run that no baseline has; the comparison lists the others."""
    compared = {config for each in comparisons for config in each.compared}
    records = [s.record for s in samples.samples if config_key(s.record) not in compared and _has_failed(s.record)]
    failures = {f"{r.experiment} · {r.label}: {r.outcome}: {headline(r.reason)}" for r in records}
    return [f"{text} (accept={samples.name} declares it intended)" for text in sorted(failures)]


def _has_failed(record: Record) -> bool:
    """Whether a run failed. A simulated run that does not fit into memory has a valid result."""
    if record.outcome is Outcome.OOM:
        return record.source in (Source.MEASURED, Source.EMULATED)
    return record.outcome not in (Outcome.OK, *CANNOT)


def _write_pages(
    place: Path, samples: RecordSet, comparisons: list[Comparison], tonight: Night, report: Report
) -> None:
    """Write the page of the nightly run, and the usual page of its records."""
    from suite.report import write_report

    report("writing the pages")
    write_merged(place, samples)
    content = {"night": asdict(tonight), "comparisons": [*map(format.as_data, comparisons)]}
    write_atomically(place / "comparison.json", json.dumps(content, indent=1).encode())
    page.write_run(place, tonight, comparisons)
    write_report(place)


def accept(settings: NightlySettings, name: str) -> Path:
    """Accept a nightly run as a baseline, because its changes are intended. Returns the index page.

    Raises InvalidRequest if there is no such nightly run.
    """
    nights = [each for each in night.read(settings.folder)[0] if each.status is not NightlyStatus.INCOMPLETE]
    accepted = [each for each in nights if each.name == name]
    if not accepted:
        legal = f"accept={nights[-1].name}" if nights else "make nightly, first"
        raise InvalidRequest(
            f"accept={name}: no such nightly run in {settings.folder}", rule="one of its nightly runs", legal=legal
        )
    with night.lock(settings.folder):
        accepted[0].accepted = True
        night.write(settings.folder, accepted[0])
        return page.write_index(settings.folder)
