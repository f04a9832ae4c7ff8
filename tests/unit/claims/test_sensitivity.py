"""Sensitivity of simulated verdicts: ranges, variations, the files that the page reads, and the marks of what turns."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from suite.claims import claim_text, load, plans, sensitivity, trace
from suite.claims.answer import answers_of_figure, metrics_of
from suite.claims.claim import Evidence, Judged, Scalar, Sensitivity, Turn, Verdict
from suite.claims.sensitivity import choice_variations, constant_variations, modelled_answers
from suite.claims.verdicts_now import judge_metrics, source_of
from suite.core.errors import InvalidRequest
from suite.simulate.cost.efficiency import Efficiency
from tests.support.drawn import drawn
from tests.support.refusals import refused

EFFICIENCY = Efficiency(
    "mine",
    0.5,
    launch=1e-4,
    adapters=2,
    relative={"a": 0.5, "b": 1.0},
    fitted={"products": ("x",), "relative": ("y",)},
    chosen={"adapters": ("z",)},
    ranges={"products": (0.25, 1.0), "relative": (0.5, 1.5), "adapters": (1, 2), "launch": (0.0, 1e-4)},
)
FIGURES = {"axonn": "axonn_fig5", "samo": "samo_fig5", "pipeoptim": "pipeoptim_fig5", "sparse_gnn": "gnn_small"}
CHEAP = {  # claims whose variations take a second or two
    "samo": ("samo.fig5.speedup.vgg_19", "samo.table2.axonn.gpus_512"),
    "axonn": ("axonn.fig6.pipeline_time.after",),
    "pipeoptim": ("pipeoptim.table6.inception_v3.spectrain.epoch_time", "pipeoptim.fig6.same_as_stashing"),
}


@cache
def source(paper: str) -> Any:
    """Sources of the paper's simulated answers."""
    return source_of(paper, FIGURES[paper])


# -- ranges ----------------------------------------------------------------------------------------------------------


def test_variations_are_the_other_values_of_constants_with_a_range() -> None:
    assert [(name.removeprefix("efficiency.mine."), value) for name, value in constant_variations(EFFICIENCY)] == [
        *[("products", 0.25), ("products", 1.0), ("relative", 0.5), ("relative", 1.5), ("adapters", 1), ("launch", 0.0)]
    ]
    # shares by name are multiplied, and counts stay whole
    assert trace.with_constant(EFFICIENCY, "relative", 1.5).relative == {"a": 0.75, "b": 1.5}
    assert type(trace.with_constant(EFFICIENCY, "adapters", 1.0).adapters) is int
    assert trace.with_constant(EFFICIENCY, "products", 0.25).products == 0.25


def test_fitted_constant_without_a_range_is_refused() -> None:
    with refused(InvalidRequest, subject="no range of network", rule="a fitted constant has a range"):
        list(constant_variations(Efficiency("mine", 0.5, fitted={"network": ("x",)})))


@pytest.mark.parametrize("paper", drawn(FIGURES, n=2))
def test_every_constant_has_a_range_around_its_value(paper: str) -> None:
    assert source(paper).efficiencies
    for efficiency in source(paper).efficiencies.values():
        for each in constant_variations(efficiency):  # a value outside the constant's bounds is refused
            trace.with_constant(efficiency, each[0].split(".")[-1], each[1])
        for constant in (*efficiency.fitted, *efficiency.chosen, *efficiency.ranges):
            low, high = min(efficiency.ranges[constant]), max(efficiency.ranges[constant])
            value = getattr(efficiency, constant)
            assert low <= (value if isinstance(value, int | float) else 1.0) <= high, constant


@pytest.mark.parametrize("paper", drawn(FIGURES, n=2))
def test_every_choice_has_other_values(paper: str) -> None:
    groups = plans.published_plans()[paper]["ranges"]
    names = [name for group in groups for name in group["values"]]
    assert len(set(names)) == len(names)
    for each in choice_variations(paper):
        kind, owner, *rest = each[0].split(".")
        usual = 0 if rest == ["seed"] else None
        if kind == "graph" and rest != ["seed"]:
            usual = getattr(source(paper).graphs[owner], rest[0])
        if len(rest) == 3:
            usual = plans.scaling_plan(owner, rest[0], rest[1]).get(rest[2], 1)
        assert each[1] != usual, each
        source(paper).varied(each[0], each[1])


# -- what is varied --------------------------------------------------------------------------------------------------


def test_part_of_what_was_read_is_covered() -> None:
    reads = {"graph.protein", "efficiency.gnn.pairs"}
    assert trace.is_covered("graph.protein.bridges", reads)
    assert trace.is_covered("efficiency.gnn.pairs", reads)
    assert not trace.is_covered("graph.protein_like.bridges", reads)
    assert not trace.is_covered("efficiency.gnn", reads)


