"""Command `suite tune`: find the fastest plan of each system on a given number of devices.

    suite tune system=axonn,deepspeed_3d model=gpt_tiny tune.devices=2
    suite tune system=axonn machine=h200 launch.device=cuda tune.devices=8 tune.candidates=6

Says a line per plan and leaves its overrides in reports/tuned/, for `suite run @FILE`. Ends with 0 when every
system has a plan, 1 when some have none, 2 when nothing could be tuned.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from suite.cli import Arguments, Command
from suite.core.exit_codes import Exit
from suite.core.files import check_folder
from suite.runner.progress import Progress


def systems(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """The systems that `system=a,b` names, and the other overrides."""
    system_names = [word.partition("=")[2] for word in overrides if word.partition("=")[0] == "system"]
    rest = [word for word in overrides if word.partition("=")[0] != "system"]
    return (system_names[-1] if system_names else "axonn").split(","), rest


def here(system: str, overrides: Sequence[str]) -> list[str]:
    """The overrides, with this machine for predictions unless they name another; it is measured where it was not."""
    from suite.config.compose import resolve
    from suite.doctor.finding import CheckFailed
    from suite.doctor.measure import FILE, measure

    folder = check_folder(Path(resolve([f"system={system}", *overrides]).reports), "reports")
    if any(word.partition("=")[0] == "machine" for word in overrides):
        return list(overrides)
    if not (folder / FILE).exists():
        try:
            print(f"this machine: {measure(folder)}", flush=True)
        except CheckFailed as ill:
            print(f"this machine is not measured: {ill.why}; {ill.do}", file=sys.stderr)
    return ["machine=local", *overrides]


def command(arguments: Arguments) -> int:
    from suite.runner.tune import report_lines, run_line, tune, write_plan

    codes = []
    system_names, rest = systems(arguments.words)
    overrides = here(system_names[0], rest)
    for system in system_names:
        tuned = tune(system, overrides, Progress(40.0))
        print("\n".join(report_lines(tuned)), flush=True)
        file = write_plan(tuned, overrides)
        if file is not None:
            print(f"  {run_line(file, overrides)}", flush=True)
        codes.append(Exit.OK if file else Exit.SOME_FAILED)
    return Exit.NOTHING if all(codes) else max(codes)


COMMAND = Command(
    "tune",
    "Find for each system the grid and microbatch that suit it best on as many devices.",
    command,
    "system=axonn,deepspeed_3d model=gpt_tiny tune.devices=2",
    keys={
        "system": "NAME,NAME         systems to tune (default: axonn)",
        "tune.devices": "N           ranks of every plan (default: 2)",
        "tune.candidates": "N        plans that are measured (default: 4)",
        "tune.rounds": "N             turns of each plan (default: 5)",
        "tune.batches": "N           samples per turn (default: 4)",
        "reports": "FOLDER           records, and plans in FOLDER/tuned (default: reports)",
    },
    config=True,
    resumes=True,
)
main = COMMAND.main
