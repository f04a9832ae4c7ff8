"""Ledgers of all stages of a run, and the versions that their passes read."""

from __future__ import annotations

from collections.abc import Sequence

from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import WeightPolicy
from suite.weights.ledger import Ledger, LedgerEntry

PASSES = (Kind.FORWARD, Kind.BACKWARD)


def run_ledgers(policy: WeightPolicy, orders: Sequence[Sequence[Op]], interval: FlushInterval) -> list[Ledger]:
    """Ledger of each stage after the flush interval. `orders` holds the ops of each stage in the order they ran."""
    stages = 1 + max(op.stage for order in orders for op in order)
    ledgers = [Ledger(policy, interval, stages) for _ in orders]
    for ledger, order in zip(ledgers, orders, strict=True):
        for op in order:
            ledger.run(op)
    return ledgers


def entries(ledger: Ledger, kind: Kind, *, steady: bool = True) -> list[LedgerEntry]:
    """Versions read by the passes of `kind`, in order.

    With `steady`, only the mini-batches that meet a full pipeline and, where an update sums several mini-batches, a
    previous update.
    """
    first = ledger.interval.first + (max(ledger.stages, ledger.interval.microbatches_per_update) if steady else 0)
    return [entry for entry in ledger.entries if entry.op.kind is kind and entry.op.index >= first]
