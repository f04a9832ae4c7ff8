"""Extrapolation of the 13B model to 4096 GPUs: percent of peak and breakdown of the batch time.

No paper prints these points, so they answer no claim. Plans and constants stay the same. The breakdown into bubble,
point-to-point and collective time applies to the first stage, as in SAMO's Figure 8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suite.claims.claim import Claim
from suite.claims.cluster_runs import Lab, Phases
from suite.claims.panel import NONE, published_number
from suite.core.figure import FigurePanel
from suite.papers.samo.figures import DENSE, SYSTEMS

MODEL = "gpt3_13b"
GPUS = (256, 512, 1024, 2048, 4096)
SHOWN = ("axonn", "axonn_samo")


def shares(lab: Lab, system: str, gpus: int) -> dict[str, float]:
    """Percent of the batch time by phase of the first stage."""
    phase_times = Phases.of(lab.samo(MODEL, system, gpus, traced=True))
    parts = {
        "compute": phase_times.compute,
        "bubble": phase_times.bubble,
        "point-to-point": phase_times.point_to_point,
        "collective": phase_times.collective,
    }
    return {name: 100 * value / phase_times.total for name, value in parts.items()}


def scaling_panels(lab: Lab, claims: Mapping[str, Claim]) -> Sequence[FigurePanel]:
    def ours(system: str) -> str:
        return DENSE if system == "axonn" else system

    names = [str(gpus) for gpus in GPUS]
    percent = {s: [lab.samo(MODEL, ours(s), gpus).percent_of_peak for gpus in GPUS] for s in SYSTEMS}
    paper = {
        s: [published_number(claims, f"samo.table2.{s}.gpus_{gpus}") if gpus < 4096 else NONE for gpus in GPUS]
        for s in SYSTEMS
    }
    title = "Percent of peak of 13B to 4096 GPUs"
    panels = [FigurePanel(title, "percent", names, percent, paper, axis="GPUs", quantity="share of peak")]
    for system in SHOWN:
        phase_times = [shares(lab, ours(system), gpus) for gpus in GPUS]
        panels.append(
            FigurePanel(
                f"Where a batch goes, {system}",
                "percent",
                names,
                {phase: [percents[phase] for percents in phase_times] for phase in phase_times[0]},
                axis="GPUs",
                quantity="share of a batch",
            )
        )
    return panels
