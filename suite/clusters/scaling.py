"""Decides what 13B would do beyond the published counts: percent of peak to 4096 GPUs, and where the time goes.

No paper printed these points, so no claim is answered: the same plans, stacks and constants go on, and what dominates
(bubble, point-to-point, collective) is read off the first stage as SAMO's Figure 8 reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suite.clusters.figure import NONE, Panel, figure, number
from suite.clusters.lab import Lab, Phases
from suite.clusters.samo import DENSE, SYSTEMS
from suite.core.claim import Claim

MODEL = "gpt3_13b"
GPUS = (256, 512, 1024, 2048, 4096)
SHOWN = ("axonn", "axonn_samo")


def shares(lab: Lab, system: str, gpus: int) -> dict[str, float]:
    """Percent of the batch by phase, of the first stage."""
    found = Phases.of(lab.samo(MODEL, system, gpus, traced=True))
    parts = {
        "compute": found.compute,
        "bubble": found.bubble,
        "point-to-point": found.point_to_point,
        "collective": found.collective,
    }
    return {name: 100 * value / found.total for name, value in parts.items()}


def _scaling(lab: Lab, claims: Mapping[str, Claim]) -> Sequence[Panel]:
    def ours(system: str) -> str:
        return DENSE if system == "axonn" else system

    names = [str(gpus) for gpus in GPUS]
    percent = {s: [lab.samo(MODEL, ours(s), gpus).percent_of_peak for gpus in GPUS] for s in SYSTEMS}
    paper = {
        s: [number(claims, f"samo.table2.{s}.gpus_{gpus}") if gpus < 4096 else NONE for gpus in GPUS] for s in SYSTEMS
    }
    panels = [Panel("Percent of peak of 13B to 4096 GPUs", "percent", names, percent, paper, axis="GPUs")]
    for system in SHOWN:
        found = [shares(lab, ours(system), gpus) for gpus in GPUS]
        panels.append(
            Panel(
                f"Where a batch goes, {system}",
                "percent",
                names,
                {phase: [one[phase] for one in found] for phase in found[0]},
                axis="GPUs",
            )
        )
    return panels


scaling = figure("samo_scaling", "beyond Table II", _scaling)
