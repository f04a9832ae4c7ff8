"""Executor of the formulas of one paper: every answer that needs no run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suite.config.run import RunConfig
from suite.core.claim import Claim, Evidence, Settings
from suite.core.errors import UnknownName
from suite.core.protocols import ExecutorResult
from suite.core.record import Metric, Source
from suite.papers.common import claims
from suite.papers.common.answer import Papers, answers_of_figure, metrics_of
from suite.papers.common.model_shapes import ModelGroup, transformers
from suite.workload import Transformer

FIGURE = "formulas"  # of the rows that a formula answers


class FormulaExecutor:
    """The answers of `paper`. models: the shapes that answers may ask for, as configs of a model, by name."""

    def __init__(
        self,
        *,
        paper: str,
        models: Mapping[str, ModelGroup],
    ) -> None:
        self.paper = paper
        self.shapes = transformers(models)

    def check(self, config: RunConfig) -> None:
        papers = [claim.paper for claim, _ in answers_of_figure(claims.load(), FIGURE)]
        if self.paper not in papers:
            raise UnknownName("paper with formulas", self.paper, dict.fromkeys(papers))

    def run(self, config: RunConfig) -> ExecutorResult:
        return ExecutorResult(
            Source.ANALYTIC, metrics=formula_metrics(self.paper, claims.load(), claims.settings(), self.shapes)
        )

    def printed(self) -> ExecutorResult:
        """The part of its record that shows the paper: answers from printed numbers."""
        published = claims.load()
        papers = Papers({claim.id: claim for claim in published}, claims.settings(), self.shapes)
        chosen_rows = [(claim, row) for claim, row in answers_of_figure(published, FIGURE) if claim.paper == self.paper]
        metrics = metrics_of([(claim, row) for claim, row in chosen_rows if row.evidence is Evidence.PRINTED], papers)
        return ExecutorResult(Source.ANALYTIC, metrics=metrics)


def formula_metrics(
    paper: str, published: Sequence[Claim], settings: Settings, shapes: Mapping[str, Transformer]
) -> dict[str, Metric]:
    """Our values of the claims of `paper` that a formula answers, in the order of the claims."""
    papers = Papers({claim.id: claim for claim in published}, settings, shapes)
    return metrics_of(
        [(claim, row) for claim, row in answers_of_figure(published, FIGURE) if claim.paper == paper], papers
    )
