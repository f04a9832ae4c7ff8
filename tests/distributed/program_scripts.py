"""Program of two MPI ranks for tests/laws/test_scripts.py: scripts of some kinds on two stages and on two replicas."""

from __future__ import annotations

import json
import sys
import warnings

from suite.comm.world import init_world
from suite.core.grid import Grid
from suite.engine.process_setup import prepare
from tests.support.user_scripts import KINDS


def main(kinds: list[str]) -> None:
    prepare(1)
    warnings.simplefilter("ignore")
    for kind in kinds:
        script, refusing, _ = KINDS[kind]
        for name, grid in (("2x1", Grid(inter=2)), ("1x2", Grid(data=2))):
            if name not in refusing:
                print(json.dumps((kind, name, script.verdict(grid))))
    init_world().close()


if __name__ == "__main__":
    main(sys.argv[1:])
