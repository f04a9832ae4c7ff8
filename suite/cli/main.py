"""Console command `suite`: one subcommand for each task.

Modules of subcommands load quickly; each imports torch, Hydra or pandas only when it runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from suite.cli.command import FORMAT, Command
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.exit_codes import Exit
from suite.core.words import is_word

COMMANDS = (  # in the order of the help
    *("run", "sweep", "check", "draw", "plan", "whatif", "show", "report", "claims", "accuracy", "compare", "nightly"),
    *("conformance", "doctor", "reproduce", "gpu", "config", "artifact", "dataset-info"),
)


def command(name: str) -> Command:
    """The subcommand with this name.

    Raises UnknownName with the nearest name, and InvalidRequest for an override or a flag in place of a name.
    """
    if name not in COMMANDS:
        if is_word(name) or name.startswith("-"):
            raise InvalidRequest(f"suite {name}", rule="a subcommand comes first", legal=f"suite run {name}")
        raise UnknownName("command", name, COMMANDS)
    subcommand = import_module(f"suite.cli.{name.replace('-', '_')}").main
    assert isinstance(subcommand, Command)
    return subcommand


def overview() -> str:
    """Help of `suite`: one line for each subcommand."""
    parser = argparse.ArgumentParser(
        usage="suite COMMAND [ARGUMENT ...]",
        description="Benchmark and reproduction suite for parallel training.",
        epilog="`suite COMMAND --help` describes a command. `python -m suite` is the same program.",
        formatter_class=FORMAT,
        add_help=False,
    )
    listed = parser.add_argument_group("commands")
    for name in COMMANDS:
        listed.add_argument(name, help=command(name).summary)
    return parser.format_help()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the subcommand that the first argument names. Returns the exit status."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(overview())
        return Exit.OK if words else Exit.NOTHING
    try:
        chosen = command(words[0])
    except InvalidRequest as error:
        sys.stderr.write(f"refused: {error}\n")
        return Exit.NOTHING
    return chosen(words[1:])
