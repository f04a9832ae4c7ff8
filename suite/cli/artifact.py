"""Command `suite artifact`: the archive for artifact evaluators.

    suite artifact                   # write reports/ae-bundle-VERSION.zip and print its path
    suite artifact --check FILE      # compare an archive with its manifest, without unpacking it

Exit status: 0, or 2 if there is no archive or it is damaged.
"""

from __future__ import annotations

from pathlib import Path

from suite.cli import Arguments, argument, command
from suite.core.exit_codes import Exit
from suite.core.files import check_folder


@command(
    "Pack claims, records, page and source into an archive for evaluators.",
    "reports=FOLDER",
    argument("--no-doctor", action="store_true", help="leave out the report of make doctor"),
    argument("--check", type=Path, metavar="FILE", help="verify an archive instead"),
    keys={"reports": "FOLDER   folder of the records, where the archive is written (default: reports)"},
)
def main(arguments: Arguments) -> int:
    from suite.artifact.archive import verify
    from suite.artifact.build import doctor, make
    from suite.report.load import check_records

    if arguments.check:
        print(f"{verify(arguments.check)} files match the manifest")
        return Exit.OK
    folder = check_folder(check_records(arguments.reports), "reports")
    print(make(folder, () if arguments.no_doctor else doctor(folder)))
    return Exit.OK
