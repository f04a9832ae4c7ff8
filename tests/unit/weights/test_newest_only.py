"""The short account of a flush that reads the newest weights equals the account of any policy."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from suite.core.op import FlushInterval, Op
from suite.core.protocols import Schedule
from suite.schedule import ZBV, LoopedBFS, MessageDriven, OneFOneB, Staircase
from suite.schedule.check import check
from suite.schedule.placement import places
from suite.weights import Latest, Ledger


class Other(Latest):
    """The same policy by another name, so that the ledger asks it."""


def account(policy: Latest, order: Sequence[Op], interval: FlushInterval, stages: int) -> list[object]:
    ledger = Ledger(policy, interval, stages)
    reads = [ledger.run(op) for op in order]
    return [ledger.newest_only, reads, ledger.entries, ledger.peak, ledger.updates, ledger.alive]


@pytest.mark.parametrize("first_update", [0, 3])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    "schedule", [OneFOneB(), MessageDriven(), LoopedBFS(2), ZBV(), Staircase(chunks=1, lead=1, split=True)], ids=repr
)
def test_short_account_equals_the_general_one(schedule: Schedule, ranks: int, first_update: int) -> None:
    interval = FlushInterval(0, 6, None, first_update)
    timeline, stages = check(schedule, ranks, interval), places(schedule, ranks)[0].stages
    for rank in range(ranks):
        order = timeline.order(rank)
        short, general = (account(policy, order, interval, stages) for policy in (Latest(), Other()))
        assert (short[0], general[0]) == (True, False)
        assert short[1:] == general[1:]


@pytest.mark.parametrize(
    ("policy", "interval"),
    [(Latest(graph="recompute"), FlushInterval(0, 4, None, 0)), (Latest(), FlushInterval(0, 4, 1, 0))],
    ids=["recompute", "stream"],
)
def test_other_accounts_ask_the_policy(policy: Latest, interval: FlushInterval) -> None:
    assert not Ledger(policy, interval, 2).newest_only
