"""A nightly run: repeats, comparison, confirmation, history and pages.

A nightly run is incomplete until its line is in the history. An incomplete run is no baseline, and the same command
with the same code resumes it.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from suite.config import nightly
from suite.config.nightly import NightlySettings
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.files import write_atomically
from suite.core.reasons import headline
from suite.core.record import CANNOT, Outcome, Record, Source
from suite.core.values import Json
from suite.regression import record_sets
from suite.regression.matching import config_key
from suite.regression.nightly import history, page, results
from suite.regression.nightly.candidates import NightlyJudgement, compare_with_baseline, judge
from suite.regression.nightly.history import HistoryLine, NightlyStatus
from suite.regression.nightly.repeat import CommandResult, make_repeats
from suite.regression.record_sets import RecordSet
from suite.runner import provenance

Report = Callable[[str], None]


class NightlyState(TypedDict):
    """File that a nightly run writes when it begins. started: ISO 8601."""

    plan: dict[str, Json]
    commit: provenance.Commit
    source: str
    name: str
    started: str


@dataclass(frozen=True, slots=True)
class NightlyResult:
    """Result of a nightly run, with its line of the history and its index page."""

    name: str
    line: HistoryLine
    judgement: NightlyJudgement
    exit: Exit
    page: Path


def run(settings: NightlySettings, tree: Path, report: Report) -> NightlyResult:
    """Make or resume a nightly run. Raises InvalidRequest if another one is running or there is no such baseline."""
    folder = settings.folder
    with history.lock(folder):
        lines, _ = history.read(folder)
        extra_baseline = record_sets.read(settings.baseline, folder) if settings.baseline else None
        state = begin(settings, lines)
        name, place = state["name"], folder / state["name"]
        page.write_index(folder)
        report(f"nightly run {name} in {place}")
        planned, first = plan(settings, place), len(settings.commands)
        commands = make_repeats(tree, planned[:first], settings.deadline, report)
        missing = missing_metrics(settings, _samples(name, place), lines)  # before the hours of the other repeats
        commands += make_repeats(tree, planned[first:], settings.deadline, report)
        samples = _samples(name, place)
        baseline = history.accepted_baseline(folder, lines)
        judgement = _judge(settings, tree, samples, baseline, extra_baseline, report)
        line, status = _line(settings, state, samples, commands, judgement, baseline, missing)
        _write_pages(place, samples, judgement, line, report)
        history.append(folder, line)
        _remove_old(settings, history.read(folder)[0])
        return NightlyResult(name, line, judgement, status, page.write_index(folder))


def begin(settings: NightlySettings, lines: list[HistoryLine]) -> NightlyState:
    """State of the last incomplete run if code and plan are unchanged, else of a new run."""
    current = {"plan": settings.resume_key(), "commit": provenance.commit(), "source": provenance.source()}
    incomplete = history.incomplete_runs(settings.folder, lines)
    if incomplete:
        try:
            stored: NightlyState = json.loads((settings.folder / incomplete[-1] / history.STATE).read_text())
            if {key: value for key, value in stored.items() if key in current} == current:
                return stored
        except (OSError, ValueError, AttributeError):
            pass
    today = time.strftime("%Y-%m-%d")
    used = {folder.name for folder in settings.folder.glob("*")} | {line["night"] for line in lines}
    names = (today if number == 1 else f"{today}-{number}" for number in range(1, len(used) + 2))
    name = next(name for name in names if name not in used)
    state: NightlyState = {
        "plan": settings.resume_key(),
        "commit": provenance.commit(),
        "source": provenance.source(),
        "name": name,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_atomically(settings.folder / name / history.STATE, json.dumps(state, indent=1).encode())
    return state


def plan(settings: NightlySettings, place: Path) -> list[tuple[str, Path]]:
    """Commands in order, each with its folder `repeats/REPEAT/COMMAND`."""
    planned = []
    for number in range(settings.repeats):
        commands = settings.commands if number == 0 else settings.repeated
        planned += [(command, place / "repeats" / f"{number:02d}" / str(n)) for n, command in enumerate(commands)]
    return planned


def _samples(name: str, place: Path) -> RecordSet:
    return record_sets.load(name, record_sets.files_of_repeats(record_sets.finished_repeats(place)))


def missing_metrics(settings: NightlySettings, samples: RecordSet, lines: list[HistoryLine]) -> list[str]:
    """A sentence per default metric that no run has, as other commands may have it.

    Raises InvalidRequest for any other metric that no run has, and if no judged metric remains. A failed run may have
    had any metric.
    """
    records = [sample.record for sample in samples.samples]
    names = {name for record in records for name in record.metrics}
    earlier = {name for line in lines for run in line["runs"] for name in run["metrics"]}
    missing = [name for name in settings.metrics if name not in names | earlier]
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


def _judge(
    settings: NightlySettings,
    tree: Path,
    samples: RecordSet,
    accepted: HistoryLine | None,
    extra: RecordSet | None,
    report: Report,
) -> NightlyJudgement:
    baselines = [record_sets.read(str(settings.folder / accepted["night"]))] if accepted else []
    if extra is not None and not (accepted and (settings.baseline or "").rstrip("/").endswith(accepted["night"])):
        baselines.append(extra)
    baselines = [RecordSet(Path(b.name).name or b.name, b.samples, b.skipped) for b in baselines if b.samples]
    compared = [compare_with_baseline(samples, b, settings) for b in baselines] if samples.samples else []
    rounds = settings.folder / samples.name / "rounds"
    shutil.rmtree(rounds, ignore_errors=True)
    return judge(compared, tree, rounds, settings, _commit(), report)


def _commit() -> str:
    commit = provenance.commit()
    return f"{commit['hash'][:12]}{'+' if commit['dirty'] else ''}" if commit else ""


def _line(
    settings: NightlySettings,
    state: NightlyState,
    samples: RecordSet,
    commands: list[CommandResult],
    judgement: NightlyJudgement,
    baseline: HistoryLine | None,
    missing: list[str],
) -> tuple[HistoryLine, Exit]:
    problems = list(dict.fromkeys(result.problem for result in commands if result.problem))
    failed = new_failures(samples, judgement)
    lost = judgement.baselines[0].lost if baseline and judgement.baselines else []
    if judgement.regressions:
        status, exit_status = NightlyStatus.REGRESSION, Exit.REGRESSION
    elif not any(sample.record.outcome is Outcome.OK for sample in samples.samples):
        status, exit_status = NightlyStatus.FAILED, Exit.NOTHING
    elif problems or failed or judgement.inconclusive_failures:
        status, exit_status = NightlyStatus.FAILED, Exit.SOME_FAILED
    elif judgement.inconclusive:
        status, exit_status = NightlyStatus.INCONCLUSIVE, Exit.NOT_COMPARABLE
    elif baseline is None:
        status, exit_status = NightlyStatus.FIRST, Exit.OK
    elif not judgement.comparable or lost:
        status, exit_status = NightlyStatus.BASELINE_RESET, Exit.NOT_COMPARABLE
    else:
        status, exit_status = NightlyStatus.PASSED, Exit.OK
    rejected = [
        f"{row.candidate.change.name} · {row.candidate.change.metric}: {row.why}"
        for row in judgement.confirmations
        if not row.confirmed
    ]
    line: HistoryLine = {
        "night": state["name"],
        "started": state["started"],
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "status": status.value,
        "exit": int(exit_status),
        "commit": _commit(),
        "source": state["source"],
        "machine": provenance.machine(),
        "base": baseline["night"] if baseline else None,
        "reference": results.reference_seconds(samples),
        "runs": results.run_lines(samples),
        "regressions": list(judgement.regressions),
        "notes": [*problems, *failed, *judgement.inconclusive_failures, *lost, *rejected, *missing],
        "threshold": settings.threshold,
        "metrics": list(settings.metrics),
    }
    return line, exit_status


def new_failures(samples: RecordSet, judgement: NightlyJudgement) -> list[str]:
    """A sentence per failed run that no baseline has; the comparison lists the others."""
    compared = {config for row in judgement.baselines for config in row.comparison.compared}
    records = [s.record for s in samples.samples if config_key(s.record) not in compared and _has_failed(s.record)]
    failures = {f"{r.experiment} · {r.label}: {r.outcome}: {headline(r.reason)}" for r in records}
    return [f"{text} (accept={samples.name} declares it intended)" for text in sorted(failures)]


def _has_failed(record: Record) -> bool:
    """Whether a run failed. A simulated run that does not fit into memory has a valid result."""
    if record.outcome is Outcome.OOM:
        return record.source in (Source.MEASURED, Source.EMULATED)
    return record.outcome not in (Outcome.OK, *CANNOT)


def _write_pages(
    place: Path, samples: RecordSet, judgement: NightlyJudgement, line: HistoryLine, report: Report
) -> None:
    """Write the page of the nightly run, and the usual page of its records."""
    from suite.report import write_report

    report("writing the pages")
    results.write_merged(place, samples)
    content = {
        "line": line,
        "confirmations": [asdict(row) for row in judgement.confirmations],
        "comparisons": [asdict(row.comparison) for row in judgement.baselines],
    }
    write_atomically(place / "comparison.json", json.dumps(content, default=str, indent=1).encode())
    page.write_run(place, line, judgement)
    write_report(place)


def _remove_old(settings: NightlySettings, lines: list[HistoryLine]) -> None:
    """Remove the folders of all but the newest `keep` runs, the accepted baseline and `baseline`.

    Of incomplete runs, those that began before the newest `keep` runs are removed, and those beyond `keep`.
    """
    folder = settings.folder
    accepted = history.accepted_baseline(folder, lines)
    newest = [line["night"] for line in lines[-settings.keep :]]
    keep = {*newest, *([accepted["night"]] if accepted else [])}
    keep |= {Path(settings.baseline).name} if settings.baseline else set()
    incomplete = history.incomplete_runs(folder, lines)
    states = [folder / name / history.STATE for name in newest]
    times = [state.stat().st_mtime for state in states if state.is_file()]
    full = len(lines) >= settings.keep and times
    old = [name for name in incomplete if full and (folder / name / history.STATE).stat().st_mtime < min(times)]
    for name in [*(line["night"] for line in lines), *old, *incomplete[: -settings.keep]]:
        if name not in keep and Path(name).name == name and (folder / name / history.STATE).is_file():
            shutil.rmtree(folder / name, ignore_errors=True)


def accept(settings: NightlySettings, name: str) -> Path:
    """Accept a nightly run as a baseline, because its changes are intended. Returns the index page.

    Raises InvalidRequest if there is no such nightly run.
    """
    _check_exists(settings, name)
    with history.lock(settings.folder):
        history.append(settings.folder, {"accepted": name})
        return page.write_index(settings.folder)


def _check_exists(settings: NightlySettings, name: str) -> None:
    lines, _ = history.read(settings.folder)
    if name not in [line["night"] for line in lines]:
        legal = f"accept={lines[-1]['night']}" if lines else "make nightly, first"
        raise InvalidRequest(
            f"accept={name}: no such nightly run in {settings.folder}", rule="one of its nightly runs", legal=legal
        )
