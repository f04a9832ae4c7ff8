"""Weight versions without tensors: counts as in the papers, and an oracle that knows every later read."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from baselines.pipedream import DoubleBuffer, Stash
from baselines.spectrain import SpecTrain
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Read, Schedule, StageVersions, WeightPolicy
from suite.engine.replay.replay import KeepEqualReads
from suite.schedule import ZBV, LoopedBFS, MessageDriven, OneFOneB, Staircase
from suite.schedule.check import check
from suite.schedule.placement import places
from suite.weights import Latest, Ledger, Predict
from suite.weights.policy import GRAPHS
from tests.support.drawn import cells, generator
from tests.support.ledgers import DEPTHS, compare, entries, epochs, follow
from tests.support.refusals import refused


def run(ledger: Ledger, texts: str) -> Ledger:
    for text in texts.split():
        ledger.run(Op.parse(text))
    return ledger


# -- predictions -----------------------------------------------------------------------------------------------------


def test_the_count_in_flight_is_never_wrong() -> None:
    """While the pipeline fills, when it is full, as it drains, and all again in a second epoch; a short last group."""
    for stages in DEPTHS:
        for every in (1, 2, 5):
            for interval in epochs(2 * stages + 3, every):
                for ledger in follow(Predict("inflight"), stages, interval):
                    assert {entry.staleness for entry in ledger.entries} == {0}, (stages, every)
                    assert {entry.read.predict_steps for entry in entries(ledger, Kind.BACKWARD)} == {0}


@pytest.mark.parametrize(("count", "more"), [("paper", 0), ("authors", 1)])
def test_printed_counts_hold_in_a_full_pipeline(count: str, more: int) -> None:
    """The paper's number; the authors' code predicts one update too many."""
    for stages in DEPTHS:
        for interval in epochs(2 * stages + 3, 1):
            for stage, ledger in enumerate(follow(Predict(count), stages, interval)):
                forwards, between = entries(ledger, Kind.FORWARD), stages - 1 - stage
                assert {entry.read.predict_steps for entry in forwards} == {between + more}
                missed = [min(0, entry.op.index - interval.first - between) for entry in forwards]
                assert [entry.staleness for entry in forwards] == [short - more for short in missed]
                assert {entry.staleness for entry in entries(ledger, Kind.BACKWARD)} == {0}
                assert ledger.peak == (2 if between + more else 1)


# -- refusals --------------------------------------------------------------------------------------------------------


class Told(WeightPolicy):
    """Reads `version`, by default the newest, and keeps `kept`, whatever is there."""

    def __init__(self, version: int | None = None, ahead: int = 0, kept: Any = ()) -> None:
        self.version, self.ahead, self.kept = version, ahead, kept

    def read(self, op: Op, versions: StageVersions) -> Read:
        return Read(versions.updates if self.version is None else self.version, self.ahead, "recompute")

    def needed(self, versions: StageVersions) -> Any:
        return self.kept


def test_a_policy_that_reads_what_is_not_there_is_refused() -> None:
    for version, ahead in ((6, 0), (8, 0), (6, 1)):
        ledger = Ledger(Told(version, ahead), FlushInterval(7, 2, 1, 7), 2)
        with refused(InvalidRequest, subject=f"0F7 reads version {version}+{ahead}, and [7] are there"):
            run(ledger, "0F7")
    ledger = run(Ledger(Stash(), FlushInterval(0, 3, 1, 0), 4), "0F0 0F1 0B0 0U0")
    assert ledger.stored == {0, 1}
    ledger.policy = Told(0, 1)
    with refused(InvalidRequest, rule="predicted from the newest only"):
        run(ledger, "0F2")


def test_choices_without_a_count_are_refused() -> None:
    for count in ("paper", "authors", "inflight"):
        with refused(InvalidRequest, "update_interval", None, legal="update_interval=1, or weights=Latest()"):
            Predict(count).check(4, None)
        Predict(count).check(4, 1)
        if count == "inflight":
            Predict(count).check(4, 7)
        else:
            with refused(InvalidRequest, "update_interval", 2, subject=f"s={count}", legal='s="inflight"'):
                Predict(count).check(4, 2)
    for make, kind, name, nearest in (
        (Latest, "backward graph", "kept", "keep"),
        (Predict, "rule for the number of predicted updates", "in_flight", "inflight"),
        (lambda graph: Predict(graph=graph), "backward graph", "recomputed", "recompute"),
    ):
        with refused(UnknownName, kind, name, legal=f"did you mean '{nearest}'?"):
            make(name)
    assert Predict.predicts
    assert not Predict.smoothed


SCHEDULES = [OneFOneB(), MessageDriven(prefer="forward")]
NEWEST = (Latest, SpecTrain, *(lambda graph, s=s: Predict(s, graph) for s in ("paper", "authors", "inflight")))
ONE = (*NEWEST, Stash)  # policies that an update after every microbatch suits
SEVERAL = (Latest, lambda graph: Predict("inflight", graph), Stash)


def policies(stages: int, every: int | None) -> Iterator[WeightPolicy]:
    """Every policy that serves the pipeline, with every way of making a backward pass."""
    kinds = ONE if every == 1 else [Latest] if every is None else SEVERAL
    for graph in GRAPHS:
        yield from (kind(graph) for kind in kinds)
        if every is not None and every >= stages:
            yield DoubleBuffer(graph)


@pytest.mark.parametrize(
    ("schedule", "stages", "microbatches"),
    cells(SCHEDULES, range(1, 7), range(1, 13), n=4, always=[(SCHEDULES[0], 3, 8)]),
    ids=str,
)
def test_exactly_the_versions_with_a_reader_are_held(schedule: Schedule, stages: int, microbatches: int) -> None:
    """Of every policy, in a first and in a second interval between drains."""
    for every in {1, 2, 3, stages, stages + 1, None}:
        for interval in epochs(microbatches, every):
            timeline = check(schedule, stages, interval)
            for order in map(timeline.order, range(stages)):
                for policy in policies(stages, every):
                    compare(Ledger(policy, interval, stages), order)
                    compare(Ledger(KeepEqualReads(policy), interval, stages), order)


def shuffled(interval: FlushInterval, rng: random.Random) -> list[Op]:
    """An order that no schedule has: forward passes overtake one another, at most one update ahead of their own."""
    order, ready, opened, updates = [], list(range(interval.first, interval.end)), [], interval.update
    remaining = {interval.update + number: 0 for number in range(interval.updates)}
    for index in ready:
        remaining[interval.update_of(index)] += 1
    while updates < interval.update + interval.updates:
        forwards = [index for index in ready if interval.update_of(index) <= updates + 1]
        backwards = [index for index in opened if interval.update_of(index) == updates]
        kind, index = rng.choice([(Kind.FORWARD, i) for i in forwards] + [(Kind.BACKWARD, i) for i in backwards])
        order.append(Op(0, kind, index))
        if kind is Kind.FORWARD:
            ready.remove(index)
            opened.append(index)
            continue
        opened.remove(index)
        remaining[updates] -= 1
        while updates in remaining and not remaining[updates]:
            order.append(Op(0, Kind.UPDATE, updates))
            updates += 1
    return order


def test_versions_with_a_reader_are_stored_in_any_order() -> None:
    rng = generator("orders")
    for _ in range(25):
        every = rng.randint(1, 5)
        for interval in epochs(rng.randint(1, 12), every):
            order = shuffled(interval, rng)
            for policy in (Stash(), Stash("keep"), DoubleBuffer(), DoubleBuffer("keep"), Latest("swap")):
                compare(Ledger(policy, interval, 1), order)


class Other(Latest):
    """The same policy by another name, so that the ledger asks it."""


def account(policy: Latest, order: Sequence[Op], interval: FlushInterval, stages: int) -> list[object]:
    ledger = Ledger(policy, interval, stages)
    reads = [ledger.run(op) for op in order]
    return [ledger.newest_only, reads, ledger.entries, ledger.peak, ledger.updates, ledger.alive]


@pytest.mark.parametrize("first_update", [0, 3])
def test_short_account_of_a_flush_equals_the_general_one(first_update: int) -> None:
    interval = FlushInterval(0, 6, None, first_update)
    for schedule in (OneFOneB(), MessageDriven(), LoopedBFS(2), ZBV(), Staircase(chunks=1, lead=1, split=True)):
        timeline, stages = check(schedule, 3, interval), places(schedule, 3)[0].stages
        for order in map(timeline.order, range(3)):
            short, general = (account(policy, order, interval, stages) for policy in (Latest(), Other()))
            assert (short[0], general[0]) == (True, False)
            assert short[1:] == general[1:], schedule
    assert not Ledger(Latest(graph="recompute"), interval, 2).newest_only
    assert not Ledger(Latest(), FlushInterval(0, 4, 1, 0), 2).newest_only
