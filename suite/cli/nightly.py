"""Command `suite nightly`, which `make nightly` calls.

    suite nightly                       # with the settings of conf/nightly.yaml
    suite nightly repeats=20 baseline=2026-11-01
    suite nightly accept=2026-11-22     # accept this run as the baseline of later runs: its changes are intended
    suite nightly index=yes             # write the pages of all nightly runs again

Exit status:
  0    the run passed, or it is the first run
  1    command lines failed that do not fail in the baseline
  2    nothing ran
  4    a regression
  5    a candidate regression is inconclusive, or the baseline was reset because part of it was not comparable
  130  interrupted by Ctrl-C
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from suite.cli import Arguments, command
from suite.cli.command import CONF
from suite.core.exit_codes import Exit
from suite.core.files import check_folder

if TYPE_CHECKING:
    from suite.regression.nightly import run

SETTINGS = re.findall(r"^(\w+):[^#\n]*(?:# (.+))?$", (CONF / "nightly.yaml").read_text(), re.M)  # keys and comments
KEYS = {key: f"VALUE  {comment}" for key, comment in SETTINGS} | {
    "accept": "RUN  its changes are intended: later runs are compared with it",
    "index": "yes  only write the pages of all nightly runs again",
}


@command(
    "Repeat the runs of conf/nightly.yaml, and compare them with the baseline.",
    "repeats=20 baseline=2026-11-01",
    keys=KEYS,
    resumes=True,
)
def main(arguments: Arguments) -> int:
    from suite.config.nightly import read
    from suite.core.resources import ROOT
    from suite.regression.nightly import page, run

    actions = [word for word in arguments.words if word.partition("=")[0] in ("accept", "index")]
    settings = read([word for word in arguments.words if word not in actions])
    check_folder(settings.folder, "reports")
    if accepted := arguments.value("accept", ""):
        print(run.accept(settings, accepted))
        return int(Exit.OK)
    if actions:
        print(page.write_index(settings.folder))
        return int(Exit.OK)
    result = run.run(settings, ROOT, lambda text: print(text, file=sys.stderr, flush=True))
    print_result(result)
    return int(result.exit)


def print_result(result: run.NightlyResult) -> None:
    """Print the result. Regressions and the path of the page come last, as mails often show the end of the output."""
    night = result.night
    for text in night.notes:
        print(f"note: {text}")
    if night.status == "first":
        print("the first nightly run: there is no baseline")
    compared = f", compared with {night.base}" if night.base else ""
    print(f"nightly run {night.name} at {night.commit or 'no commit'}: {night.status}{compared}")
    for text in night.regressions:
        print(f"REGRESSION {text}")
    print(result.page)
