"""PipeOptim's claims on weights, answered by training."""

from __future__ import annotations

import pytest

from suite.papers.common.figure_executor import find_figure
from suite.papers.pipeoptim import predictions as weights
from tests.support.published_runs import lab, published


def test_distance_figure_has_one_curve_per_predicting_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "LONG", 16)
    monkeypatch.setattr(weights, "WINDOW", 8)
    monkeypatch.setattr(weights, "OPTIMIZERS", ("adam",))
    monkeypatch.setattr(weights, "SEEDS", (0,))
    monkeypatch.setattr(weights, "SIZES", (4, 56))
    by_stage, distances, sizes = find_figure("pipeoptim_distance")[1](lab("pipeoptim_clusters"), published())
    assert by_stage.x == distances.x == ["0", "8"]
    assert list(by_stage.ours) == ["stage 0", "stage 1", "stage 2"]
    assert all(value > 0 for values in by_stage.ours.values() for value in values)
    assert all(p < n for p, n in zip(distances.ours["adam, predicted"], distances.ours["adam, newest"], strict=True))
    assert sizes.x == ["4", "56"]
    small, usual = sizes.ours["pipeoptim"]
    assert small > usual > 0, "noisier gradients are worse to predict by"
