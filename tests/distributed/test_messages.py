"""Message studies with real ranks, for every backend that a CPU has."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.cli.run import exit_code, run, summary
from suite.core.record import Outcome, Source
from suite.doctor import check
from suite.doctor.measure import FILE, measure
from suite.report.load import read_store
from suite.report.panels import figure_panels
from suite.simulate.network.machine import measured
from tests.support.tools import needs

SIZES = [8, 65536]  # within the header's message, and after it
TRIPS = ["MPI Isend/Irecv", "suite over MPI", "gloo send/recv", "suite over gloo"]
SUMS = [
    "MPI Allreduce",
    "suite exchange over MPI",
    "suite exchange over MPI bfloat16",
    "gloo all_reduce",
    "gloo all_reduce bfloat16",
    "suite over gloo",
]


@pytest.mark.slow("messages over two transports")
def test_message_study_writes_samples_and_panels(tmp_path: Path) -> None:
    needs("mpiexec")
    small = [f"executor.sizes={SIZES}".replace(" ", ""), "executor.rounds=3", "measure.rounds=2", "measure.batches=1"]
    ours, refused = run(["experiment=axonn_fig3", f"reports={tmp_path}", *small])
    assert (ours.outcome, ours.source) == (Outcome.OK, Source.MEASURED), ours.reason
    assert refused.outcome is Outcome.UNSUPPORTED
    assert exit_code([ours, refused]) == 1
    assert "batch_time" not in ours.metrics, "no batch was trained"
    assert not {"peak_flops", "tokens_per_batch"} & set(ours.metrics)
    assert not ours.memory, "no model is held"
    assert summary(ours).endswith(" curves, measured")
    for name in TRIPS:
        for size in SIZES:
            seen = ours.metrics[f"{name}, {size} B"].values
            assert len(seen) == 2 * 3
            assert all(0 < seconds < 10 for seconds in seen)
        assert len(ours.metrics[f"latency, {name}"].values) == 2
    store = read_store(tmp_path)
    (record,) = [record for record in store.records if record.outcome is Outcome.OK]
    drawn = figure_panels.read(record)
    times, beside = drawn[0], next(panel for panel in drawn if "library" in panel.title)
    assert times.title == "Time of a message, one way"
    assert set(times.systems) == set(TRIPS)
    assert set(beside.systems) == {name for name in TRIPS if name.startswith("suite")}


@pytest.mark.slow("messages and reductions over two transports")
def test_doctor_measures_messages_and_reductions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("mpiexec")
    monkeypatch.setattr(check, "PATIENCE", 100.0)  # next to other tests,
    monkeypatch.setattr("suite.doctor.measure.TRIES", 1)  # which disturb each measurement as much
    output = measure(tmp_path)
    here = measured(name="local", file=str(tmp_path / FILE))
    assert set(here.backends) == {"point_to_point", "all_reduce"}
    assert set(here.backends["point_to_point"]) <= set(TRIPS)
    assert set(here.backends["all_reduce"]) <= set(SUMS)
    links = [link for ways in here.backends.values() for link in ways.values()]
    assert f"{len(links)} messages and all-reduces timed" in output
    assert len(links) >= len(TRIPS), "a loaded machine's times may not grow, but not everybody's"
    for link in links:
        assert 0 <= link.latency < 1
        assert 1e6 < link.bandwidth < 1e12
