"""Interleaved confirmation of a candidate regression: old and new code run in alternating rounds.

A night is compared with a night before, and machines drift by more from night to night than code does. In turns
(old new, new old, ...) the drift falls on both. Turns stop early where they can no longer show a change of the size
that matters, and go to their end before anything is called a regression.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from suite.core.record import Outcome
from suite.regression.compare import format, matching
from suite.regression.compare import rounds as turning
from suite.regression.compare.metrics import Change
from suite.regression.compare.record_sets import Sample, gathered
from suite.regression.compare.rounds import RoundsResult
from suite.regression.nightly import repeat
from suite.regression.nightly.settings import NightlySettings
from suite.stats import inference

_GIT_LIMIT = 120  # seconds


@dataclass(frozen=True, slots=True)
class Suspect:
    """A change that a night's comparison shows, and the command line that its run came from."""

    change: Change
    command: str
    against: str  # the night, or folder, that it is compared with


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Outcome of a candidate regression.

    Attributes:
        turns: None where old code could not run next to new.
        open: inconclusive, so that this run is no baseline for others.
    """

    suspect: Suspect
    confirmed: bool
    why: str
    turns: RoundsResult | None = None
    open: bool = False


Pairing = tuple[Sequence[float], Sequence[float]]  # the samples of old and new code in one turn


class CannotRun(Exception):
    """The reason why old code cannot run next to new."""


@contextmanager
def checked_out(tree: Path, commit: str) -> Iterator[Path]:
    """The code of a commit in a temporary folder. Raises CannotRun where git has no such thing."""
    folder = Path(tempfile.mkdtemp(prefix="suite-night-"))
    try:
        try:
            _git(tree, "worktree", "prune")
            _git(tree, "worktree", "add", "--detach", "--force", str(folder / "old"), commit.rstrip("+"))
        except (OSError, subprocess.SubprocessError) as error:
            said = (error.stderr if isinstance(error, subprocess.CalledProcessError) else "") or str(error)
            raise CannotRun(f"git has no {commit}: {' '.join(said.split())[-200:]}") from error
        yield folder / "old"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError, subprocess.SubprocessError):  # no repository: nothing was registered
            _git(tree, "worktree", "prune")


def _git(tree: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(tree), *arguments], capture_output=True, text=True, check=True, timeout=_GIT_LIMIT)


def confirm(
    tree: Path,
    commit: str,
    suspects: Sequence[Suspect],
    folder: Path,
    settings: NightlySettings,
    *,
    family: int,
    say: Callable[[str], None],
) -> list[Confirmation]:
    """Each suspect's finding. family: how many are tested in this night, which Holm's level is over."""
    if not commit:
        return [alone(suspect, settings, "the night before tells no commit") for suspect in suspects]
    confirmations: dict[int, Confirmation] = {}
    try:
        with checked_out(tree, commit) as old:
            for command in dict.fromkeys(suspect.command for suspect in suspects):
                mine = [suspect for suspect in suspects if suspect.command == command]
                place = folder / str(len(list(folder.glob("*"))))
                try:
                    ratios = _turns(old, tree, command, mine, place, settings, family, say)
                except CannotRun as error:
                    confirmations |= {id(suspect): alone(suspect, settings, str(error)) for suspect in mine}
                    continue
                confirmations |= {id(s): Confirmation(s, False, "", _turned(s, ratios[id(s)])) for s in mine}
    except CannotRun as error:
        return [alone(suspect, settings, str(error)) for suspect in suspects]
    return [confirmations[id(suspect)] for suspect in suspects]


def decide(findings: Sequence[Confirmation], settings: NightlySettings) -> list[Confirmation]:
    """With Holm's level over all that went in turns."""
    turned = [finding for finding in findings if finding.turns is not None]
    adjusted = inference.holm([finding.turns.p for finding in turned if finding.turns])
    levels = {id(finding): p for finding, p in zip(turned, adjusted, strict=True)}
    return [_decided(f, levels[id(f)], settings) if f.turns is not None else f for f in findings]


