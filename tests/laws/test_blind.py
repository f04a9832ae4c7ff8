"""No printed outcome reaches a measured or derived record, and `--blind` hides them all until records are written."""

from __future__ import annotations

import itertools
import json
import math
import operator
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from suite.claims import blind, figure_executor, load
from suite.claims.answer import Papers
from suite.claims.claim import Evidence, Role
from suite.cli import reproduce
from suite.config.compose import resolve
from suite.config.panels import FigurePanel
from suite.core.errors import HiddenOutcome, InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.protocols import ExecutorResult
from suite.core.record import Metric, Outcome
from suite.runner.executors.in_process import run_in_process
from suite.runner.executors.registry import without_ranks
from suite.runner.launch.launch_command import rank_environment
from suite.runner.runs import expand
from suite.runner.store import Store
from tests.support.drawn import drawn
from tests.support.refusals import refused

ABSURD = 12345.678
TEXTS = ("asserts", "hedge", "limits", "note", "because")


COUNTED = ("gnn_small", "gnn_volumes", "gnn_table2")  # figures of graphs that are counted, not simulated
RUNS = (["executor=analytic", "executor.paper=sparse_gnn"], ["executor=published", "executor.figure=samo_fig2"])
QUICK = ("samo", "sparse_gnn", "samo_fig2")  # papers' formulas and a figure


def executors() -> Iterator[tuple[str, ...]]:
    """Overrides of every executor that answers claims: the formulas of each paper, and each figure."""
    for paper in load.papers():
        yield "executor=analytic", f"executor.paper={paper}"
    for figure in sorted({row.figure for claim in load.claims() for row in claim.answers if row.figure} - {"formulas"}):
        if figure.startswith("gnn_"):
            yield "executor=graph_clusters", f"executor.figure={figure}", f"executor.counted={figure in COUNTED}"
        else:
            yield "executor=published", f"executor.figure={figure}"


def is_quick(overrides: tuple[str, ...]) -> bool:
    return overrides[1].partition("=")[2] in QUICK


