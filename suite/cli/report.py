"""Command line of the report: write the page of a reports folder, or the table of its verdicts by evidence."""

from __future__ import annotations

from pathlib import Path

from suite.cli import Arguments, argument, command
from suite.core.exit_codes import Exit
from suite.core.files import check_folder


@command(
    "Write the pages, index.html first, from the records of a reports folder.",
    "reports=FOLDER",
    argument(
        "--evidence",
        metavar="FILE",
        help="put the verdicts of claims.json between the markers of this Markdown file; -: print them by evidence",
    ),
    keys={
        "reports": "FOLDER      folder of the records (default: reports)",
        "experiment": "NAME    write the page of this experiment alone",
    },
)
def main(arguments: Arguments) -> int:
    from suite.regression.committed import changed_settings
    from suite.report import write_report
    from suite.report.load import check_records

    if document := arguments.evidence:
        return _evidence(arguments.reports, document)
    folder = check_records(arguments.reports)
    print(write_report(check_folder(folder, "reports"), changed_settings, arguments.value("experiment", "")))
    return Exit.OK


def _evidence(folder: Path, document: str) -> int:
    """Write the tables of verdicts into a document, or print them by evidence."""
    from suite.report.tables import evidence_table

    counts = evidence_table.entries(folder)
    print(evidence_table.markdown(counts) if document == "-" else evidence_table.fill(Path(document), counts))
    return Exit.OK
