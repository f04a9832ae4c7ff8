"""Decides how a test follows the weight versions of a pipeline that never runs: the checker's order, and a ledger."""

from __future__ import annotations

from collections.abc import Iterator

from suite.core.op import Kind, Work
from suite.core.protocols import Schedule, WeightPolicy
from suite.schedule import OneFOneB
from suite.schedule.check import check
from suite.weights import Ledger
from suite.weights.ledger import Entry

DEPTHS = range(1, 9)


def follow(
    policy: WeightPolicy, stages: int, work: Work, *, schedule: Schedule | None = None, exact: bool = False
) -> list[Ledger]:
    """A ledger per stage after the whole work. exact: asserts after every op that the oldest version which is held
    has a reader to come, unless it is the newest: what lies between them is what a threshold cannot free."""
    timeline = check(schedule or OneFOneB(), stages, work)
    ledgers = [Ledger(policy, work, stages) for _ in range(stages)]
    for stage, ledger in enumerate(ledgers):
        held = []
        order = timeline.order(stage)
        for op in order:
            ledger.run(op)
            held.append((op, min(ledger.stored), ledger.updates, len(ledger.entries)))
        for number, (op, oldest, newest, past) in enumerate(held):
            to_come = {entry.read.version for entry in ledger.entries[past:]}
            between = op.kind is Kind.BACKWARD and number + 1 < len(order) and order[number + 1].kind is Kind.UPDATE
            if exact and not between:  # no policy knows that the next op is an update
                assert oldest in to_come | {newest}, f"{op}: version {oldest} is held for nobody"
    return ledgers


def entries(ledger: Ledger, kind: Kind) -> list[Entry]:
    return [entry for entry in ledger.entries if entry.op.kind is kind]


def epochs(microbatches: int, update_every: int) -> Iterator[Work]:
    """Two works, the second counted on from the first."""
    first = Work(0, microbatches, update_every, 0)
    yield first
    yield Work(first.end, microbatches, update_every, first.updates)
