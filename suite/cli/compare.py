"""Command `suite compare`: compare two sets of records.

    suite compare reports.old reports --metric batch_time
    suite compare 2026-11-21 2026-11-22 --json changes.json
    suite compare reports/measured/laptop reports/measured/server --page compared.html

A and B are reports folders, folders of reports folders, folders of records, single records or names of nightly runs.
A comparison of times requires several records per run. Exit status: 0 without a regression, 4 after a regression, 5 if
no metric could be compared or every comparison is inconclusive, 2 if A or B holds no records.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from suite.cli import Arguments, argument, command
from suite.core.errors import InvalidRequest
from suite.core.files import check_file, write_atomically

NIGHTLY_FOLDER = "reports/nightly"  # default of `suite nightly reports=`


@command(
    "Compare two sets of records and list regressions.",
    "reports.old reports --metric batch_time",
    argument("a", metavar="A", help="a reports folder, a folder of records, a record or a nightly run"),
    argument("b", metavar="B", help="the same, newer"),
    argument("--metric", action="append", default=[], metavar="NAME", help="only this one; may be repeated"),
    argument("--threshold", type=float, default=argparse.SUPPRESS, help="smallest relative change that matters"),
    argument("--level", type=float, default=argparse.SUPPRESS, help="familywise probability of a false alarm"),
    argument("--all", action="store_true", help="list inconclusive and unchanged metrics too"),
    argument("--json", type=Path, metavar="FILE", help="write the comparison there too"),
    argument("--page", type=Path, metavar="FILE", help="write a page with both sets next to each other, as FILE.html"),
    keys={"reports": f"FOLDER   of nightly runs (default: {NIGHTLY_FOLDER})"},
)
def main(arguments: Arguments) -> int:
    from suite.regression import comparison, format, record_sets
    from suite.regression.decide import ChangeRule

    folder = Path(arguments.value("reports", NIGHTLY_FOLDER))
    given = {name: value for name, value in vars(arguments).items() if name in ("threshold", "level")}
    for name, value in given.items():
        if not 0 < value <= 0.5:
            raise InvalidRequest(f"--{name} {value}", rule="above 0, at most 0.5", legal=f"--{name} 0.01")
    for name, file in (("--json", arguments.json), ("--page", arguments.page)):
        if file:
            check_file(file, name)
    rule = ChangeRule(metrics=tuple(arguments.metric), **given)
    a, b = (record_sets.read(name, folder) for name in (arguments.a, arguments.b))
    result = comparison.compare(a, b, rule)
    if arguments.json:
        write_atomically(arguments.json, json.dumps(format.as_data(result), indent=1).encode())
    if arguments.page:
        from suite.regression import page

        page.write_comparison(arguments.page, a, b, result, rule)
    print(format.text(result, everything=arguments.all))
    return int(result.exit)
