"""Decides what a run of the analytic executor leaves: every answer of one paper, under the name of its claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from suite import claims
from suite.analytic import costs, states, tables  # noqa: F401 (each enters its answers)
from suite.analytic.question import Papers, Question, answer, ids
from suite.config.run import RunConfig
from suite.core.claim import Claim
from suite.core.errors import UnknownName
from suite.core.protocols import Carried
from suite.core.record import Metric, Source
from suite.workload.shapes import transformers

PAPERS = tuple(dict.fromkeys(name.partition(".")[0] for name in ids()))


class Formulas:
    """The answers of `paper`. models: the shapes that answers may ask for, as configs of a model, by name."""

    def __init__(
        self,
        *,
        paper: str,
        models: Mapping[str, Mapping[str, Any]],
        name: str = "analytic",
        label: str = "",
        sources: Sequence[str] = (),
    ) -> None:
        self.paper = paper
        self.shapes = transformers(models)

    def check(self, config: RunConfig) -> None:
        if self.paper not in PAPERS:
            raise UnknownName("paper with formulas", self.paper, PAPERS)

    def run(self, config: RunConfig) -> Carried:
        return Carried(Source.ANALYTIC, metrics=metrics(self.paper, claims.load(), claims.settings(), self.shapes))


def metrics(
    paper: str, published: Sequence[Claim], settings: Mapping[str, Any], shapes: Mapping[str, Any]
) -> dict[str, Metric]:
    """Our values of the claims of `paper` that have an answer, in the order of the claims."""
    papers = Papers({claim.id: claim for claim in published}, settings, shapes)
    known = set(ids())
    asked = [Question.of(claim) for claim in published if claim.paper == paper and claim.id in known]
    found = {question.id: answer(question, papers) for question in asked}
    return {name: Metric(ours.unit, "", ours.values, ours.note) for name, ours in found.items()}
