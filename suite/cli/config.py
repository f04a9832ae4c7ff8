"""Reference of the configuration keys: `suite config --schema` or `--docs`."""

from __future__ import annotations

from suite.cli import Arguments, argument, command
from suite.core.exit_codes import Exit
from suite.core.resources import ROOT

DOCS = ROOT / "docs" / "reference" / "config.md"


@command(
    "Print the JSON schema of the configuration, or write its reference.",
    "--schema",
    argument("--schema", action="store_true", help="print the JSON schema of a run's configuration (default)"),
    argument("--docs", action="store_true", help="write the reference to docs/reference/config.md instead"),
)
def main(arguments: Arguments) -> int:
    """Print the JSON schema, or write the reference."""
    from suite.config.reference import page, schema

    if not arguments.docs:
        print(schema(), end="")
        return Exit.OK
    DOCS.parent.mkdir(parents=True, exist_ok=True)
    DOCS.write_text(page(), encoding="utf-8")
    print(DOCS)
    return Exit.OK
