"""PipeOptim's Figure 1 with unit times, against a hand-drawn timeline."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from suite.config.compose import resolve
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest
from suite.core.op import Op
from suite.core.record import Source
from suite.papers.pipeoptim.unit_time_executor import UnitTimeExecutor
from tests.support.configs import altered
from tests.support.refusals import refused


@cache
def config(*overrides: str) -> RunConfig:
    return resolve(["executor=unit", "grid.inter=4", "batch.size=4", *overrides])


def unit(**changes: float) -> UnitTimeExecutor:
    options: dict[str, Any] = {"forward": 4, "backward": 8, "batches": 3, **changes}
    return UnitTimeExecutor(**options)


def starts(timeline: Any) -> dict[str, float]:
    return {str(span.op): span.start for span in timeline if span.op is not None and span.category != "wait"}


def test_one_device_runs_mini_batches_in_turn() -> None:
    timeline = unit().timeline(altered(config("system=naive"), grid__inter=1))
    assert [(str(s.op), s.start, s.end) for s in timeline if s.category in ("forward", "backward")] == [
        (f"0{kind}{batch}", 12.0 * batch + begin, 12.0 * batch + end)
        for batch in range(3)
        for kind, begin, end in (("F", 0, 4), ("B", 4, 12))
    ]


def test_three_mini_batches_on_four_stages() -> None:
    for overrides, makespan, idle in (
        (("system=naive",), 36.0, 0.75),  # one of four stages works at a time
        (("system=gpipe", "batch.microbatch=1"), 3 * 5.25, 3 / 7),  # (S - 1) / (M + S - 1)
        (("system=pipedream",), 9 + 3 * 3, 1 - 9 / 18),
    ):
        record = unit().run(config(*overrides))
        assert record.source is Source.SIMULATED
        assert record.metrics["makespan"].values == (makespan,)
        assert record.metrics["idle"].values == pytest.approx((100 * idle,))


def test_flush_starts_next_mini_batch_after_last() -> None:
    start = starts(unit(batches=2).timeline(config("system=gpipe", "batch.microbatch=1")))
    assert len([op for op in start if Op.parse(op).kind == "F"]) == 2 * 4 * 4
    assert start["0F4"] == 5.25
    assert start["3F4"] == 5.25 + 0.75
    assert start["0U1"] == start["0B7"] + 0.5


def test_asynchronous_pipeline_fills_once() -> None:
    start = starts(unit(batches=9).timeline(config("system=pipedream")))
    assert [start[f"3F{index}"] for index in range(9)] == [3.0 + 3 * index for index in range(9)]


def test_invalid_timelines_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        unit(batches=0).check(config("system=gpipe", "batch.microbatch=1"))
    with refused(InvalidRequest, "batch.size", 4):
        unit().check(config("system=gpipe", "batch.microbatch=3"))
    with pytest.raises(InvalidRequest):
        unit().check(config("system=pipedream_2bw", "update_interval=2"))
    unit().check(config("system=pipedream"))
