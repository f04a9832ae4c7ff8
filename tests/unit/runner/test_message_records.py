"""Records of message studies: samples, fits, panels and claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suite.config.compose import resolve
from suite.config.run import RunConfig
from suite.core.claim import AnswerRow, Evidence, Scope, Verdict
from suite.core.protocols import ExecutorResult
from suite.core.record import Outcome, Record
from suite.papers.common import claims
from suite.report.judge import judge
from suite.report.load import ReportStore, StoredRecord, read_store
from suite.report.panels import figure_panels
from suite.runner.executors.message_sizes import merge_ranks
from suite.runner.interleave import measure
from suite.runner.progress import Progress
from suite.runner.runs import expand
from tests.support.configs import altered

SIZES = [8, 64, 1024, 4096]


@pytest.fixture(scope="module")
def base() -> RunConfig:
    return resolve(["executor=messages", "grid.data=2", "executor.sizes=[8,64,1024,4096]"])


CURVES = {
    "MPI Allreduce": {"backend": "mpi", "ours": False},
    "suite exchange over MPI": {"backend": "mpi", "ours": True},
    "suite exchange over MPI bfloat16": {"backend": "mpi", "ours": True},
    "gloo all_reduce": {"backend": "gloo", "ours": False},
    "gloo all_reduce bfloat16": {"backend": "gloo", "ours": False},
    "suite over gloo bfloat16": {"backend": "gloo", "ours": True},
}


def sweep_times(factor: float = 1.0, curves: Mapping[str, Any] = CURVES) -> Any:
    """A sweep with the times of a line, curve by curve: (10 us + bytes / (1 GB/s)) x its number x factor."""
    return {
        name: [[number * factor * (1e-5 + size / 1e9)] * 3 for size in SIZES] for number, name in enumerate(curves, 1)
    }


def summarize(config: RunConfig, curves: Mapping[str, Any], staged: bool, sweeps: Sequence[Any]) -> ExecutorResult:
    """The part of a record that holds the configured study."""
    return config.executor.build().summarize(config, {"curves": curves, "staged": staged}, sweeps)


def test_samples_of_ranks_merge_to_one_clock() -> None:
    ranks = [{"a": [[1.0, 2.0], [3.0]]}, {"a": [[3.0, 6.0], [5.0]]}]
    assert merge_ranks("point_to_point", ranks) == {"a": [[1.0, 2.0], [3.0]]}
    assert merge_ranks("all_reduce", ranks) == {"a": [[2.0, 4.0], [4.0]]}


def test_record_holds_samples_fits_and_panels(base: RunConfig) -> None:
    config = altered(base, executor__operation="all_reduce")
    sweeps = [(sweep_times(factor), sweep_times(factor)) for factor in (1.0, 1.1, 1.5)]
    summary = summarize(config, CURVES, False, sweeps)
    raw = summary.metrics["MPI Allreduce, 1024 B"]
    assert (raw.unit, raw.better, len(raw.values)) == ("s", "lower", 9)
    assert summary.metrics["latency, MPI Allreduce"].values == pytest.approx((1e-5, 1.1e-5, 1.5e-5))
    assert summary.metrics["bandwidth, MPI Allreduce"].values == pytest.approx((1e9, 1e9 / 1.1, 1e9 / 1.5))
    assert max(summary.metrics["misfit, gloo all_reduce"].values) < 1e-9
    panels = [panel.to_record() for panel in summary.panels]
    record = Record("k", "x", "messages", "l", Outcome.OK, summary.source, panels=panels)
    drawn = {panel.title.partition(": ")[2].partition(" ")[0]: panel for panel in figure_panels.read(record)}
    assert drawn.keys() == {"", "our", "middle", "latency", "bandwidth"}
    assert (drawn[""].unit, drawn[""].axis, drawn[""].x) == ("s", "bytes", ("8", "64", "1024", "4096"))
    assert drawn[""].systems == list(CURVES)
    assert drawn["our"].systems == ["suite exchange over MPI", "suite over gloo bfloat16"], "like with like"
    assert (drawn["latency"].axis, drawn["latency"].x) == ("turn", ("1", "2", "3"))
    for name, system, place, expected in (
        ("", "MPI Allreduce", 2, 1.1 * (1e-5 + 1024 / 1e9)),
        ("our", "suite exchange over MPI", 0, 2.0),
        ("our", "suite over gloo bfloat16", 0, 6 / 5),
        ("middle", "gloo all_reduce", 0, 100 * (1.5 - 1.0) / 1.1),
        ("latency", "gloo all_reduce", 2, 60.0),
    ):
        assert drawn[name].at("ours", system, place) == pytest.approx(expected), name


def test_single_size_has_no_fit_and_special_conditions_are_noted(base: RunConfig) -> None:
    curves = {"a": {"backend": "mpi", "ours": False}}
    summary = summarize(altered(base, executor__sizes=[64]), curves, False, [({"a": [[1e-6]]}, {"a": [[0.0]]})])
    assert set(summary.metrics) == {"a, 64 B"}
    assert not [note for note in summary.notes if "latency" in note]
    summary = summarize(altered(base, grid__data=64), curves, True, [({"a": [[1e-6]] * 4},) * 64])
    assert any(note.startswith("oversubscribed: 64 ranks on ") for note in summary.notes)
    assert any(note.startswith("staged: ") for note in summary.notes)


# -- the claims ----------------------------------------------------------------------------------------------------

CLAIM = {
    "_target_": "suite.runner.executors.message_sizes.MessageClaim",
    "id": "axonn.fig4.allreduce_intranode",
    "terms": ["nccl", "mpi"],
    "least": 64,
    "most": 2000,
}
BOTH = {
    "NCCL all_reduce": {"backend": "nccl", "ours": False},
    "NCCL all_reduce bfloat16": {"backend": "nccl", "ours": False},
    "MPI Allreduce": {"backend": "mpi", "ours": False},
}


def judged(*records: Record, folder: Path | None = None) -> Any:
    stored = tuple(StoredRecord(record, "records/k.json") for record in records)
    store = read_store(folder) if folder else ReportStore(Path("nowhere"), stored)
    (claim,) = [claim for claim in claims.load() if claim.id == CLAIM["id"]]
    row = AnswerRow(Evidence.MEASURED, figure="axonn_fig4", stand_in="another machine", turned_by=("m",))
    return judge([replace(claim, answers=(row,))], store)[0]


def test_library_order_on_a_stand_in_is_a_trend(base: RunConfig) -> None:
    config = altered(base, executor__operation="all_reduce", executor__claim=CLAIM)
    for curves, verdict in ((BOTH, Verdict.TREND_ONLY), (dict(reversed(BOTH.items())), Verdict.DIFFERS_ON_STAND_IN)):
        summary = summarize(config, curves, False, [(sweep_times(1.0, curves),) * 2])
        values = summary.metrics[str(CLAIM["id"])].values
        assert len(values) == 4, "two sizes, two libraries"
        record = Record("k", "axonn_fig4", "messages", "l", Outcome.OK, summary.source, metrics=dict(summary.metrics))
        answer = judged(record)
        assert (answer.verdict, answer.scope, answer.evidence) == (verdict, Scope.STAND_IN, Evidence.MEASURED)
        assert answer.ours == (values[:2], values[2:])
        assert judged(replace(record, outcome=Outcome.FAILED)).verdict is Verdict.NOT_RUN


def test_study_unlike_the_paper_answers_no_claim(base: RunConfig) -> None:
    for claim, curves, staged in (
        (CLAIM, BOTH, True),  # the paper's libraries read device memory
        (CLAIM, CURVES, False),  # without NCCL
        (None, BOTH, False),
        ({**CLAIM, "least": 1e6, "most": 5e7}, BOTH, False),  # no size of the claim's
    ):
        config = altered(base, executor__operation="all_reduce", executor__claim=claim)
        summary = summarize(config, curves, staged, [(sweep_times(1.0, curves),) * 2])
        assert CLAIM["id"] not in summary.metrics


@pytest.mark.usefixtures("no_ranks")
def test_unanswered_claim_names_its_refused_run(tmp_path: Path) -> None:
    (run,) = [
        run
        for run in expand(["experiment=axonn_fig4", f"reports={tmp_path}"])
        if run.config.executor.build().backends == ["mpi", "nccl"]
    ]
    (record,) = measure([run], Progress(1.0))
    assert (record.outcome, record.label) == (Outcome.UNSUPPORTED, "mpi and nccl 1x2")
    assert "NCCL moves CUDA memory" in record.reason
    answer = judged(folder=tmp_path)
    assert (answer.verdict, record.label in answer.why) == (Verdict.NOT_RUN, True)
