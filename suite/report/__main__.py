"""Decides the command line of the report: `python -m suite.report [--reports DIR]` prints the page's path."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from suite.core.errors import SuiteError
from suite.report import write_report


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m suite.report", description="Records to reports/index.html.")
    parser.add_argument(
        "--reports", type=Path, default=Path("reports"), help="folder of the records (default: reports)"
    )
    options = parser.parse_args(arguments)
    try:
        print(write_report(options.reports))
    except (OSError, SuiteError) as error:
        print(f"no report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
