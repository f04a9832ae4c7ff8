"""Executor for one published figure: an answer to each claim, and panels with printed and simulated points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from suite.claims import load
from suite.claims.answer import answers_of_figure, metrics_of
from suite.claims.claim import Claim
from suite.claims.cluster_runs import Lab
from suite.claims.formula_executor import FIGURE
from suite.claims.model_shapes import ModelGroup, transformers
from suite.claims.panel import Draw, figures
from suite.claims.plans import published_plans
from suite.config.run import RunConfig
from suite.core.errors import UnknownName
from suite.core.protocols import ExecutorResult
from suite.core.record import Metric, Source
from suite.simulate.block_model import SystemModel
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.network.machine import Machine

LabType = TypeVar("LabType")
_LABS: dict[str, Lab] = {}


class FigureExecutor:
    """Simulates one figure of a paper.

    Args:
        figure: Name of the figure.
        machine: Modelled machine.
        efficiencies: Efficiency constants by name.
        systems: Modelled systems by name.
        models: Model configs by name, from which answers take shapes.
    """

    def __init__(
        self,
        *,
        figure: str,
        machine: Machine,
        efficiencies: Mapping[str, Efficiency],
        systems: Mapping[str, SystemModel],
        models: Mapping[str, ModelGroup],
    ) -> None:
        self.figure = figure
        self.lab = shared_lab(_LABS, Lab, machine, efficiencies, systems, transformers(models))

    def reads(self, config: RunConfig) -> Sequence[str]:
        return ()

    def check(self, config: RunConfig) -> None:
        own = {path.parent.name for path in load.FOLDER.glob("*/figure_executor.py")}  # papers with another lab
        find_figure(self.figure, [paper for paper in load.papers() if paper not in own])

    def run(self, config: RunConfig) -> ExecutorResult:
        paper, _, _ = find_figure(self.figure)
        published = published_plans().get(paper, {})
        efficiency = self.lab.efficiencies.get(published.get("efficiency", ""))
        calibrated_on = efficiency.calibrated_on if efficiency else ()
        plans = published.get("scaling", {})
        groups = [published.get("study", {}).get("chosen", ()), *plans.get("chosen", {}).values()]
        reasons = [f"{name}: {reason}" for name, reason in efficiency.reasons.items()] if efficiency else []
        return figure_result(
            self.figure,
            self.lab,
            Source.SIMULATED,
            notes=(*([f"plans: {plans['evidence']}"] if plans else []), *reasons),
            calibrated_on=tuple(dict.fromkeys((*calibrated_on, *chain(*groups)))),
        )


def shared_lab(known: dict[str, LabType], kind: Callable[..., LabType], *parts: Any) -> LabType:
    """Instance of `kind` built from `parts`; equal parts give the same instance within the process.

    The figures of one experiment thus share simulated runs and graphs.
    """
    return known.setdefault(repr(parts), kind(*parts))


def figure_result(
    figure: str, lab: Any, source: Source, *, notes: Sequence[str], calibrated_on: Sequence[str]
) -> ExecutorResult:
    """Answers and panels of a figure.

    Args:
        figure: Name of the figure.
        lab: Source of simulated runs or graphs for the answers.
        source: Source of the record.
        notes: Notes of the record.
        calibrated_on: Ids of the claims to which constants were fitted.
    """
    paper, display, draw = find_figure(figure)
    known = {claim.id: claim for claim in load.claims()}
    return ExecutorResult(
        source,
        metrics=figure_metrics(figure, known, lab),
        panels=[panel.shown(paper, display, known, calibrated_on) for panel in draw(lab, known)],
        notes=tuple(notes),
        calibrated_on=tuple(calibrated_on),
    )


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
