"""AxoNN's measured and counted claims against hand counts.

Broken engines change the verdicts of these answers in laws/test_mutations.py.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from suite.claims import load
from suite.claims.answer import Papers, Question, answer, answers_of_figure
from suite.claims.claim import Evidence
from suite.core.errors import InvalidRequest
from suite.core.op import Kind, Op
from suite.papers.axonn import counts, measured, measured_memory, scaling
from suite.schedule import MessageDriven, OneFOneB
from tests.support.published_runs import cases_of
from tests.support.refusals import refused

CLAIMS = {claim.id: claim for claim in load.claims()}
PAPERS = Papers(CLAIMS, load.settings(), {})
STATES = {"theta16": 2, "grad16": 2, "theta32": 4, "grad32": 4, "optimizer_state": 8}  # bytes per parameter


def query(*points: dict[str, float]) -> Question:
    return Question({}, points=points)


# Counts


def test_idle_time_is_that_of_filling_and_draining() -> None:
    """(S - 1)(t_f + t_b), of any flush without waste."""
    for stages in (1, 2, 5, 16):
        assert counts.idle(OneFOneB(), stages) == counts.idle(MessageDriven(), stages) == 3.0 * (stages - 1)


def test_passes_in_flight_by_hand() -> None:
    ops = [Op(0, kind, index) for kind, index in ((Kind.FORWARD, 0), (Kind.FORWARD, 1), (Kind.BACKWARD, 0))]
    assert measured.max_in_flight(ops) == 2
    assert counts.answered([*ops, Op(0, Kind.FORWARD, 2)]) == [2]


def test_gpt2_small_counts_for_authors_and_paper() -> None:
    """12 (12 h^2 + 13 h) + 2 h of blocks and norm, h = 768, and 50257 + 1024 or 51200 + 512 rows of embeddings."""
    rows = {claim.id: row for claim, row in answers_of_figure(load.claims(), "axonn_small")}
    name = "axonn.sec6b.gpt2_small_parameters"
    assert answer(CLAIMS[name], rows[name], None).values == (124_439_808, 124_770_816)


# Bytes that are held


def test_bytes_of_a_rank_by_hand() -> None:
    for name, each in STATES.items():
        assert measured_memory.state_bytes(query(), None, state=name, entries=[7, 1000])[0] == [[each], [each]], name
    assert measured_memory.state_peak("axonn_no_memopt", 30) == 20 * 30
    assert measured_memory.footprint(9) == 16 * 9
    assert measured_memory.state_peak("axonn", 30, 9) == 4 * 30 + 16 * 9
    assert measured_memory.saving(query(), None, entries=100, buckets=[10])[0] == [[20 * 100 / (4 * 100 + 16 * 10)]]


def test_all_memory_falls_by_less_than_the_states() -> None:
    small = {"hidden": 48, "heads": 4, "sequence": 16}
    arguments: dict[str, Any] = {name: [value] for name, value in small.items()}
    ((total, states),) = cases_of(measured_memory.below_states(query(), None, buckets=[2000], **arguments))
    assert states == 5
    assert 2 < total < 5
    assert measured_memory.memory_ratio(query(), None, bucket=2000, **small)[0][0][0] == pytest.approx(total, rel=0.02)


# Bytes sent


def test_messages_and_flops_of_a_rank_inside_by_hand() -> None:
    """3 stages of two pipelines: of 12 samples 6 each, with 2 of 6 layers; two messages come and two go per sample."""
    assert measured.reduced_bytes(query(), None, entries=400)[0] == [[2.0]] * 4
    each = 4 * measured.WIDTH
    assert measured.work(6, 3, 6, 12) == (6 * 2 * 6 * measured.WIDTH**2, 6 * 4 * each)
    assert measured.lemma_1(6, 6, 3) == 2.0
    assert measured.lemma_2(6, 3, 6, 12) == 12.0
    assert measured.theorem_3(6, 6, 3) == 0.5


# Orders


def test_the_first_rank_holds_as_many_as_there_are_stages() -> None:
    assert measured.pipeline_limit(4, 12) == 4
    assert cases_of(measured.constant_in_flight(query(), None, stages=[3, 2], limits=[3, 4])) == [[3, 3, 3], [4, 4, 4]]


def test_steps_run_beside_reductions() -> None:
    """16 buckets in chunks of k: only the last k do not overlap a reduction."""
    settings: dict[str, Any] = {"entries": 1600, "bucket": 100, "chunks": [1, 4]}
    assert measured.overlap(query(), None, **settings)[0] == [[0, 15], [0, 12]]


# Gradients and losses


def test_division_before_the_sum_keeps_every_entry() -> None:
    assert (
        cases_of(measured.loss_predivision(query(), None, microbatches=[8, 2], replicas=[1, 4])) == [[1000, 1000]] * 2
    )
    assert measured.finite_entries(4, 2, loss_factor=8) == 0
    with refused(InvalidRequest, subject="1000 entries stay finite", rule="every entry overflows without the division"):
        measured.loss_predivision(query(), None, microbatches=[2], replicas=[1])


def test_losses_are_those_of_pytorch() -> None:
    cases, _ = measured.loss_curves(query(), None, inter=2, data=2)
    assert len(cases) == measured.LOSSES
    assert cases[-1][0] < cases[0][0] - 0.1, "it learns"
    assert all(ours == pytest.approx(right, rel=1e-5) for right, ours in cases)


def test_measured_answers_name_their_stand_in() -> None:
    rows = [row for claim in CLAIMS.values() if claim.paper == "axonn" for row in claim.answers]
    assert all(row.evidence is not Evidence.MEASURED or row.stand_in for row in rows)


def test_both_readings_of_thirteen_percent_are_one() -> None:
    """The abstract's and Figure 6's are the same value: they cannot have two verdicts."""
    abstract, figure = CLAIMS["axonn.abstract.memopt_performance_gain"], CLAIMS["axonn.fig6.batch_time_improvement"]
    assert (abstract.value, abstract.check, abstract.neutral) == (figure.value, figure.check, figure.neutral)
    assert abstract.answers[0] == figure.answers[0]


def test_percents_are_rounded_as_the_row_says() -> None:
    plan = SimpleNamespace(microbatches=1, grid=SimpleNamespace(inter=1))
    lab: Any = SimpleNamespace(
        weak=lambda model, system: SimpleNamespace(percent_of_peak=41.5), weak_plan=lambda model, system: plan
    )
    percents = partial(scaling.whole_percents, query(), lab, system="axonn", highest=43.5)
    assert [percents(rounding=rounding)[0][0][0] for rounding in ("", "down", "up")] == [41.5, 41, 42]
    assert [percents(rounding=rounding)[2][0][0] for rounding in ("", "down", "up")] == [43.5, 43, 44]
