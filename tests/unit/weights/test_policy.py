"""Prediction distance at every depth and in every epoch."""

from __future__ import annotations

import pytest

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.op import FlushInterval, Kind
from suite.weights import Latest, Predict
from tests.support.ledgers import DEPTHS, entries, epochs, follow
from tests.support.refusals import refused


@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("stages", DEPTHS)
def test_the_count_in_flight_is_never_wrong(stages: int, every: int) -> None:
    """While the pipeline fills, when it is full, as it drains, and all again in a second epoch; a short last group."""
    for interval in epochs(2 * stages + 3, every):
        for ledger in follow(Predict("inflight"), stages, interval, exact=True):
            assert {entry.staleness for entry in ledger.entries} == {0}
            assert {entry.read.predict_steps for entry in entries(ledger, Kind.BACKWARD)} == {0}


@pytest.mark.parametrize("stages", DEPTHS)
def test_printed_version_count_holds_in_a_full_pipeline(stages: int) -> None:
    for interval in epochs(2 * stages + 3, 1):
        for stage, ledger in enumerate(follow(Predict(), stages, interval, exact=True)):
            forwards, between = entries(ledger, Kind.FORWARD), stages - 1 - stage
            assert {entry.read.predict_steps for entry in forwards} == {between}
            missed = [entry.op.index - interval.first - between for entry in forwards]
            assert [entry.staleness for entry in forwards] == [min(0, short) for short in missed]
            assert {entry.staleness for entry in entries(ledger, Kind.BACKWARD)} == {0}
            assert ledger.peak == (2 if between else 1)


@pytest.mark.parametrize("stages", DEPTHS)
def test_the_authors_count_is_one_too_many_everywhere(stages: int) -> None:
    for stage, ledger in enumerate(follow(Predict("authors"), stages, FlushInterval(0, 2 * stages + 3, 1, 0))):
        assert {entry.read.predict_steps for entry in entries(ledger, Kind.FORWARD)} == {stages - stage}
        assert [entry.staleness for entry in entries(ledger, Kind.FORWARD)][stages:] == [-1] * (stages + 3)
        assert {entry.staleness for entry in entries(ledger, Kind.BACKWARD)} == {0}
        assert ledger.peak == 2


@pytest.mark.parametrize("graph", ["recompute", "swap", "keep"])
def test_only_a_graph_that_is_kept_holds_what_was_predicted(graph: str) -> None:
    """At D = 4 a kept graph holds the predicted weights of every forward pass in flight in addition to the newest."""
    ledgers = follow(Predict("inflight", graph), 4, FlushInterval(0, 12, 1, 0))
    assert [ledger.peak for ledger in ledgers] == ([5, 4, 3, 1] if graph == "keep" else [2, 2, 2, 1])
    for ledger in ledgers:
        assert {entry.read.backward_mode for entry in ledger.entries} == {graph}
        assert len(entries(ledger, Kind.BACKWARD)) == (0 if graph == "keep" else 12)


@pytest.mark.parametrize("policy", [Predict(), Predict("inflight"), Latest("recompute")], ids=str)
def test_one_stage_trains_serially(policy: Predict | Latest) -> None:
    (ledger,) = follow(policy, 1, FlushInterval(3, 6, 1, 3))
    assert [(entry.read.version, entry.read.predict_steps) for entry in ledger.entries] == [
        (n // 2 + 3, 0) for n in range(12)
    ]
    assert ledger.peak == 1


def test_what_has_no_count_is_refused() -> None:
    for s in ("paper", "authors", "inflight"):
        with refused(
            InvalidRequest,
            "update_interval",
            subject="with a flush (update_interval=None)",
            legal="update_interval=1, or weights=Latest()",
        ):
            Predict(s).check(4, None)
        Predict(s).check(4, 1)
    for s in ("paper", "authors"):
        with refused(
            InvalidRequest, "update_interval", 2, subject=f"s={s}", legal='update_interval=1, or s="inflight"'
        ):
            Predict(s).check(4, 2)
    Predict("inflight").check(4, 7)
    with refused(
        UnknownName, "rule for the number of predicted updates", "in_flight", legal="did you mean 'inflight'?"
    ):
        Predict("in_flight")
    with refused(UnknownName, "backward graph", "recomputed", legal="did you mean 'recompute'?"):
        Predict(graph="recomputed")
    assert Predict.predicts
    assert not Predict.smoothed
