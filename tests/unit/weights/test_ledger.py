"""Counts of weight versions as in the papers, without tensors.

The table of weight memory (PipeOptim Table II) and the peaks that a run is refused by are this count.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baselines.gpipe import GPipe
from baselines.pipedream import Stash
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Read, Schedule, StageVersions, WeightPolicy
from suite.schedule import MessageDriven, OneFOneB
from suite.weights import Latest, Ledger
from tests.support.ledgers import follow
from tests.support.refusals import refused

FLUSH = (GPipe(), OneFOneB(), MessageDriven(), MessageDriven(prefer="forward"))


@pytest.mark.parametrize("graph", ["keep", "recompute", "swap"])
@pytest.mark.parametrize("schedule", FLUSH, ids=str)
def test_the_newest_version_is_the_only_one_in_a_flush(schedule: Schedule, graph: str) -> None:
    interval = FlushInterval(first=4, microbatches=6, update_interval=None, update=2)
    for ledger in follow(Latest(graph), 4, interval, schedule=schedule):
        assert ledger.peak == 1
        assert ledger.alive == {(3, 0)}
        assert ledger.updates == ledger.drained_at == 3
        assert {entry.staleness for entry in ledger.entries} == {0}
        assert {entry.read for entry in ledger.entries} == {Read(2, 0, graph)}
        assert len(ledger.entries) == (6 if graph == "keep" else 12)


def test_an_unknown_graph_is_refused() -> None:
    with refused(UnknownName, "backward graph", "kept", legal="did you mean 'keep'?"):
        Latest("kept")


@pytest.mark.parametrize("graph", ["keep", "recompute"])
def test_stashing_keeps_a_version_per_stage_to_come(graph: str) -> None:
    """PipeDream at D = 4: D - stage versions in the steady state, from D * M at the first stage to M at the last."""
    ledgers = follow(Stash(graph), 4, FlushInterval(0, 12, 1, 0))
    assert [ledger.peak for ledger in ledgers] == [4, 3, 2, 1]
    for stage, ledger in enumerate(ledgers):
        assert ledger.alive == {(12, 0)}
        steady = [entry for entry in ledger.entries if entry.op.kind is Kind.FORWARD and entry.op.index >= 3]
        assert {entry.staleness for entry in steady} == {3 - stage}


def test_a_stashed_backward_reads_its_forward() -> None:
    for ledger in follow(Stash("recompute"), 4, FlushInterval(0, 12, 1, 0)):
        read = {entry.op.index: entry.read for entry in ledger.entries if entry.op.kind is Kind.FORWARD}
        assert read == {entry.op.index: entry.read for entry in ledger.entries if entry.op.kind is Kind.BACKWARD}


def test_versions_in_the_middle_of_a_steady_state() -> None:
    """Stage 1 of 3, hand-traced: F0 F1 B0 U0 F2 B1 U1. Forward 1 read version 0, forward 2 read version 1."""
    ledger = Ledger(Stash("keep"), FlushInterval(0, 8, 1, 0), 4)
    alive = []
    for text in ("1F0", "1F1", "1B0", "1U0", "1F2", "1B1", "1U1"):
        ledger.run(Op.parse(text))
        alive.append(sorted(version for version, _ in ledger.alive))
    assert alive == [[0], [0], [0], [0, 1], [0, 1], [1], [1, 2]]
    assert ledger.peak == 2


def test_the_newest_version_is_stale_without_a_flush() -> None:
    """A forward that reads the newest weights lacks the updates to come before its backward: D - 1 - stage of them."""
    for stage, ledger in enumerate(follow(Latest("recompute"), 4, FlushInterval(0, 12, 1, 0))):
        forwards = [entry for entry in ledger.entries if entry.op.kind is Kind.FORWARD]
        backwards = [entry for entry in ledger.entries if entry.op.kind is Kind.BACKWARD]
        assert [entry.staleness for entry in forwards] == [min(index, 3 - stage) for index in range(12)]
        assert {entry.staleness for entry in backwards} == {0}


def test_a_drain_is_the_pipelines_and_not_an_empty_stage() -> None:
    ledger = Ledger(Latest(), FlushInterval(0, 2, 1, 5), 1)
    seen = []
    for text in ("0F0", "0B0", "0U5", "0F1", "0B1", "0U6"):
        ledger.run(Op.parse(text))
        seen.append(ledger.drained_at)
    assert seen == [5, 5, 5, 5, 5, 7]
    assert ledger.run(Op.parse("0E0")) is None


class Wrong(WeightPolicy):
    """Reads what it is told to, whatever is there."""

    def __init__(self, version: int, ahead: int) -> None:
        self.told = Read(version, ahead)

    def read(self, op: Op, versions: StageVersions) -> Read:
        return self.told

    def needed(self, versions: StageVersions) -> frozenset[int]:
        return frozenset()


@pytest.mark.parametrize(("version", "ahead"), [(6, 0), (8, 0), (6, 1)])
def test_a_policy_that_reads_what_is_not_there_is_refused(version: int, ahead: int) -> None:
    ledger = Ledger(Wrong(version, ahead), FlushInterval(7, 2, 1, 7), 2)
    with refused(InvalidRequest, subject=f"0F7 reads version {version}+{ahead}, and [7] are there"):
        ledger.run(Op.parse("0F7"))


def test_only_the_newest_version_is_predicted_from() -> None:
    ledger = Ledger(Stash(), FlushInterval(0, 3, 1, 0), 4)
    for text in ("0F0", "0F1", "0B0", "0U0"):
        ledger.run(Op.parse(text))
    assert ledger.stored == {0, 1}
    ledger.policy = Wrong(0, 1)
    with refused(InvalidRequest, rule="predicted from the newest only"):
        ledger.run(Op.parse("0F2"))


class Keeping(WeightPolicy):
    """Reads the newest version, and keeps what it is told to."""

    def __init__(self, versions: Any) -> None:
        self.kept = versions

    def read(self, op: Op, versions: StageVersions) -> Read:
        return Read(versions.updates, 0, "recompute")

    def needed(self, versions: StageVersions) -> Any:
        return self.kept


@pytest.mark.parametrize("versions", [[0], (0,), {0}, frozenset({0}), {0: "version"}, np.array([0])], ids=repr)
def test_a_policy_may_keep_any_iterable_of_versions(versions: Any) -> None:
    ledger = Ledger(Keeping(versions), FlushInterval(0, 2, 1, 0), 1)
    for text in ("0F0", "0B0", "0U0"):
        ledger.run(Op.parse(text))
    assert ledger.stored == {0, 1}


@pytest.mark.parametrize("kept", [None, 0, "0", b"0", [0.0], ["0"], [True], [None]], ids=repr)
def test_a_policy_that_keeps_no_versions_is_refused(kept: Any) -> None:
    ledger = Ledger(Keeping(kept), FlushInterval(0, 2, 1, 0), 1)
    ledger.run(Op.parse("0F0"))
    ledger.run(Op.parse("0B0"))
    with refused(InvalidRequest, subject="Keeping.needed() returned", rule="whole numbers", legal="frozenset()"):
        ledger.run(Op.parse("0U0"))


def test_a_policy_without_its_methods_is_refused() -> None:
    class Old:
        def read(self, op: Op, versions: StageVersions) -> Read:
            return Read(versions.updates)

    class Unfinished(WeightPolicy):
        def read(self, op: Op, versions: StageVersions) -> Read:
            return Read(versions.updates)

    with pytest.raises(TypeError, match="abstract"):
        Unfinished()  # type: ignore[abstract]
    for wrong in (Old(), Latest, None):
        with refused(InvalidRequest, "policy"):
            Ledger(wrong, FlushInterval(0, 2, 1, 0), 1)  # type: ignore[arg-type]
