"""Result of a run in one line."""

from __future__ import annotations

from suite.cli.result_line import format_result
from suite.core.record import Metric, Outcome, Record, Source


def record(source: Source = Source.MEASURED, **values: object) -> Record:
    return Record("k", "single", "axonn", "axonn 2x1", Outcome.OK, source, **values)  # type: ignore[arg-type]


def metric(unit: str, *values: float, note: str = "") -> Metric:
    return Metric(unit, "lower", values, note)


BATCH = {"batch_time": metric("s", 0.1, 0.2, 0.3)}
PEAK = {**BATCH, "flops_per_batch": metric("flop", 1e12), "peak_flops": metric("flop/s", 1e13)}
LOSS = {"loss": [5.0, 4.0]}
PLANS = ("best of 2 plans that fit, of 3: 2x1, 4 a time", "other")
COUNTS = {"rows_sent": metric("row", 5000), "memory_per_process": metric("B", 3e6), "copies": metric("copy", 1)}
LINES: list[tuple[Record, str]] = [
    (record(metrics=BATCH, series=LOSS), "200 ms per batch, loss 5.0000 to 4.0000, measured"),
    (record(metrics=PEAK), "200 ms per batch, 50.0 percent of peak, measured"),
    (record(Source.SIMULATED, metrics=BATCH, notes=PLANS), f"200 ms per batch, {PLANS[0]}, simulated"),
    (
        record(metrics={"replay_time": metric("s", 0.5, 0.7)}, memory={"predicted": {"weights": [1, 5], "in": [3, 1]}}),
        "600 ms per batch in one process, 6 B on the fullest rank, measured",
    ),
    (record(metrics=COUNTS), "5,000 rows sent per product, 3 MB on the fullest process, measured"),
    (record(metrics={"samo.fig8.total": metric("s", 1.0)}), "1 claim answered, measured"),
]


def test_result_of_each_kind_of_run() -> None:
    for stored, line in LINES:
        assert format_result(stored).startswith(line)
