"""Command `suite sweep`: every combination of comma-separated values, one process or Slurm job per combination."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from suite.cli import DRY_RUN, LABEL, Arguments, command
from suite.cli.run import KEYS
from suite.core.exit_codes import Exit
from suite.core.files import check_access, check_folder
from suite.core.words import format_count


@command(
    "Run every combination of comma-separated values, one process per job.",
    "system=axonn,gpipe grid.inter=1,2",
    DRY_RUN,
    LABEL,
    keys=KEYS,
    config=True,
    resumes=True,
)
def main(arguments: Arguments) -> int:
    """Run every combination of the comma-separated values. Returns the exit status of all lines together.

    A line with an unknown key or an illegal value refuses the sweep before anything runs.
    """
    from suite.cli.lines import combined_status, plan_line, plan_summary, submit
    from suite.config.compose import combinations, resolve
    from suite.runner.isolated import run_line
    from suite.runner.override_files import read_files

    dry, words = bool(arguments.dry_run), read_files(arguments.words)
    lines = list(combinations(words))
    configs = [resolve(line) for line in lines]
    for folder in {str(config.reports) for config in configs}:
        (check_access if dry else check_folder)(Path(folder), "reports")
    flags = label_flags(words, arguments.label)
    here, submitted = list[list[str]](), list[list[str]]()
    for line, config in zip(lines, configs, strict=True):
        (submitted if config.launch.submit else here).append([*line, *flags])
    if dry:
        counts = sum(map(plan_line, here), Counter[str]())
        return combined_status([*submit(submitted, dry), *([plan_summary(counts)] if here else [])])
    codes = list[int]()
    for line in here:
        codes.append(run_line(line))
        if codes[-1] == Exit.STOPPED:
            break
    codes += submit(submitted)
    states = Counter(Exit(code).name.lower().replace("_", " ") for code in codes)
    listed = ", ".join(f"{number} {name}" for name, number in states.items())
    print(f"{format_count(codes, 'job')}: {listed}", file=sys.stderr)
    return combined_status(codes)


def label_flags(words: Sequence[str], labelled: Sequence[str] = ()) -> list[str]:
    """Flags for the keys that labels do not show by default: those in `labelled`, and those that the sweep varies."""
    from suite.config.compose import choices, key_of
    from suite.runner.keys_read import below
    from suite.runner.labels import COMMON, FLAG

    varied = [key_of(word) for word in words if below(key_of(word), COMMON) and len(choices(word, words)) > 1]
    return [f"{FLAG}{key}" for key in dict.fromkeys((*labelled, *varied))]
