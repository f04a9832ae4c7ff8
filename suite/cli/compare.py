"""Command `suite compare`: compare two sets of records.

    suite compare reports.old reports --metric batch_time
    suite compare 2026-11-21 2026-11-22 --json changes.json

A and B are reports folders, folders of those (several records of one run tell times apart, one does not), folders of
records, single records or names of nights. Ends with 0 where nothing got worse,
4 where something did, 5 where nothing could be compared or decided, 2 where there is nothing to compare.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from suite.cli import Arguments, Command
from suite.core.errors import InvalidRequest
from suite.core.files import check_file, write_atomically

if TYPE_CHECKING:
    from suite.regression.compare import metrics

NIGHTS = "reports/nightly"  # as suite.regression.nightly's reports=


def options(parser: argparse.ArgumentParser) -> None:
    from suite.regression.compare import metrics
    from suite.stats import inference

    parser.add_argument("a", metavar="A", help="a reports folder, a folder of records, a record or a night")
    parser.add_argument("b", metavar="B", help="the same, newer")
    parser.add_argument("--metric", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    parser.add_argument(
        "--threshold", type=float, default=metrics.THRESHOLD, help="smallest relative change that matters (%(default)s)"
    )
    parser.add_argument(
        "--level", type=float, default=inference.LEVEL, help="chance of any false alarm, after Holm (%(default)s)"
    )
    parser.add_argument("--raw", action="store_true", help="times as they are, not by the nights' reference workload")
    parser.add_argument("--all", action="store_true", help="also what is undecided or unchanged")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the comparison there too")


def compare(arguments: Arguments) -> int:
    from suite.regression.compare import changes, format, record_sets

    options, nights = arguments.options, Path(arguments.value("reports", NIGHTS))
    if options.json:
        check_file(options.json, "--json")
    rule = _rule(options)
    comparison = changes.compare(record_sets.read(options.a, nights), record_sets.read(options.b, nights), rule)
    if options.json:
        write_atomically(options.json, format.as_json(comparison).encode())
    print(format.text(comparison, everything=options.all))
    return int(comparison.exit)


def _rule(options: argparse.Namespace) -> metrics.ChangeRule:
    from suite.regression.compare import metrics

    for name, most in (("threshold", 10.0), ("level", 0.5)):
        value = getattr(options, name)
        if not 0 < value <= most:
            raise InvalidRequest(f"--{name} {value}", rule=f"above 0, at most {most:g}", legal=f"--{name} 0.01")
    return metrics.ChangeRule(options.threshold, options.level, tuple(options.metric), False if options.raw else None)


COMMAND = Command(
    "compare",
    "Print what the records of B do worse or better than those of A.",
    compare,
    "reports.old reports --metric batch_time",
    keys={"reports": f"FOLDER   where nights lie (default: {NIGHTS})"},
    options=options,
)
main = COMMAND.main
