"""Decides what a simulated figure leaves in a record: an answer per claim, and the paper's points beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from suite import claims
from suite.analytic.question import Question
from suite.clusters import (  # noqa: F401 (they enter figures)
    axonn,
    axonn_scaling,
    counted,
    pipeoptim,
    pipeoptim_memory,
    samo,
    samo_convnets,
    samo_states,
    scaling,
    small,
    small_pipeoptim,
    small_pipeoptim_weights,
    small_samo,
    variants,
)
from suite.clusters.figure import Figure, Panel, find
from suite.clusters.lab import Lab, published_plans
from suite.config.run import RunConfig
from suite.core.claim import Claim
from suite.core.protocols import Carried, Schedule, WeightPolicy
from suite.core.record import Metric, Source
from suite.simulate.machine import Machine
from suite.simulate.plan import Modelled
from suite.simulate.stack import Stack
from suite.workload.shapes import transformers

CURVES = ("ours", "paper", "null")
_LABS: dict[str, Lab] = {}


class Published:
    """One figure of a paper, simulated. models: shapes as configs of a model, by name; stacks: by paper; systems: those
    that are modelled, by name; orders, policies: schedules and weight policies that answers compare, by name."""

    def __init__(
        self,
        *,
        figure: str,
        machine: Machine,
        stacks: Mapping[str, Stack],
        systems: Mapping[str, Modelled],
        models: Mapping[str, Mapping[str, Any]],
        orders: Mapping[str, Schedule] | None = None,
        policies: Mapping[str, WeightPolicy] | None = None,
        name: str = "published",
        label: str = "",
        sources: Sequence[str] = (),
    ) -> None:
        self.figure = figure
        shapes = transformers(models)
        # figures of one experiment share their runs: equal parts are one lab, as long as this process lives
        parts = machine, stacks, systems, shapes, orders or {}, policies or {}
        self.lab = _LABS.setdefault(repr(parts), Lab(*parts))

    def check(self, config: RunConfig) -> None:
        find(self.figure)

    def run(self, config: RunConfig) -> Carried:
        found = find(self.figure)
        published = {claim.id: claim for claim in claims.load()}
        stack = self.lab.stacks.get(found.paper)
        panels = found.panels(self.lab, published)
        plans = published_plans().get(found.paper, {}).get("scaling", {})
        reasons = [f"{name}: {reason}" for name, reason in stack.reasons.items()] if stack else []
        return Carried(
            Source.SIMULATED,
            metrics=metrics(found, published, self.lab),
            series=series(panels),
            notes=(*([f"plans: {plans['evidence']}"] if plans else []), *reasons),
            calibrated_on=tuple(dict.fromkeys((*(stack.calibrated_on if stack else ()), *plans.get("chosen", ())))),
        )


def metrics(figure: Figure, published: Mapping[str, Claim], lab: Any) -> dict[str, Metric]:
    """Our values of the figure's claims, in the order of the claims; `lab`: what its answers are asked with."""
    known = set(figure.answers.ids())
    asked = [Question.of(claim) for name, claim in published.items() if name in known]
    found = {question.id: figure.answers.answer(question, lab) for question in asked}
    return {name: Metric(ours.unit, "", ours.values, ours.note) for name, ours in found.items()}


def series(panels: Sequence[Panel]) -> dict[str, list[float]]:
    """The panels as a record's series: 'title|unit|axis: x1,x2,...|curve|system'."""
    found: dict[str, list[float]] = {}
    for panel in panels:
        head = f"{panel.title}|{panel.unit}|{f'{panel.axis}: ' if panel.axis else ''}{','.join(panel.x)}"
        for curve in CURVES:
            for system, values in getattr(panel, curve).items():
                found[f"{head}|{curve}|{system}"] = [float(value) for value in values]
        for system, index in panel.calibrated:
            found.setdefault(f"{head}|calibrated|{system}", []).append(float(index))
    return found
