"""A nightly run: repeats, comparison, confirmation, history and pages.

An interrupted run is resumed. A nightly run is incomplete until its line is in the history: it is shown as
incomplete, is no baseline, and the same command on the same code resumes it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.files import write_atomically
from suite.core.reasons import headline
from suite.core.record import CANNOT, Outcome, Record, Source
from suite.regression.compare import record_sets
from suite.regression.compare.matching import config_key
from suite.regression.compare.record_sets import RecordSet
from suite.regression.nightly import history, page, results
from suite.regression.nightly.judge import NightlyJudgement, beside, judge
from suite.regression.nightly.repeat import Made, repeats
from suite.regression.nightly.settings import NightlySettings, ResumeKey, usual
from suite.runner import provenance

Say = Callable[[str], None]


class NightlyState(TypedDict):
    """The file that a night writes when it begins. started: ISO 8601"""

    plan: ResumeKey
    commit: provenance.Commit
    source: str
    name: str
    started: str


@dataclass(frozen=True, slots=True)
class NightlyResult:
    """Result of the nightly run. line: as the history has it."""

    name: str
    line: history.HistoryLine
    judged: NightlyJudgement
    exit: Exit
    page: Path


def run(settings: NightlySettings, tree: Path, say: Say) -> NightlyResult:
    """Raises InvalidRequest where another night is running, or the baseline is not there."""
    folder = settings.folder
    with history.held(folder):
        nights, _ = history.read(folder)
        baseline = record_sets.read(settings.baseline, folder) if settings.baseline else None
        state = begun(settings, nights)
        name, place = state["name"], folder / state["name"]
        page.write_index(folder)
        say(f"night {name} in {place}")
        planned, first = plan(settings, place), len(settings.commands)
        runs = repeats(tree, planned[:first], settings.deadline, say)
        missing = unknown(settings, _samples(name, place), nights)  # before the night is spent
        runs += repeats(tree, planned[first:], settings.deadline, say)
        samples = _samples(name, place)
        last = history.last_good(folder, nights)
        judged = _judged(settings, tree, samples, last, baseline, say)
        line, status = _line(settings, state, samples, runs, judged, last, missing)
        _leave(place, samples, judged, line, say)
        history.append(folder, line)
        _forget(settings, history.read(folder)[0])
        return NightlyResult(name, line, judged, status, page.write_index(folder))


def begun(settings: NightlySettings, nights: list[history.HistoryLine]) -> NightlyState:
    """The state of the night that was ended last, where code and plan are still the same; else of a new one."""
    plain = {"plan": settings.plan(), "commit": provenance.commit(), "source": provenance.source()}
    begin = json.loads(json.dumps(plain))
    open_ones = history.incomplete(settings.folder, nights)
    if open_ones:
        try:
            content = json.loads((settings.folder / open_ones[-1] / history.STATE).read_text())
            if {key: content[key] for key in begin} == begin:
                begun_state: NightlyState = content
                return begun_state
        except (OSError, ValueError, KeyError, TypeError):
            pass
    today = time.strftime("%Y-%m-%d")
    used_names = {folder.name for folder in settings.folder.glob("*")} | {night["night"] for night in nights}
    names = (today if number == 1 else f"{today}-{number}" for number in range(1, len(used_names) + 2))
    name = next(name for name in names if name not in used_names)
    state: NightlyState = {
        "plan": begin["plan"],
        "commit": begin["commit"],
        "source": begin["source"],
        "name": name,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_atomically(settings.folder / name / history.STATE, json.dumps(state, indent=1).encode())
    return state


def plan(settings: NightlySettings, place: Path) -> list[tuple[str, Path]]:
    """Commands and folders in the order of the night; the number of a command line names its folder."""
    planned = []
    for number in range(settings.repeats):
        chosen = settings.commands if number == 0 else settings.repeated
        planned += [(command, place / "repeats" / f"{number:02d}" / str(n)) for n, command in enumerate(chosen)]
    return planned


def _samples(name: str, place: Path) -> RecordSet:
    return record_sets.gathered(
        name, record_sets.of_repeats(sorted(d.parent for d in place.glob(f"repeats/*/*/{record_sets.DONE}")))
    )


def unknown(settings: NightlySettings, samples: RecordSet, nights: list[history.HistoryLine]) -> list[str]:
    """Metrics to judge by that no run has, each in a sentence: the house's usual ones may be of other commands.

    Raises InvalidRequest for any other, and where no name is left. A run that failed may have had it.
    """
    records = [sample.record for sample in samples.found]
    metric_names = {name for record in records for name in record.metrics}
    before = {name for night in nights for run in night["runs"] for name in run["metrics"]}
    missing = [name for name in settings.metrics if name not in metric_names | before]
    if not metric_names or any(map(_failed, records)):
        return []
    wrong = [name for name in missing if name not in usual().metrics]
    if wrong or (missing and len(missing) == len(settings.metrics)):
        problem, legal = (
            ", ".join(wrong or missing),
            f"metrics=[{'batch_time' if 'batch_time' in metric_names else min(metric_names)}]",
        )
        raise InvalidRequest(
            f"metrics: no run has {problem}", rule=f"of {', '.join(sorted(metric_names))}", legal=legal
        )
    return [f"no run has a metric {name}, so none is judged by it" for name in missing]


def _judged(
    settings: NightlySettings,
    tree: Path,
    samples: RecordSet,
    last: history.HistoryLine | None,
    named: RecordSet | None,
    say: Say,
) -> NightlyJudgement:
    bases = [record_sets.read(str(settings.folder / last["night"]))] if last else []
    if named is not None and not (last and (settings.baseline or "").rstrip("/").endswith(last["night"])):
        bases.append(named)
    bases = [RecordSet(Path(base.name).name or base.name, base.found, base.aside) for base in bases]
    against = [beside(samples, base, settings) for base in bases if base.found] if samples.found else []
    turns = settings.folder / samples.name / "turns"
    shutil.rmtree(turns, ignore_errors=True)
    return judge(against, tree, turns, settings, _commit(), say)


def _commit() -> str:
    commit = provenance.commit()
    return f"{commit['hash'][:12]}{'+' if commit['dirty'] else ''}" if commit else ""


def _line(
    settings: NightlySettings,
    state: NightlyState,
    samples: RecordSet,
    made: list[Made],
    judged: NightlyJudgement,
    last: history.HistoryLine | None,
    missing: list[str],
) -> tuple[history.HistoryLine, Exit]:
    trouble = list(dict.fromkeys(one.trouble for one in made if one.trouble))
    outcomes = [sample.record.outcome for sample in samples.found]
    failed = failures(samples, judged)
    lost = judged.against[0].lost if last and judged.against else ()
    if judged.regressions:
        status, exit_status = "regression", Exit.REGRESSION
    elif not any(outcome is Outcome.OK for outcome in outcomes):
        status, exit_status = "failed", Exit.NOTHING
    elif trouble or failed or judged.doubts:
        status, exit_status = "failed", Exit.SOME_FAILED
    elif judged.open:
        status, exit_status = "undecided", Exit.NOT_COMPARABLE
    elif last is None:
        status, exit_status = "first", Exit.OK
    elif not judged.comparable or lost:
        status, exit_status = "new baseline", Exit.NOT_COMPARABLE
    else:
        status, exit_status = "good", Exit.OK
    line: history.HistoryLine = {
        "night": state["name"],
        "started": state["started"],
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "status": status,
        "exit": int(exit_status),
        "commit": _commit(),
        "source": state["source"],
        "machine": provenance.machine(),
        "base": last["night"] if last else None,
        "reference": results.reference(samples),
        "runs": results.runs(samples),
        "regressions": list(judged.regressions),
        "notes": [*trouble, *failed, *judged.doubts, *lost, *_cleared(judged), *missing],
        "threshold": settings.threshold,
        "metrics": list(settings.metrics),
    }
    return line, exit_status


def failures(samples: RecordSet, judged: NightlyJudgement) -> list[str]:
    """Runs that failed hard and that no night before has, each in a sentence; of others the comparison tells."""
    failed_before = frozenset[str]().union(*(one.known for one in judged.against))
    hard = [sample.record for sample in samples.found if config_key(sample.record) not in failed_before]
    failures_by_run = {
        f"{one.experiment} · {one.label}: {one.outcome}: {headline(one.reason)}" for one in hard if _failed(one)
    }
    return [f"{text} (accept={samples.name} says that it is meant)" for text in sorted(failures_by_run)]


def _failed(record: Record) -> bool:
    """A simulated run that would not fit into memory has told what it was asked."""
    if record.outcome is Outcome.OOM:
        return record.source in (Source.MEASURED, Source.EMULATED)
    return record.outcome not in (Outcome.OK, *CANNOT)


def _cleared(judged: NightlyJudgement) -> list[str]:
    return [
        f"{finding.suspect.change.name} · {finding.suspect.change.metric}: {finding.why}"
        for finding in judged.findings
        if not finding.confirmed
    ]


def _leave(place: Path, samples: RecordSet, judged: NightlyJudgement, line: history.HistoryLine, say: Say) -> None:
    """The night's pages: its own, and the usual one of its records."""
    from suite.report import write_report

    say("writing the pages")
    results.write_merged(place, samples)
    findings = [asdict(finding) for finding in judged.findings]
    comparisons = [asdict(one.shown) for one in judged.against]
    content = json.dumps({"line": line, "findings": findings, "comparisons": comparisons}, default=str, indent=1)
    write_atomically(place / "comparison.json", content.encode())
    page.write_night(place, line, judged)
    write_report(place)


