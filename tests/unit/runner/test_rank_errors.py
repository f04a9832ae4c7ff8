"""Outcome of a run in which a rank raises an exception."""

from __future__ import annotations

import pytest

from suite.core.errors import Diverged, InvalidRequest, MissingDependency, PeerEnded, RankError, Unsupported
from suite.core.record import Outcome
from suite.runner.ranks.rank import follows_from_peer, outcome_of_error


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Diverged("16 batches in a row overflow"), Outcome.DIVERGED),
        (InvalidRequest("no"), Outcome.UNSUPPORTED),
        (Unsupported("no"), Outcome.UNSUPPORTED),
        (MissingDependency("x", "pip install x"), Outcome.MISSING_DEPENDENCY),
        (ModuleNotFoundError("x"), Outcome.MISSING_DEPENDENCY),
        (MemoryError(), Outcome.OOM),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), Outcome.OOM),
        (ValueError("wrong"), Outcome.FAILED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exception_type_decides_the_outcome(error: BaseException, outcome: Outcome) -> None:
    assert outcome_of_error(error) is outcome


@pytest.mark.parametrize(
    ("error", "follows"),
    [
        (PeerEnded("a collective broke: Application timeout caused pair closure"), True),
        (RuntimeError("Connection reset by peer"), True),
        (RankError("rank 0 closes with values unreceived"), False),
        (ValueError("wrong"), False),
    ],
)
def test_lost_connection_follows_from_a_peer(error: BaseException, follows: bool) -> None:
    assert follows_from_peer(error) is follows
