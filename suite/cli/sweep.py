"""Command `suite sweep`: Hydra's multirun, with one process per job."""

from __future__ import annotations

import argparse

from suite.cli import Arguments, Command
from suite.cli.run import COMMAND as RUN
from suite.cli.run import for_hydra


def sweep(arguments: Arguments) -> int:
    """Run every combination of the comma-separated values. Returns the exit status of all jobs together."""
    from suite.cli import hydra_sweep
    from suite.config.compose import register

    register()
    return hydra_sweep.sweep(
        ["--multirun", *for_hydra(arguments.given)], bool(arguments.options.dry_run), arguments.options.label
    )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="list the runs or jobs without starting them")
    parser.add_argument("--label", action="append", default=[], metavar="KEY", help="show this key in labels of runs")


COMMAND = Command(
    "sweep",
    "Run every combination of comma-separated values, one process per job.",
    sweep,
    "system=axonn,gpipe grid.inter=1,2",
    keys=RUN.keys,
    config=True,
    options=options,
    resumes=True,
)
main = COMMAND.main
