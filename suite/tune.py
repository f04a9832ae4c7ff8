"""Decides what `python -m suite.tune` does: finds for each system the plan that suits it on as many devices.

    python -m suite.tune system=axonn,deepspeed_3d model=gpt_tiny tune.devices=2
    python -m suite.tune system=axonn machine=h200 launch.device=cuda tune.devices=8 tune.candidates=6

Says a line per plan and leaves its overrides in reports/tuned/, for `python -m suite @FILE`. Ends with 0 when every
system has a plan, 1 when some have none, 2 when nothing could be tuned.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from suite.bench.experiment import resolve
from suite.bench.interrupt import ending_ranks
from suite.bench.progress import Progress
from suite.bench.tune import lines, tune, write
from suite.core.errors import SuiteError
from suite.doctor.finding import Ill
from suite.doctor.measure import FILE, measure


def systems(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """The systems that `system=a,b` names, and the other overrides."""
    named = [override.partition("=")[2] for override in overrides if override.partition("=")[0] == "system"]
    rest = [override for override in overrides if override.partition("=")[0] != "system"]
    return (named[-1] if named else "axonn").split(","), rest


def here(system: str, overrides: Sequence[str]) -> list[str]:
    """The overrides, with this machine for predictions unless they name another; it is measured where it was not."""
    if any(override.partition("=")[0] == "machine" for override in overrides):
        return list(overrides)
    folder = Path(resolve([f"system={system}", *overrides])["reports"])
    if not (folder / FILE).exists():
        try:
            print(f"this machine: {measure(folder)}", flush=True)
        except Ill as ill:
            print(f"this machine is not measured: {ill.why}; {ill.do}", file=sys.stderr)
    return ["machine=local", *overrides]


def main(arguments: Sequence[str]) -> int:
    codes = []
    try:
        named, rest = systems(arguments)
        overrides = here(named[0], rest)
        for system in named:
            with ending_ranks():
                tuned = tune(system, overrides, Progress(40.0))
            print("\n".join(lines(tuned)), flush=True)
            file = write(tuned, overrides)
            if file is not None:
                print(f"  python -m suite @{file}", flush=True)
            codes.append(0 if file else 1)
    except SuiteError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    return 2 if all(codes) else max(codes)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
