"""Records of runs without ranks: refused, kept, failed or judged; counts of executor check; replays at once.

No rank may start here: what carries such a run out is a class that the config names."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from suite.cli.draw import draw
from suite.cli.run import exit_code, summary
from suite.config.compose import composed
from suite.config.run import RunConfig, checked_run
from suite.core.errors import InvalidRequest
from suite.core.op import Kind, Op
from suite.core.protocols import ExecutorResult
from suite.core.record import Metric, Outcome, Record, Source
from suite.core.trace import FORWARD, Span, Trace
from suite.report.load import read_store
from suite.runner import interleave, provenance
from suite.runner.executors import in_process
from suite.runner.progress import Progress
from suite.runner.runs import expand, freeze
from suite.runner.store import Store, key_of, source_hash

pytestmark = pytest.mark.usefixtures("no_ranks")


class Counting:
    """An executor without ranks, which fails for the value 0 and is refused for negative values."""

    def __init__(self, *, value: float) -> None:
        self.value = value

    def check(self, config: RunConfig) -> None:
        if self.value < 0:
            raise InvalidRequest(f"executor.value={self.value}", rule="not negative", legal="executor.value=0")

    def run(self, config: RunConfig) -> ExecutorResult:
        if not self.value:
            raise ZeroDivisionError("nothing to divide by")
        spans = Trace([Span(0, FORWARD, 0.0, 1 / self.value, Op(0, Kind.FORWARD, 0))])
        return ExecutorResult(
            Source.SIMULATED,
            metrics={"batch_time": Metric("s", "lower", (1 / self.value,))},
            memory={"predicted": {"weights": [8]}},
            series={"loss": [0.5]},
            trace=spans,
            notes=("counted",),
        )


def config(folder: Path, value: float, **more: Any) -> dict[str, Any]:
    settings = composed(["grid.inter=3", f"reports={folder}"])
    return settings | {
        "executor": {"kind": "plugin", "name": "counting", "_target_": f"{__name__}.Counting", "value": value, **more}
    }


def measure_values(folder: Path, *values: float) -> list[Record]:
    runs = [freeze(config(folder, value), "suite run", f" {value}") for value in values]
    return interleave.measure(runs, Progress(1.0, io.StringIO()))


def test_result_of_an_executor_is_the_record(tmp_path: Path) -> None:
    (record,) = measure_values(tmp_path, 4.0)
    assert (record.outcome, record.source, record.label) == (Outcome.OK, Source.SIMULATED, "axonn 3x1 4.0")
    assert record.metrics["batch_time"].values == (0.25,)
    assert record.memory == {"predicted": {"weights": [8]}}
    assert record.series == {"loss": [0.5]}
    assert record.notes == ("counted",)
    assert record.config["executor"]["value"] == 4.0
    assert record.provenance["command"] == "suite run"
    store = read_store(tmp_path)
    assert not store.aside
    assert store.entries[0].trace is not None
    assert [span.end for span in store.entries[0].trace.spans] == [0.25]


def test_failed_or_refused_run_does_not_end_the_others(tmp_path: Path) -> None:
    records = measure_values(tmp_path, 0.0, -1.0, 2.0)
    assert [record.outcome for record in records] == [Outcome.FAILED, Outcome.UNSUPPORTED, Outcome.OK]
    assert records[0].reason.endswith("ZeroDivisionError: nothing to divide by")
    assert not records[0].metrics
    assert records[1].reason == "executor.value=-1.0; rule: not negative; legal: executor.value=0"
    assert exit_code(records) == 1
    assert "nothing to divide by" in summary(records[0])


@pytest.mark.parametrize(
    ("overrides", "again"), [((), "first second"), (("rerun=keep",), "second"), (("executor=replay",), "second")]
)
def test_interrupted_group_is_measured_again_as_a_whole(
    overrides: tuple[str, ...], again: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison needs common rounds. Runs of earlier groups are kept, and replays, whose times nobody compares."""
    fates = (("earlier", "a", Outcome.OK), ("first", "b", Outcome.OK), ("second", "b", Outcome.CANCELLED))
    runs, store = [], Store(tmp_path)
    for seed, (label, group, outcome) in enumerate(fates):
        (run,) = expand([f"reports={tmp_path}", f"seed={seed}", *overrides])
        runs.append(replace(run, label=label))
        record = in_process.record_of(run, (outcome, ""))
        store.write(replace(record, provenance={**record.provenance, "turns": group}))
    measured: list[str] = []
    monkeypatch.setattr(interleave, "_interleave", lambda runs, *_: measured.extend(run.label for run in runs))
    output = io.StringIO()
    interleave.measure(runs, Progress(1.0, output))
    assert measured == again.split()
    assert ("first is measured again" in output.getvalue()) is ("first" in again)


def test_record_is_reused_until_its_sources_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    folder = tmp_path / "suite" / "own"
    folder.mkdir(parents=True)
    (folder / "data.yaml").write_text("a: 1")
    settings = config(tmp_path / "reports", 4.0, sources=["suite/own"])
    first = interleave.measure([freeze(settings, "")], Progress(1.0, io.StringIO()))
    with monkeypatch.context() as patch:
        patch.setattr(Counting, "run", None)  # not called again
        assert interleave.measure([freeze(settings, "")], Progress(1.0, io.StringIO())) == first
    keys = [first[0].key]
    for name, text in (("data.yaml", "a: 2"), ("page.html", "no source")):
        (folder / name).write_text(text)
        keys.append(key_of(settings, provenance.circumstances(checked_run(settings))))
    assert keys[0] != keys[1] == keys[2]


SMALL = ["grid.inter=2", "model.shape.tied=false", "model.shape.layers=2", "measure.warm_up=0", "measure.rounds=1"]
SMALL += ["measure.discard_first=0", "measure.batches=2", "measure.eval_batches=0"]


@pytest.mark.parametrize(
    ("overrides", "at_once"),
    [
        (["executor=replay,replay"], 4),
        (["executor=replay,real"], 1),
        (["executor=replay", "launch.threads=1,3"], 1),
        (["executor=replay", "launch.threads=2"], 2),
    ],
)
def test_replays_take_steps_at_once(monkeypatch: pytest.MonkeyPatch, overrides: list[str], at_once: int) -> None:
    monkeypatch.setattr(interleave, "cores", lambda: 4)
    values = [[f"{o.partition('=')[0]}={value}" for value in o.partition("=")[2].split(",")] for o in overrides]
    runs = [run for words in product(*values) for run in expand(["system=pipeoptim", *SMALL, *words])]
    assert interleave._runs_at_once(runs) == at_once


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
