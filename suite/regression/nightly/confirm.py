"""Judged times of a nightly run, decided by interleaved rounds of old and new code.

A nightly run is compared with an earlier one, and machines drift more between nights than code does, so the comparison
decides exact metrics and outcomes only, and every judged time is a candidate. In interleaved rounds (old new, new old,
...) the drift affects both codes. The rounds stop early once they exclude a change that matters; before anything is
called a regression, they run to their planned end. Equal code needs no rounds.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from suite.config.nightly import NightlySettings
from suite.core.record import Outcome
from suite.regression import decide
from suite.regression.comparison import Comparison
from suite.regression.decide import ChangeRule, ChangeVerdict
from suite.regression.matching import config_key
from suite.regression.metrics import Change
from suite.regression.nightly import repeat
from suite.regression.record_sets import RecordSet, files_of_repeats, load
from suite.stats.inference import Effect, holm, interleaved_effect

_GIT_DEADLINE = 120  # seconds
_MAX_FAILED_ROUNDS = 2
UNPAIRED = "unpaired threshold"  # begins the reason of a verdict without rounds

Measured = Change | str  # a time as the rounds show it, without a verdict, or why old code cannot run


def rule_of(settings: NightlySettings) -> ChangeRule:
    """Criteria of a change in a nightly run."""
    return ChangeRule(settings.threshold, settings.level)


def confirm(
    comparisons: Sequence[Comparison],
    nightly: RecordSet,
    tree: Path,
    folder: Path,
    settings: NightlySettings,
    report: Callable[[str], None],
) -> list[Comparison]:
    """The comparisons of a nightly run with a verdict on every time. Holm's adjustment is over all of them.

    Args:
        comparisons: Comparisons with each baseline.
        nightly: Records of the nightly run.
        tree: Folder of the present code.
        folder: Folder of the records of the rounds.
        settings: Level, threshold and number of rounds.
        report: Receives lines of progress.
    """
    commands = {config_key(s.record): settings.commands[_command(s.file)] for s in reversed(nightly.samples)}
    candidates = [_candidates(each, settings) for each in comparisons]
    planned = decide.planned_rounds(sum(map(len, candidates)), settings.level, settings.min_rounds)
    measured: dict[tuple[str, Change], Measured] = {}  # by name of the baseline
    for number, (comparison, changes) in enumerate(zip(comparisons, candidates, strict=True)):
        by_command = defaultdict[str, list[Change]](list)
        for change in changes:
            by_command[commands[change.config]].append(change)
        rounds = _Rounds(tree, folder / str(number), settings, planned, report)
        found = rounds.measure(comparison.commits[0], by_command)
        measured |= {(comparison.a, change): result for change, result in found.items()}
    ran = {key: result for key, result in measured.items() if isinstance(result, Change)}
    adjusted = dict(zip(ran, holm([effect_of(change).p for change in ran.values()]), strict=True))
    decided = {key: _by_rounds(change, adjusted[key], settings) for key, change in ran.items()}
    decided |= {key: _unpaired(key[1], why, settings) for key, why in measured.items() if isinstance(why, str)}

    def settled(baseline: str, change: Change) -> Change:
        return decided.get((baseline, change)) or _without_rounds(change, settings)

    return [replace(each, changes=tuple(settled(each.a, change) for change in each.changes)) for each in comparisons]


def _command(file: str) -> int:
    """Number of the command line of a record of a repeat, `repeats/REPEAT/COMMAND/records/KEY.json`."""
    return int(Path(file).parents[1].name)


def _candidates(comparison: Comparison, settings: NightlySettings) -> list[Change]:
    old, new = comparison.commits
    if old == new and old and not old.endswith("+"):
        return []
    return [change for change in comparison.changes if change.effect and change.metric in settings.metrics]


def effect_of(change: Change) -> Effect:
    """The effect of a change that is not exact."""
    assert change.effect is not None
    return change.effect


def _by_rounds(change: Change, p: float, settings: NightlySettings) -> Change:
    """Decide by interleaved rounds, whose p-value is adjusted for all candidates."""
    effect = effect_of(change)
    verdict = decide.decide_rounds(effect, p, change.better, rule_of(settings))
    return replace(change, verdict=verdict, why=f"{effect.repeats[0]} rounds of old and new code, p {p:.2g} after Holm")


def _unpaired(change: Change, reason: str, settings: NightlySettings) -> Change:
    """Decide by the two nightly runs alone, with a threshold above the drift of machines."""
    threshold = settings.unpaired_threshold
    verdict = decide.exceeds_unpaired_threshold(effect_of(change), change.better, threshold)
    why = f"{UNPAIRED} of {100 * threshold:g} %, as old code did not run: {reason}"
    return replace(change, verdict=verdict, why=why)


def _without_rounds(change: Change, settings: NightlySettings) -> Change:
    """An exact metric as it is; a time of equal code, or that is not judged, with the reason."""
    if change.effect is None:
        return change
    if change.metric in settings.metrics:
        return replace(change, verdict=ChangeVerdict.SAME, why="equal code")
    worse = change.verdict is ChangeVerdict.WORSE
    return replace(change, verdict=ChangeVerdict.INCONCLUSIVE, why="not judged") if worse else change


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
    """Interleaved rounds of old and new code. planned: rounds of each command"""

    tree: Path
    folder: Path
    settings: NightlySettings
    planned: int
    report: Callable[[str], None]

    def measure(self, commit: str, commands: Mapping[str, Sequence[Change]]) -> dict[Change, Measured]:
        """Run rounds of the code of a commit and of the present code for each command with its candidates."""
        results: dict[Change, Measured] = {}
        if not commands:
            return results
        try:
            with checkout(self.tree, commit) as old_tree:
                for number, (command, changes) in enumerate(commands.items()):
                    results |= self._measure_command(old_tree, command, self.folder / str(number), changes)
        except CannotRun as error:
            results |= dict.fromkeys((change for changes in commands.values() for change in changes), str(error))
        return results

    def _measure_command(
        self, old_tree: Path, command: str, folder: Path, candidates: Sequence[Change]
    ) -> Mapping[Change, Measured]:
        samples: dict[Change, tuple[list[Sequence[float]], list[Sequence[float]]]] = {
            change: ([], []) for change in candidates
        }
        results: dict[Change, Measured] = {}
        failed = 0
        for number in range(self.planned):
            self.report(f"round {number + 1} of at most {self.planned} of old and new code · {command}")
            sides = [(folder / f"{number:02d}" / code, tree) for code, tree in (("old", old_tree), ("new", self.tree))]
            for place, tree in sides if number % 2 == 0 else sides[::-1]:
                repeat.run_command(tree, command, place, self.settings.deadline)
            old, new = (samples_by_metric(place) for place, _ in sides)
            if not {(change.config, change.metric) for change in candidates} <= old.keys() & new.keys():
                failed += 1
                if failed > _MAX_FAILED_ROUNDS:
                    return dict.fromkeys(candidates, "old or new code left no such metric in three rounds")
                continue
            for change, rounds in samples.items():
                for side, values in zip(rounds, (old, new), strict=True):
                    side.append(values[change.config, change.metric])
            results = {change: _in_rounds(change, *rounds) for change, rounds in samples.items()}
            if all(self._is_ruled_out(found) for found in results.values()):
                break
        return results

    def _is_ruled_out(self, found: Measured) -> bool:
        return isinstance(found, Change) and decide.rules_out(effect_of(found), found.better, rule_of(self.settings))


def _in_rounds(change: Change, old: Sequence[Sequence[float]], new: Sequence[Sequence[float]]) -> Change:
    a, b = (float(np.median(np.concatenate(side))) for side in (old, new))
    return replace(change, a=a, b=b, effect=interleaved_effect(old, new, change.better))


def samples_by_metric(folder: Path) -> Mapping[tuple[str, str], Sequence[float]]:
    """The samples of one round, all above zero, by the config of their run and their metric."""
    records = [sample.record for sample in load(folder.name, files_of_repeats([folder])).samples]
    return {
        (config_key(record), name): metric.values
        for record in records
        if record.outcome is Outcome.OK
        for name, metric in record.metrics.items()
        if metric.values and min(metric.values) > 0
    }
