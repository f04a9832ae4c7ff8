"""PipeOptim's claims on weights, answered by training."""

from __future__ import annotations

import pytest

from suite.papers.common.figure_executor import find_figure
from suite.papers.pipeoptim import predictions as weights
from suite.weights import Predict
from tests.unit.papers.test_pipeoptim_counts import CLAIMS, ROWS, configure, executor, ours


def test_every_cpu_claim_has_an_answer() -> None:
    expected = {claim.id for claim in CLAIMS.values() if claim.paper == "pipeoptim" and claim.reach == "cpu"}
    assert expected == set(ROWS)


@pytest.mark.parametrize(
    "name",
    [
        "eq2.update_sum",
        "eq5.prediction",
        "table1.sgdm",
        "table1.adam",
        "table1.adamw",
        "table2.spectrain.effective_learning",
    ],
)
def test_formula_points_have_distinct_values(name: str) -> None:
    values = ours(name)
    assert len(values) == len(set(values)) == len(CLAIMS[f"pipeoptim.{name}"].points)


def test_too_long_prediction_increases_staleness(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers follow the policies: distances refer to the weights that were read."""
    monkeypatch.setattr(weights, "MINI_BATCHES", 12)
    lab = executor().lab
    right, stashed = (weights.run(lab, system, "sgdm", 0, 12) for system in ("pipeoptim", "pipedream"))
    configure(monkeypatch, "pipeoptim", policy=Predict("authors", "recompute"))
    further = weights.run(lab, "pipeoptim", "sgdm", 0, 12)
    assert right.staleness < further.staleness
    assert right.staleness < stashed.staleness


def test_distance_figure_has_one_curve_per_predicting_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "LONG", 16)
    monkeypatch.setattr(weights, "WINDOW", 8)
    monkeypatch.setattr(weights, "OPTIMIZERS", ("adam",))
    monkeypatch.setattr(weights, "SEEDS", (0,))
    monkeypatch.setattr(weights, "SIZES", (4, 56))
    by_stage, distances, sizes = find_figure("pipeoptim_distance")[1](executor().lab, CLAIMS)
    assert by_stage.x == distances.x == ["0", "8"]
    assert list(by_stage.ours) == ["stage 0", "stage 1", "stage 2"]
    assert all(value > 0 for values in by_stage.ours.values() for value in values)
    assert all(p < n for p, n in zip(distances.ours["adam, predicted"], distances.ours["adam, newest"], strict=True))
    assert sizes.x == ["4", "56"]
    small, usual = sizes.ours["pipeoptim"]
    assert small > usual > 0, "noisier gradients are worse to predict by"
