"""Claims answered by formulas: hand-computed values, none copied.

The published values are changed here, one claim at a time: what changes with its own claim was copied.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from suite.claims import claim_text, load
from suite.claims.answer import Answer, Papers, answer, answers_of_figure, metrics_of
from suite.claims.claim import Check
from suite.claims.formula_executor import FIGURE
from suite.config.compose import resolve
from suite.config.plugins import build
from suite.core.record import Metric
from tests.support.drawn import generator

ALL = {claim.id: claim for claim in load.claims()}
ROWS = {claim.id: row for claim, row in answers_of_figure(ALL.values(), FIGURE)}
ASKED = {name: ALL[name] for name in ROWS}
SETTINGS = load.settings()
SOME = sorted(generator("formulas").sample(sorted(ASKED), 50))  # of this run


@cache
def shapes() -> Mapping[str, Any]:
    models = resolve(["executor=analytic", "executor.paper=axonn"]).executor.more["models"]
    return {name: build(model["shape"]) for name, model in models.items()}


@cache
def papers() -> Papers:
    return Papers(ALL, SETTINGS, shapes())


@cache
def ours(name: str) -> Answer:
    return answer(ALL[name], ROWS[name], papers())


@pytest.mark.slow("all formulas are computed")
def test_answers_have_complete_cases_in_the_claims_unit() -> None:
    for name in SOME:
        claim, computed = ASKED[name], ours(name)
        assert computed.unit == claim.unit, name
        assert computed.values, name
        assert len(computed.values) % len(claim_text.terms(claim)) == 0, name
        assert "\n" not in computed.note, name


# -- independence of printed values ----------------------------------------------------------------------------------


def test_no_answer_reads_a_table_from_the_settings() -> None:
    """The settings repeat the tables' entries: of them only machines and training are read."""
    other = {
        group: rows if group in ("machines", "training") else [scrambled(row) for row in rows]
        for group, rows in SETTINGS.items()
    }
    assert other["models"] != list(SETTINGS["models"])
    for name in SOME:
        assert answer(ALL[name], ROWS[name], replace(papers(), settings=other)) == ours(name)


def scrambled(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: 3 * value + 7 if isinstance(value, int | float) else f"not {value}" for key, value in row.items()}


def test_answers_do_move_with_what_they_are_made_of() -> None:
    """Else the tests above would pass for constants too."""

    def moved(name: str, **change: Any) -> bool:
        return answer(ALL[name], ROWS[name], replace(papers(), **change)).values != ours(name).values

    summit = [{**row, "gpus_per_node": 4, "gpu_memory_gigabyte": 80} for row in SETTINGS["machines"]]
    machines = {**SETTINGS, "machines": summit}
    for name in ("axonn.sec5b.model_state_over_dram", "samo.sec4b.lower_g_inter"):
        assert moved(name, settings=machines)
    wider = {name: replace(shape, hidden=2 * shape.hidden) for name, shape in shapes().items()}
    for name in ("axonn.sec4a.message_size", "axonn.sec5b.model_state_per_gpu"):
        assert moved(name, shapes=wider)
    changed = "samo.table1.gpus.gpt3_13b"
    assert moved("samo.sec4b.lower_g_inter", claims={**ALL, changed: replace(ALL[changed], value=(48.0, 2048.0))})


def test_formula_answers_follow_their_points() -> None:
    formulas = [name for name, claim in ASKED.items() if claim.check is Check.FORMULA]
    for name in generator("points").sample(formulas, 20):
        points = tuple(copy.copy(dict(point)) for point in reversed(ALL[name].points))
        turned = answer(replace(ALL[name], points=points), ROWS[name], papers())
        width = len(points)
        assert turned.values[:width] == tuple(reversed(ours(name).values[:width])), name
        assert len(set(turned.values)) > 1, name


def test_metrics_are_the_answers_under_the_claims_names() -> None:
    name = "samo.eq8.bubble_derivative"
    metrics = metrics_of([(ALL[name], ROWS[name])], papers())
    assert metrics[name] == Metric(ALL[name].unit, "", ours(name).values, ours(name).note, "derived")
