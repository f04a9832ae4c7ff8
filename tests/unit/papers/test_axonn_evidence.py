"""AxoNN's measured and counted claims against hand counts.

Broken engines change the verdicts of these answers in laws/test_mutations.py.
"""

from __future__ import annotations

from suite.claims import load
from suite.claims.answer import Question
from suite.claims.claim import Evidence
from suite.core.errors import InvalidRequest
from suite.core.op import Kind, Op
from suite.papers.axonn import counts, measured
from suite.schedule import MessageDriven, OneFOneB
from tests.support.published_runs import cases_of
from tests.support.refusals import refused

CLAIMS = {claim.id: claim for claim in load.claims()}


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


# Gradients and losses


def test_division_before_the_sum_keeps_every_entry() -> None:
    assert (
        cases_of(measured.loss_predivision(query(), None, microbatches=[8, 2], replicas=[1, 4])) == [[1000, 1000]] * 2
    )
    assert measured.finite_entries(4, 2, loss_factor=8) == 0
    with refused(InvalidRequest, subject="1000 entries stay finite", rule="every entry overflows without the division"):
        measured.loss_predivision(query(), None, microbatches=[2], replicas=[1])


def test_measured_answers_name_their_stand_in() -> None:
    rows = [row for claim in CLAIMS.values() if claim.paper == "axonn" for row in claim.answers]
    assert all(row.evidence is not Evidence.MEASURED or row.stand_in for row in rows)


def test_both_readings_of_thirteen_percent_are_one() -> None:
    """The abstract's and Figure 6's are the same value: they cannot have two verdicts."""
    abstract, figure = CLAIMS["axonn.abstract.memopt_performance_gain"], CLAIMS["axonn.fig6.batch_time_improvement"]
    assert (abstract.value, abstract.check, abstract.neutral) == (figure.value, figure.check, figure.neutral)
    assert abstract.answers[0] == figure.answers[0]
