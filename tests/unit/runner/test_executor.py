"""Records of runs without ranks: refused, kept, failed or judged.

No rank may start here: what carries such a run out is a class that the config names.
"""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from suite.cli.run import exit_code, run, summary
from suite.config.checks import outline_of
from suite.config.compose import composed, resolve
from suite.config.run import RunConfig
from suite.core.claim import AnswerRow, Claim, Evidence, Scope, Verdict
from suite.core.errors import InvalidRequest
from suite.core.op import Kind, Op
from suite.core.protocols import ExecutorResult
from suite.core.record import Metric, Outcome, Record, Source
from suite.core.trace import FORWARD, Span, Trace
from suite.papers.common import claims
from suite.papers.common.answer import answers_of_figure
from suite.papers.common.formula_executor import FIGURE
from suite.report.judge import Judged, judge
from suite.report.load import read_store
from suite.runner import interleave, provenance
from suite.runner.progress import Progress
from suite.runner.runs import expand, freeze
from suite.runner.store import key_of
from tests.support.refusals import refused

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
        keys.append(key_of(settings, provenance.circumstances(outline_of(settings))))
    assert keys[0] != keys[1] == keys[2]


def test_executor_without_ranks_ignores_rules_for_ranks(tmp_path: Path) -> None:
    """Thousands of stages, another microbatch, no text: the executor knows what it needs; the suite's counts stay."""
    settings = config(tmp_path, 4.0)
    settings["grid"] = {"data": 64, "inter": 48, "tensor": 3}
    settings["batch"] = {"size": 7, "microbatch": 2}
    settings["data"]["folder"] = str(tmp_path / "nowhere")
    assert freeze(settings, "").refusal is None
    for group, key, illegal in (("measure", "validate", "never"), ("grid", "inter", "many")):
        changed = settings | {group: settings[group] | {key: illegal}}
        assert f"{group}.{key}" in str(freeze(changed, "").refusal)


# -- the formulas ------------------------------------------------------------------------------------------------------


def test_formulas_require_a_known_paper() -> None:
    with refused(InvalidRequest, subject="executor.paper"):
        resolve(["executor=analytic"])
    wrong = freeze(composed(["executor=analytic", "executor.paper=sam"]), "")
    assert "did you mean 'samo'" in str(wrong.refusal)
    assert freeze(composed(["executor=analytic", "executor.paper=samo"]), "").label == "samo formulas"


@pytest.fixture(scope="module")
def formulas(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Record], dict[str, Judged]]:
    """Records of the formulas, and the verdicts on them by claim."""
    folder = tmp_path_factory.mktemp("formulas")
    records = run(["experiment=formulas", f"reports={folder}"], Progress(1.0, io.StringIO()))
    return records, {verdict.claim.id: verdict for verdict in judge(claims.load(), read_store(folder))}


@cache
def answer_rows() -> list[tuple[Claim, AnswerRow]]:
    return list(answers_of_figure(claims.load(), FIGURE))


def test_formulas_answer_their_claims_with_verdicts(formulas: tuple[list[Record], dict[str, Judged]]) -> None:
    records, judged = formulas
    papers = list(dict.fromkeys(claim.paper for claim, _ in answer_rows()))
    assert [(record.label, record.system, record.outcome, record.source) for record in records] == [
        (f"{paper} formulas", paper, Outcome.OK, Source.ANALYTIC) for paper in papers
    ]
    for record in records:
        rows = {claim.id: row.evidence for claim, row in answer_rows() if claim.paper == record.system}
        assert {name: metric.evidence for name, metric in record.metrics.items()} == rows
    assert Verdict.NOT_RUN not in {judged[claim.id].verdict for claim, _ in answer_rows()}
    assert {judged[claim.id].evidence for claim, _ in answer_rows()} == {Evidence.DERIVED, Evidence.PRINTED}


DEPARTS = {
    "samo.table1.batch_per_gpu",  # the caption says 4 to 1, the table has 8 to 1 (S7)
    "samo.sec6b.cnn_size_ratio",  # 9 to 102 by Table I, printed as nearly 10 to 100
    "samo.sec5b.sputnik_flops",  # 16 to 22 percent of the dense flops by Table II, printed as 10
}


def expected(claim: Claim, row: AnswerRow) -> Verdict:
    """Verdict by the rules for derived and printed values, in their order. All controls are assumed to pass."""
    holds = claim.id not in DEPARTS
    if row.evidence is Evidence.PRINTED:
        return Verdict.CONSISTENT if holds else Verdict.CONTRADICTED
    if row.restates and holds:
        return Verdict.CONSISTENT
    if row.scope is Scope.STAND_IN:
        return Verdict.TREND_ONLY if holds else Verdict.DIFFERS_ON_STAND_IN
    if holds:
        return Verdict.REPRODUCED
    return Verdict.CONTRADICTED if claim.control else Verdict.DIFFERS


def test_formulas_reproduce_or_agree_with_printed_values(
    formulas: tuple[list[Record], dict[str, Judged]],
) -> None:
    rows = [
        (claim, row) for claim, row in answer_rows() if claim.reach == "analytic" and claim.paper in ("axonn", "samo")
    ]
    assert len(rows) > 50
    judged = {name: verdict.verdict for name, verdict in formulas[1].items()}
    controls = [claim.control for claim, _ in rows if claim.id in DEPARTS and claim.control]
    assert {judged[name] for name in controls} <= {Verdict.REPRODUCED}
    assert {claim.id: judged[claim.id] for claim, _ in rows} == {claim.id: expected(claim, row) for claim, row in rows}


def test_formulas_come_first_at_laptop_scales() -> None:
    for scale in ("laptop", "smoke"):
        assert resolve([f"scale={scale}"]).scale.reproduce[0] == "formulas"
    assert {run.refusal for run in expand(["experiment=formulas"])} == {None}
