"""Answers to PipeOptim's formulas follow the engine's update rules."""

from __future__ import annotations

import pytest

from suite.engine.optim.optimizer import SGD, Adam, AdamW
from suite.papers.common.answer import Question
from suite.papers.pipeoptim import probes_drift as drifts
from suite.papers.pipeoptim import probes_ranks as ranks


def test_steps_and_predictions_by_hand() -> None:
    assert drifts.stepped(1.0, 0.5, [1.0, 2.0]) == -0.5
    assert drifts.predict_sgd(1.0, 0.5, 0.25, 3) == 0.625
    assert drifts.predict_momentum(1.0, 0.5, 0.25, 2) == 0.75


def test_drift_is_direction_of_last_update() -> None:
    assert drifts.direction(SGD(0.5, 0.5, 0.25), 3.0, 2, velocity=-2.0) == 1.25
    assert drifts.direction(SGD(0.5, 0.5, 0.25, direction="next"), 3.0, 2, velocity=-2.0) == 0.5 * 1.25 + 2.25
    assert drifts.direction(Adam(0.5, eps=0.0), -0.25, 1) == pytest.approx(-1.0, rel=1e-15)
    decayed = AdamW(0.5, weight_decay=0.5, predict_decay=True)
    without_decay = drifts.direction(AdamW(0.5, weight_decay=0.5), 1.0, 1)
    assert without_decay == pytest.approx(1.0, rel=1e-7)
    # the weight of 0.5 decayed to 0.375 and stepped to -0.125, which decays next
    assert drifts.direction(decayed, 1.0, 1) == pytest.approx(without_decay - 0.5 * 0.125, rel=1e-7)


@pytest.mark.parametrize(
    ("rule", "same"),
    [
        (SGD(0.05, 0.9), True),
        (SGD(0.05, 0.9, direction="next"), False),
        (Adam(0.01), True),
        (AdamW(0.01, weight_decay=0.0), True),
        (AdamW(0.01, weight_decay=0.25), False),  # the decay of the last update is not predicted
    ],
    ids=str,
)
def test_prediction_repeats_last_update(rule: SGD | Adam, same: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On every stage but the last."""
    monkeypatch.setattr(ranks, "RULES", {str(rule): rule})
    pairs, _ = ranks.by_the_optimizer(Question({}), None)
    assert len({change for change, _ in pairs}) == ranks.DEPTH - 1
    assert all((predicted == pytest.approx(change, rel=1e-9)) is same for change, predicted in pairs)
