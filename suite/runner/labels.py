"""Labels of runs: the system, its grid, and the given keys that tell one run from another.

A page, an expectation and a comparison find a run of an experiment by its label. So a label holds what was given and is
read, but for keys that most often are the same for all runs of a command: how long is measured, and how ranks are
started. Those are added where a sweep varies them, or where two runs of a command would have one label.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from suite.config.compose import key_of
from suite.core.errors import InvalidRequest
from suite.runner.keys_read import BOOKKEEPING, below
from suite.runner.store import deciding_keys

if TYPE_CHECKING:
    from suite.runner.runs import Run

FLAG = "--label="  # a key that labels hold although they would not: a sweep gives it to its jobs
COMMON = ("measure", "launch", "checkpoint", "draw", "tune", "experiment", "scale")  # as a rule alike for all runs
TIMED = ("launch.threads", "launch.binding", "launch.launcher", "launch.device")  # a time depends on them


def suffix(overrides: Sequence[str], system: str, pattern: str | None, also: Sequence[str] = ()) -> str:
    """The end of a run's label.

    Args:
        system: Its name.
        pattern: The executor's label, uninterpolated.
        also: Keys that are always shown.
    """
    return "".join(
        f" {override.lstrip('+')}"
        for override in overrides
        if key_of(override) in also or _shown(override, system, pattern)
    )


def _shown(override: str, system: str, pattern: str | None) -> bool:
    key, _, value = override.lstrip("+~").partition("=")
    if key == "system":
        return bool(value.strip("'\"") != system)
    if below(key, ["grid"]):  # a label without a pattern holds the grid
        return pattern is not None and f"${{{key}}}" not in pattern
    return key in TIMED or not below(key, [*COMMON, *BOOKKEEPING])


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The keys that FLAG names among the arguments of a command, and the other arguments."""
    flags = [argument for argument in arguments if argument.startswith(FLAG)]
    return [flag.removeprefix(FLAG) for flag in flags], [one for one in arguments if one not in flags]


def distinct(runs: Sequence[Run]) -> list[Run]:
    """Runs of one label have the keys added in which they differ. Raises InvalidRequest where no given key tells them
    apart.

    Runs whose differences decide no number keep one label: they have one record."""
    alike: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        alike[run.label].append(run)
    relabelled = []
    for run in runs:
        others = [other for other in alike[run.label] if deciding_keys(other.settings) != deciding_keys(run.settings)]
        relabelled.append(_told_apart(run, others) if others else run)
    return relabelled


def _told_apart(run: Run, others: Sequence[Run]) -> Run:
    words, *theirs = (shlex.split(one.command)[2:] for one in (run, *others))
    label_words = run.label.split()
    more = [o for o in words if any(o not in other for other in theirs) and o not in label_words]
    if not more and all(any(o not in words for o in other) for other in theirs):
        return run  # the others have more keys, which are added to theirs
    if not more:
        raise InvalidRequest(
            f"two runs are labelled {run.label}", rule="each run has its label", legal="tag=first, tag=second"
        )
    return replace(run, label=" ".join([run.label, *(override.lstrip("+") for override in more)]))
