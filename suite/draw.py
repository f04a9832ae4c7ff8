"""Decides what `python -m suite.draw` does: prints the schedule of a config as a text grid.

python -m suite.draw system=gpipe grid.inter=4 draw.microbatches=4
python -m suite.draw system=axonn grid.inter=3 draw.microbatches=5 schedule.prefer=forward
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from suite.bench.experiment import resolve
from suite.core.build import build
from suite.core.errors import SuiteError
from suite.core.op import Kind, Op, Work
from suite.schedule.check import check
from suite.schedule.draw import chart


def draw(overrides: Sequence[str]) -> str:
    """The grid, its makespan and idle times, and what each stage holds at most."""
    config = resolve(overrides)
    plan = config["draw"]
    ticks = {Kind.FORWARD: plan["forward"], Kind.BACKWARD: plan["backward"]}

    def cost(op: Op) -> float:
        return float(ticks.get(op.kind, 0))

    stages = config["grid"]["inter"]
    timeline = check(build(config["schedule"]), stages, Work(0, plan["microbatches"], None, 0), cost=cost)
    peaks = ", ".join(map(str, timeline.peak))
    return f"{chart(timeline.slots, stages)}\nactivations alive per stage at most {peaks}"


def main(overrides: Sequence[str]) -> int:
    try:
        print(draw(overrides))
    except SuiteError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
