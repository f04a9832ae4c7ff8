"""Result of a run in one line."""

from __future__ import annotations

import pytest

from suite.core.record import Metric, Outcome, Record, Source
from suite.runner.result_line import format_result, fullest_rank_bytes, percent_of_peak


def record(source: Source = Source.MEASURED, **values: object) -> Record:
    return Record("k", "single", "axonn", "axonn 2x1", Outcome.OK, source, **values)  # type: ignore[arg-type]


def metric(unit: str, *values: float, note: str = "") -> Metric:
    return Metric(unit, "lower", values, note)


BATCH = {"batch_time": metric("s", 0.1, 0.2, 0.3)}
LOSS = {"loss": [5.0, 4.0]}


def test_share_of_peak_and_fullest_rank() -> None:
    one = record(metrics={**BATCH, "flops_per_batch": metric("flop", 1e12), "peak_flops": metric("flop/s", 1e13)})
    assert percent_of_peak(one) == pytest.approx(50.0)
    assert fullest_rank_bytes({"weights": [1, 5], "moments": [3, 1]}) == 6
    assert fullest_rank_bytes({}) == 0


def metrics(**seconds: float) -> dict[str, Metric]:
    return {name: metric("s", value) for name, value in seconds.items()}


PLANS = ("best of 2 plans that fit, of 3: 2x1, 4 a time", "other")
LINES: list[tuple[Record, list[str]]] = [  # record, and words of its line
    (record(metrics=BATCH, series=LOSS), ["200.0 ms", "loss 5.0000 to 4.0000", "3 samples", "measured"]),
    (record(Source.EMULATED, metrics={**BATCH, **metrics(simulated_time=0.19)}), ["200.0 ms", "190.0 ms", "emulated"]),
    (record(Source.SIMULATED, metrics=BATCH, notes=PLANS), ["200.0 ms", PLANS[0], "simulated"]),
    (record(metrics={"replay_time": metric("s", 0.5, 0.7)}, series=LOSS), ["2 batches", "600 ms", "4.0000"]),
    (record(metrics={**BATCH, "exchanged_bytes": metric("B", 2e6)}), ["200.0 ms", "2 MB exchanged"]),
    (record(metrics={"rows_sent": metric("row", 5000), "memory_per_process": metric("B", 3e6)}), ["5,000", "3 MB"]),
    (record(metrics=metrics(**{"mpi, 8 B": 1e-6, "mpi, 1000000 B": 1e-3})), ["mpi 1 us at 8 B to 1 ms at 1 MB"]),
    (
        record(metrics=metrics(**{f"{way}, 256": 1e-3 for way in ("a, dense", "b", "c", "d")})),
        ["a, dense 1 ms at 256", "b 1 ms at 256", "2 more"],
    ),
    (record(metrics=metrics(**{"samo.fig8.total": 1.0})), ["1 claim answered"]),
    (record(panels=[{"title": "t", "ours": {"a": [1.0]}}]), ["1 curve"]),
]


def test_result_of_each_kind_of_run() -> None:
    for stored, words in LINES:
        line = format_result(stored)
        assert [word for word in words if word not in line] == [], line
