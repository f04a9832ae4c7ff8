"""Reference of the configuration keys: `suite config --schema` or `--docs`."""

from __future__ import annotations

import argparse

from suite.cli import Arguments, Command
from suite.core.exit_codes import Exit
from suite.core.resources import ROOT

DOCS = ROOT / "docs" / "reference" / "config.md"


def show(arguments: Arguments) -> int:
    """Print the JSON schema, or write the reference."""
    from suite.config.reference import page, schema

    if arguments.options.schema:
        print(schema(), end="")
        return Exit.OK
    DOCS.parent.mkdir(parents=True, exist_ok=True)
    DOCS.write_text(page(), encoding="utf-8")
    print(DOCS)
    return Exit.OK


def options(parser: argparse.ArgumentParser) -> None:
    output = parser.add_mutually_exclusive_group(required=True)
    output.add_argument("--schema", action="store_true", help="print the JSON schema of a run's configuration")
    output.add_argument("--docs", action="store_true", help="write the reference to docs/reference/config.md")


COMMAND = Command(
    "config",
    "Print the JSON schema of the configuration, or write its reference.",
    show,
    "--schema",
    options=options,
)
main = COMMAND.main
