"""Executor `check`: counts of the papers' figures, and refusals."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from suite.core.record import Outcome, Record, Source
from suite.runner import interleave
from suite.runner.launch import processes
from suite.runner.progress import Progress
from suite.runner.runs import expand


@pytest.fixture(autouse=True)
def _no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: Any, **__: Any) -> None:
        raise AssertionError("a rank was started")

    monkeypatch.setattr(processes.RankGroup, "start", started)


def checked(folder: Path, *overrides: str) -> Record:
    runs = expand(["executor=check", f"reports={folder}", *overrides])
    (record,) = interleave.measure(runs, Progress(1.0, io.StringIO()))
    return record


def value(record: Record, name: str) -> float:
    (number,) = record.metrics[name].values
    return number


def test_samo_figure_3(tmp_path: Path) -> None:
    """Three stages, five microbatches: 21 ticks, 6 of them idle on each stage."""
    record = checked(tmp_path, "grid.inter=3", "batch.size=10", "batch.microbatch=2")
    assert (record.outcome, record.source) == (Outcome.OK, Source.ANALYTIC)
    assert record.label == "axonn 3x1 checked executor=check batch.size=10 batch.microbatch=2"
    assert value(record, "makespan") == 21
    assert value(record, "idle") == pytest.approx(100 * 6 / 21)
    assert record.series["in_flight"] == [3, 3, 1]


def test_ticks_come_from_the_configuration(tmp_path: Path) -> None:
    record = checked(tmp_path, "batch.size=4", "batch.microbatch=2", "executor.ticks={forward:3,backward:4,update:5}")
    assert value(record, "makespan") == 2 * (3 + 4) + 5


def test_replicas_share_a_batch(tmp_path: Path) -> None:
    assert value(checked(tmp_path, "batch.size=16", "grid.data=4"), "makespan") == 2 * (1 + 2)


@pytest.mark.parametrize(
    ("system", "gaps", "copies", "ahead"),
    [
        ("pipedream", [3, 2, 1, 0], [4, 3, 2, 1], 0),
        ("pipedream_2bw", [1, 1, 1, 0], [2, 2, 2, 2], 0),
        ("pipeoptim", [3, 2, 1, 0], [2, 2, 2, 1], 3),
        ("spectrain", [3, 2, 1, 0], [2, 2, 2, 2], 3),
    ],
)
def test_versions_of_four_stages(tmp_path: Path, system: str, gaps: list[int], copies: list[int], ahead: float) -> None:
    record = checked(tmp_path, f"system={system}", "grid.inter=4")
    assert record.series["version_gap"] == gaps
    assert record.series["weight_copies"] == copies
    assert value(record, "predicted_ahead") == ahead
    assert value(record, "weight_copies") == max(copies)
    assert record.series["in_flight"] == [4, 3, 2, 1]


@pytest.mark.parametrize(
    ("overrides", "excerpt"),
    [
        (["system=deepspeed_3d", "system.order=null"], "the order of system=deepspeed_3d; rule: its ranks do not run"),
        (["system=pytorch", "grid.inter=2"], "pytorch on 2 ranks"),
        (["system=sputnik", "update_interval=1"], "update_interval=1 under system=sputnik"),
        (["grid.inter=4000"], "8 microbatches on 4000 stages; rule: 2 * microbatches * stages^2 is 256000000, at most"),
        (["batch.size=15"], "grid.data * batch.microbatch divides batch.size"),
        (["~executor.ticks.update"], "there is no executor.ticks.update; rule: executor.kind=check requires it"),
        (["executor.ticks.backward=1.5"], "executor.ticks.backward=1.5; rule: a whole number"),
        (["executor.ticks.backward=0"], "executor.ticks.backward=0; rule: at least 1"),
        (["system=pipedream_2bw", "grid.inter=4", "update_interval=2"], "update_interval"),
    ],
)
def test_impossible_check_is_refused(tmp_path: Path, overrides: list[str], excerpt: str) -> None:
    record = checked(tmp_path, *overrides)
    assert record.outcome is Outcome.UNSUPPORTED
    assert excerpt in record.reason
