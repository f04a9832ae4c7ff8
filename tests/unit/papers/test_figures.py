"""Simulated cluster runs follow the papers' descriptions, and their errors are recorded."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from statistics import median
from typing import Any

import pytest

from suite.claims import cluster_runs as lab_module
from suite.claims import load
from suite.claims.answer import Answer, answer, answers_of_figure
from suite.claims.cluster_runs import AXONN_COUNTS, ClusterBatch, Lab, Phases, printed_peak
from suite.claims.figure_executor import figure_metrics, find_figure
from suite.claims.fit import fitted
from suite.claims.panel import figures
from suite.cli.claims import FITTED
from suite.config.compose import resolve
from suite.core.errors import UnknownName
from suite.core.grid import Grid
from suite.core.op import Kind, Op
from suite.core.protocols import ExecutorResult
from suite.core.record import Source
from suite.core.trace import BACKWARD, FORWARD, REDUCE, WAIT, Span, Trace
from suite.papers.axonn import figures as axonn
from suite.papers.axonn import scaling as axonn_scaling
from suite.papers.samo import figures as samo
from suite.runner.executors.registry import without_ranks
from suite.simulate.block_model import SimulationPlan
from suite.simulate.validation.calibrate import constants
from suite.simulate.worker import Simulation
from tests.support.drawn import drawn
from tests.support.modelled import conf
from tests.support.published_runs import lab, published
from tests.support.refusals import refused


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """An eighth of the batches, which tests of form do not need whole."""
    for module in (lab_module, axonn_scaling):
        monkeypatch.setattr(module, "WEAK_BATCH", 2048)
        monkeypatch.setattr(module, "STRONG", ((48, 512), (96, 1024), (192, 2048), (384, 4096)))
    monkeypatch.setattr(axonn, "BATCHES", (256, 512, 1024, 2048))


OWN = [name for name, (paper, *_) in figures().items() if paper in ("axonn", "samo", "pipeoptim")]


SLOW = ("axonn_table2", "pipeoptim_small")  # searches, and answers that train


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("name", drawn([name for name in OWN if name not in SLOW], n=2))
def test_answers_are_in_the_claims_unit_and_fill_its_cases(name: str) -> None:
    metrics = figure_metrics(name, published(), lab())
    rows = {claim.id: row.evidence for claim, row in answers_of_figure(load.claims(), name)}
    assert {claim: ours.evidence for claim, ours in metrics.items()} == rows
    for claim, ours in metrics.items():
        row = published()[claim]
        assert ours.unit == row.unit, claim
        assert ours.values, claim
        assert len(ours.values) % max(1, len(row.terms) or len(row.points)) == 0, claim
        assert all(map(math.isfinite, ours.values)), claim


@pytest.mark.slow("equations of whole figures are solved")
@pytest.mark.parametrize("name", FITTED)
def test_fitted_constants_are_the_roots_of_their_equations(name: str) -> None:
    stored, found = lab(FITTED[name]).efficiencies[name], fitted(lab(FITTED[name]), name)
    for constant in stored.fitted:
        assert getattr(found, constant) == pytest.approx(getattr(stored, constant), rel=1e-3), constant


def test_products_are_the_median_of_public_measurements() -> None:
    """A pair of device and generation without a fitted cell takes the median of all."""
    shares = sorted(one.share for one in constants())
    for name in ("summit", "usual"):
        assert conf("efficiency", name).products == pytest.approx(median(shares), abs=1e-3)
    assert lab().machine.peak_of("float16") == printed_peak() == 125e12


def answer_of(name: str, figure: str, source: Lab) -> Answer:
    claim = published()[name]
    (row,) = [row for row in claim.answers if row.figure == figure]
    return answer(claim, row, source)


def test_only_answers_of_fitted_constants_and_chosen_plans_are_fed() -> None:
    cells = {
        "sputnik": ("samo.table2.sputnik.gpus_256",),
        "deepspeed_3d": tuple(f"samo.table2.deepspeed_3d.gpus_{gpus}" for gpus in (512, 1024, 2048)),
    }
    for system in samo.SYSTEMS:
        metric = answer_of(f"samo.table2.{system}.gpus_256", "samo_table2", lab())
        assert "efficiency.summit.products" in metric.reads
        assert metric.fed_by == cells.get(system, ())
    first = answer_of("samo.table2.axonn.gpus_512", "samo_table2", replace(lab()))  # nothing is computed yet
    assert {name.split(".")[1] for name in first.reads} == {"summit", "samo"}
    fitted = "axonn.sec5b.total_memory_after"
    assert fitted in answer_of(fitted, "axonn_memory", lab()).fed_by


def test_every_published_plan_fits_its_machine() -> None:
    for system in samo.SYSTEMS:
        for model in samo.MODELS:
            for gpus in samo.counts(model):
                plan = lab().samo_plan(model, system, gpus)
                assert plan.peak <= lab().machine.memory, (system, model, gpus)
    for system in axonn_scaling.SYSTEMS:
        for model in AXONN_COUNTS:
            assert lab().weak_plan(model, system).peak <= lab().machine.memory, (system, model)


# Figure 8's phases


def test_phases_are_those_of_the_authors_profiler() -> None:
    op = Op(0, Kind.BACKWARD, 0)
    spans = Trace(
        [
            Span(0, FORWARD, 0.0, 1.0, Op(0, Kind.FORWARD, 0)),
            Span(0, WAIT, 1.0, 3.0, op),
            Span(0, BACKWARD, 3.0, 5.0, op),
            Span(0, WAIT, 5.0, 5.5, op),
            Span(0, REDUCE, 5.5, 6.0, Op(0, Kind.UPDATE, 0)),
            Span(1, WAIT, 0.0, 9.0, op),
        ]
    )
    plan = SimulationPlan(lab().shapes["gpt3_xl"], lab().system("axonn_samo"), Grid(inter=2), 3, 1)
    simulation = Simulation(2, [], [], [], [], [], trace=spans)
    phases = Phases.of(ClusterBatch(plan, 6.0, 0.0, 0.0, 0.0, simulation))
    parts = (phases.bubble, phases.point_to_point, phases.collective, phases.compute, phases.total)
    assert parts == (2.0, 0.5, 0.5, 3.0, 6.0)


# Content of a record


def test_the_executor_names_what_its_constants_were_fitted_to() -> None:
    config = resolve(["experiment=samo_clusters", "executor.figure=samo_memory"])
    carried = config.executor.build().run(config)
    assert carried.source is Source.SIMULATED
    assert "samo.table2.sputnik.gpus_256" in carried.calibrated_on
    assert carried.notes[0].startswith("plans: AxoNN, AxoNN+SAMO and Sputnik have the fewest stages")
    assert carried.metrics["samo.sec1.memory_after"].unit == "gigabyte"


FITTED_POINTS = {  # of figures in which a constant was fitted to a point, or a plan chosen by it
    "samo_table2": {("sputnik", "256"), *(("deepspeed_3d", gpus) for gpus in ("512", "1024", "2048"))},
    "samo_memory": {("2.7B", "axonn_samo")},
    "axonn_memory": {("axonn", "after")},
    "axonn_fig5": set(),
    "pipeoptim_fig5": {("pipeoptim", "maximum")},
    "pipeoptim_fig6": {("pipeoptim", "gnmt_16")},
    "pipeoptim_table6": {("epoch", "pipedream")},
}


@pytest.mark.parametrize("name", drawn(FITTED_POINTS, n=3))
def test_points_that_constants_were_fitted_to_are_marked(name: str) -> None:
    assert {(curve, panel.x[at]) for panel in figure(name).panels for curve, at in panel.calibrated} == (
        FITTED_POINTS[name]
    )


@cache
def figure(name: str) -> ExecutorResult:
    config = resolve(
        [f"executor={'graph_clusters' if name.startswith('gnn_') else 'published'}", f"executor.figure={name}"]
    )
    executor: Any = without_ranks(config.executor)
    result: ExecutorResult = executor.run(config)
    return result


FIGURES = list(figures())
LONG = {
    *SLOW,
    "axonn_fig9",
    "gnn_fig3",
    "schedules_rates",
}  # more than four seconds


@pytest.mark.parametrize(
    "name",
    [
        *drawn([name for name in FIGURES if name not in LONG], n=1),
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in sorted(LONG)),
    ],
)
def test_a_record_lists_every_claim_that_fed_its_answers(name: str) -> None:
    result = figure(name)
    judged = {claim for claim, metric in result.metrics.items() if claim in metric.fed_by}
    assert judged <= set(result.calibrated_on)


def test_figures_of_another_kind_of_paper_and_misspelled_ones_are_refused() -> None:
    with refused(UnknownName, "simulated figure", "samo_table_2", legal="samo_table2"):
        find_figure("samo_table_2")
    for executor, figure in (("published", "gnn_fig3"), ("graph_clusters", "axonn_fig5")):
        config = resolve([f"executor={executor}", f"executor.figure={figure}"])
        with pytest.raises(UnknownName) as refusal:
            config.executor.build().check(config)
        assert refusal.value.value == figure