def test_memory_keeps_what_was_computed_without_the_name() -> None:
    memory: trace.TracedCache[str, int] = trace.TracedCache()
    for name in ("a", "b"):
        memory.get(name, lambda name=name: len(trace.read(f"plan.{name}") or name))
    unchanged = memory.without("plan.a.inter")
    assert unchanged.get("a", lambda: 7) == 7
    assert unchanged.get("b", lambda: 7) == 1
    assert memory.get("a", lambda: 7) == 1


def test_plan_of_one_run_is_varied_alone() -> None:
    lab = source("samo")
    changed = lab.varied("plan.samo.axonn_samo.gpt3_xl.inter", 2)
    assert changed.samo_plan("gpt3_xl", "axonn_samo", 64).grid.inter == 2
    for model, system in (("gpt3_xl", "sputnik"), ("gpt3_2_7b", "axonn_samo")):
        assert changed.samo_plan(model, system, 128) == lab.samo_plan(model, system, 128)


@pytest.mark.parametrize(("at", "changed"), [("rivals", {"deepspeed_3d"}), ("all", {"deepspeed_3d", "axonn_samo"})])
def test_systems_run_on_their_own_best_plans(at: str, changed: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lab = source("samo").varied("plan.samo.own_best", at)
    printed = {system: source("samo").samo_plan("gpt3_xl", system, 64) for system in ("deepspeed_3d", "axonn_samo")}
    systems: list[str] = []

    def tuned(self: Any, model: str, system: str, **options: Any) -> Any:
        systems.append(system)
        assert (model, options) == ("gpt3_xl", {"gpus": 64, "batch": 512})
        return SimpleNamespace(steps=[SimpleNamespace(plan="best")])

    monkeypatch.setattr(type(lab), "tuned", tuned)
    plan_of = {system: lab.samo_plan("gpt3_xl", system, 64) for system in printed}
    assert plan_of == {system: "best" if system in changed else plan for system, plan in printed.items()}
    assert set(systems) == changed


def test_stand_in_is_varied_without_drawing_the_others_again() -> None:
    lab = source("sparse_gnn")
    lab.matrix("reddit")
    changed = lab.varied("graph.papers.far", 0.15)
    assert changed.matrix("reddit") is lab.matrix("reddit")
    assert changed.graphs["papers"].far == 0.15
    assert changed.varied("graph.papers.seed", 1).seeds == {"papers": 1}
    mixed = lab.varied("graph.reddit.mixing", 2.0)
    assert mixed.graphs["reddit"].mixing == tuple(2 * each for each in lab.graphs["reddit"].mixing)


def test_form_of_the_exchange_is_one_of_the_cases_alone() -> None:
    lab = source("sparse_gnn")
    assert lab.forms(["staged", "fused"]) == ["staged", "fused"]
    assert lab.varied("plan.sparse_gnn.form", "fused").forms(["staged", "fused"]) == ["fused"]


# -- the files -------------------------------------------------------------------------------------------------------


def test_file_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = (Turn("efficiency.summit.adapters", 1, "differs"), Turn("plan.samo.own_best", "rivals", "differs"))
    sensitivities = [
        Sensitivity("samo.x", "matched by the model", (1.5, 2.5), turns, 24),
        Sensitivity("samo.y", "not matched by the model", (0.0, 0.0)),
    ]
    monkeypatch.setattr(load, "FOLDER", tmp_path)
    (tmp_path / "samo").mkdir()
    sensitivity.write_sensitivities("samo", sensitivities)
    assert list(load.sensitivities().values()) == sensitivities
    (tmp_path / "samo/sensitivity.yaml").write_text("- {id: samo.x, verdict: differs}")
    with refused(InvalidRequest, subject="sensitivity", rule="Field required"):
        load.sensitivities()


def test_papers_are_varied_in_processes_and_each_writes_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_process_id(paper: str) -> list[Sensitivity]:
        return [Sensitivity(f"{paper}.x", str(os.getpid()), (1.0, 2.0), (), 3)]

    monkeypatch.setattr(sensitivity, "sensitivities", with_process_id)
    monkeypatch.setattr(load, "FOLDER", tmp_path)
    papers = ("axonn", "samo")
    for paper in papers:
        (tmp_path / paper).mkdir()
    written = [one for _, of_paper in sensitivity.rewrite_all(papers, jobs=2) for one in of_paper]
    assert load.sensitivities() == {one.id: one for one in written}
    assert [one.id for one in written] == [f"{paper}.x" for paper in papers]
    assert str(os.getpid()) not in {one.verdict for one in written}


@pytest.mark.parametrize("paper", load.papers())
def test_every_simulated_claim_is_in_its_file(paper: str) -> None:
    """Where this fails: suite claims sensitivity."""
    recorded = {name: one for name, one in load.sensitivities().items() if name.startswith(f"{paper}.")}
    assert set(recorded) == {claim.id for claim, _ in modelled_answers(paper)}
    efficiencies = source(paper).efficiencies.values() if paper in FIGURES else ()  # without constants none is varied
    constants = {each for efficiency in efficiencies for each in constant_variations(efficiency)}
    variations = {*constants, *choice_variations(paper)}
    for name, one in recorded.items():
        assert 0 <= one.varied <= len(variations), name
        assert {(turn.constant, turn.at) for turn in one.turns} <= variations, name
        assert one.values[0] <= one.values[1], name


def turning(sensitivity_of: Mapping[str, Sensitivity], names: Iterable[str]) -> dict[str, set[tuple[str, Scalar]]]:
    """Where each of these claims turns, whatever its verdicts are called."""
    return {name: {(turn.constant, turn.at) for turn in sensitivity_of[name].turns} for name in names}


@pytest.mark.parametrize("paper", drawn(CHEAP, n=1))
def test_recorded_turns_are_those_of_now(paper: str) -> None:
    """Where this fails: suite claims sensitivity."""
    pairs = [each for each in modelled_answers(paper) if each[0].id in CHEAP[paper]]
    computed = {one.id: one for one in sensitivity.sensitivities_of(paper, pairs)}
    assert turning(computed, CHEAP[paper]) == turning(load.sensitivities(), CHEAP[paper])


QUICK = ("axonn_fig5", "axonn_fig6", "axonn_fig8", "pipeoptim_fig6", "samo_fig5", "samo_table2")


@pytest.mark.parametrize("figure", drawn(QUICK, n=2))
def test_recorded_verdicts_and_values_are_those_of_now(figure: str) -> None:
    """A model that moves away from what it gave turns this red. Where it is right: suite claims sensitivity."""
    answers = answers_of_figure(load.claims(), figure)
    metrics = metrics_of(answers, source_of(answers[0][0].paper, figure))
    modelled = {name: metric for name, metric in metrics.items() if metric.evidence == Evidence.SIMULATED}
    assert modelled
    recorded, judged = load.sensitivities(), judge_metrics(modelled)
    for name, metric in modelled.items():
        low, high = recorded[name].values
        assert judged[name].verdict == recorded[name].verdict, name
        assert all(low * (1 - 1e-5) - 1e-9 <= value <= high * (1 + 1e-5) + 1e-9 for value in metric.values), name


# -- the marks -------------------------------------------------------------------------------------------------------


def judged(verdict: Verdict = Verdict.MATCHED, evidence: Evidence | None = Evidence.SIMULATED) -> Judged:
    claim = next(claim for claim in load.claims() if claim.id == "samo.sec6b.max_speedup.gpt3_xl")
    return Judged(claim, verdict, "why", evidence)


def test_simulated_values_are_marked_where_their_verdict_turns(tmp_path: Path) -> None:
    turns = (
        Turn("efficiency.summit.adapters", 1, "not matched by the model"),
        Turn("efficiency.summit.lane", 3e9, "no better than null"),
    )
    found = Sensitivity("samo.sec6b.max_speedup.gpt3_xl", "matched by the model", (10.0, 40.5), turns, 24)
    both = replace(judged(evidence=Evidence.MEASURED), others=(judged(),))
    measured, later = load.with_sensitivity([both, judged(Verdict.NO_BETTER)], {found.id: found})
    assert (measured.sensitivity, measured.turns, measured.others[0].turns) == (None, (), turns)
    # decided anew after the claim had been varied: a turn to the verdict of now is none
    assert [turn.constant for turn in later.turns] == ["efficiency.summit.adapters"]
    rows = [*load.with_sensitivity([judged()], {found.id: found}), judged(evidence=None)]
    with claim_text.write_claims(tmp_path, rows).open(newline="", encoding="utf-8") as stream:
        marked, bare = csv.DictReader(stream)
    assert marked["turns"] == (
        "efficiency.summit.adapters=1 (not matched by the model); "
        "efficiency.summit.lane=3000000000.0 (no better than null)"
    )
    assert bare["turns"] == ""
    first, second = json.loads(claim_text.write_json(tmp_path, rows).read_text(encoding="utf-8"))
    turn = {"constant": "efficiency.summit.adapters", "at": 1, "verdict": "not matched by the model"}
    assert (first["range"], first["turns"][0]) == ([10.0, 40.5], turn)
    assert (second["range"], second["turns"]) == (None, [])
