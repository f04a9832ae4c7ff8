"""Judged times of a nightly run, and their comparison in interleaved rounds of old and new code.

A nightly run is compared with an earlier one, and machines drift more between nights than code does, so the comparison
decides exact metrics and outcomes only, and every judged time is a candidate. In interleaved rounds (old new, new old,
...) the drift affects both codes. The rounds stop early once they exclude a change that matters; before anything is
called a regression, they run to their planned end. Equal code needs no rounds.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from suite.config.nightly import NightlySettings
from suite.core.reasons import headline
from suite.core.record import Outcome
from suite.regression import decide, format
from suite.regression.comparison import Comparison, OutcomeChange, commit_of, compare
from suite.regression.decide import ChangeRule, ChangeVerdict
from suite.regression.matching import config_key, match_runs
from suite.regression.metrics import Change
from suite.regression.nightly import repeat
from suite.regression.record_sets import RecordSet, Sample, files_of_repeats, load
from suite.stats.inference import holm
from suite.stats.interleaved import LOOKS, MIN_ROUNDS, InterleavedResult, interleaved_test, planned_rounds, rules_out

_GIT_DEADLINE = 120  # seconds
_MAX_FAILED_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class CandidateRegression:
    """A change between nightly runs that may be a regression, and the command line of its run."""

    change: Change
    command: str


RoundSamples = tuple[Sequence[float], Sequence[float]]  # samples of old and new code in one round
Measured = InterleavedResult | str  # the result of the rounds, or why old code cannot run


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Verdict on a candidate. rounds: None if old code could not run next to new code."""

    candidate: CandidateRegression
    verdict: ChangeVerdict
    why: str
    rounds: InterleavedResult | None = None

    @property
    def confirmed(self) -> bool:
        """Whether the candidate is a regression."""
        return self.verdict is ChangeVerdict.WORSE


@dataclass(slots=True)
class NightJudgement:
    """Comparison of a nightly run with one baseline.

    Attributes:
        name: Name of the baseline.
        commits: Commits of the baseline and of the nightly run.
        comparison: The comparison, as the page shows it.
        candidates: Changes that may be regressions.
        confirmations: Verdict on each candidate, after `confirm`.
    """

    name: str
    commits: tuple[str, str]
    comparison: Comparison
    candidates: tuple[CandidateRegression, ...]
    confirmations: tuple[Confirmation, ...] = ()

    @property
    def regressions(self) -> list[str]:
        """A sentence per regression, with its range of commits."""
        worse = [change for change in self.comparison.select(ChangeVerdict.WORSE) if change.effect is None]
        sentences = [_sentence(row) for row in self.confirmations if row.confirmed] + list(map(format.sentence, worse))
        return [f"{text} {format.commit_range(self.commits)}" for text in [*sentences, *self.failures(sure=True)]]

    def failures(self, *, sure: bool) -> list[str]:
        """A sentence per run that failed, and did not fail in the baseline: in several repeats (`sure`), or in one."""
        verdict = ChangeVerdict.WORSE if sure else ChangeVerdict.INCONCLUSIVE
        return [_failure_text(change) for change in self.comparison.outcomes if change.verdict is verdict]

    @property
    def lost(self) -> list[str]:
        """Runs and metrics of the baseline that the nightly run lacks or changed; later runs cannot compare them."""
        changed = [
            f"not comparable: {name}: {'; '.join(map(str, differences))}"
            for name, differences in self.comparison.not_comparable
        ]
        return [*changed, *(f"only in {self.name}: {name}" for name in self.comparison.only_a), *self.comparison.lost]


def _sentence(confirmation: Confirmation) -> str:
    """Run, metric and change, with the interval of the interleaved rounds if there were any."""
    change = replace(confirmation.candidate.change, verdict=ChangeVerdict.WORSE)
    if confirmation.rounds is None:
        return f"{format.sentence(change)}; {confirmation.why};"
    return f"{change.name} · {change.metric} is {format.verdict_word(change)}: {confirmation.why};"


def _failure_text(change: OutcomeChange) -> str:
    reason = f": {headline(change.reason)}" if change.reason.strip() else ""
    return f"{change.name}: {change.a} -> {change.b}{reason}"


