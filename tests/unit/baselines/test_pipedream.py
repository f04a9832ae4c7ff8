"""Weight versions that PipeDream, PipeDream-2BW and SpecTrain read and hold."""

from __future__ import annotations

from baselines.pipedream import DoubleBuffer, Stash
from baselines.spectrain import SpecTrain
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.op import FlushInterval, Kind
from tests.support.ledgers import entries, epochs, follow
from tests.support.refusals import refused


def test_a_double_buffer_is_one_update_behind_on_every_stage() -> None:
    """W(k+1) = W(k) - lr * g(W(k-1)), with two versions, from the second update after a drain; a short last group."""
    for stages, every in [(stages, stages + more) for stages in (1, 2, 3, 5) for more in (0, 1, 3)]:
        for interval in epochs(3 * every + every // 2, every):
            for ledger in follow(DoubleBuffer(), stages, interval, exact=True):
                for entry in ledger.entries:
                    assert entry.read.version == max(entry.update - 1, interval.update)
                    assert entry.read.predict_steps == 0
                assert ledger.peak == 2
                assert ledger.alive == {(interval.update + interval.updates, 0)}


def test_prediction_of_spectrain_equals_the_authors_on_four_stages() -> None:
    ledgers = follow(SpecTrain(), 4, FlushInterval(0, 12, 1, 0), exact=True)
    for kind, expected in ((Kind.FORWARD, [3, 2, 2, 1]), (Kind.BACKWARD, [0, 0, 1, 1])):
        steps = [{entry.read.predict_steps for entry in entries(ledger, kind)} for ledger in ledgers]
        assert steps == [{ahead} for ahead in expected]
    assert [ledger.peak for ledger in ledgers] == [2, 2, 2, 2]


def test_update_intervals_that_a_policy_cannot_serve_are_refused() -> None:
    with refused(InvalidRequest, subject="2BW on 4 stages with update_interval=3", legal="update_interval=4"):
        DoubleBuffer().check(4, 3)
    with refused(InvalidRequest, "update_interval", 4, legal="update_interval=1"):
        SpecTrain().check(4, 4)
    for policy, stages, every in (
        *((DoubleBuffer(), 4, 4), (DoubleBuffer(), 4, 9), (DoubleBuffer(), 1, 1)),
        *((Stash(), 4, 1), (Stash(), 4, 3), (SpecTrain(), 4, 1)),
    ):
        policy.check(stages, every)
        with refused(InvalidRequest, "update_interval", subject="with a flush"):
            policy.check(4, None)
    assert [policy.predicts for policy in (Stash(), DoubleBuffer(), SpecTrain())] == [False, False, True]
    assert SpecTrain.smoothed
    for policy_class in (Stash, DoubleBuffer, SpecTrain):
        with refused(UnknownName, "backward graph", "swop", legal="did you mean 'swap'?"):
            policy_class("swop")
