"""SAMO's counted claims against hand counts."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import pytest

from suite.memory import mixed
from suite.papers.common import claims
from suite.papers.common.answer import answer, answers_of_figure
from suite.papers.samo import counts as small_samo
from suite.workload import Transformer

CLAIMS = {claim.id: claim for claim in claims.load()}
ROWS = {claim.id: row for claim, row in answers_of_figure(claims.load(), "samo_small")}
EQUATIONS = {claim.id: row for claim, row in answers_of_figure(claims.load(), "samo_equations")}


@cache
def ours(name: str) -> tuple[float, ...]:
    return answer(CLAIMS[name], ROWS[name], None).values


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 3), (3, 5), (2, 2), (6, 20)])
def test_idle_time_is_fill_and_drain_on_every_stage(stages: int, microbatches: int) -> None:
    assert small_samo.bubbles(stages, microbatches) == [3.0 * (stages - 1)] * stages


def test_a_stage_has_two_messages_a_microbatch_for_each_neighbour() -> None:
    assert small_samo.messages(4, 7) == [2, 4, 4, 2]
    assert small_samo.messages(2, 3) == [2, 2]
    assert small_samo.messages(1, 3) == [0]


def test_four_message_claim_covers_every_counted_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is doubled or left out: the end stages have two, and the count on a stage is that stage's case."""
    name = "samo.sec4b.messages_per_microbatch"
    arguments = CLAIMS[name], EQUATIONS[name], None
    assert answer(*arguments).values == (2, 4, 4, 4, 2)
    assert ours(name) == answer(*arguments).values, "as ranks send and receive them"
    monkeypatch.setattr(small_samo, "messages", lambda *_: [2, 4, 3, 4, 1])
    assert answer(*arguments).values == (2, 4, 3, 4, 1)


def test_bytes_of_a_pruned_parameter_by_hand() -> None:
    """Every weight has a half-precision copy.

    An unpruned weight also has a gradient in both precisions, a float32 weight, two moments and an index.
    """
    assert small_samo.layout(0.1, 1000).bytes() == 2 * 1000 + (2 + 4 + 4 + 8 + 4 + 2) * 100
    assert small_samo.indexed(small_samo.layout(0.25, 1000)) == 18 * 250
    assert small_samo.layout(0.75, 1000).bytes() == mixed(1000, small_samo.ADAM).bytes()  # where nothing is saved
    assert ours("samo.eq5.saving")[1:3] == (144_000, 300)


@pytest.mark.parametrize(
    "name",
    ["default_bytes.total", "compressed_states", "index_bytes", "theta16_bytes", "temporary_bytes"],
)
def test_every_point_of_a_formula_has_its_number(name: str) -> None:
    """Of what ranks allocate, and of the layouts that say so."""
    claim = CLAIMS[f"samo.sec3d.{name}"]
    values = ours(claim.id)
    assert len(values) == len(set(values)) == len(claim.points)
    assert answer(claim, EQUATIONS[claim.id], None).values == values


def test_parameters_are_those_of_the_shape_that_is_asked_for() -> None:
    shape = Transformer(layers=2, hidden=8, heads=2, sequence=4, vocabulary=11)
    lab = SimpleNamespace(shapes={"gpt3_xl": shape})
    name = "samo.table1.parameters.gpt3_xl"
    answered = answer(CLAIMS[name], ROWS[name], lab)
    assert answered.values == (2 * (12 * 64 + 13 * 8) + (11 + 4) * 8 + 2 * 8,)


def test_the_index_of_an_entry_is_counted_row_by_row() -> None:
    assert ours("samo.sec3b.linear_index_example") == (0, 3, 3 * 7 + 5, 10 * 13 + 2)


def test_what_tensors_show_is_one_number_a_case() -> None:
    pairs = ours("samo.sec3c.optimizer_identical")
    assert len(set(pairs)) > 100  # weights, not a constant
    assert pairs[::2] == pairs[1::2]
    alive, largest = ours("samo.sec3c.layerwise_compression")[:2]
    assert 0 < alive <= largest


def test_every_claim_that_a_cpu_can_answer_has_an_answer() -> None:
    """Measured on ranks, or counted with the equations."""
    expected = {claim.id for claim in CLAIMS.values() if claim.paper == "samo" and claim.reach == "cpu"}
    assert expected <= set(ROWS) | set(EQUATIONS)
