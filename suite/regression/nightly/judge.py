"""Decide whether a nightly run is a regression, from its comparisons and the interleaved confirmation.

A night's own numbers only raise suspicions, and are easily suspicious: times as they are and times scaled by the
reference workload each may show what the other hides. Interleaved rounds of old and new code (confirm) and exact
numbers decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.core.reasons import headline
from suite.regression.compare import changes, format
from suite.regression.compare.changes import Comparison, OutcomeChange, commits
from suite.regression.compare.matching import config_key, pair
from suite.regression.compare.metrics import Change, ChangeRule
from suite.regression.compare.record_sets import RecordSet
from suite.regression.nightly import confirm
from suite.regression.nightly.confirm import Confirmation, Suspect
from suite.regression.nightly.settings import NightlySettings
from suite.stats.inference import ChangeVerdict

_SHARE = 0.6  # of the threshold that raises a suspicion: a machine that is faster tonight hides some of it
_CHANCE = 0.05
_DELTA = 0.33  # a medium effect


@dataclass(frozen=True, slots=True)
class Against:
    """A night beside one set: the comparison that its page shows, suspicions, and what is wrong beyond them.
    known: the runs of the night that the set has too, by their configs."""

    name: str
    commit: str
    shown: Comparison
    suspects: tuple[Suspect, ...]
    certain: tuple[Change, ...]  # of what no clock decides
    ended: tuple[OutcomeChange, ...]
    known: frozenset[str] = frozenset()

    @property
    def lost(self) -> tuple[str, ...]:
        """Metrics that the set has and the nightly run lacks or changed: after acceptance, later runs would not
        compare them.
        """
        apart = [f"not comparable: {name}: {'; '.join(map(str, differs))}" for name, differs in self.shown.apart]
        return (*apart, *(f"only in {self.name}: {name}" for name in self.shown.only_a), *self.shown.lost)


@dataclass(frozen=True, slots=True)
class NightlyJudgement:
    """All of it, with every suspicion's finding. regressions: sentences, each with its commit range."""

    against: tuple[Against, ...]
    findings: tuple[Confirmation, ...]
    regressions: tuple[str, ...]
    doubts: tuple[str, ...]

    @property
    def open(self) -> bool:
        return any(finding.open for finding in self.findings)

    @property
    def comparable(self) -> bool:
        """Whether anything is comparable with the first set, the accepted baseline."""
        return bool(self.against) and bool(self.against[0].shown.changes or self.against[0].shown.ended)


def beside(night: RecordSet, base: RecordSet, settings: NightlySettings) -> Against:
    """Raises InvalidRequest where either set is empty."""
    plain, scaled = (changes.compare(base, night, _rule(settings, scale)) for scale in (False, True))
    comparison = changes.compare(base, night, _rule(settings, None))
    commands = {config_key(sample.record): _command(Path(sample.file)) for sample in reversed(night.found)}
    suspects: dict[tuple[str, str], Suspect] = {}
    open_to = [change for change in comparison.changes if blind(change, settings)]
    for change in (*(c for c in (*scaled.changes, *plain.changes) if suspicious(c, settings)), *open_to):
        if change.metric in settings.metrics:
            suspect = Suspect(change, commands[change.config], base.name)
            suspects.setdefault((change.config, change.metric), suspect)
    certain = tuple(change for change in comparison.of(ChangeVerdict.WORSE) if change.effect is None)
    ended = tuple(
        ending for ending in comparison.ended if ending.verdict in (ChangeVerdict.WORSE, ChangeVerdict.UNDECIDED)
    )
    configs = frozenset(one.config for one in pair(base.found, night.found).pairs if not one.differs)
    return Against(base.name, commits(base.found), comparison, tuple(suspects.values()), certain, ended, configs)


def _rule(settings: NightlySettings, scale: bool | None) -> ChangeRule:
    return ChangeRule(settings.threshold, settings.level, scale=scale)


def _command(record: Path) -> str:
    """Of a repeat's record: repeats/NN/C/records/KEY.json came from the command line number C."""
    return record.parents[1].name


def suspicious(change: Change, settings: NightlySettings) -> bool:
    """Worse by a good part of the threshold, and hardly by chance, or worse in quiet moments: far less than a verdict
    asks for."""
    effect = change.effect
    if effect is None:
        return False
    sign = 1 if change.better == "lower" else -1
    least = math.log1p(_SHARE * settings.threshold)
    if change.quiet is not None and sign * math.log(change.quiet) >= least:
        return True
    size = sign * math.log(effect.ratio) >= least
    return size and (effect.p < _CHANCE or effect.least >= _CHANCE) and sign * effect.delta >= _DELTA


def blind(change: Change, settings: NightlySettings) -> bool:
    """Whether a night could not have seen even what two nights alone are believed: nothing is suspicious, but nothing
    is known either, and turns have to tell."""
    if change.effect is None:
        return False
    worst = change.effect.high if change.better == "lower" else 1 / max(change.effect.low, 1e-9)
    return worst >= 1 + settings.alone


def judge(
    against: Sequence[Against],
    tree: Path,
    folder: Path,
    settings: NightlySettings,
    now: str,
    say: Callable[[str], None],
) -> NightlyJudgement:
    """Confirms every suspicion. `now`: the commit of this night, for ranges."""
    family = sum(len(one.suspects) for one in against)
    findings: list[Confirmation] = []
    for number, one in enumerate(against):
        suspects = [Suspect(s.change, settings.commands[int(s.command)], s.against) for s in one.suspects]
        if suspects:
            say(f"{len(suspects)} suspicions against {one.name}: old and new code take turns")
            place = folder / str(number)
            findings += confirm.confirm(tree, one.commit, suspects, place, settings, family=family, say=say)
    findings = confirm.decide(findings, settings)
    ranges = {one.name: format.commit_range((one.commit, now)) for one in against}
    regressions = [
        f"{regression(finding)} {ranges[finding.suspect.against]}" for finding in findings if finding.confirmed
    ]
    regressions += [f"{format.sentence(change)} {ranges[one.name]}" for one in against for change in one.certain]
    ends = [(one, ending) for one in against for ending in one.ended]
    regressions += [
        f"{end(ending)} {ranges[one.name]}" for one, ending in ends if ending.verdict is ChangeVerdict.WORSE
    ]
    doubts = [end(ending) for _, ending in ends if ending.verdict is not ChangeVerdict.WORSE]
    return NightlyJudgement(
        tuple(against), tuple(findings), tuple(dict.fromkeys(regressions)), tuple(dict.fromkeys(doubts))
    )


def regression(finding: Confirmation) -> str:
    """Names the run, the metric and the change with its interval: of the turns, where there were any."""
    change = finding.suspect.change
    if finding.turns is None:
        return f"{format.sentence(change)}; {finding.why};"
    rate = change.unit == "s" or change.unit.endswith("/s")
    return f"{change.name} · {change.metric} is {'slower' if rate else 'worse'}: {finding.why};"


def end(item: OutcomeChange) -> str:
    return f"{item.name}: {item.a} -> {item.b}{': ' + headline(item.reason) if item.reason.strip() else ''}"
