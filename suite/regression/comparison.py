"""Comparison of two sets of records: changes by metric, outcomes, and the exit status.

The result is complete: it lists runs that are not comparable with the keys that differ, runs and metrics of one set
only, and files that are no records with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.record import Outcome
from suite.regression.decide import ChangeRule, ChangeVerdict
from suite.regression.matching import Difference, RunName, RunPair, match_runs
from suite.regression.metrics import LOSSES, SINGLE_RECORD, Change, compare_metrics
from suite.regression.record_sets import RecordSet
from suite.report.load import StoredRecord


@dataclass(frozen=True, slots=True)
class OutcomeChange:
    """A run whose outcome differs between A and B, or between repeats."""

    name: RunName
    a: str
    b: str
    verdict: ChangeVerdict
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of B with A.

    Attributes:
        a: Name of A.
        b: Name of B.
        commits: Commits of A and B.
        changes: Compared metrics.
        outcomes: Runs with another outcome.
        not_comparable: Runs that may not be compared, with the keys that differ.
        only_a: Runs of A alone.
        only_b: Runs of B alone.
        notes: Remarks for readers.
        lost: Metrics that A has and B does not.
        compared: Hashes of the configs of the comparable runs.
    """

    a: str
    b: str
    commits: tuple[str, str]
    changes: tuple[Change, ...]
    outcomes: tuple[OutcomeChange, ...]
    not_comparable: tuple[tuple[RunName, tuple[Difference, ...]], ...]
    only_a: tuple[RunName, ...]
    only_b: tuple[RunName, ...]
    notes: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()

    def select(self, *verdicts: ChangeVerdict) -> tuple[Change, ...]:
        """Changes with one of these verdicts."""
        return tuple(change for change in self.changes if change.verdict in verdicts)

    @property
    def sorted_changes(self) -> list[Change]:
        """Changes in the order of ChangeVerdict: regressions first."""
        return [change for verdict in ChangeVerdict for change in self.select(verdict)]

    @property
    def is_regression(self) -> bool:
        """Whether a metric or an outcome is worse."""
        return ChangeVerdict.WORSE in self._verdicts

    @property
    def exit(self) -> Exit:
        """Exit status of the comparison."""
        if self.is_regression:
            return Exit.REGRESSION
        return Exit.OK if self._verdicts - {ChangeVerdict.INCONCLUSIVE} else Exit.NOT_COMPARABLE

    @property
    def _verdicts(self) -> set[ChangeVerdict]:
        return {change.verdict for change in self.changes} | {change.verdict for change in self.outcomes}


def compare(a: RecordSet, b: RecordSet, rule: ChangeRule | None = None) -> Comparison:
    """Compare B with A. Raises InvalidRequest if a set has no record, or no run has a metric of the rule."""
    rule = rule or ChangeRule()
    for side in (a, b):
        if not side.samples:
            first = "".join(f", such as {file}: {why}" for file, why in side.skipped[:1])
            problem = f"{side.name}: 0 records, {len(side.skipped)} files set aside{first}"
            legal = "a reports folder that `suite run reports=FOLDER` has filled"
            raise InvalidRequest(problem, rule="at least 1", legal=legal)
    matches = match_runs(a.samples, b.samples)
    pairs = matches.comparable
    _check_metrics(pairs, rule)
    changes, skipped = compare_metrics(pairs, rule)
    notes = [f"{file} is set aside: {why}" for side in (a, b) for file, why in side.skipped]
    notes += [f"{pair.name}: {pair.older} records of older code are left out" for pair in pairs if pair.older]
    notes += [str(row) for row in skipped if not row.lost]
    notes += _note_on_single_records(changes, rule)
    return Comparison(
        a.name,
        b.name,
        (
            commit_of([sample for pair in pairs for sample in pair.a]) or commit_of(a.samples),
            commit_of([sample for pair in pairs for sample in pair.b]) or commit_of(b.samples),
        ),
        tuple(changes),
        tuple(change for pair in pairs if (change := compare_outcomes(pair)) is not None),
        tuple((pair.name, pair.differences) for pair in matches.pairs if pair.differences),
        matches.only_a,
        matches.only_b,
        tuple(notes),
        tuple(str(row) for row in skipped if row.lost),
        tuple(pair.config for pair in pairs),
    )


def _note_on_single_records(changes: Sequence[Change], rule: ChangeRule) -> list[str]:
    single = [change for change in changes if change.why == SINGLE_RECORD]
    if not single:
        return []
    apart = sum(abs(math.log(change.ratio)) >= math.log1p(rule.threshold) for change in single)
    summary = f"inconclusive: {len(single)}, {apart} of them more than {100 * rule.threshold:g} % apart"
    remedy = "compare folders of several records per side, made in interleaved rounds, or nightly runs"
    return [f"{summary}: {SINGLE_RECORD}; {remedy}"]


def commit_of(samples: Sequence[StoredRecord]) -> str:
    """Short hash of the commit that made the records, with `+` if the tree differed from it; empty if unknown."""
    for sample in samples:
        commit = sample.record.provenance.get("commit")
        if isinstance(commit, dict) and isinstance(commit.get("hash"), str) and commit["hash"]:
            return f"{commit['hash'][:12]}{'+' if commit.get('dirty') else ''}"
    return ""


def _check_metrics(pairs: Sequence[RunPair], rule: ChangeRule) -> None:
    names = {name for pair in pairs for sample in (*pair.a, *pair.b) for name in (*sample.record.metrics, *LOSSES)}
    for name in rule.metrics:
        if names and name not in names:
            raise InvalidRequest(f"no run has a metric {name}", rule=f"one of {', '.join(sorted(names))}")


# Outcomes


def compare_outcomes(pair: RunPair) -> OutcomeChange | None:
    """The change of a run's outcome; None if the outcomes of all repeats are equal."""
    a, b = (_count_outcomes(side) for side in (pair.a, pair.b))
    if a == b:
        return None
    reason = next((s.record.reason for s in pair.b if s.record.outcome is not Outcome.OK), "")
    return OutcomeChange(pair.name, _outcome_text(a), _outcome_text(b), _outcome_verdict(a, b), reason)


def _count_outcomes(side: Sequence[StoredRecord]) -> dict[Outcome, int]:
    """Repeats by outcome; one if all have the same."""
    outcomes = [sample.record.outcome for sample in side]
    counts = {outcome: outcomes.count(outcome) for outcome in Outcome if outcome in outcomes}
    return counts if len(counts) > 1 else {outcomes[0]: 1}


def _outcome_text(counts: dict[Outcome, int]) -> str:
    if len(counts) == 1:
        return next(iter(counts)).value
    return ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items())


def _outcome_verdict(a: dict[Outcome, int], b: dict[Outcome, int]) -> ChangeVerdict:
    """An interrupted run is no evidence about the code. One failure among repeats is inconclusive, two are worse."""
    if Outcome.OK in a and not {Outcome.OK, Outcome.CANCELLED} & set(b):
        return ChangeVerdict.WORSE
    if any(outcome is not Outcome.OK for outcome in a):
        return ChangeVerdict.BETTER if set(b) == {Outcome.OK} else ChangeVerdict.CHANGED
    failures = sum(count for outcome, count in b.items() if outcome not in (Outcome.OK, Outcome.CANCELLED))
    if not failures:
        return ChangeVerdict.INCONCLUSIVE
    return ChangeVerdict.WORSE if Outcome.OK not in b or failures > 1 else ChangeVerdict.INCONCLUSIVE