def compare_with_baseline(
    nightly: RecordSet, baseline: RecordSet, commit: str, settings: NightlySettings
) -> NightJudgement:
    """Compare a nightly run of code of a commit with a baseline. Raises InvalidRequest if either set is empty."""
    rule = rule_of(settings)
    comparison = compare(baseline, nightly, rule)
    former = commit_of(baseline.samples)
    same_code = former == commit and not commit.endswith("+") and bool(commit)
    commands = {config_key(s.record): command_of(Path(s.file), settings) for s in reversed(nightly.samples)}
    candidates = tuple(
        CandidateRegression(change, commands[change.config])
        for change in comparison.changes
        if change.metric in settings.metrics and change.effect is not None and not same_code
    )
    return NightJudgement(baseline.name, (former, commit), comparison, candidates)


def rule_of(settings: NightlySettings) -> ChangeRule:
    """Criteria of a change in a nightly run."""
    return ChangeRule(settings.threshold, settings.level)


def command_of(record: Path, settings: NightlySettings) -> str:
    """Command line of a record of a repeat, `repeats/REPEAT/COMMAND/records/KEY.json`."""
    return settings.commands[int(record.parents[1].name)]


def confirm(
    judgements: Sequence[NightJudgement],
    tree: Path,
    folder: Path,
    settings: NightlySettings,
    report: Callable[[str], None],
) -> None:
    """Decide every candidate by interleaved rounds, with Holm's adjustment over all of them.

    Args:
        judgements: Comparisons of the nightly run.
        tree: Folder of the present code.
        folder: Folder of the records of the rounds.
        settings: Level, threshold and number of rounds.
        report: Receives lines of progress.
    """
    family = sum(len(row.candidates) for row in judgements)
    measured: list[dict[CandidateRegression, Measured]] = []
    for number, row in enumerate(judgements):
        if row.candidates:
            report(f"{len(row.candidates)} candidate regressions against {row.name}: interleaved rounds of both codes")
        rounds = _Rounds(tree, folder / str(number), settings, family, report)
        measured.append(rounds.measure(row.commits[0], row.candidates))
    results = [result for row in measured for result in row.values() if isinstance(result, InterleavedResult)]
    adjusted = iter(holm([result.p for result in results]))
    for row, of_row in zip(judgements, measured, strict=True):
        row.confirmations = tuple(
            decide_unpaired(candidate, result, settings)
            if isinstance(result, str)
            else decide_rounds(candidate, result, decide.rounds_p(next(adjusted)), settings)
            for candidate, result in of_row.items()
        )


def decide_rounds(
    candidate: CandidateRegression, result: InterleavedResult, p: float, settings: NightlySettings
) -> Confirmation:
    """Decide by interleaved rounds, whose p-value is adjusted for all candidates and looks."""
    better = candidate.change.better
    verdict = decide.decide_rounds(result, p, better, rule_of(settings))
    interval = f"{format.percent(result.ratio)} ({format.percent(result.low)} to {format.percent(result.high)})"
    view = " in the fastest quarter" if result.quiet else ""
    why = f"old and new code in {result.rounds} rounds: {interval}{view}, p {p:.2g}"
    if verdict is not ChangeVerdict.WORSE:
        small = p < settings.level and result.is_worse(better)
        prefix = "ruled out" if verdict is ChangeVerdict.SAME else "inconclusive"
        why = f"{prefix}, {why}{f', less than the {100 * settings.threshold:g} % that matter' if small else ''}"
    return Confirmation(candidate, verdict, why, result)


def decide_unpaired(candidate: CandidateRegression, reason: str, settings: NightlySettings) -> Confirmation:
    """Decide by the two nightly runs alone, with a threshold above the drift of machines."""
    change, threshold = candidate.change, settings.unpaired_threshold
    assert change.effect is not None
    verdict = decide.exceeds_unpaired_threshold(change.effect, change.better, threshold)
    why = f"unpaired threshold of {100 * threshold:g} %, as old code did not run: {reason}"
    return Confirmation(candidate, verdict, why if verdict is ChangeVerdict.WORSE else f"not confirmed, {why}")


# -- interleaved rounds ----------------------------------------------------------------------------------------------


class CannotRun(Exception):
    """Old code cannot run next to new code."""


@contextmanager
def checkout(tree: Path, commit: str) -> Iterator[Path]:
    """The code of a commit in a temporary folder.

    Raises CannotRun if the commit is not that of the code, because the tree differed from it (`+`), and if git does not
    have it."""
    if not commit or commit.endswith("+"):
        raise CannotRun(f"the tree differed from the commit {commit}" if commit else "the baseline has no commit")
    folder = Path(tempfile.mkdtemp(prefix="suite-nightly-"))
    try:
        try:
            _git(tree, "worktree", "prune")
            _git(tree, "worktree", "add", "--detach", "--force", str(folder / "old"), commit)
        except (OSError, subprocess.SubprocessError) as error:
            output = (error.stderr if isinstance(error, subprocess.CalledProcessError) else "") or str(error)
            raise CannotRun(f"git has no {commit}: {' '.join(output.split())[-200:]}") from error
        yield folder / "old"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError, subprocess.SubprocessError):  # without a repository, no worktree is registered
            _git(tree, "worktree", "prune")


