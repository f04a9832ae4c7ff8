"""Weight versions that PipeDream and PipeDream-2BW read and hold."""

from __future__ import annotations

import pytest

from baselines.pipedream import DoubleBuffer, Stash
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.op import FlushInterval, Kind, Op
from suite.weights import Ledger
from tests.support.ledgers import DEPTHS, entries, epochs, follow
from tests.support.refusals import refused


@pytest.mark.parametrize("stages", DEPTHS)
def test_a_stash_holds_a_version_per_stage_to_come(stages: int) -> None:
    """Both passes agree, and are as stale as there are stages to come; what an epoch left is gone in the next."""
    for interval in epochs(2 * stages + 3, 1):
        for stage, ledger in enumerate(follow(Stash(), stages, interval, exact=True)):
            forwards, backwards = entries(ledger, Kind.FORWARD), entries(ledger, Kind.BACKWARD)
            assert [entry.read for entry in forwards] == [entry.read for entry in backwards]
            filled = [entry.op.index - interval.first for entry in forwards]
            assert [entry.staleness for entry in forwards] == [min(stages - 1 - stage, n) for n in filled]
            assert ledger.peak == stages - stage
            assert ledger.alive == {(interval.update + interval.updates, 0)}


@pytest.mark.parametrize("stages", DEPTHS)
@pytest.mark.parametrize("more", [0, 1, 3])
def test_a_double_buffer_is_one_update_behind_on_every_stage(stages: int, more: int) -> None:
    """W(k+1) = W(k) - lr * g(W(k-1)), with two versions, from the second update after a drain; a short last group."""
    every = stages + more
    for interval in epochs(3 * every + every // 2, every):
        for ledger in follow(DoubleBuffer(), stages, interval, exact=True):
            assert len(entries(ledger, Kind.FORWARD)) == len(entries(ledger, Kind.BACKWARD)) == interval.microbatches
            for entry in ledger.entries:
                assert entry.read.version == (entry.update if entry.update == interval.update else entry.update - 1)
                assert entry.read.predict_steps == 0
            assert ledger.peak == 2
            assert ledger.alive == {(interval.update + interval.updates, 0)}


def test_one_stage_with_a_double_buffer_keeps_its_delay() -> None:
    (ledger,) = follow(DoubleBuffer(), 1, FlushInterval(0, 5, 1, 0))
    assert [entry.read.version for entry in entries(ledger, Kind.FORWARD)] == [0, 0, 1, 2, 3]
    (stash,) = follow(Stash(), 1, FlushInterval(0, 5, 1, 0))
    assert [entry.read.version for entry in entries(stash, Kind.FORWARD)] == [0, 1, 2, 3, 4]


def test_a_double_buffer_in_the_middle_of_a_run() -> None:
    """Stage 0 of 2, hand-traced: two microbatches per update; microbatches 2 and 3 still read the drain's weights."""
    ledger = Ledger(DoubleBuffer(), FlushInterval(0, 8, 2, 0), 2)
    versions_held = []
    for text in ("0F0", "0F1", "0B0", "0F2", "0B1", "0U0", "0F3", "0B2", "0F4", "0B3", "0U1", "0F5"):
        read = ledger.run(Op.parse(text))
        versions_held.append((read.version if read else None, sorted(ledger.stored)))
    assert versions_held == [
        (0, [0]),
        (0, [0]),
        (0, [0]),
        (0, [0]),
        (0, [0]),
        (None, [0, 1]),
        (0, [0, 1]),
        (0, [0, 1]),
        (1, [0, 1]),
        (0, [1]),
        (None, [1, 2]),
        (1, [1, 2]),
    ]


@pytest.mark.parametrize("policy", [Stash, DoubleBuffer])
def test_a_kept_graph_reads_the_same_versions(policy: type[Stash | DoubleBuffer]) -> None:
    again, keeping = (follow(policy(graph), 4, FlushInterval(0, 20, 5, 0)) for graph in ("recompute", "keep"))
    for one, other in zip(again, keeping, strict=True):
        first, second = entries(one, Kind.FORWARD), entries(other, Kind.FORWARD)
        assert [entry.read.version for entry in first] == [entry.read.version for entry in second]
        assert entries(other, Kind.BACKWARD) == []
        assert one.peak == other.peak


def test_updates_that_two_versions_cannot_serve_are_refused() -> None:
    with refused(
        InvalidRequest,
        subject="2BW on 4 stages with update_interval=3",
        rule="an update sums at least as many microbatches as there",
        legal="update_interval=4",
    ):
        DoubleBuffer().check(4, 3)
    for stages, every in ((4, 4), (4, 9), (1, 1)):
        DoubleBuffer().check(stages, every)
    Stash().check(4, 1)
    Stash().check(4, 3)
    for policy in (Stash(), DoubleBuffer()):
        with refused(InvalidRequest, "update_interval", subject="with a flush"):
            policy.check(4, None)
        assert not policy.predicts
    for policy_class in (Stash, DoubleBuffer):
        with refused(UnknownName, "backward graph", "swop", legal="did you mean 'swap'?"):
            policy_class("swop")
