"""Command `suite artifact`: the archive for artifact evaluators.

suite artifact        # write reports/ae-bundle-VERSION.zip and print its path
"""

from __future__ import annotations

from suite.cli import Arguments, argument, command
from suite.core.exit_codes import Exit
from suite.core.files import check_folder


@command(
    "Pack claims, records, page and source into an archive for evaluators.",
    "reports=FOLDER",
    argument("--no-doctor", action="store_true", help="leave out the report of make doctor"),
    keys={"reports": "FOLDER   folder of the records, where the archive is written (default: reports)"},
)
def main(arguments: Arguments) -> int:
    from suite.artifact.build import doctor, make
    from suite.report.load import check_records

    folder = check_folder(check_records(arguments.reports), "reports")
    print(make(folder, () if arguments.no_doctor else doctor(folder)))
    return Exit.OK
