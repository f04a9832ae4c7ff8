"""Executor for one published figure: an answer to each claim, and panels with printed and simulated points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from suite.claims import load
from suite.claims.answer import answers_of_figure, metrics_of
from suite.claims.claim import Claim
from suite.claims.cluster_runs import Lab
from suite.claims.formula_executor import FIGURE, ModelGroup, shapes_of
from suite.claims.lab import BaseLab
from suite.claims.panel import Draw, figures
from suite.claims.plans import published_plans
from suite.config.run import RunConfig
from suite.core.errors import UnknownName
from suite.core.protocols import ExecutorResult
from suite.core.record import Metric, Source
from suite.simulate.block_model import SystemModel
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.network.machine import Machine

LABS: dict[str, BaseLab] = {}


class FigureExecutor:
    """Answers and panels of one figure of a paper.

    Attributes:
        figure: Name of the figure.
        lab: Source of the answers. Executors with equal arguments share it, and with it simulated runs and graphs.
        source: Source of the record.
    """

    source = Source.SIMULATED

    def __init__(self, figure: str, kind: Callable[..., BaseLab], *parts: Any) -> None:
        self.figure = figure
        self.lab = LABS.setdefault(repr((kind, parts)), kind(*parts))

    def reads(self, config: RunConfig) -> Sequence[str]:
        return ()

    def check(self, config: RunConfig) -> None:
        find_figure(self.figure, self.papers())

    def papers(self) -> Sequence[str]:
        """Papers whose figures this lab answers."""
        raise NotImplementedError

    def inputs(self, paper: str) -> tuple[list[str], list[str]]:
        """Notes on what the answers read, and ids of the claims to which it was fitted or by which it was chosen."""
        raise NotImplementedError

    def run(self, config: RunConfig) -> ExecutorResult:
        paper, display, draw = find_figure(self.figure)
        notes, fitted = self.inputs(paper)
        known = {claim.id: claim for claim in load.claims()}
        return ExecutorResult(
            self.source,
            metrics=figure_metrics(self.figure, known, self.lab),
            panels=[panel.shown(paper, display, fitted) for panel in draw(self.lab, known)],
            notes=tuple(notes),
            calibrated_on=tuple(dict.fromkeys(fitted)),
        )


def of_efficiency(efficiency: Efficiency | None) -> tuple[list[str], list[str]]:
    """Reasons for the constants of an efficiency, and ids of the claims to which they were fitted."""
    if efficiency is None:
        return [], []
    return [f"{name}: {reason}" for name, reason in efficiency.reasons.items()], [*efficiency.calibrated_on]


class ClusterFigureExecutor(FigureExecutor):
    """Simulates one figure of a paper on a cluster.

    Args:
        figure: Name of the figure.
        machine: Modelled machine.
        efficiencies: Efficiency constants by name.
        systems: Modelled systems by name.
        models: Model configs by name, from which answers take shapes.
    """

    lab: Lab

    def __init__(
        self,
        *,
        figure: str,
        machine: Machine,
        efficiencies: Mapping[str, Efficiency],
        systems: Mapping[str, SystemModel],
        models: Mapping[str, ModelGroup],
    ) -> None:
        super().__init__(figure, Lab, machine, efficiencies, systems, shapes_of(models))

    def papers(self) -> Sequence[str]:
        own = {path.parent.name for path in load.FOLDER.glob("*/figure_executor.py")}  # papers with another lab
        return [paper for paper in load.papers() if paper not in own]

    def inputs(self, paper: str) -> tuple[list[str], list[str]]:
        published = published_plans().get(paper, {})
        reasons, fitted = of_efficiency(self.lab.efficiencies.get(published.get("efficiency", "")))
        plans = published.get("scaling", {})
        groups = [published.get("study", {}).get("chosen", ()), *plans.get("chosen", {}).values()]
        return [*([f"plans: {plans['evidence']}"] if plans else []), *reasons], [*fitted, *chain(*groups)]


def find_figure(figure: str, papers: Sequence[str] = ()) -> tuple[str, str, Draw]:
    """Paper, published figure and panel function of a figure; a figure may have answers alone.

    Raises UnknownName if none of `papers`, by default all, has the figure."""
    rows = ((claim, row) for claim in load.claims() for row in claim.answers if row.figure not in ("", FIGURE))
    known: dict[str, tuple[str, str, Draw]] = {row.figure: (claim.paper, "", lambda *_: ()) for claim, row in rows}
    known |= figures()
    known = {name: one for name, one in known.items() if not papers or one[0] in papers}
    if figure not in known:
        raise UnknownName("simulated figure", figure, known)
    return known[figure]


def figure_metrics(figure: str, published: Mapping[str, Claim], lab: Any) -> dict[str, Metric]:
    """Our values of a figure's claims, in the order of the claims. `lab` is the source of the answers."""
    return metrics_of(answers_of_figure(published.values(), figure), lab)
