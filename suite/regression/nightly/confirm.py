"""Interleaved confirmation of candidate regressions: old and new code run in alternating rounds.

A nightly run is compared with an earlier one, and machines drift more between nights than code does. In interleaved
rounds (old new, new old, ...) the drift affects both. The rounds stop early once they exclude a change that matters;
before anything is called a regression, they run to their planned end.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from suite.config.nightly import NightlySettings
from suite.core.record import Outcome
from suite.regression import decide, format
from suite.regression.decide import ChangeRule, ChangeVerdict
from suite.regression.matching import match_runs
from suite.regression.metrics import Change
from suite.regression.nightly import repeat
from suite.regression.record_sets import Sample, files_of_repeats, load
from suite.stats.inference import holm
from suite.stats.interleaved import LOOKS, MIN_ROUNDS, InterleavedResult, interleaved_test, planned_rounds, rules_out

_GIT_DEADLINE = 120  # seconds
_MAX_FAILED_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class CandidateRegression:
    """A candidate regression: a change between nightly runs.

    Attributes:
        change: The change.
        command: Command line of its run.
        baseline: Name of the nightly run or folder that it is compared with.
    """

    change: Change
    command: str
    baseline: str


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


RoundSamples = tuple[Sequence[float], Sequence[float]]  # samples of old and new code in one round
Measurement = tuple[CandidateRegression, InterleavedResult | str]  # the result, or why old code cannot run


class CannotRun(Exception):
    """Old code cannot run next to new code."""


@contextmanager
def checkout(tree: Path, commit: str) -> Iterator[Path]:
    """The code of a commit in a temporary folder. Raises CannotRun if git does not have the commit."""
    folder = Path(tempfile.mkdtemp(prefix="suite-nightly-"))
    try:
        try:
            _git(tree, "worktree", "prune")
            _git(tree, "worktree", "add", "--detach", "--force", str(folder / "old"), commit.rstrip("+"))
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


def rule_of(settings: NightlySettings, scale: bool | None = None) -> ChangeRule:
    """Criteria of a change in a nightly run."""
    return ChangeRule(settings.threshold, settings.level, scale=scale)


def measure(
    tree: Path,
    commit: str,
    candidates: Sequence[CandidateRegression],
    folder: Path,
    settings: NightlySettings,
    *,
    family: int,
    report: Callable[[str], None],
) -> list[Measurement]:
    """Run interleaved rounds of the code of a commit and of the present code for each command with a candidate.

    Args:
        tree: Folder of the present code.
        commit: Commit of the old code; empty if unknown.
        candidates: CandidateRegression regressions against that commit.
        folder: Folder of the records of the rounds.
        settings: Level, threshold and number of rounds.
        family: Number of candidates of the whole nightly run, for Holm's adjustment.
        report: Receives lines of progress.
    """
    if not commit:
        return [(candidate, "the baseline has no commit") for candidate in candidates]
    results: dict[CandidateRegression, InterleavedResult | str] = {}
    try:
        with checkout(tree, commit) as old_tree:
            for number, command in enumerate(dict.fromkeys(candidate.command for candidate in candidates)):
                selected = [candidate for candidate in candidates if candidate.command == command]
                rounds = _Rounds(old_tree, tree, command, folder / str(number), settings, family, report)
                try:
                    results |= rounds.run(selected)
                except CannotRun as error:
                    results |= dict.fromkeys(selected, str(error))
    except CannotRun as error:
        results |= dict.fromkeys(candidates, str(error))
    return [(candidate, results[candidate]) for candidate in candidates]


def confirm(measurements: Sequence[Measurement], settings: NightlySettings) -> list[Confirmation]:
    """Decide each candidate, with Holm's adjustment over all candidates that ran in interleaved rounds."""
    adjusted = iter(holm([result.p for _, result in measurements if isinstance(result, InterleavedResult)]))
    return [
        decide_unpaired(candidate, result, settings)
        if isinstance(result, str)
        else _decide_rounds(candidate, result, decide.rounds_p(next(adjusted)), settings)
        for candidate, result in measurements
    ]


def _decide_rounds(
    candidate: CandidateRegression, result: InterleavedResult, p: float, settings: NightlySettings
) -> Confirmation:
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
    change = candidate.change
    assert change.effect is not None
    ratios = [effect.ratio for effect in (change.effect, change.alternative) if effect is not None]
    threshold = settings.unpaired_threshold
    verdict = decide.exceeds_unpaired_threshold(change.effect, ratios, change.better, threshold)
    why = f"unpaired threshold of {100 * threshold:g} %, as old code did not run: {reason}"
    return Confirmation(candidate, verdict, why if verdict is ChangeVerdict.WORSE else f"not confirmed, {why}")


@dataclass(frozen=True, slots=True)
class _Rounds:
    """Interleaved rounds of one command line with old and new code."""

    old_tree: Path
    new_tree: Path
    command: str
    folder: Path
    settings: NightlySettings
    family: int
    report: Callable[[str], None]

    def run(self, candidates: Sequence[CandidateRegression]) -> dict[CandidateRegression, InterleavedResult | str]:
        """Results by candidate. Raises CannotRun if old or new code repeatedly leaves no such metric."""
        planned = planned_rounds(self.family, self.settings.level, self.settings.min_rounds)
        samples: dict[CandidateRegression, list[RoundSamples]] = {candidate: [] for candidate in candidates}
        results: dict[CandidateRegression, InterleavedResult | str] = {}
        failed = 0
        for number in range(LOOKS * planned):
            self.report(f"round {number + 1} of {planned}, or of twice as many, of old and new code · {self.command}")
            old, new = self._run_round(number)
            values = {candidate: samples_of_round(candidate.change, old, new) for candidate in candidates}
            if not all(values.values()):
                failed += 1
                if failed > _MAX_FAILED_ROUNDS:
                    raise CannotRun("old or new code left no such metric in three rounds")
                continue
            for candidate, pair in values.items():
                assert pair is not None
                samples[candidate].append(pair)
            if number + 1 >= MIN_ROUNDS:
                results = {candidate: _test(candidate, pairs) for candidate, pairs in samples.items()}
                if self._may_stop(results, look=number + 1 == planned):
                    break
        return results

    def _run_round(self, number: int) -> list[tuple[Sample, ...]]:
        folders = {name: self.folder / name / f"{number:02d}" for name in ("old", "new")}
        order = [("old", self.old_tree), ("new", self.new_tree)]
        for name, tree in order if number % 2 == 0 else order[::-1]:
            repeat.run_command(tree, self.command, folders[name], self.settings.deadline)
        return [load(name, files_of_repeats([folder])).samples for name, folder in folders.items()]

    def _may_stop(self, results: Mapping[CandidateRegression, InterleavedResult | str], *, look: bool) -> bool:
        """Whether every candidate is decided, so that the rounds may stop.

        A candidate may be ruled out after any round. It may be confirmed only at an interim look (`look`), and only at
        a p value that stays significant whatever the results of the other candidates are.
        """
        for result in results.values():
            assert isinstance(result, InterleavedResult)
            certain = look and decide.rounds_p(self.family * result.p) < self.settings.level
            if not (certain or rules_out(result, self.settings.threshold)):
                return False
        return True


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