def _forget(settings: NightlySettings, nights: list[history.HistoryLine]) -> None:
    """Removes the folders of nights beyond `keep`: never the last good one's, or the baseline's. Of nights that were
    killed, those that began before the newest `keep`, or are more than that."""
    folder = settings.folder
    last = history.last_good(folder, nights)
    stays = {night["night"] for night in nights[-settings.keep :]} | ({last["night"]} if last else set())
    stays |= {Path(settings.baseline).name} if settings.baseline else set()
    killed = history.incomplete(folder, nights)
    states = [folder / night["night"] / history.STATE for night in nights[-settings.keep :]]
    times = [state.stat().st_mtime for state in states if state.is_file()]
    full = len(nights) >= settings.keep and times
    old = [name for name in killed if full and (folder / name / history.STATE).stat().st_mtime < min(times)]
    for name in [*(night["night"] for night in nights), *old, *killed[: -settings.keep]]:
        if name not in stays and Path(name).name == name and (folder / name / history.STATE).is_file():
            shutil.rmtree(folder / name, ignore_errors=True)


def accept(settings: NightlySettings, name: str) -> Path:
    """From now on the night is as good as any: what it changed is meant. Raises InvalidRequest for a missing nightly
    run.
    """
    _there(settings, name)
    with history.held(settings.folder):
        _there(settings, name)
        history.append(settings.folder, {"accepted": name})
        return page.write_index(settings.folder)


def _there(settings: NightlySettings, name: str) -> None:
    nights, _ = history.read(settings.folder)
    if name not in [night["night"] for night in nights]:
        legal = f"accept={nights[-1]['night']}" if nights else "make nightly, first"
        raise InvalidRequest(
            f"accept={name}: no such night in {settings.folder}", rule="one of its nights", legal=legal
        )
