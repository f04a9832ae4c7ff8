"""CandidateRegression regressions of a nightly run, and its judgement.

The comparison with a baseline only yields candidates, by weak criteria: times as measured and times scaled by the
reference workload can each show what the other hides. Interleaved rounds of old and new code decide the candidates
(`confirm`). Exact metrics and outcomes need no rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from suite.config.nightly import NightlySettings
from suite.core.reasons import headline
from suite.regression import format
from suite.regression.comparison import Comparison, OutcomeChange, commit_of, compare
from suite.regression.decide import ChangeVerdict, is_candidate, may_hide_regression
from suite.regression.matching import config_key
from suite.regression.metrics import Change
from suite.regression.nightly import confirm
from suite.regression.nightly.confirm import CandidateRegression, Confirmation, rule_of
from suite.regression.record_sets import RecordSet


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """Comparison of a nightly run with one baseline.

    Attributes:
        name: Name of the baseline.
        commit: Its commit.
        comparison: The comparison, as the page shows it.
        candidates: CandidateRegression regressions.
    """

    name: str
    commit: str
    comparison: Comparison
    candidates: tuple[CandidateRegression, ...]

    @property
    def exact_regressions(self) -> list[Change]:
        """Regressions of metrics without noise."""
        return [change for change in self.comparison.select(ChangeVerdict.WORSE) if change.effect is None]

    @property
    def failures(self) -> list[OutcomeChange]:
        """Runs that failed in all or some repeats, and did not fail in the baseline."""
        bad = (ChangeVerdict.WORSE, ChangeVerdict.INCONCLUSIVE)
        return [change for change in self.comparison.outcomes if change.verdict in bad]

    @property
    def lost(self) -> list[str]:
        """Runs and metrics of the baseline that the nightly run lacks or changed; later runs cannot compare them."""
        changed = [
            f"not comparable: {name}: {'; '.join(map(str, differences))}"
            for name, differences in self.comparison.not_comparable
        ]
        return [*changed, *(f"only in {self.name}: {name}" for name in self.comparison.only_a), *self.comparison.lost]


@dataclass(frozen=True, slots=True)
class NightlyJudgement:
    """Judgement of a nightly run.

    Attributes:
        baselines: Comparisons; the accepted baseline is first.
        confirmations: Verdict on each candidate.
        regressions: A sentence per regression, with its range of commits.
        inconclusive_failures: A sentence per run that failed in one repeat only.
    """

    baselines: tuple[BaselineComparison, ...]
    confirmations: tuple[Confirmation, ...]
    regressions: tuple[str, ...]
    inconclusive_failures: tuple[str, ...]

    @property
    def inconclusive(self) -> bool:
        """Whether a candidate could neither be confirmed nor ruled out."""
        return any(row.verdict is ChangeVerdict.INCONCLUSIVE for row in self.confirmations)

    @property
    def comparable(self) -> bool:
        """Whether anything is comparable with the first baseline."""
        return any(row.comparison.changes or row.comparison.outcomes for row in self.baselines[:1])


def compare_with_baseline(nightly: RecordSet, baseline: RecordSet, settings: NightlySettings) -> BaselineComparison:
    """Compare a nightly run with a baseline. Raises InvalidRequest if either set is empty."""
    rule = rule_of(settings)
    comparison = compare(baseline, nightly, rule)
    commands = {config_key(s.record): command_of(Path(s.file), settings) for s in reversed(nightly.samples)}
    candidates: dict[tuple[str, str], CandidateRegression] = {}
    judged = [change for change in comparison.changes if change.metric in settings.metrics]
    by_scaling = [view for scaled in (True, False) for change in judged for view in _with_scaling(change, scaled)]
    suspects = [c for c in by_scaling if c.effect and is_candidate(c.effect, c.quiet_ratio, c.better, rule)]
    suspects += [c for c in judged if c.effect and may_hide_regression(c.effect, c.better, settings.unpaired_threshold)]
    for change in suspects:
        candidate = CandidateRegression(change, commands[change.config], baseline.name)
        candidates.setdefault((change.config, change.metric), candidate)
    return BaselineComparison(baseline.name, commit_of(baseline.samples), comparison, tuple(candidates.values()))


def _with_scaling(change: Change, scaled: bool) -> list[Change]:
    """The change with the effect of scaled times or of times as measured; none if there is no such effect."""
    if change.scaled == scaled:
        return [change]
    if change.alternative is None:
        return []
    return [replace(change, effect=change.alternative, alternative=change.effect, scaled=scaled)]


def command_of(record: Path, settings: NightlySettings) -> str:
    """Command line of a record of a repeat, `repeats/REPEAT/COMMAND/records/KEY.json`."""
    return settings.commands[int(record.parents[1].name)]


def judge(
    baselines: Sequence[BaselineComparison],
    tree: Path,
    folder: Path,
    settings: NightlySettings,
    commit: str,
    report: Callable[[str], None],
) -> NightlyJudgement:
    """Confirm every candidate and collect the regressions.

    Args:
        baselines: Comparisons of the nightly run.
        tree: Folder of the present code.
        folder: Folder of the records of interleaved rounds.
        settings: Settings of the nightly run.
        commit: Commit of the nightly run.
        report: Receives lines of progress.
    """
    family = sum(len(row.candidates) for row in baselines)
    measurements: list[confirm.Measurement] = []
    for number, row in enumerate(baselines):
        if row.candidates:
            report(f"{len(row.candidates)} candidate regressions against {row.name}: interleaved rounds of both codes")
            place = folder / str(number)
            measurements += confirm.measure(
                tree, row.commit, row.candidates, place, settings, family=family, report=report
            )
    confirmations = confirm.confirm(measurements, settings)
    ranges = {row.name: format.commit_range((row.commit, commit)) for row in baselines}
    regressions = [f"{_sentence(row)} {ranges[row.candidate.baseline]}" for row in confirmations if row.confirmed]
    regressions += [
        f"{format.sentence(change)} {ranges[row.name]}" for row in baselines for change in row.exact_regressions
    ]
    failures = [(row.name, failure) for row in baselines for failure in row.failures]
    regressions += [
        f"{_failure_text(failure)} {ranges[name]}"
        for name, failure in failures
        if failure.verdict is ChangeVerdict.WORSE
    ]
    inconclusive = [_failure_text(failure) for _, failure in failures if failure.verdict is ChangeVerdict.INCONCLUSIVE]
    return NightlyJudgement(
        tuple(baselines),
        tuple(confirmations),
        tuple(dict.fromkeys(regressions)),
        tuple(dict.fromkeys(inconclusive)),
    )


def _sentence(confirmation: Confirmation) -> str:
    """Run, metric and change, with the interval of the interleaved rounds if there were any."""
    change = replace(confirmation.candidate.change, verdict=ChangeVerdict.WORSE)
    if confirmation.rounds is None:
        return f"{format.sentence(change)}; {confirmation.why};"
    return f"{change.name} · {change.metric} is {format.verdict_word(change)}: {confirmation.why};"


def _failure_text(change: OutcomeChange) -> str:
    reason = f": {headline(change.reason)}" if change.reason.strip() else ""
    return f"{change.name}: {change.a} -> {change.b}{reason}"
