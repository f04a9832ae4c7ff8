"""Command `suite check`: drive a schedule without ranks, tensors or a clock.

suite check schedule=zbv grid.inter=4         # writes a record
suite check zbv.csv                           # a schedule file of PyTorch, and no record
suite check zbv.csv executor.ticks.backward=3
"""

from __future__ import annotations

import argparse

from suite.cli import Arguments, Command
from suite.cli.run import command as run
from suite.core.exit_codes import Exit

EXECUTOR = "executor=check"


def check(arguments: Arguments) -> int:
    """Check a file, or run the command line with the `check` executor. Returns the exit status of `suite run`."""
    if arguments.options.file:
        from suite.cli.schedule_file import report

        print(report(arguments))
        return Exit.OK
    return run(Arguments((EXECUTOR, *arguments.words), arguments.options))


def options(parser: argparse.ArgumentParser) -> None:
    """Set the flags that `suite run` reads from the namespace of the parser."""
    parser.set_defaults(dry_run=False, cfg=False, label=[])


COMMAND = Command(
    "check",
    "Check a schedule or a schedule file, and count its ticks, bubble, versions and activations.",
    check,
    "system=pipeoptim grid.inter=4",
    keys={"reports": "FOLDER   records (default: reports)"},
    config=True,
    options=options,
    file=".csv",
)
main = COMMAND.main
