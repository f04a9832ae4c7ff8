"""Command `suite check`: drive a schedule without ranks, tensors or a clock."""

from __future__ import annotations

import argparse

from suite.cli import Arguments, Command
from suite.cli.run import command as run

EXECUTOR = "executor=check"


def check(arguments: Arguments) -> int:
    """Run the command line with the `check` executor. Returns the exit status of `suite run`."""
    return run(Arguments((EXECUTOR, *arguments.given), (EXECUTOR, *arguments.words), arguments.options))


def options(parser: argparse.ArgumentParser) -> None:
    """Set the flags of `suite run`, which reads them from the same namespace."""
    parser.set_defaults(dry_run=False, cfg=None, package=None, resolve=False, info=None, hydra_help=False, label=[])


COMMAND = Command(
    "check",
    "Check a schedule, and count its ticks, bubble, versions and activations.",
    check,
    "system=pipeoptim grid.inter=4",
    keys={"reports": "FOLDER   records (default: reports)"},
    config=True,
    options=options,
)
main = COMMAND.main