def _decided(finding: Confirmation, p: float, settings: NightlySettings) -> Confirmation:
    pairing, better = finding.turns, finding.suspect.change.better
    assert pairing is not None
    p = min(1.0, turning.LOOKS * p)
    sure = p < settings.level and pairing.sure(better)
    confirmed = sure and pairing.worse(better) >= 1 + settings.threshold
    open_ = not confirmed and not turning.cleared(pairing, settings.threshold)
    of = " by the quickest quarter" if pairing.quiet else ""
    interval_text = (
        f"{format.percent(pairing.ratio)} ({format.percent(pairing.low)} to {format.percent(pairing.high)}){of}"
    )
    why = f"old and new code in {pairing.turns} turns: {interval_text}, p {p:.2g}"
    if not confirmed:
        small = f", less than the {100 * settings.threshold:g} % that matter" if sure else ""
        why = f"{'undecided' if open_ else 'ruled out'}, {why}{small}"
    return Confirmation(finding.suspect, confirmed, why, pairing, open_ and not sure)


def alone(suspect: Suspect, settings: NightlySettings, reason: str) -> Confirmation:
    """The night's own comparison decides, with room for what machines drift by: as timed and scaled alike."""
    change = suspect.change
    ratios = [change.ratio, change.other] if change.other is not None else [change.ratio]
    beyond = min(ratio if change.better == "lower" else 1 / ratio for ratio in ratios) >= 1 + settings.alone
    certain = change.effect is not None and abs(change.effect.delta) >= inference.LARGE
    reason_text = f"two nights alone decide, at {100 * settings.alone:g} %: {reason}"
    return Confirmation(suspect, beyond and certain, reason_text if beyond else f"not confirmed, {reason_text}")


def _turns(
    old: Path,
    new: Path,
    command: str,
    suspects: Sequence[Suspect],
    folder: Path,
    settings: NightlySettings,
    family: int,
    say: Callable[[str], None],
) -> dict[int, list[Pairing]]:
    """Samples of old and new code by suspect, one pairing per turn."""
    planned = turning.planned(family, settings.level, settings.pairs)
    pairings: dict[int, list[Pairing]] = {id(suspect): [] for suspect in suspects}
    failed = 0
    for turn in range(turning.LOOKS * planned):
        say(f"turn {turn + 1} of {planned} of old and new code, or twice as many · {command}")
        order = [("old", old), ("new", new)]
        for name, tree in order if turn % 2 == 0 else order[::-1]:
            repeat.make(tree, command, folder / name / f"{turn:02d}", settings.deadline)
        sides = [_samples(folder / name / f"{turn:02d}") for name in ("old", "new")]
        values = {id(s): _values(s.change, *sides) for s in suspects}
        if not all(values.values()):
            failed += 1
            if failed > 2:
                raise CannotRun("old or new code left no such number in three turns")
            continue
        for key, value in values.items():
            assert value is not None
            pairings[key].append(value)
        if turn + 1 >= turning.FEWEST and _settled(suspects, pairings, turn + 1 == planned, family, settings):
            break
    return pairings


def _settled(
    suspects: Sequence[Suspect], found: dict[int, list[Pairing]], look: bool, family: int, settings: NightlySettings
) -> bool:
    """Whether every suspicion is ruled out, or, where it may be looked at, confirmed whatever the others show."""
    for suspect in suspects:
        so_far = _turned(suspect, found[id(suspect)])
        sure = look and turning.LOOKS * family * so_far.p < settings.level
        if not (sure or turning.cleared(so_far, settings.threshold)):
            return False
    return True


def _samples(folder: Path) -> tuple[Sample, ...]:
    return gathered(str(folder), ((file, "", {}) for file in sorted(folder.glob("records/*.json")))).found


def _values(change: Change, old: Sequence[Sample], new: Sequence[Sample]) -> Pairing | None:
    """None where either has no such number. Raises CannotRun where the two may not be compared."""
    metric = change.metric
    for one in matching.pair(old, new).pairs:
        if one.config == change.config:
            if one.differs:
                raise CannotRun(f"not comparable: {'; '.join(map(str, one.differs))}")
            records = (one.a[0].record, one.b[0].record)
            if all(record.outcome is Outcome.OK and metric in record.metrics for record in records):
                a, b = (record.metrics[metric].values for record in records)
                return (a, b) if a and b and min(*a, *b) > 0 else None
    return None


def _turned(suspect: Suspect, values: Sequence[Pairing]) -> RoundsResult:
    old, new = zip(*values, strict=True)
    return turning.turned(old, new, suspect.change.better)
