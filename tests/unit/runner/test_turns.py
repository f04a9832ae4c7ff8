"""Metrics of a batch come from timed batches, with one trace per round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from suite.core.op import Kind, Op
from suite.core.trace import BACKWARD, FORWARD, STEP, Span
from suite.runner.run import Session
from suite.runner.runs import expand
from suite.runner.store import Store


class Answering:
    """Ranks that answer what a turn is told to, without a process: each batch takes a second longer."""

    def __init__(self) -> None:
        self.asked = 0
        self.hosts = {0: "here"}

    def ask(self, deadline: float, *, do: str, batches: int) -> list[dict[str, Any]]:
        self.asked += batches
        end = float(self.asked)
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

    def sleep(self) -> None:
        pass


def test_a_batch_is_told_apart_once_a_turn_and_not_while_it_warms_up(tmp_path: Path) -> None:
    [run] = expand(["system=axonn", f"reports={tmp_path}"])
    session = Session(run, "key", tmp_path, "turns")
    session.ranks = Answering()  # type: ignore[assignment]
    session.train(0, 1)
    session.train(2, 1)
    session.train(2, 1)
    metrics = session.record(Store(tmp_path)).metrics
    assert metrics["time_forward"].values == (4.0, 7.0)
    assert metrics["time_backward"].values == (8.0, 14.0)
    assert metrics["time_step"].values == (1.0, 1.0)
    assert len(metrics["batch_time"].values) == 4
