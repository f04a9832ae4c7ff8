"""Command `suite compare`: compare two sets of records.

    suite compare reports.old reports --metric batch_time
    suite compare 2026-11-21 2026-11-22 --json changes.json

A and B are reports folders, folders of reports folders, folders of records, single records or names of nightly runs.
A comparison of times requires several records per run. Exit status: 0 without a regression, 4 after a regression, 5 if
no metric could be compared or every comparison is inconclusive, 2 if A or B holds no records.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from suite.cli import Arguments, Command
from suite.core.errors import InvalidRequest
from suite.core.files import check_file, write_atomically

if TYPE_CHECKING:
    from suite.regression.decide import ChangeRule

NIGHTLY_FOLDER = "reports/nightly"  # default of `suite nightly reports=`


def options(parser: argparse.ArgumentParser) -> None:
    from suite.regression.decide import THRESHOLD
    from suite.stats.inference import LEVEL

    parser.add_argument("a", metavar="A", help="a reports folder, a folder of records, a record or a nightly run")
    parser.add_argument("b", metavar="B", help="the same, newer")
    parser.add_argument("--metric", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    parser.add_argument(
        "--threshold", type=float, default=THRESHOLD, help="smallest relative change that matters (%(default)s)"
    )
    parser.add_argument(
        "--level", type=float, default=LEVEL, help="familywise probability of a false alarm (%(default)s)"
    )
    parser.add_argument("--raw", action="store_true", help="do not scale times by the reference workload")
    parser.add_argument("--all", action="store_true", help="list inconclusive and unchanged metrics too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the comparison there too")


def compare(arguments: Arguments) -> int:
    from suite.regression import comparison, format, record_sets

    options, folder = arguments.options, Path(arguments.value("reports", NIGHTLY_FOLDER))
    if options.json:
        check_file(options.json, "--json")
    rule = _rule(options)
    a, b = (record_sets.read(name, folder) for name in (options.a, options.b))
    result = comparison.compare(a, b, rule)
    if options.json:
        write_atomically(options.json, format.as_json(result).encode())
    print(format.text(result, everything=options.all))
    return int(result.exit)


def _rule(options: argparse.Namespace) -> ChangeRule:
    from suite.regression.decide import ChangeRule

    for name, most in (("threshold", 10.0), ("level", 0.5)):
        value = getattr(options, name)
        if not 0 < value <= most:
            raise InvalidRequest(f"--{name} {value}", rule=f"above 0, at most {most:g}", legal=f"--{name} 0.01")
    return ChangeRule(options.threshold, options.level, tuple(options.metric), False if options.raw else None)


COMMAND = Command(
    "compare",
    "Compare two sets of records and list regressions.",
    compare,
    "reports.old reports --metric batch_time",
    keys={"reports": f"FOLDER   of nightly runs (default: {NIGHTLY_FOLDER})"},
    options=options,
)
main = COMMAND.main
