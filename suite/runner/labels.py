"""Labels of runs: the system, its grid, and the overrides that distinguish one run from another.

The page, expectations and comparisons find a run of an experiment by its label. A label shows the overrides that the
run reads. It omits overrides that usually are equal for all runs of a command, such as the number of batches or the
launcher, unless a sweep varies them or two runs of a command would have the same label.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from suite.config.compose import CHOICES, key_of
from suite.core.errors import InvalidRequest
from suite.runner.keys_read import BOOKKEEPING, below
from suite.runner.store import deciding_keys

if TYPE_CHECKING:
    from suite.runner.runs import Run

FLAG = "--label="  # names a key that labels always show; a sweep passes it to its jobs
COMMON = ("measure", "launch", "checkpoint", "experiment", "scale")  # usually equal for all runs
TIMED = ("launch.threads", "launch.binding", "launch.launcher", "launch.device")  # times depend on them


def suffix(
    overrides: Sequence[str], system: str, name: str, pattern: str | None, label_keys: Sequence[str] = ()
) -> str:
    """The end of a run's label.

    Args:
        overrides: Overrides of the command line.
        system: Name of the system.
        name: The same before interpolation: a system may be named for its schedule.
        pattern: Label of the executor before interpolation.
        label_keys: Keys that the label always shows.
    """
    return "".join(
        f" {override.lstrip('+')}"
        for override in overrides
        if key_of(override) in label_keys or _distinguishes(override, system, name, pattern)
    )


def _distinguishes(override: str, system: str, name: str, pattern: str | None) -> bool:
    key, _, value = override.lstrip("+~").partition("=")
    if key == "system":
        return f"${{{CHOICES}." not in name and value.strip("'\"") != system
    if f"${{{CHOICES}.{key}}}" in name:
        return False
    if below(key, ["grid"]):  # a label without a pattern shows the grid
        return pattern is not None and f"${{{key}}}" not in pattern
    return key in TIMED or not below(key, [*COMMON, *BOOKKEEPING])


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The keys of the FLAG arguments of a command, and the other arguments."""
    flags = [argument for argument in arguments if argument.startswith(FLAG)]
    return [flag.removeprefix(FLAG) for flag in flags], [argument for argument in arguments if argument not in flags]


def make_distinct(runs: Sequence[Run]) -> list[Run]:
    """Add to equal labels the overrides in which their runs differ.

    Runs that differ only in keys without influence on numbers keep the same label, because they share one record.
    Raises InvalidRequest if no override distinguishes two runs.
    """
    runs_by_label: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        runs_by_label[run.label].append(run)
    relabelled = []
    for run in runs:
        same_label = runs_by_label[run.label]
        others = [other for other in same_label if deciding_keys(other.settings) != deciding_keys(run.settings)]
        relabelled.append(_add_differences(run, others) if others else run)
    return relabelled


def _add_differences(run: Run, others: Sequence[Run]) -> Run:
    words, *other_words = (shlex.split(each.command)[2:] for each in (run, *others))
    label_words = run.label.split()
    differing = [o for o in words if any(o not in other for other in other_words) and o not in label_words]
    if not differing and all(any(o not in words for o in other) for other in other_words):
        return run  # the others have more overrides, which their labels show
    if not differing:
        raise InvalidRequest(
            f"two runs have the label {run.label}", rule="labels are distinct", legal="tag=first, tag=second"
        )
    return replace(run, label=" ".join([run.label, *(override.lstrip("+") for override in differing)]))
