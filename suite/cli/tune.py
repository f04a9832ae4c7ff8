"""Command `suite tune`: find the fastest plan of each system on a given number of devices.

    suite tune system=axonn,deepspeed_3d model=gpt_tiny tune.devices=2
    suite tune system=axonn machine=h200 launch.device=cuda tune.devices=8 tune.candidates=6

It prints a line per plan and writes the selected plan to reports/tuned/, for `suite run @FILE`. Exit status: 0 if
every system has a plan, 1 if some have none, 2 if no system has one.
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
    """The systems in `system=a,b`, and the other overrides."""
    system_names = [word.partition("=")[2] for word in overrides if word.partition("=")[0] == "system"]
    rest = [word for word in overrides if word.partition("=")[0] != "system"]
    return (system_names[-1] if system_names else "axonn").split(","), rest


def with_machine(system: str, overrides: Sequence[str]) -> list[str]:
    """The overrides, with machine=local unless they name a machine. Measures this machine if no measurement exists."""
    from suite.config.compose import resolve
    from suite.doctor.finding import CheckFailed
    from suite.doctor.measure import FILE, measure

    folder = check_folder(Path(resolve([f"system={system}", *overrides]).reports), "reports")
    if any(word.partition("=")[0] == "machine" for word in overrides):
        return list(overrides)
    if not (folder / FILE).exists():
        try:
            print(f"this machine: {measure(folder)}", flush=True)
        except CheckFailed as failure:
            print(f"this machine is not measured: {failure.reason}; {failure.remedy}", file=sys.stderr)
    return ["machine=local", *overrides]


def command(arguments: Arguments) -> int:
    from suite.runner.tune import report_lines, run_line, tune, write_plan

    codes = []
    system_names, rest = systems(arguments.words)
    overrides = with_machine(system_names[0], rest)
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
    "Find the fastest grid and microbatch of each system on N devices.",
    command,
    "system=axonn,deepspeed_3d model=gpt_tiny tune.devices=2",
    keys={
        "system": "NAME,NAME         systems to tune (default: axonn)",
        "tune.devices": "N           ranks of every plan (default: 2)",
        "tune.candidates": "N        plans to measure (default: 4)",
        "tune.rounds": "N            rounds per plan (default: 5)",
        "tune.batches": "N           timed batches per round (default: 4)",
        "reports": "FOLDER           records, and plans in FOLDER/tuned (default: reports)",
    },
    config=True,
    resumes=True,
)
main = COMMAND.main
