"""Checks that the soak of killed sweeps reports lost and overwritten records, and no record of a cancelled run."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.core.record import Outcome, Record, Source
from suite.runner.store import Store
from tests.soak.endings import report
from tests.soak.kills import Sweep, endings
from tests.support.drawn import generator

KEY = "0" * 20


def record(outcome: Outcome, reason: str = "") -> Record:
    return Record(KEY, "none", "axonn", "axonn", outcome, Source.EMULATED, reason=reason)


def faults(folder: Path, before: Record, after: Record | None) -> list[str]:
    """The faults that two looks at a folder report, whose one record was replaced or deleted between them."""
    sweep = Sweep(folder, [])
    sweep.log.touch()
    store = Store(sweep.reports)
    store.write(before)
    sweep.records()
    if after is None:
        store.path(KEY).unlink()
    else:
        store.write(after)
    sweep.records()
    return [ending.fault.strip() for ending in sweep.endings]


def test_replaced_record_is_a_fault_with_both_outcomes(tmp_path: Path) -> None:
    [fault] = faults(tmp_path, record(Outcome.OK), record(Outcome.FAILED, "no space"))
    assert fault == f"{KEY}.json is changed: ok; now failed (no space)"


def test_lost_record_is_a_fault(tmp_path: Path) -> None:
    assert faults(tmp_path, record(Outcome.FAILED), None) == [f"{KEY}.json is lost"]


def test_cancelled_run_is_repeated(tmp_path: Path) -> None:
    assert not faults(tmp_path, record(Outcome.CANCELLED), record(Outcome.OK))


@pytest.mark.ranks
@pytest.mark.slow("a sweep of real ranks is made, and killed twice")
def test_killed_sweep_loses_no_record_leaves_no_process_and_resumes(tmp_path: Path) -> None:
    """The sweep, the victims and the moments are the day's."""
    (tmp_path / "one").mkdir()
    found = endings(generator("kills"), tmp_path / "one", most=2)
    assert not any(ending.fault for ending in found), report(found)
    assert any(ending.outcome == "record kept" for ending in found)
