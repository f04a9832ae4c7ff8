"""Result of a comparison: changes by metric, and its exit status.

Nothing is left out in silence: runs that may not be compared stand there with the keys, others with the side they are
on, and files that are no records with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.record import Outcome
from suite.regression.compare.matching import Differs, Name, Pair, Pairs, pair
from suite.regression.compare.metrics import ALONE, LOSSES, Change, ChangeRule, judged
from suite.regression.compare.record_sets import RecordSet, Sample
from suite.stats.inference import ChangeVerdict


@dataclass(frozen=True, slots=True)
class OutcomeChange:
    """A run whose outcome is another one, or not the same in all repeats. verdict: as of a metric."""

    name: Name
    a: str
    b: str
    verdict: ChangeVerdict
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of A with B.

    Attributes:
        apart: Runs that may not be compared, with the keys.
        commits: Of A and B.
        lost: Metrics that A has and B has not.
    """

    a: str
    b: str
    commits: tuple[str, str]
    changes: tuple[Change, ...]
    ended: tuple[OutcomeChange, ...]
    apart: tuple[tuple[Name, tuple[Differs, ...]], ...]
    only_a: tuple[Name, ...]
    only_b: tuple[Name, ...]
    notes: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    def of(self, *verdicts: ChangeVerdict) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.verdict in verdicts)

    @property
    def exit(self) -> Exit:
        if self.of(ChangeVerdict.WORSE) or any(ended.verdict is ChangeVerdict.WORSE for ended in self.ended):
            return Exit.REGRESSION
        decided = self.of(ChangeVerdict.SAME, ChangeVerdict.BETTER, ChangeVerdict.CHANGED)
        decided_ends = any(ended.verdict is not ChangeVerdict.UNDECIDED for ended in self.ended)
        return Exit.OK if decided or decided_ends else Exit.NOT_COMPARABLE


def compare(a: RecordSet, b: RecordSet, rule: ChangeRule | None = None) -> Comparison:
    """Raises InvalidRequest where a set holds no record."""
    rule = rule or ChangeRule()
    for side in (a, b):
        if not side.found:
            legal = "a reports folder that `suite run reports=FOLDER` has filled"
            raise InvalidRequest(
                f"{side.name}: 0 records, {len(side.aside)} files set aside", rule="at least 1", legal=legal
            )
    pairs = pair(a.found, b.found)
    comparable = [one for one in pairs.pairs if not one.differs]
    notes = [f"{file} is set aside: {why}" for side in (a, b) for file, why in side.aside]
    notes += [f"{one.name}: {one.spare} records of other code are left out" for one in comparable if one.spare]
    _check_names(comparable, rule)
    skipped, changes = judged(comparable, rule)
    notes += [str(ending) for ending in changes if not ending.lost]
    notes += _alone(skipped, rule)
    return Comparison(
        a.name,
        b.name,
        (commits(_samples(pairs, 0)) or commits(a.found), commits(_samples(pairs, 1)) or commits(b.found)),
        tuple(skipped),
        tuple(ending for one in comparable if (ending := ended(one)) is not None),
        tuple((one.name, one.differs) for one in pairs.pairs if one.differs),
        pairs.only_a,
        pairs.only_b,
        tuple(notes),
        tuple(str(ending) for ending in changes if ending.lost),
    )


def _alone(found: Sequence[Change], rule: ChangeRule) -> list[str]:
    """Open question of a single record per side, and the remedy."""
    alone = [change for change in found if change.why == ALONE]
    apart = sum(abs(math.log(change.ratio)) >= math.log1p(rule.threshold) for change in alone)
    hint = "compare folders of several records a side, made in turns, or a night, which takes turns with old code"
    summary = f"undecided: {len(alone)}, {apart} of them more than {100 * rule.threshold:g} % apart"
    return [f"{summary}: {ALONE}; {hint}"] if alone else []


def _samples(pairs: Pairs, side: int) -> list[Sample]:
    return [sample for one in pairs.pairs if not one.differs for sample in (one.a, one.b)[side]]


def commits(samples: Sequence[Sample]) -> str:
    """The commit that records were made from, short; `+` where the tree differed from it."""
    for sample in samples:
        commit = sample.record.provenance.get("commit")
        if isinstance(commit, dict) and isinstance(commit.get("hash"), str) and commit["hash"]:
            return f"{commit['hash'][:12]}{'+' if commit.get('dirty') else ''}"
    return ""


def _check_names(pairs: Sequence[Pair], rule: ChangeRule) -> None:
    metric_names = {name for one in pairs for sample in (*one.a, *one.b) for name in (*sample.record.metrics, *LOSSES)}
    for name in rule.metrics:
        if metric_names and name not in metric_names:
            raise InvalidRequest(f"no run has a metric {name}", rule=f"one of {', '.join(sorted(metric_names))}")


# -- outcomes -------------------------------------------------------------------------------------------------------


def ended(one: Pair) -> OutcomeChange | None:
    """None where every repeat of both sides went well, or ended alike."""
    a, b = (_outcomes(side) for side in (one.a, one.b))
    if a == b:
        return None
    reason = next((s.record.reason for s in one.b if s.record.outcome is not Outcome.OK), "")
    return OutcomeChange(one.name, _counted(a), _counted(b), _worsened(a, b), reason)


def _outcomes(side: Sequence[Sample]) -> dict[Outcome, int]:
    kinds = [sample.record.outcome for sample in side]
    return {kind: kinds.count(kind) for kind in Outcome if kind in kinds} if len(set(kinds)) > 1 else {kinds[0]: 1}


def _counted(outcomes: dict[Outcome, int]) -> str:
    if len(outcomes) == 1:
        return next(iter(outcomes)).value
    return f"{', '.join(f'{count} {kind.value}' for kind, count in outcomes.items())}"


def _worsened(a: dict[Outcome, int], b: dict[Outcome, int]) -> ChangeVerdict:
    """An interrupted run is no evidence on the code. One failure among repeats is inconclusive, two are not."""
    if Outcome.OK in a and not {Outcome.OK, Outcome.CANCELLED} & set(b):
        return ChangeVerdict.WORSE
    if any(kind is not Outcome.OK for kind in a):
        return ChangeVerdict.BETTER if set(b) == {Outcome.OK} else ChangeVerdict.CHANGED
    bad = {kind: count for kind, count in b.items() if kind not in (Outcome.OK, Outcome.CANCELLED)}
    if not bad:
        return ChangeVerdict.UNDECIDED
    return ChangeVerdict.WORSE if Outcome.OK not in b or sum(bad.values()) > 1 else ChangeVerdict.UNDECIDED
