"""Metrics of a run come from timed batches, with one trace per round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from suite.core.op import Kind, Op
from suite.core.trace import BACKWARD, FORWARD, STEP, Span
from suite.runner.run import ActiveRun
from suite.runner.runs import expand
from suite.runner.store import Store


class FakeRanks:
    """Ranks without a process. Each trained batch adds a second to the spans of the next reply."""

    def __init__(self) -> None:
        self.trained = 0
        self.hosts = {0: "here"}

    def request(self, deadline: float, *, do: str, batches: int) -> list[dict[str, Any]]:
        self.trained += batches
        end = float(self.trained)
        spans = [
            Span(0, FORWARD, 0.0, end, Op(0, Kind.FORWARD, 0)),
            Span(0, BACKWARD, end, 3 * end, Op(0, Kind.BACKWARD, 0)),
            Span(0, STEP, 3 * end, 3 * end + 1, Op(0, Kind.UPDATE, 0)),
        ]
        return [
            {
                "durations": [1.0] * batches,
                "losses": [2.0] * batches,
                "updates": [None] * batches,
                "parts": [{}] * batches,
                "spans": [span.row() for span in spans],
            }
        ]

    def suspend(self) -> None:
        pass


def test_breakdown_has_one_sample_per_round_without_warm_up(tmp_path: Path) -> None:
    [run] = expand(["system=axonn", f"reports={tmp_path}"])
    active = ActiveRun(run, "key", tmp_path, "group")
    active.ranks = FakeRanks()  # type: ignore[assignment]
    active.train(0, 1)
    active.train(2, 1)
    active.train(2, 1)
    metrics = active.record(Store(tmp_path)).metrics
    assert metrics["time_forward"].values == (4.0, 7.0)
    assert metrics["time_backward"].values == (8.0, 14.0)
    assert metrics["time_step"].values == (1.0, 1.0)
    assert len(metrics["batch_time"].values) == 4
