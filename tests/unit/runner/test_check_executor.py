"""Executor `check`: counts of the papers' figures, and refusals."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from suite.cli.draw import draw
from suite.core.record import Outcome, Record, Source
from suite.runner import interleave
from suite.runner.progress import Progress
from suite.runner.runs import expand
from suite.runner.store import source_hash

pytestmark = pytest.mark.usefixtures("no_ranks")


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


def test_ticks_and_replicas_come_from_the_configuration(tmp_path: Path) -> None:
    for overrides, makespan in {
        ("batch.size=4", "executor.ticks={forward:3,backward:4,update:5}"): 2 * (3 + 4) + 5,
        ("schedule=zb_h1", "grid.inter=4", "executor.ticks={forward:3,backward:6,weight:4}"): 8 * 9 + 3 * 3,
        ("batch.size=16", "grid.data=4"): 2 * (1 + 2),  # replicas share a batch
        ("schedule=zb_h2", "grid.inter=4", "update_interval=8"): 12 * 24 + 3,  # a stream: no bubble between batches
    }.items():
        assert value(checked(tmp_path, *overrides), "makespan") == makespan, overrides


@pytest.mark.parametrize(
    ("schedule", "makespan", "in_flight", "owed"),
    [  # 4 ranks, 8 microbatches: of 3 ticks, or of 6 on two chunks
        ("eager_one_f_one_b", 33, [7, 5, 3, 1], None),
        ("interleaved", 57, [11, 9, 7, 5], None),
        ("v_half", 53, [6, 6, 6, 6], [2, 3, 4, 4]),
        ("axonn_zb", 27, [7, 7, 7, 7], [2, 4, 6, 7]),
        ("axonn_zb_v", 52, [8, 8, 8, 8], [4, 4, 5, 6]),
    ],
)
def test_schedules_of_several_chunks_or_split_passes(
    tmp_path: Path, schedule: str, makespan: float, in_flight: list[int], owed: list[int] | None
) -> None:
    record = checked(tmp_path, f"schedule={schedule}", "grid.inter=4")
    assert value(record, "makespan") == makespan
    assert (record.series["in_flight"], record.series.get("owed")) == (in_flight, owed)


def test_schedule_file_is_checked_as_the_schedule_that_it_was_drawn_from(tmp_path: Path) -> None:
    file = tmp_path / "zbv.csv"
    draw(["schedule=zbv", "grid.inter=4"], file)
    of_file = ["schedule=torch_csv", f"schedule.file={file}", "grid.inter=4"]
    record, published = checked(tmp_path, *of_file), checked(tmp_path, "schedule=zbv", "grid.inter=4")
    assert record.provenance["schedule_file"] == source_hash([file])
    assert (value(record, "makespan"), record.series) == (value(published, "makespan"), published.series)
    assert "pipeline ranks" in checked(tmp_path, *of_file[:2], "grid.inter=2").reason
    assert "legal: 8" in checked(tmp_path, *of_file, "batch.size=6").reason
    file.write_text(file.read_text().replace("0F0,", "0F0,0F0,", 1))
    assert "row 1, column 2" in checked(tmp_path, *of_file).reason
