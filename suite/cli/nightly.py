"""Command `suite nightly`, which `make nightly` calls.

    suite nightly                       # as conf/nightly.yaml says
    suite nightly repeats=20 baseline=2026-11-01
    suite nightly accept=2026-11-22     # what that night changed is meant: later ones compare with it
    suite nightly index=yes             # the pages of all nights again

Ends with 0 after a good night or the first one, 4 after a regression (named, with its commits), 1 where runs failed
that did not before, 2 where nothing ran, 5 where not all of the last good night was comparable, which makes this one
the next ones' baseline, or where a suspicion could neither be confirmed nor ruled out, which does not; 130 by Ctrl-C.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from suite.cli import Arguments, Command
from suite.core.exit_codes import Exit
from suite.core.files import check_folder

if TYPE_CHECKING:
    from suite.regression.nightly import run

KEYS = {
    "repeats": "N         repeats of each command line",
    "repeated": "[LINE,..]   command lines that are repeated",
    "once": "[LINE,..]   command lines that run once",
    "metrics": "[NAME,..]   metrics that are judged",
    "threshold": "X       smallest relative change that matters",
    "level": "X           chance of any false alarm",
    "pairs": "N           rounds of old and new code for a suspicion",
    "alone": "X           smallest change that counts without such rounds",
    "baseline": "NIGHT    a night or a folder to compare with as well",
    "keep": "N            nights whose repeats are kept",
    "deadline": "SECONDS  limit of one command line",
    "reports": "FOLDER    where nights lie (default: reports/nightly)",
    "accept": "NIGHT      what that night changed is meant: later ones compare with it",
    "index": "yes         only write the pages of all nights again",
}


def nightly(arguments: Arguments) -> int:
    from suite.core.resources import ROOT
    from suite.regression.nightly import page, run, settings

    options = [word for word in arguments.words if word.partition("=")[0] in ("accept", "index")]
    chosen = settings.read([word for word in arguments.words if word not in options])
    check_folder(chosen.folder, "reports")
    if accepted := arguments.value("accept", ""):
        print(run.accept(chosen, accepted))
        return int(Exit.OK)
    if options:
        print(page.write_index(chosen.folder))
        return int(Exit.OK)
    outcome = run.run(chosen, ROOT, lambda text: print(text, file=sys.stderr, flush=True))
    told(outcome)
    return int(outcome.exit)


def told(found: run.NightlyResult) -> None:
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


COMMAND = Command(
    "nightly",
    "Run the command lines of conf/nightly.yaml repeatedly, and compare them with the last good night.",
    nightly,
    "repeats=20 baseline=2026-11-01",
    keys=KEYS,
    resumes=True,
)
main = COMMAND.main
