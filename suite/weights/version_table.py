"""Columns of PipeOptim's Table II, computed from the ledgers of a run.

A table that is printed by hand would be a second truth; these few questions are asked of the account that every run
keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import WeightPolicy
from suite.weights.ledger import Ledger, LedgerEntry

PASSES = (Kind.FORWARD, Kind.BACKWARD)


def run_ledgers(policy: WeightPolicy, orders: Sequence[Sequence[Op]], interval: FlushInterval) -> list[Ledger]:
    """The ledger of each stage after the whole work, whose ops ran there in the order given."""
    ledgers = [Ledger(policy, interval, len(orders)) for _ in orders]
    for ledger, order in zip(ledgers, orders, strict=True):
        for op in order:
            ledger.run(op)
    return ledgers


def entries(ledger: Ledger, kind: Kind, *, steady: bool = True) -> list[LedgerEntry]:
    """Versions read by the passes of `kind`, in order. steady: only mini-batches that met a full pipeline and, where
    an update sums several mini-batches, a previous update.
    """
    first = ledger.interval.first + (max(ledger.stages, ledger.interval.microbatches_per_update) if steady else 0)
    return [entry for entry in ledger.entries if entry.op.kind is kind and entry.op.index >= first]


def common_value(values: Sequence[float]) -> float:
    """The common value of all mini-batches, or their mean where they differ."""
    return values[0] if len(set(values)) == 1 else fmean(values)


def staleness(ledger: Ledger, kind: Kind) -> float:
    """Updates that what a steady pass reads lacks of those which its gradient meets; negative beyond them."""
    reads = entries(ledger, kind) or entries(ledger, Kind.FORWARD)
    return common_value([entry.staleness for entry in reads])


def steps_ahead(ledger: Ledger, kind: Kind) -> float:
    """Updates that a steady pass predicts ahead."""
    return common_value([entry.read.predict_steps for entry in entries(ledger, kind) or entries(ledger, Kind.FORWARD)])
