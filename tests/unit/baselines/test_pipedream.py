"""Weight versions that PipeDream, PipeDream-2BW and SpecTrain read and hold."""

from __future__ import annotations

from baselines.pipedream import DoubleBuffer, Stash
from baselines.spectrain import SpecTrain
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.op import FlushInterval, Kind, Op
from suite.weights import Ledger
from tests.support.ledgers import DEPTHS, entries, epochs, follow
from tests.support.refusals import refused


def test_a_stash_holds_a_version_per_later_stage() -> None:
    """Both passes agree, and are as stale as there are later stages; the next epoch holds no version of the last."""
    for stages in DEPTHS:
        for interval in epochs(2 * stages + 3, 1):
            for stage, ledger in enumerate(follow(Stash(), stages, interval, exact=True)):
                forwards, backwards = entries(ledger, Kind.FORWARD), entries(ledger, Kind.BACKWARD)
                assert [entry.read for entry in forwards] == [entry.read for entry in backwards]
                filled = [entry.op.index - interval.first for entry in forwards]
                assert [entry.staleness for entry in forwards] == [min(stages - 1 - stage, n) for n in filled]
                assert ledger.peak == stages - stage
                assert ledger.alive == {(interval.update + interval.updates, 0)}


def test_a_double_buffer_is_one_update_behind_on_every_stage() -> None:
    """W(k+1) = W(k) - lr * g(W(k-1)), with two versions, from the second update after a drain; a short last group."""
    for stages, every in [(stages, stages + more) for stages in (1, 2, 3, 5) for more in (0, 1, 3)]:
        for interval in epochs(3 * every + every // 2, every):
            for ledger in follow(DoubleBuffer(), stages, interval, exact=True):
                assert (
                    len(entries(ledger, Kind.FORWARD)) == len(entries(ledger, Kind.BACKWARD)) == interval.microbatches
                )
                for entry in ledger.entries:
                    assert entry.read.version == max(entry.update - 1, interval.update)
                    assert entry.read.predict_steps == 0
                assert ledger.peak == 2
                assert ledger.alive == {(interval.update + interval.updates, 0)}


def test_a_double_buffer_in_the_middle_of_a_run() -> None:
    """Stage 0 of 2, hand-traced: two microbatches per update; microbatches 2 and 3 still read the drain's weights."""
    ledger = Ledger(DoubleBuffer(), FlushInterval(0, 8, 2, 0), 2)
    versions, stored = [], []
    for text in ("0F0", "0F1", "0B0", "0F2", "0B1", "0U0", "0F3", "0B2", "0F4", "0B3", "0U1", "0F5"):
        read = ledger.run(Op.parse(text))
        versions.append(read.version if read else None)
        stored.append(sorted(ledger.stored))
    assert versions == [0, 0, 0, 0, 0, None, 0, 0, 1, 0, None, 1]
    assert stored == [[0]] * 5 + [[0, 1]] * 4 + [[1]] + [[1, 2]] * 2


def test_prediction_of_spectrain_equals_the_authors_on_four_stages() -> None:
    ledgers = follow(SpecTrain(), 4, FlushInterval(0, 12, 1, 0), exact=True)
    for kind, expected in ((Kind.FORWARD, [3, 2, 2, 1]), (Kind.BACKWARD, [0, 0, 1, 1])):
        steps = [{entry.read.predict_steps for entry in entries(ledger, kind)} for ledger in ledgers]
        assert steps == [{ahead} for ahead in expected]
    assert [ledger.peak for ledger in ledgers] == [2, 2, 2, 2]


def test_both_passes_of_spectrain_predict_one_version_in_steady_state() -> None:
    for stages in DEPTHS:
        for interval in epochs(2 * stages + 3, 1):
            for stage, ledger in enumerate(follow(SpecTrain(), stages, interval, exact=True)):
                forwards, backwards = entries(ledger, Kind.FORWARD), entries(ledger, Kind.BACKWARD)
                for one, other in list(zip(forwards, backwards, strict=True))[stages - 1 - stage :]:
                    assert one.read.version + one.read.predict_steps == other.read.version + other.read.predict_steps
                    assert one.staleness == other.staleness == -(stage // 2)


def test_one_stage_trains_serially_but_for_a_double_buffer() -> None:
    for policy, versions in (
        (DoubleBuffer(), [0, 0, 1, 2, 3]),
        (Stash(), [0, 1, 2, 3, 4]),
        (SpecTrain(), [0, 1, 2, 3, 4]),
    ):
        (ledger,) = follow(policy, 1, FlushInterval(0, 5, 1, 0))
        forwards = entries(ledger, Kind.FORWARD)
        assert [entry.read.version for entry in forwards] == versions
        assert {entry.read.predict_steps for entry in forwards} == {0}


def test_a_kept_graph_reads_the_same_versions() -> None:
    for policy in (Stash, DoubleBuffer):
        again, keeping = (follow(policy(graph), 4, FlushInterval(0, 20, 5, 0)) for graph in ("recompute", "keep"))
        for one, other in zip(again, keeping, strict=True):
            first, second = entries(one, Kind.FORWARD), entries(other, Kind.FORWARD)
            assert [entry.read.version for entry in first] == [entry.read.version for entry in second]
            assert entries(other, Kind.BACKWARD) == []
            assert one.peak == other.peak


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
