"""Command `suite profile-split`: time each layer alone, and divide the layers by PipeDream's rule.

    suite profile-split model=vgg_narrow data=digits grid.inter=4
    suite run model=vgg_narrow data=digits grid.inter=4 split=reports/profiles/vgg_narrow-2.json

The profile contains the bandwidth between two devices of a node of `machine`. The command prints the split into
grid.inter stages with grid.data replicas each, and PipeDream's best plan for the same number of devices. In the best
plan, stages may have different numbers of replicas; the suite cannot run such a plan. The profile is written to
reports/profiles/, for the key `split`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from suite.cli import Arguments, Command
from suite.core.errors import Unsupported
from suite.core.exit_codes import Exit
from suite.core.files import check_folder
from suite.core.units import si
from suite.core.words import override

if TYPE_CHECKING:
    from suite.engine.profile import NetworkProfile
    from suite.workload.pipedream_split import DevicePartition


def table(profile: NetworkProfile) -> Iterator[str]:
    """A heading, and a line per layer with its times and sizes."""
    yield f"{profile.model}, microbatches of {profile.microbatch}, {si(profile.bandwidth, 'B/s')} between devices"
    for number, layer in enumerate(profile.layers):
        times = f"forward {si(layer.forward, 's')}, backward {si(layer.backward, 's')}"
        sizes = f"passes on {si(layer.output, 'B')}, weights {si(layer.weights, 'B')}"
        yield f"  {number:3} {layer.name}: {times}, {sizes}"


def plan_line(name: str, plan: DevicePartition) -> str:
    """A plan in one line: layers and replicas of each stage, and the seconds of its slowest stage."""
    stages = ", ".join(f"{s.layers.start}-{s.layers.stop - 1} on {s.replicas}" for s in plan.stages)
    return f"{name}: layers {stages}; slowest {si(plan.slowest, 's')}"


def profile_split(arguments: Arguments) -> int:
    from suite.config import checks
    from suite.config.compose import composed
    from suite.engine.profile import profile_layers
    from suite.workload.pipedream_split import any_replicas, equal

    data = composed(arguments.words)
    config, machine = checks.checked_run(data), checks.checked(checks.Profiling, data).machine.build()
    folder = check_folder(Path(config.reports) / "profiles", "reports")
    grid = config.grid.build()
    profile = profile_layers(config, bandwidth=machine.within.bandwidth)
    print("\n".join(table(profile)))
    print(plan_line(f"{grid.inter} stages of {grid.data}", equal(profile.profile, grid.inter, grid.data)))
    best = any_replicas(profile.profile, grid.inter * grid.data)
    print(plan_line(f"any plan for {grid.inter * grid.data} devices", best))
    try:
        best.runnable()
    except Unsupported as error:
        print(f"refused: {error}")
    file = folder / f"{profile.model}-{profile.microbatch}.json"
    profile.write(file)
    print(f"  {shlex.quote(override('split', file))}")
    return Exit.OK


COMMAND = Command(
    "profile-split",
    "Time each layer, and divide the layers over stages by PipeDream's rule.",
    profile_split,
    "model=vgg_narrow data=digits grid.inter=4",
    keys={"reports": "FOLDER   the profile is written to FOLDER/profiles (default: reports)"},
    config=True,
)
main = COMMAND.main
