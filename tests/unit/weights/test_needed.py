"""Versions that a ledger holds, compared with an oracle that knows every later read."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

import pytest

from baselines.pipedream import DoubleBuffer, Stash
from baselines.spectrain import SpecTrain
from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Schedule, WeightPolicy
from suite.engine.recorded_order import RecordedVersions
from suite.engine.replay import KeepEqualReads
from suite.schedule import MessageDriven, OneFOneB
from suite.schedule.check import check
from suite.weights import Latest, Ledger, Predict
from suite.weights.policy import GRAPHS
from tests.support.ledgers import compare, epochs, follow

SCHEDULES = (OneFOneB(), MessageDriven(prefer="forward"))
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


def orders(schedule: Schedule, stages: int, interval: FlushInterval) -> list[Sequence[Op]]:
    timeline = check(schedule, stages, interval)
    return [timeline.order(stage) for stage in range(stages)]


def compare_all(schedule: Schedule, stages: int, microbatches: Iterable[int]) -> None:
    for count in microbatches:
        for every in {1, 2, 3, stages, stages + 1, None}:
            for interval in epochs(count, every):
                for order in orders(schedule, stages, interval):
                    for policy in policies(stages, every):
                        passes = compare(Ledger(policy, interval, stages), order)
                        compare(Ledger(RecordedVersions(passes), interval, stages), order)
                        compare(Ledger(KeepEqualReads(policy), interval, stages), order)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda one: type(one).__name__)
def test_exactly_the_versions_with_a_reader_are_held(schedule: Schedule) -> None:
    """Of every policy, in a first and in a second interval between drains."""
    for stages, microbatches in ((1, [1, 4]), (3, [1, 2, 8]), (4, [3, 9])):
        compare_all(schedule, stages, microbatches)


@pytest.mark.exhaustive
@pytest.mark.parametrize("stages", range(1, 7))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda one: type(one).__name__)
def test_versions_with_a_reader_are_stored_at_every_size(schedule: Schedule, stages: int) -> None:
    compare_all(schedule, stages, range(1, 13))


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
    rng = random.Random(0)
    for _ in range(150):
        every = rng.randint(1, 5)
        for interval in epochs(rng.randint(1, 12), every):
            order = shuffled(interval, rng)
            for policy in (Stash(), Stash("keep"), DoubleBuffer(), DoubleBuffer("keep"), Latest("swap")):
                passes = compare(Ledger(policy, interval, 1), order)
                assert compare(Ledger(RecordedVersions(passes), interval, 1), order) == passes


@pytest.mark.parametrize(
    ("stages", "microbatches", "copies"),
    [(4, 3, [2, 2, 2, 1]), (6, 8, [4, 5, 4, 3, 2, 1]), (4, 12, [4, 3, 2, 1]), (4, 1, [1] * 4)],
)
def test_a_short_stream_stashes_what_it_reads_twice(stages: int, microbatches: int, copies: list[int]) -> None:
    """Only a stream that fills the pipeline has a version for every stage to come (PipeOptim Table II)."""
    ledgers = follow(Stash(), stages, FlushInterval(0, microbatches, 1, 0), exact=True)
    assert [ledger.peak for ledger in ledgers] == copies
