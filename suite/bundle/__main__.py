"""Decides the command line of the archive for artifact evaluators.

    python -m suite.bundle                   # reports/ae-bundle-VERSION.zip, and its path
    python -m suite.bundle --check FILE      # every file is what the manifest says; nothing is unpacked

Ends with 0, or with 2 where there is no archive or it is not whole.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from suite.bench.interrupt import answered
from suite.bundle.archive import verify
from suite.bundle.make import doctor, make
from suite.core.errors import SuiteError
from suite.core.exits import Exit


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m suite.bundle", description="An archive for artifact evaluators.")
    parser.add_argument("--reports", type=Path, default=Path("reports"), help="folder of the records")
    parser.add_argument("--no-doctor", action="store_true", help="do not ask what works on this machine")
    parser.add_argument("--check", type=Path, metavar="FILE", help="verify an archive instead")
    options = parser.parse_args(arguments)
    try:
        if options.check:
            print(f"{verify(options.check)} files are what the manifest says")
        else:
            print(make(options.reports, () if options.no_doctor else doctor()))
    except (OSError, SuiteError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return Exit.NOTHING
    return Exit.OK


if __name__ == "__main__":
    sys.exit(answered(main, sys.argv[1:]))
