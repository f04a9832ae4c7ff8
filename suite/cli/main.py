"""Console command `suite`: one subcommand for each task.

Modules of subcommands load quickly; each imports torch, Hydra or pandas only when it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from suite.cli.command import Command
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.exit_codes import Exit
from suite.core.words import is_word

MODULES = {  # in the order of the help
    "run": "suite.cli.run",
    "sweep": "suite.cli.sweep",
    "check": "suite.cli.check",
    "draw": "suite.cli.draw",
    "plan": "suite.cli.plan",
    "show": "suite.cli.show",
    "report": "suite.cli.report",
    "claims": "suite.cli.claims",
    "league": "suite.cli.league",
    "compare": "suite.cli.compare",
    "nightly": "suite.cli.nightly",
    "conformance": "suite.cli.conformance",
    "doctor": "suite.cli.doctor",
    "reproduce": "suite.cli.reproduce",
    "gpu": "suite.cli.gpu",
    "config": "suite.cli.config",
    "artifact": "suite.cli.artifact",
    "export-mask": "suite.cli.export_mask",
    "dataset-info": "suite.cli.dataset_info",
    "profile-split": "suite.cli.profile_split",
}


def command(name: str) -> Command:
    """The subcommand with this name.

    Raises UnknownName with the nearest name, and InvalidRequest for an override or a flag in place of a name.
    """
    if name not in MODULES:
        if is_word(name) or name.startswith("-"):
            raise InvalidRequest(f"suite {name}", rule="a subcommand comes first", legal=f"suite run {name}")
        raise UnknownName("command", name, MODULES)
    subcommand = import_module(MODULES[name]).COMMAND
    assert isinstance(subcommand, Command)
    return subcommand


def overview() -> str:
    """Help of `suite`: one line for each subcommand."""
    width = max(map(len, MODULES))
    lines = [f"  {name:<{width}}  {command(name).summary}" for name in MODULES]
    return "\n".join(
        [
            "usage: suite COMMAND [ARGUMENT ...]",
            "",
            "Benchmark and reproduction suite for parallel training.",
            "",
            "commands:",
            *lines,
            "",
            "`suite COMMAND --help` describes a command. `python -m suite` is the same program.",
            "",
        ]
    )


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
    return chosen.main(words[1:])
