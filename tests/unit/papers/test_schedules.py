"""Answers about pipeline schedules, on cases computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from suite.claims import load
from suite.claims.answer import Papers, Question
from suite.core.errors import InvalidRequest, UnknownName
from suite.papers.schedules import flushes, orders, overlap, quantities, rates
from suite.papers.schedules.orders import PassTimes
from tests.support.refusals import refused

NONE = Papers({}, {}, {})
CLAIMS = [claim for claim in load.claims() if claim.paper == "schedules"]


def at(**point: float) -> Question:
    return Question({}, (point,))


def test_rows_are_judged_or_say_why_not() -> None:
    silent = [claim.id for claim in CLAIMS if not claim.answers and not claim.limits.startswith("Not judged")]
    assert silent == []


def test_whole_backward_pass_contains_its_weight_gradient() -> None:
    assert PassTimes.of({"F": 2, "B": 5, "W": 1}) == PassTimes(2, 4, 1)
    assert PassTimes.of({"F": 2, "B": 5, "W": 1, "v": 2}) == PassTimes(1, 2, 0.5)
    assert PassTimes.of({"p": 4}) == PassTimes(1, 1, 1)


def value(quantity: str, schedule: str, **point: float) -> float:
    ((found,),) = flushes.at_points(at(**point), NONE, quantity=quantity, schedule=schedule)[0]
    return found


def test_unknown_names_and_unequal_ranks_are_refused() -> None:
    with refused(UnknownName, "schedule of a claim", "zb_h"):
        orders.schedule_of("zb_h")
    with refused(UnknownName, "quantity of a schedule", "stage_time"):
        quantities.quantity_of("stage_time")
    with pytest.raises(InvalidRequest) as refusal:
        value("activations held on every rank", "one_f_one_b", p=3, m=6)
    assert refusal.value.rule == "equally many activations on every rank"


def test_bubbles_of_two_ranks_by_hand() -> None:
    """ZB-H1 on two ranks idles one tick; ZB-H2 idles none in its stage time, and one in its makespan."""
    point = {"p": 2, "m": 4, "tf": 1.0, "tb": 1.0, "tw": 1.0}
    assert value("bubble of the makespan", "one_f_one_b", **point) == 3.0
    assert value("bubble of the makespan", "zb_h1", **point) == 1.0
    assert value("bubble of the stage time", "zb_h2", **point) == 0.0
    assert value("bubble of the makespan", "zb_h2", **point) == 1.0


def test_pair_as_one_op_idles_as_deepseek_prints() -> None:
    """Two ranks: F&B + B - 3W = 3 + 2 - 3 ticks at equal pass times, and 2 + 3 - 3 with a shorter pair."""
    assert overlap.bubble(at(p=2, m=4, F=1, B=2, W=1, FB=3), NONE) == [[2.0]]
    assert overlap.bubble(at(p=2, m=6, F=2, B=3, W=1, FB=4), NONE) == [[4.0]]


def test_rate_with_message_times_by_hand() -> None:
    """Two ranks, two microbatches: 10 ticks on rank 0, of which 6 are passes."""
    setting: Any = {"stages": 2, "microbatches": 2, "tf": 1.0, "tb": 1.0, "tw": 1.0, "tcomm": 0.5}
    assert rates.rate_of(setting, "one_f_one_b") == pytest.approx(0.4)
    assert rates.rate_of({**setting, "tcomm": 0.0}, "one_f_one_b") == pytest.approx(1 / 3)
    # as many microbatches as stages, p: at equal times 1F1B takes 6 p - 3 passes and ZB-H1 4 p - 1, half less
    gained = [gain for (gain,) in rates.gains(Question({}), None, schedule="zb_h1", few=True)[0]]
    assert len(gained) == 12
    assert all(20 < gain < 50 for gain in gained)


def test_plans_hold_the_settings_of_the_claims() -> None:
    """Pass times stand in the claims and in the plans; a difference would answer another setting."""
    of_claims = {
        tuple(claim.setting[name] for name in ("stages", "microbatches", "tf", "tb", "tw", "tcomm"))
        for claim in CLAIMS
        if "tcomm" in claim.setting
    }
    names = ("stages", "microbatches", "tf", "tb", "tw", "tcomm")
    assert {tuple(row[name] for name in names) for row in rates.settings()} == of_claims
    assert len(of_claims) == 12
