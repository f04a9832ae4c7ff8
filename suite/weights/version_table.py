"""Columns of PipeOptim's Table II, computed from the ledgers of a run.

Every run keeps these ledgers, so the table needs no numbers of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

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


def common_value(values: Sequence[float]) -> float:
    """The common value of all mini-batches, or their mean where they differ."""
    return values[0] if len(set(values)) == 1 else fmean(values)


def staleness(ledger: Ledger, kind: Kind) -> float:
    """Updates between the weights that a steady pass reads and those its gradient updates; negative if read ahead."""
    reads = entries(ledger, kind) or entries(ledger, Kind.FORWARD)
    return common_value([entry.staleness for entry in reads])


def steps_ahead(ledger: Ledger, kind: Kind) -> float:
    """Number of updates that a steady pass predicts ahead."""
    return common_value([entry.read.predict_steps for entry in entries(ledger, kind) or entries(ledger, Kind.FORWARD)])
