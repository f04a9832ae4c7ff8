"""Command `suite check`: drive a schedule without ranks, tensors or a clock.

suite check schedule=zbv grid.inter=4         # writes a record
suite check zbv.csv                           # a schedule file of PyTorch, and no record
suite check zbv.csv executor.ticks.backward=3
"""

from __future__ import annotations

from suite.cli import Arguments, command
from suite.cli.run import run_words
from suite.core.exit_codes import Exit

EXECUTOR = "executor=check"


@command(
    "Check a schedule or a schedule file, and count its ticks, bubble, versions and activations.",
    "system=pipeoptim grid.inter=4",
    keys={"reports": "FOLDER   records (default: reports)"},
    config=True,
    file=".csv",
)
def main(arguments: Arguments) -> int:
    """Check a file, or run the command line with the `check` executor. Returns the exit status of `suite run`."""
    if arguments.file:
        from suite.cli.schedule_file import describe

        print(describe(arguments, draw=False))
        return Exit.OK
    return run_words([EXECUTOR, *arguments.words])
