"""Decides the command line that compares two sets of records.

    python -m suite.compare reports.old reports --metric batch_time
    python -m suite.compare 2026-11-21 2026-11-22 --json changes.json

A and B are reports folders, folders of those (several records of one run tell times apart, one does not), folders of
records, single records or names of nights. Ends with 0 where nothing got worse,
4 where something did, 5 where nothing could be compared or decided, 2 where there is nothing to compare.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from suite.bench.interrupt import answered
from suite.compare import changes, metrics, sets, show, statistics
from suite.core.errors import Refused, SuiteError
from suite.core.exits import Exit
from suite.core.files import write_atomically


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m suite.compare", description="What B does worse or better than A.")
    parser.add_argument("a", metavar="A", help="a reports folder, a folder of records, a record or a night")
    parser.add_argument("b", metavar="B")
    parser.add_argument("--metric", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    parser.add_argument(
        "--threshold", type=float, default=metrics.THRESHOLD, help="smallest relative change that matters (%(default)s)"
    )
    parser.add_argument(
        "--level", type=float, default=statistics.LEVEL, help="chance of any false alarm, after Holm (%(default)s)"
    )
    parser.add_argument("--raw", action="store_true", help="times as they are, not by the nights' reference workload")
    parser.add_argument("--all", action="store_true", help="also what is undecided or unchanged")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the comparison there too")
    parser.add_argument("--nights", type=Path, default=sets.NIGHTS, help="where nights lie (%(default)s)")
    options = parser.parse_args(arguments)
    try:
        rule = _rule(options)
        found = changes.compare(sets.read(options.a, options.nights), sets.read(options.b, options.nights), rule)
        if options.json:
            write_atomically(options.json, show.as_json(found).encode())
    except (OSError, SuiteError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return int(Exit.NOTHING)
    print(show.text(found, everything=options.all))
    return int(found.exit)


def _rule(options: argparse.Namespace) -> metrics.Rule:
    for name, most in (("threshold", 10.0), ("level", 0.5)):
        value = getattr(options, name)
        if not 0 < value <= most:
            raise Refused(f"--{name} {value}", rule=f"above 0, at most {most:g}", legal=f"--{name} 0.01")
    return metrics.Rule(options.threshold, options.level, tuple(options.metric), False if options.raw else None)


if __name__ == "__main__":
    sys.exit(answered(main, sys.argv[1:]))
