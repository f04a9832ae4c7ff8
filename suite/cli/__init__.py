"""Command line of `suite`: arguments, help, refusals and signals of every subcommand.

This package loads only the standard library, suite.core and suite.runner.launch.signals. So `--help` is fast, and
Ctrl-C is handled even during the imports of a command.
"""

from suite.cli.command import DRY_RUN, LABEL, Arguments, Command, argument, command

__all__ = ["DRY_RUN", "LABEL", "Arguments", "Command", "argument", "command"]
