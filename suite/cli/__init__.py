"""Command line shared by every command of `suite`: arguments, help, refusals, and how a signal ends a command.

Loads the standard library, suite.core and suite.runner.launch.signals only, so that `--help` is quick and Ctrl-C
during the imports of a command is handled like any other."""

from suite.cli.command import Arguments, Command

__all__ = ["Arguments", "Command"]
