"""Prediction of SpecTrain: one version for both passes."""

from __future__ import annotations

import pytest

from baselines.spectrain import SpecTrain
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.op import FlushInterval, Kind
from tests.support.ledgers import DEPTHS, entries, epochs, follow
from tests.support.refusals import refused


def test_prediction_distance_equals_the_authors_on_four_stages() -> None:
    ledgers = follow(SpecTrain(), 4, FlushInterval(0, 12, 1, 0), exact=True)
    for kind, expected in ((Kind.FORWARD, [3, 2, 2, 1]), (Kind.BACKWARD, [0, 0, 1, 1])):
        steps = [{entry.read.predict_steps for entry in entries(ledger, kind)} for ledger in ledgers]
        assert steps == [{ahead} for ahead in expected]
    assert [ledger.peak for ledger in ledgers] == [2, 2, 2, 2]


@pytest.mark.parametrize("stages", DEPTHS)
def test_both_passes_predict_one_version_in_steady_state(stages: int) -> None:
    for interval in epochs(2 * stages + 3, 1):
        for stage, ledger in enumerate(follow(SpecTrain(), stages, interval, exact=True)):
            forwards, backwards = entries(ledger, Kind.FORWARD), entries(ledger, Kind.BACKWARD)
            for one, other in list(zip(forwards, backwards, strict=True))[stages - 1 - stage :]:
                assert one.read.version + one.read.predict_steps == other.read.version + other.read.predict_steps
                assert one.staleness == other.staleness == -(stage // 2)


def test_one_stage_trains_serially() -> None:
    (ledger,) = follow(SpecTrain(), 1, FlushInterval(0, 5, 1, 0))
    assert {(entry.read.predict_steps, entry.staleness) for entry in ledger.entries} == {(0, 0)}
    assert ledger.peak == 1


def test_what_its_count_does_not_hold_for_is_refused() -> None:
    SpecTrain().check(4, 1)
    with refused(InvalidRequest, "update_interval", 4, legal="update_interval=1"):
        SpecTrain().check(4, 4)
    with refused(InvalidRequest, "update_interval", subject="SpecTrain with a flush"):
        SpecTrain().check(4, None)
    with refused(UnknownName, "backward graph", "kept", legal="did you mean 'keep'?"):
        SpecTrain("kept")
    assert SpecTrain.predicts
    assert SpecTrain.smoothed
