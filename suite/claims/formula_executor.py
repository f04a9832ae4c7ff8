"""Executor for the formulas of one paper: all answers that need no run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from suite.claims import load
from suite.claims.answer import Papers, answers_of_figure, metrics_of
from suite.config.run import RunConfig
from suite.core.errors import UnknownName, refuse
from suite.core.protocols import ExecutorResult
from suite.core.record import Source
from suite.workload import Transformer

FIGURE = "formulas"  # `figure` of answers by a formula in claims.yaml


class ModelGroup(TypedDict):
    """Config group of a GPT."""

    shape: Transformer


def shapes_of(models: Mapping[str, ModelGroup]) -> dict[str, Transformer]:
    """Shape of each model. Raises InvalidRequest for a model without one."""
    for name, model in models.items():
        refuse([("shape" not in model, f"executor.models.{name}.shape is missing", "every model has a shape")])
    return {str(name): model["shape"] for name, model in models.items()}


class FormulaExecutor:
    """Computes the formula answers of `paper`.

    Args:
        paper: Name of the paper.
        models: Model configs by name, from which answers take shapes.
    """

    def __init__(
        self,
        *,
        paper: str,
        models: Mapping[str, ModelGroup],
    ) -> None:
        self.paper = paper
        self.shapes = shapes_of(models)

    def reads(self, config: RunConfig) -> Sequence[str]:
        return ()

    def check(self, config: RunConfig) -> None:
        papers = load.papers_answering(FIGURE)
        if self.paper not in papers:
            raise UnknownName("paper with formulas", self.paper, papers)

    def run(self, config: RunConfig) -> ExecutorResult:
        papers = Papers({claim.id: claim for claim in load.claims()}, load.settings(), self.shapes)
        answers = [each for each in answers_of_figure(load.claims(), FIGURE) if each[0].paper == self.paper]
        return ExecutorResult(Source.ANALYTIC, metrics=metrics_of(answers, papers))
