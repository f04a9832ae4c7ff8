"""The labs of the published cluster runs, and the claims by id, made once per process."""

from __future__ import annotations

from functools import cache
from typing import Any

from suite.claims import load
from suite.claims.claim import Claim
from suite.claims.cluster_runs import Lab
from suite.claims.figure_executor import FigureExecutor, find_figure
from suite.config.compose import resolve
from suite.config.panels import FigurePanel


@cache
def lab(experiment: str = "samo_clusters") -> Lab:
    """The lab that the executor of an experiment answers with; AxoNN and SAMO share theirs."""
    executor = resolve([f"experiment={experiment}"]).executor.build()
    assert isinstance(executor, FigureExecutor)
    built: Any = executor.lab
    return built


@cache
def published() -> dict[str, Claim]:
    return {claim.id: claim for claim in load.claims()}


def panels(name: str, experiment: str = "samo_clusters") -> list[FigurePanel]:
    """Panels of a figure, as a record holds them."""
    paper, display, draw = find_figure(name)
    return [panel.shown(paper, display, ()) for panel in draw(lab(experiment), published())]


def cases_of(found: Any) -> list[list[Any]]:
    """Our values by case, of an answer function that returns them alone or with a note."""
    return [list(case) for case in (found[0] if isinstance(found, tuple) else found)]
