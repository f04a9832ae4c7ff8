"""The labs of the published cluster runs, and the claims by id, made once per process."""

from __future__ import annotations

from functools import cache

from suite.claims import load
from suite.claims.claim import Claim
from suite.claims.cluster_runs import Lab
from suite.claims.figure_executor import FigureExecutor
from suite.config.compose import resolve


@cache
def lab(experiment: str = "samo_clusters") -> Lab:
    """The lab that the executor of an experiment answers with; AxoNN and SAMO share theirs."""
    executor = resolve([f"experiment={experiment}"]).executor.build()
    assert isinstance(executor, FigureExecutor)
    return executor.lab


@cache
def published() -> dict[str, Claim]:
    return {claim.id: claim for claim in load.claims()}
