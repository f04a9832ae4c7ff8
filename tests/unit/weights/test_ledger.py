"""Counts of weight versions as in the papers, without tensors.

The table of weight memory (PipeOptim Table II) and the peaks that a run is refused by are this count.
"""

from __future__ import annotations

from typing import Any

import pytest

from baselines.pipedream import Stash
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Read, StageVersions, WeightPolicy
from suite.weights import Latest, Ledger, Predict
from suite.weights import version_table as table
from tests.support.ledgers import DEPTHS, entries, epochs, follow
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


# -- columns of Table II, by hand on two stages ----------------------------------------------------------------------

OPS = "0F0 0F1 0B0 0U0 0F2 0B1 0U1 0F3 0B2 0U2 0B3 0U3"
ORDER = [Op.parse(text) for text in OPS.split()]
LAST = [Op.parse(text) for i in range(4) for text in (f"1F{i}", f"1B{i}", f"1U{i}")]


def first_of_two(policy: WeightPolicy) -> Ledger:
    return table.run_ledgers(policy, [ORDER, LAST], FlushInterval(0, 4, 1, 0))[0]


def test_steady_mini_batches_found_a_full_pipeline() -> None:
    ledger = first_of_two(Latest("recompute"))
    assert [entry.op.index for entry in table.entries(ledger, Kind.FORWARD)] == [2, 3]
    assert len(table.entries(ledger, Kind.FORWARD, steady=False)) == 4
    order = [Op.parse(text) for i in range(4, 9) for text in (f"0F{i}", f"0B{i}", *(["0U1"] if i == 6 else []))]
    (summed,) = table.run_ledgers(Latest("recompute"), [order], FlushInterval(4, 9, 3, 1))
    assert [entry.op.index for entry in table.entries(summed, Kind.FORWARD)] == [7, 8]  # 3 sum to the first update


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
