"""AxoNN's counted claims against hand counts."""

from __future__ import annotations

from functools import cache

import pytest

from suite.papers.axonn import counts as small
from suite.papers.common import claims
from suite.papers.common.answer import answer, answers_of_figure
from suite.schedule import MessageDriven, OneFOneB

CLAIMS = {claim.id: claim for claim in claims.load()}
ROWS = {claim.id: row for claim, row in answers_of_figure(claims.load(), "axonn_small")}


@cache
def ours(name: str) -> tuple[float, ...]:
    return answer(CLAIMS[name], ROWS[name], None).values


@pytest.mark.parametrize("stages", [1, 2, 5, 16])
def test_idle_time_is_that_of_filling_and_draining(stages: int) -> None:
    """(S - 1)(t_f + t_b), of any flush without waste."""
    assert small.idle(OneFOneB(), stages) == small.idle(MessageDriven(), stages) == 3.0 * (stages - 1)


def test_what_is_in_flight_is_counted_after_each_answer() -> None:
    assert small.after_answers(3, 3, 12) == [3] * 9
    assert small.after_answers(4, 6, 24) == [6] * 18
    assert small.after_answers(2, 2, 2) == []


def test_checked_order_keeps_its_limit_on_every_grid() -> None:
    name = "axonn.sec3c.constant_in_flight"
    (row,) = [row for row in CLAIMS[name].answers if row.figure == "axonn_lemmas"]
    values = answer(CLAIMS[name], row, None).values
    assert values == tuple(limit for limit in (2, 3, 6, 6, 12) for _ in ("limit", "fewest", "most"))


def test_gpt2_small_counts_for_authors_and_paper() -> None:
    blocks, norm = 12 * (12 * 768**2 + 13 * 768), 2 * 768
    answered = ours("axonn.sec6b.gpt2_small_parameters")
    assert answered == tuple(blocks + (words + places) * 768 + norm for words, places in ((50257, 1024), (51200, 512)))
    assert answered == (124_439_808, 124_770_816)


def test_every_claim_that_a_cpu_can_answer_has_an_answer() -> None:
    """Without the lemmas, which are counted separately, and the loss curves, which are measured."""
    expected = {claim.id for claim in CLAIMS.values() if claim.paper == "axonn" and claim.reach == "cpu"}
    lemmas = {claim.id for claim, _ in answers_of_figure(claims.load(), "axonn_lemmas")}
    assert expected - lemmas - {"axonn.fig10.loss_curves"} <= set(ROWS)
