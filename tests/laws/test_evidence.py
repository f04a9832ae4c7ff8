"""The evidence, scope, unit and tolerance of an answer follow from what computes it, whatever its row says."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from suite.claims import load
from suite.claims.answer import answer, metrics_of
from suite.claims.claim import AnswerRow, Check, Claim, Evidence, Role, Verdict
from suite.claims.verdicts_now import judge_metrics, source_of
from suite.gnn.partition.simple import Random
from suite.papers.schedules import rates
from suite.simulate import worker
from tests.support.drawn import drawn

SLOW = ("gnn_volumes", "pipeoptim_table5")  # seconds of partitions and of searches
RECONSTRUCTED = ("plan.samo.", "plan.pipeoptim.")
FOLLOWS = (Role.SETTING, Role.DEFINITION, Role.DERIVATION, Role.ARITHMETIC)  # statements that a count can match exactly
# rows whose printed digits say less than their text, by the reason
NOMINAL = {
    "axonn.sec6b.gpt2_small_parameters": "it differs by more than the tolerance",
    "sparse_gnn.table2.bottleneck_ratio": "printed as 2.7 next to cells that give 2.649",
    **{f"sparse_gnn.table2.imbalance.p_{p}": "from cells of four digits" for p in (16, 32, 64, 128, 256)},
}


def answers(*evidence: Evidence) -> Iterator[tuple[Claim, AnswerRow]]:
    """Answers by functions with this evidence."""
    return (
        (claim, row) for claim in load.claims() for row in claim.answers if row.function and row.evidence in evidence
    )


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Latencies of the networks of event simulations, except those that take no time."""
    latencies: list[float] = []
    create = worker.Simulator.__init__

    def creating(self: Any, schedule: Any, grid: Any, interval: Any, cost: Any, network: Any, **options: Any) -> None:
        latencies.extend(latency for latency in [network.link(0, 1).latency] if grid.inter > 1 and latency)
        create(self, schedule, grid, interval, cost, network, **options)

    monkeypatch.setattr(worker.Simulator, "__init__", creating)
    return latencies


DERIVED = sorted({(claim.paper, row.figure) for claim, row in answers(Evidence.DERIVED)})


@pytest.mark.parametrize(
    ("paper", "figure"),
    [
        *drawn([pair for pair in DERIVED if pair[1] not in SLOW], n=2),
        *(pytest.param(*pair, marks=pytest.mark.exhaustive) for pair in DERIVED if pair[1] in SLOW),
    ],
)
def test_derived_values_use_no_modelled_machine_and_name_their_graph(
    paper: str, figure: str, timed: list[float]
) -> None:
    rates.stage_time.cache_clear()
    for claim, row in answers(Evidence.DERIVED):
        if (claim.paper, row.figure) != (paper, figure):
            continue
        reads = answer(claim, row, source_of(paper, figure)).reads
        assert not timed, f"{claim.id}: messages of an event simulation take time"
        assert not [name for name in reads if name.startswith("efficiency.")], claim.id
        if any(name.startswith("graph.") for name in reads):
            assert row.stand_in or row.restates, f"{claim.id}: a stand-in for a graph, or a literal of it"


FIGURES = (
    "samo_fig5",
    "samo_fig6_7",
    "samo_fig8",
    "samo_table2",
    "pipeoptim_fig5",
    "pipeoptim_fig6",
    "pipeoptim_table6",
)


@pytest.mark.parametrize("figure", drawn(FIGURES, n=1))
def test_simulations_of_reconstructed_plans_name_them(figure: str) -> None:
    """Neither SAMO nor PipeOptim prints a plan (plans.yaml)."""
    for claim, row in answers(Evidence.SIMULATED):
        if row.figure == figure:
            reads = answer(claim, row, source_of(claim.paper, figure)).reads
            assert row.stand_in or not [name for name in reads if name.startswith(RECONSTRUCTED)], claim.id


def test_counts_have_no_unit_of_time() -> None:
    """A value that holds for any input is counted or compared, and no clock gives it."""
    counted = [claim for claim, row in answers(*Evidence) if row.identity]
    assert [claim.id for claim in counted if claim.unit in ("second", "hour", "day")] == []


def test_a_count_rounds_to_the_printed_number() -> None:
    """The tolerance of a count that the paper derives is half a unit of the last printed digit, or has a reason."""
    wide = {
        claim.id
        for claim, _ in answers(Evidence.DERIVED)
        if claim.role in FOLLOWS
        and claim.check is Check.NUMBER
        and claim.slack > 0.52 * (printed_unit(claim) or math.inf)
    }
    assert wide == set(NOMINAL)


def printed_unit(claim: Claim) -> float:
    """One unit of the last digit that the paper prints, in the unit of the claim; 0 for numbers of the text alone."""
    assert isinstance(claim.value, float)
    units = []
    for text in re.findall(r"\d[\d,]*(?:\.\d+)?", " ".join(claim.printed)):
        number, (_, _, decimals) = float(text.replace(",", "")), text.partition(".")
        exponent = round(math.log10(claim.value / number)) if number and claim.value > 0 else 0
        if math.isclose(number * 10.0**exponent, claim.value):
            units.append(10.0 ** (exponent - len(decimals)))
    return min(units, default=0.0)


def test_communication_vanishes_only_with_a_partitioner() -> None:
    """In a random order, the exchange of nonzero columns is below 5 percent of broadcasts on 128 GPUs and more."""
    [(claim, row)] = [pair for pair in answers(Evidence.SIMULATED) if pair[0].id.endswith("communication_near_zero")]
    lab = source_of(claim.paper, row.figure)
    shuffled = replace(lab, partitioners={name: Random() for name in lab.partitioners}, folder=None)
    assert judge_metrics(metrics_of([(claim, row)], shuffled))[claim.id].verdict is Verdict.NOT_MATCHED
