"""Metrics of a batch from the spans and bytes of its ranks."""

from __future__ import annotations

import gzip
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from suite.core import load
from suite.core.op import Kind, Op
from suite.core.trace import BACKWARD, FORWARD, REDUCE, STEP, TIE, WAIT, Span, Trace
from suite.runner.batch_metrics import (
    memory_metrics,
    update_interval,
)
from suite.runner.run import ActiveRun
from suite.runner.runs import expand
from suite.runner.store import Store


def trace(*spans: tuple[str, float, float]) -> Trace:
    trace = Trace()
    for category, start, end in spans:
        trace.add(0, category, start, end, Op(0, Kind.UPDATE, 0))
    return trace


def test_update_lasts_from_first_reduction_to_last_step() -> None:
    spans = trace((FORWARD, 0, 1), (WAIT, 1, 2), (BACKWARD, 2, 4), (TIE, 4, 5), (REDUCE, 5, 6), (STEP, 6, 8.5))
    assert update_interval(spans) == (4, 4.5)
    assert update_interval(trace((STEP, 3, 4))) == (3, 1)
    assert update_interval(trace((FORWARD, 0, 1))) is None
    assert update_interval(()) is None


def test_memory_metrics_are_those_of_the_fullest_rank() -> None:
    memory = {"weights": [10, 20], "gradients": [1, 2], "indices": [0, 3], "scratch": [100, 4], "moments": [5, 6]}
    metrics = memory_metrics(memory, {"moments": 7, "weights": 2})
    assert {name: metric.values for name, metric in metrics.items()} == {
        "peak_memory": (116.0,),
        "total_memory": (151.0,),
        "model_states": (31.0,),
        "host_states": (9.0,),
    }
    mixed = memory_metrics({"weights": [2], "masters": [4], "gradients": [3], "moments": [8], "activations": [5]}, {})
    assert mixed["model_states"].values == (17.0,), "with the master weights that DeepSpeed stores"
    assert "host_states" not in memory_metrics(memory, {"moments": 0})
    assert memory_metrics({"activations": [4]}, {})["model_states"].values == (0.0,)


# -- metrics of a run come from timed batches, with one trace per round --


class FakeRanks:
    """Ranks without a process. Each trained batch adds a second to the spans of the next reply."""

    def __init__(self) -> None:
        self.trained = 0
        self.seconds = 1.0
        self.deadlines: list[float] = []
        self.hosts = [socket.gethostname()]

    def request(self, deadline: float, *, do: str, batches: int) -> list[dict[str, Any]]:
        self.trained += batches
        self.deadlines.append(deadline)
        end = float(self.trained)
        spans = [
            Span(0, FORWARD, 0.0, end, Op(0, Kind.FORWARD, 0)),
            Span(0, BACKWARD, end, 3 * end, Op(0, Kind.BACKWARD, 0)),
            Span(0, STEP, 3 * end, 3 * end + 1, Op(0, Kind.UPDATE, 0)),
        ]
        return [
            {
                "durations": [self.seconds] * batches,
                "cpu": 1.5 * self.seconds * batches,
                "losses": [2.0] * batches,
                "updates": [None] * batches,
                "parts": [{}] * batches,
                "spans": [span.row() for span in spans],
            }
        ]

    def suspend(self) -> None:
        pass


def active_run(folder: Path, *overrides: str) -> tuple[ActiveRun, FakeRanks]:
    [run] = expand(["system=axonn", f"reports={folder}", *overrides])
    active = ActiveRun(run, folder, "group")
    active.ranks = ranks = FakeRanks()  # type: ignore[assignment]
    return active, ranks


def test_deadline_of_a_round_follows_the_batches_before_it(tmp_path: Path) -> None:
    active, ranks = active_run(tmp_path, "measure.deadline=20")
    for seconds in (1.0, 4.0, 4.0):
        ranks.seconds = seconds
        active.train(2, 1)
    assert ranks.deadlines == [20.0, 20.0, 60.0]


@pytest.mark.parametrize(("host", "foreign"), [("", [0.5, 2.0]), ("elsewhere", [])])
def test_load_of_a_round_is_what_its_ranks_did_not_use(
    host: str, foreign: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two cores beside ranks that take 1.5, and then, for batches of no time, two cores of others."""
    active, ranks = active_run(tmp_path)
    ranks.hosts = [host or socket.gethostname()]
    clock = iter(float(second) for second in (0, 3, 3, 6))
    monkeypatch.setattr(load, "cpu_time", lambda: load.CpuTime(2 * (now := next(clock)), 0.0, 0.0, now))
    for ranks.seconds in (1.0, 0.0):
        active.train(2, 1)
    assert active.foreign == foreign
    found = active.record(Store(tmp_path)).provenance["load"].get("foreign")
    assert found == (1.25 if foreign else None)


def test_traced_batch_is_the_one_nearest_the_median(tmp_path: Path) -> None:
    active, ranks = active_run(tmp_path)
    ends = []
    for ranks.seconds in (9.0, 1.0, 5.0, 4.0, 7.0):
        active.train(2, 1)
        ends.append(active.trace.makespan)
    name = active.record(Store(tmp_path)).trace
    spans = json.loads(gzip.decompress((tmp_path / str(name)).read_bytes()))["spans"]
    assert max(Span.from_row(row).end for row in spans) == ends[2]


def test_breakdown_of_a_run_has_no_warm_up(tmp_path: Path) -> None:
    active, _ = active_run(tmp_path)
    active.train(0, 1)
    active.train(2, 1)
    active.train(2, 1)
    metrics = active.record(Store(tmp_path)).metrics
    assert metrics["time_forward"].values == (4.0, 7.0)
    assert metrics["time_backward"].values == (8.0, 14.0)
    assert metrics["time_step"].values == (1.0, 1.0)
    assert len(metrics["batch_time"].values) == 4
