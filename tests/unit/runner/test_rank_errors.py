"""Outcome of a run in which a rank raises an exception."""

from __future__ import annotations

from suite.core.errors import Diverged, InvalidRequest, MissingDependency, PeerEnded, RankError, Unsupported
from suite.core.record import Outcome
from suite.runner.ranks.rank import follows_from_peer, outcome_of_error


def test_exception_type_decides_the_outcome() -> None:
    for error, outcome in (
        (Diverged("16 batches in a row overflow"), Outcome.DIVERGED),
        (InvalidRequest("no"), Outcome.UNSUPPORTED),
        (Unsupported("no"), Outcome.UNSUPPORTED),
        (MissingDependency("x", "pip install x"), Outcome.MISSING_DEPENDENCY),
        (ModuleNotFoundError("x"), Outcome.MISSING_DEPENDENCY),
        (MemoryError(), Outcome.OOM),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), Outcome.OOM),
        (ValueError("wrong"), Outcome.FAILED),
    ):
        assert outcome_of_error(error) is outcome, error


def test_lost_connection_follows_from_a_peer() -> None:
    for error in (PeerEnded("a collective broke"), RuntimeError("Connection reset by peer")):
        assert follows_from_peer(error)
    for error in (RankError("rank 0 closes with values unreceived"), ValueError("wrong")):
        assert not follows_from_peer(error)
