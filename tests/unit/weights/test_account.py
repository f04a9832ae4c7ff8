"""Columns of Table II from ledgers, by hand on two stages."""

from __future__ import annotations

import pytest

from suite.core.op import FlushInterval, Kind, Op
from suite.weights import Latest, Ledger, Predict
from suite.weights.version_table import common_value, entries, run_ledgers, staleness, steps_ahead

ORDER = [
    Op.parse(text) for text in ("0F0", "0F1", "0B0", "0U0", "0F2", "0B1", "0U1", "0F3", "0B2", "0U2", "0B3", "0U3")
]
LAST = [Op.parse(text) for i in range(4) for text in (f"1F{i}", f"1B{i}", f"1U{i}")]
WORK = FlushInterval(0, 4, 1, 0)


def first(policy: Latest | Predict) -> Ledger:
    return run_ledgers(policy, [ORDER, LAST], WORK)[0]


def test_steady_mini_batches_found_a_full_pipeline() -> None:
    ledger = first(Latest("recompute"))
    assert [entry.op.index for entry in entries(ledger, Kind.FORWARD)] == [2, 3]
    assert len(entries(ledger, Kind.FORWARD, steady=False)) == 4
    order = [Op.parse(text) for i in range(4, 9) for text in (f"0F{i}", f"0B{i}", *(["0U1"] if i == 6 else []))]
    (summed,) = run_ledgers(Latest("recompute"), [order], FlushInterval(4, 9, 3, 1))
    assert [entry.op.index for entry in entries(summed, Kind.FORWARD)] == [7, 8]  # three sum to the first update


@pytest.mark.parametrize("graph", ["recompute", "keep"])
def test_columns(graph: str) -> None:
    """A backward pass that keeps its forward's graph reads what that read."""
    keeps_graph = graph == "keep"
    stale, predicted = first(Latest(graph)), first(Predict("inflight", graph))
    assert staleness(stale, Kind.FORWARD) == 1
    assert staleness(stale, Kind.BACKWARD) == (1 if keeps_graph else 0)
    assert staleness(predicted, Kind.FORWARD) == staleness(predicted, Kind.BACKWARD) == 0
    assert (steps_ahead(predicted, Kind.FORWARD), steps_ahead(predicted, Kind.BACKWARD)) == (1, 1 if keeps_graph else 0)


def test_a_mean_is_told_only_where_values_differ() -> None:
    assert common_value([3, 3]) == 3
    assert common_value([1, 2]) == 1.5
