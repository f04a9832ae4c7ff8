"""Decides the command line of the night: `make nightly`.

    python -m suite.nightly                       # as conf/nightly.yaml says
    python -m suite.nightly repeats=20 baseline=2026-11-01
    python -m suite.nightly accept=2026-11-22     # what that night changed is meant: later ones compare with it
    python -m suite.nightly index=yes             # the pages of all nights again

Ends with 0 after a good night or the first one, 4 after a regression (named, with its commits), 1 where runs failed
that did not before, 2 where nothing ran, 5 where not all of the last good night was comparable, which makes this one
the next ones' baseline, or where a suspicion could neither be confirmed nor ruled out, which does not; 130 by Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from suite.bench.interrupt import answered, ending_ranks
from suite.bench.provenance import ROOT
from suite.core.errors import SuiteError
from suite.core.exits import Exit
from suite.nightly import night, page, settings


def main(arguments: Sequence[str]) -> int:
    if any(argument in ("-h", "--help") for argument in arguments):
        print(__doc__)
        return int(Exit.OK)
    asked = {key: value for key, _, value in (a.partition("=") for a in arguments) if key in ("accept", "index")}
    try:
        chosen = settings.read([a for a in arguments if a.partition("=")[0] not in asked])
        if "accept" in asked:
            print(night.accept(chosen, asked["accept"]))
            return int(Exit.OK)
        if "index" in asked:
            print(page.write_index(chosen.folder))
            return int(Exit.OK)
        with ending_ranks():
            found = night.run(chosen, ROOT, lambda text: print(text, file=sys.stderr, flush=True))
    except (OSError, SuiteError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return int(Exit.NOTHING)
    told(found)
    return int(found.exit)


def told(found: night.Night) -> None:
    """Regressions last but one, so that they are what a mail of the output ends with; then the page."""
    line = found.line
    for text in line["notes"]:
        print(f"note: {text}")
    if line["status"] == "first":
        print("the first night: there is none to compare with")
    compared = f", compared with {line['base']}" if line["base"] else ""
    print(f"night {found.name} at {line['commit'] or 'no commit'}: {line['status']}{compared}")
    for text in line["regressions"]:
        print(f"REGRESSION {text}")
    print(found.page)


if __name__ == "__main__":
    raise SystemExit(answered(main, sys.argv[1:]))
