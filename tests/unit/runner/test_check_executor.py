"""Executor `check`: counts of the papers' figures, and refusals."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest

from suite.cli.draw import draw
from suite.core.record import Outcome, Record, Source
from suite.runner import interleave
from suite.runner.progress import Progress
from suite.runner.runs import expand

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


def test_ticks_come_from_the_configuration(tmp_path: Path) -> None:
    record = checked(tmp_path, "batch.size=4", "batch.microbatch=2", "executor.ticks={forward:3,backward:4,update:5}")
    assert value(record, "makespan") == 2 * (3 + 4) + 5


@pytest.mark.parametrize(
    ("schedule", "makespan", "in_flight", "owed"),
    [  # 4 ranks, 8 microbatches: of 3 ticks, or of 6 on two chunks
        ("eager_one_f_one_b", 33, [7, 5, 3, 1], None),
        ("interleaved", 57, [11, 9, 7, 5], None),
        ("looped_bfs", 57, [16, 16, 16, 16], None),
        ("zb_h1", 27, [4, 4, 4, 4], [1, 2, 3, 4]),
        ("zb_h2", 27, [7, 7, 7, 7], [1, 3, 5, 7]),
        ("interleaved_zero_bubble", 51, [8, 8, 8, 8], [1, 2, 3, 4]),
        ("zbv", 51, [8, 8, 8, 8], [1, 3, 5, 7]),
        ("v_half", 53, [6, 6, 6, 6], [2, 3, 4, 4]),
        ("v_min", 59, [4, 4, 4, 4], [2, 2, 2, 2]),
        ("dual_pipe_v", 51, [9, 9, 9, 9], [1, 2, 3, 4]),
        ("axonn_zb", 27, [7, 7, 7, 7], [2, 4, 6, 7]),
        ("axonn_zb_v", 52, [8, 8, 8, 8], [4, 4, 5, 6]),
    ],
)
def test_schedules_of_several_chunks_or_split_passes(
    tmp_path: Path, schedule: str, makespan: float, in_flight: list[int], owed: list[int] | None
) -> None:
    record = checked(tmp_path, f"schedule={schedule}", "grid.inter=4")
    assert value(record, "makespan") == makespan
    assert record.series["in_flight"] == in_flight
    assert record.series.get("owed") == owed


@pytest.mark.parametrize(("schedule", "ticks"), [("zb_h2", 12 * 24 + 3), ("zbv", 12 * 48 + 3)])
def test_stream_without_a_drain_has_one_version_and_no_bubble_between_batches(
    tmp_path: Path, schedule: str, ticks: int
) -> None:
    record = checked(tmp_path, f"schedule={schedule}", "grid.inter=4", "update_interval=8")
    assert value(record, "makespan") == ticks
    assert record.series["version_gap"] == [0, 0, 0, 0]
    assert set(record.series["weight_copies"]) == {1}


def test_schedule_file_is_checked_as_the_schedule_that_it_was_drawn_from(tmp_path: Path) -> None:
    file = tmp_path / "zbv.csv"
    draw(["schedule=zbv", "grid.inter=4", "draw.microbatches=8", f"draw.csv={file}"])
    of_file = ["schedule=torch_csv", f"schedule.file={file}", "grid.inter=4"]
    record = checked(tmp_path, *of_file)
    assert record.provenance["schedule_file"] == hashlib.sha256(file.read_bytes()).hexdigest()
    published = checked(tmp_path, "schedule=zbv", "grid.inter=4")
    assert value(record, "makespan") == value(published, "makespan")
    assert record.series == published.series
    assert "the pipeline ranks of the schedule" in checked(tmp_path, *of_file[:2], "grid.inter=2").reason
    assert "the number of microbatches in the file; legal: 8" in checked(tmp_path, *of_file, "batch.size=6").reason
    text = file.read_text()
    file.write_text(text.replace("0F0,", "0F0,0F0,", 1))
    assert f"{file}, row 1 (rank 0), column 2" in checked(tmp_path, *of_file).reason
    file.write_text(text.replace("0F0,", "0F0,0SEND_F0,", 1))
    assert "7F0 comes before its receive 7RECV_F0" in checked(tmp_path, *of_file).reason
    file.unlink()
    assert f"{file}: No such file or directory" in checked(tmp_path, *of_file).reason


def test_weight_gradient_is_part_of_the_backward_pass(tmp_path: Path) -> None:
    ticks = "executor.ticks={forward:3,backward:6,weight:4}"
    assert value(checked(tmp_path, "schedule=zb_h1", "grid.inter=4", ticks), "makespan") == 8 * 9 + 3 * 3


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
        (["schedule=zb_h1", "executor.ticks.weight=2"], "executor.ticks.weight=2; rule: less than the 2 ticks"),
        (["system=pipedream", "grid.inter=2", "schedule=zbv"], "weights=Stash; rule: versions of an asynchronous"),
        (["schedule=dual_pipe_v", "grid.inter=5"], "8 microbatches per update on 5 pipeline ranks with DualPipeV"),
        (["schedule=interleaved", "schedule.chunks=0"], "schedule.chunks=0; rule: at least 1 stage per rank"),
        (["schedule=interleaved", "schedule.lead=3"], "schedule.lead=3; rule: 1 or 2 steps"),
        (["schedule=interleaved", "schedule.chunks=two"], "schedule.chunks='two'; rule: chunks is a whole number"),
        (["schedule=v_half", "schedule.memory=third"], "schedule.memory=third; rule: half or min"),
    ],
)
def test_impossible_check_is_refused(tmp_path: Path, overrides: list[str], excerpt: str) -> None:
    record = checked(tmp_path, *overrides)
    assert record.outcome is Outcome.UNSUPPORTED
    assert excerpt in record.reason