@pytest.fixture(scope="module")
def absurd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The claim files with another outcome in every row except settings, without the answers that compare printed
    numbers with each other.
    """
    folder = tmp_path_factory.mktemp("claims") / "papers"
    shutil.copytree(load.FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for paper in load.papers():
        target = folder / paper / "claims.yaml"
        rows = yaml.load(target.read_text(encoding="utf-8"), Loader=load.Loader)
        target.write_text(yaml.safe_dump([_absurd(row) for row in rows]), encoding="utf-8")
    return folder


def _absurd(row: dict[str, Any]) -> dict[str, Any]:
    row = {**row, "answers": [each for each in row.get("answers", ()) if each["evidence"] != Evidence.PRINTED]}
    if row["role"] == Role.SETTING:
        return row
    value = row["value"]
    other = {str: "absurd", list: [ABSURD, 2 * ABSURD]}.get(type(value), ABSURD)
    texts = {name: "absurd" for name in TEXTS if row.get(name)}
    expression = {"expression": str(ABSURD)} if row.get("expression") else {}
    return {**row, **texts, **expression, "value": other, "printed": [str(ABSURD)]}


def exact(execution: ExecutorResult) -> tuple[Any, ...]:
    """The content of a record except printed values; as text, so that nan equals itself.

    Measured values and their notes are left out: clocks never agree, and the peak of allocated bytes moves with a
    message in flight.
    """
    metrics = {name: each for name, each in execution.metrics.items() if each.evidence != Evidence.PRINTED}
    texts = {name: repr(replace(unmeasured(each), seconds=None, null=())) for name, each in metrics.items()}
    ours = [(panel.title, repr(panel.ours)) for panel in execution.panels if panel.ours]
    return texts, ours, execution.notes, execution.calibrated_on


def unmeasured(metric: Metric) -> Metric:
    return replace(metric, values=(), note="") if measured(metric) else metric


def measured(metric: Metric) -> bool:
    return metric.evidence == Evidence.MEASURED or metric.unit == "second"


def near(metrics: ExecutorResult) -> dict[str, Any]:
    """Measured values but clocks, within five percent: an absurd printed number would move them by far more."""
    return {
        name: pytest.approx(each.values, rel=0.05, nan_ok=True)
        for name, each in metrics.metrics.items()
        if each.evidence == Evidence.MEASURED and each.unit != "second"
    }


def answered(overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ExecutorResult:
    """The result of an executor, in a new laboratory. Everything else cached in this process was computed blind."""
    monkeypatch.setattr(figure_executor, "LABS", {})
    config = resolve([*overrides, f"reports={tmp_path}"])
    executor: Any = without_ranks(config.executor)
    metrics: ExecutorResult = executor.run(config)
    return metrics


@pytest.mark.parametrize(
    "overrides",
    [
        *drawn([(each,) for each in executors() if is_quick(each)], n=1),
        *(pytest.param(each, marks=pytest.mark.exhaustive) for each in executors() if not is_quick(each)),
    ],
    ids=lambda each: each[1],
)
def test_our_values_are_the_same_whatever_is_printed(
    overrides: tuple[str, ...], absurd: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with blind.hiding():
        hidden = answered(overrides, monkeypatch, tmp_path)
    monkeypatch.setattr(load, "FOLDER", absurd)
    changed = answered(overrides, monkeypatch, tmp_path)
    assert exact(hidden) == exact(changed)
    expected = near(changed)
    assert {name: hidden.metrics[name].values for name in expected} == expected
    assert not any(each.evidence == Evidence.PRINTED for each in hidden.metrics.values())
    assert any(claim.value == ABSURD for claim in load.claims()), "the other files were read"


# arguments that are a setting and no outcome, though the row's `value` names them too
SETTINGS = {
    ("samo.fig8.overhead_overcome", "gpus"): "the GPU counts at which Figure 8 compares saving and overhead",
    ("sparse_gnn.fig3.amazon_gain_from_p32", "gpus"): "the GPU counts of Figure 3 from 32 on",
    ("sparse_gnn.fig4.communication_falls_amazon", "gpus"): "the GPU counts of Figure 4 from 32 on",
}


def test_no_answer_is_given_the_outcome_of_its_own_claim() -> None:
    """An answer could return a published number found in its arguments: alone, in a list or in a text.

    A number in a text value, such as 'minimum at k = 2', is an outcome too. The setting of a claim with a text value
    is not checked, because it often names the cases.
    """
    arguments = {
        (claim.id, name): each
        for claim in load.claims()
        for row in claim.answers
        for name, each in (*row.arguments.items(), *(() if isinstance(claim.value, str) else claim.setting.items()))
        if set(filter(math.isfinite, numbers_in(claim.value))) & set(numbers_in(each))
    }
    assert arguments.keys() == SETTINGS.keys(), arguments


def numbers_in(value: object) -> Iterator[float]:
    """Of lists and texts too; numbers that are part of a word, as in gpus_256, are none."""
    if isinstance(value, str):
        yield from map(float, re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])", value))
    elif isinstance(value, list | tuple):
        yield from itertools.chain.from_iterable(map(numbers_in, value))
    elif isinstance(value, int | float):
        yield float(value)


def test_loaded_claims_hold_settings_and_no_outcome() -> None:
    loaded = load.claims()
    with blind.hiding():
        hidden = load.claims()
    assert [claim.id for claim in hidden] == [claim.id for claim in loaded]
    for claim, before in zip(hidden, loaded, strict=True):
        assert not any((*(getattr(claim, name) for name in TEXTS), claim.expression, claim.printed))
        assert (claim.tolerance, claim.neutral) == (None, None)
        assert claim.setting == before.setting
        for row in claim.answers:
            anchors = [
                each for anchor in row.anchors.values() for each in (anchor if isinstance(anchor, tuple) else [anchor])
            ]
            assert all(map(math.isnan, anchors))
        if claim.role is Role.SETTING:
            assert claim.value == before.value
        else:
            assert isinstance(claim.value, blind.Hidden)
    assert load.claims() is loaded


USES: tuple[Callable[[Any], object], ...] = (
    *(str, float, int, bool, len, list, abs, hash, "{}".format, operator.itemgetter(0)),
    lambda value: value + 1,
    lambda value: 2.0 * value,
    lambda value: value < 1,
    lambda value: value == 1,
)


def test_any_use_of_a_hidden_outcome_names_its_claim() -> None:
    for use in USES:
        with pytest.raises(HiddenOutcome) as error:
            use(blind.Hidden("a.b"))
        assert error.value.claim == "a.b"


def test_a_derived_answer_that_reads_an_outcome_fails() -> None:
    with blind.hiding():
        papers = Papers({claim.id: claim for claim in load.claims()}, {}, {})
        with pytest.raises(HiddenOutcome) as error:
            papers.ends("samo.fig6_7.speedup_over_axonn.gpt3_xl")
    assert error.value.claim == "samo.fig6_7.speedup_over_axonn.gpt3_xl"


def test_the_record_says_which_outcome_was_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = "axonn.fig6.pipeline_time.before"
    monkeypatch.setattr(figure_executor, "figure_metrics", lambda _, published, __: 2 * published[name].value)
    [run] = expand([*RUNS[1], f"reports={tmp_path}"])
    with blind.hiding():
        record = run_in_process(run, Store(tmp_path))
    assert record.outcome is Outcome.UNSUPPORTED
    assert f"the printed outcome of claim {name}" in record.reason
    assert record.provenance[blind.MARK] == blind.OPEN


def test_child_processes_are_blind() -> None:
    code = "from suite.claims import load; print(any(type(c.value) is float for c in load.claims()))"
    code = code.replace("c in load.claims()", "c in load.claims() if c.role != 'setting'")
    with blind.hiding():
        done = subprocess.run(
            [sys.executable, "-c", code], env=rank_environment(threads=1), capture_output=True, text=True, check=True
        )
    assert done.stdout.strip() == "False"
    assert blind.VARIABLE not in rank_environment(threads=1)


# -- the command -----------------------------------------------------------------------------------------------------


def test_a_blind_reproduction_adds_printed_numbers_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words, pages = RUNS[1], []

    def page(folder: Path, changed: object) -> Path:
        pages.append(blind.active())
        return folder / "index.html"

    monkeypatch.setattr("suite.report.write_report", page)
    monkeypatch.setattr(reproduce, "command_line", lambda entry, more=(): [*words, *more])
    arguments = ["scale=smoke", "scale.reproduce=[formulas]", f"reports={tmp_path}"]
    assert reproduce.main([*arguments, "--blind"]) == Exit.OK
    [run] = expand([*words, *arguments])
    store = Store(tmp_path)
    record = store.find(run.key)
    assert record.provenance[blind.MARK] == blind.FILLED
    assert pages == [False]
    executor: Any = without_ranks(run.config.executor)
    usual: ExecutorResult = executor.run(run.config)
    values, expected = ({n: each.values for n, each in one.metrics.items()} for one in (record, usual))
    assert values == expected
    panels = [FigurePanel.read(json.loads(json.dumps(panel.to_record()))) for panel in usual.panels]
    assert repr([FigurePanel.read(panel) for panel in record.panels]) == repr(panels)
    assert reproduce.main([*arguments, "--blind"]) == Exit.OK, "goes on with its own records"


def test_a_folder_with_records_made_in_sight_is_refused(tmp_path: Path) -> None:
    [run] = expand([*RUNS[0], f"reports={tmp_path}"])
    store = Store(tmp_path)
    store.write(run_in_process(run, store))
    with refused(
        InvalidRequest,
        subject="made without --blind",
        rule="every record of a blind reproduction comes from a blind run",
    ):
        reproduce.check_all_blind(store)
