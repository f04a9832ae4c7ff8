"""Command line of the report: makes the page of a reports folder anew and prints its path."""

from __future__ import annotations

from suite.cli import Arguments, Command
from suite.core.exits import Exit
from suite.core.files import check_folder


def report(arguments: Arguments) -> int:
    from suite.report import write_report
    from suite.report.load import check_records

    folder = check_records(arguments.reports)
    print(write_report(check_folder(folder, "reports")))
    return Exit.OK


COMMAND = Command(
    "report",
    "Make the page, index.html, from the records of a reports folder, and print its path.",
    report,
    "reports=FOLDER",
    keys={"reports": "FOLDER   folder of the records (default: reports)"},
)
main = COMMAND.main

if __name__ == "__main__":
    raise SystemExit(main())
