"""PipeOptim's formulas follow the update rules: another rule gives another answer."""

from __future__ import annotations

import pytest

from suite.engine.optim.optimizer import SGD, Adam, AdamW
from suite.papers.common.answer import Question
from suite.papers.pipeoptim import probes_drift as drifts
from suite.papers.pipeoptim import probes_ranks as ranks


def test_steps_and_predictions_by_hand() -> None:
    assert drifts.stepped(1.0, 0.5, [1.0, 2.0]) == -0.5
    assert drifts.ahead(1.0, 0.5, 0.25, 3) == 0.625
    assert drifts.smoothed_ahead(1.0, 0.5, 0.25, 2) == 0.75


def test_a_direction_is_the_one_of_the_update_that_has_just_been() -> None:
    assert drifts.direction(SGD(0.5, 0.5, 0.25), 3.0, 2, velocity=-2.0) == 1.25
    assert drifts.direction(SGD(0.5, 0.5, 0.25, direction="next"), 3.0, 2, velocity=-2.0) == 0.5 * 1.25 + 2.25
    assert drifts.direction(Adam(0.5, eps=0.0), -0.25, 1) == pytest.approx(-1.0, rel=1e-15)
    decayed = AdamW(0.5, weight_decay=0.5, predict_decay=True)
    usual = drifts.direction(AdamW(0.5, weight_decay=0.5), 1.0, 1)
    assert usual == pytest.approx(1.0, rel=1e-7)
    # the weight of 0.5 has decayed to 0.375 and stepped to -0.125, which is what decays next
    assert drifts.direction(decayed, 1.0, 1) == pytest.approx(usual - 0.5 * 0.125, rel=1e-7)


@pytest.mark.parametrize(
    ("rule", "same"),
    [
        (SGD(0.05, 0.9), True),
        (SGD(0.05, 0.9, direction="next"), False),
        (Adam(0.01), True),
        (AdamW(0.01, weight_decay=0.0), True),
        (AdamW(0.01, weight_decay=0.25), False),  # its last update had a decay that is not predicted
    ],
    ids=str,
)
def test_what_was_is_what_is_expected(rule: SGD | Adam, same: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prediction of ranks on every stage but the last repeats the last update, unless the rule expects another."""
    monkeypatch.setattr(ranks, "RULES", {str(rule): rule})
    pairs, _ = ranks.by_the_optimizer(Question({}), None)
    assert len({was for was, _ in pairs}) == ranks.DEPTH - 1
    assert all((expected == pytest.approx(was, rel=1e-9)) is same for was, expected in pairs)