def _git(tree: Path, *arguments: str) -> None:
    command = ["git", "-C", str(tree), *arguments]
    subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_DEADLINE)


@dataclass(frozen=True, slots=True)
class _Rounds:
    """Interleaved rounds of old and new code. family: the number of candidates of the whole nightly run."""

    tree: Path
    folder: Path
    settings: NightlySettings
    family: int
    report: Callable[[str], None]

    def measure(self, commit: str, candidates: Sequence[CandidateRegression]) -> dict[CandidateRegression, Measured]:
        """Run rounds of the code of a commit and of the present code for each command with a candidate."""
        results: dict[CandidateRegression, Measured] = {}
        if not candidates:
            return results
        try:
            with checkout(self.tree, commit) as old_tree:
                for number, command in enumerate(dict.fromkeys(candidate.command for candidate in candidates)):
                    selected = [candidate for candidate in candidates if candidate.command == command]
                    try:
                        results |= self._measure_command(old_tree, command, str(number), selected)
                    except CannotRun as error:
                        results |= dict.fromkeys(selected, str(error))
        except CannotRun as error:
            results |= dict.fromkeys(candidates, str(error))
        return {candidate: results[candidate] for candidate in candidates}

    def _measure_command(
        self, old_tree: Path, command: str, name: str, candidates: Sequence[CandidateRegression]
    ) -> Mapping[CandidateRegression, InterleavedResult]:
        """Results by candidate. Raises CannotRun if old or new code repeatedly leaves no such metric."""
        planned = planned_rounds(self.family, self.settings.level, self.settings.min_rounds)
        samples: dict[CandidateRegression, list[RoundSamples]] = {candidate: [] for candidate in candidates}
        results: dict[CandidateRegression, InterleavedResult] = {}
        failed = 0
        for number in range(LOOKS * planned):
            self.report(f"round {number + 1} of {planned}, or of twice as many, of old and new code · {command}")
            folders = {code: self.folder / name / code / f"{number:02d}" for code in ("old", "new")}
            order = [("old", old_tree), ("new", self.tree)]
            for code, tree in order if number % 2 == 0 else order[::-1]:
                repeat.run_command(tree, command, folders[code], self.settings.deadline)
            old, new = (load(code, files_of_repeats([place])).samples for code, place in folders.items())
            values = {candidate: samples_of_round(candidate.change, old, new) for candidate in candidates}
            if None in values.values():
                failed += 1
                if failed > _MAX_FAILED_ROUNDS:
                    raise CannotRun("old or new code left no such metric in three rounds")
                continue
            for candidate, pair in values.items():
                assert pair is not None
                samples[candidate].append(pair)
            if number + 1 >= MIN_ROUNDS:
                results = {each: _test(each, pairs) for each, pairs in samples.items()}
                if all(self._is_decided(result, look=number + 1 == planned) for result in results.values()):
                    break
        return results

    def _is_decided(self, result: InterleavedResult, *, look: bool) -> bool:
        """Whether more rounds of a candidate would not change its verdict.

        A candidate may be ruled out after any round. It may be confirmed only at an interim look (`look`), and only at
        a p value that stays significant whatever the results of the other candidates are.
        """
        certain = look and decide.rounds_p(self.family * result.p) < self.settings.level
        return certain or rules_out(result, self.settings.threshold)


def _test(candidate: CandidateRegression, pairs: Sequence[RoundSamples]) -> InterleavedResult:
    old, new = zip(*pairs, strict=True)
    return interleaved_test(old, new, candidate.change.better)


def samples_of_round(change: Change, old: Sequence[Sample], new: Sequence[Sample]) -> RoundSamples | None:
    """Samples of old and new code; None if a side does not have the metric. Raises CannotRun if not comparable."""
    for pair in match_runs(old, new).pairs:
        if pair.config == change.config:
            if pair.differences:
                raise CannotRun(f"not comparable: {'; '.join(map(str, pair.differences))}")
            records = (pair.a[0].record, pair.b[0].record)
            if all(record.outcome is Outcome.OK and change.metric in record.metrics for record in records):
                a, b = (record.metrics[change.metric].values for record in records)
                return (a, b) if a and b and min(*a, *b) > 0 else None
    return None
