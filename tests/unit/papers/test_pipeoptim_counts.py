"""PipeOptim's counted claims against hand counts."""

from __future__ import annotations

from functools import cache

import pytest

from suite.config.compose import resolve
from suite.core.op import Kind
from suite.papers.common import claims
from suite.papers.common.answer import answer, answers_of_figure
from suite.papers.common.figure_executor import FigureExecutor, find_figure
from suite.papers.pipeoptim import counts as small_pipeoptim
from suite.weights import Latest, Predict
from suite.workload.recurrent import GNMT

CLAIMS = {claim.id: claim for claim in claims.load()}
COUNTED = {
    claim.id: row
    for claim in CLAIMS.values()
    for row in claim.answers
    if row.function.startswith(f"{small_pipeoptim.__name__}.")
}
F, B = Kind.FORWARD, Kind.BACKWARD


@cache
def executor() -> FigureExecutor:
    built = resolve(["executor=published", "executor.figure=pipeoptim_small"]).executor.build()
    assert isinstance(built, FigureExecutor)
    return built


def counted(name: str) -> tuple[float, ...]:
    """By the answer of ledgers and of the checker's orders, which reads nothing but the systems' configs."""
    claim_id = f"pipeoptim.{name}"
    return answer(CLAIMS[claim_id], COUNTED[claim_id], None).values


def test_1f1b_definition_by_hand() -> None:
    assert small_pipeoptim.by_definition(3, 1, 3) == [(F, 0), (F, 1), (B, 0), (F, 2), (B, 1), (B, 2)]
    assert small_pipeoptim.by_definition(3, 2, 2) == [(F, 0), (B, 0), (F, 1), (B, 1)]
    assert small_pipeoptim.by_definition(4, 0, 2) == [(F, 0), (F, 1), (B, 0), (B, 1)]


def test_counts_by_hand() -> None:
    """Stage s of 4 waits 2 (3 - s) units for its first backward pass, and no unit from then on.

    A mini-batch of GPipe takes 4 * 1 and 4 * 2 units, so the third ends at 36, and its last pass starts 2 earlier.
    Stages have 1024, 2304 and 576 bytes, the second of which is a last stage.
    """
    units = 3 * (small_pipeoptim.EPOCH - 4) + 2 * 3 + 1  # from the last warm-up forward to the last of stage 0
    assert counted("sec2c.bubble_1f1b") == pytest.approx((100 * (2 + 4 + 6) / (4 * units),), rel=0.02)
    starts = counted("sec2c.gpipe_reduces_to_naive")
    assert (starts[:8], starts[-2:]) == ((0, 0, 1, 1, 2, 2, 3, 3), (34, 34))
    assert starts[::2] == starts[1::2]
    assert counted("sec2c.stash_versions") == (4, 2, 7)  # one per mini-batch in flight: depth less rank
    cases = counted("table2.pipedream.inconsistency")
    assert cases[::2] == cases[1::2]
    assert counted("sec1.two_versions_at_most") == (2, 2, 2, 1)
    assert counted("table2.pipeoptim.weights_memory") == (2 * 1024, 2304, 2 * 576)
    assert counted("sec3.last_stage_no_prediction") == (0,) * 4
    assert counted("table2.pipedream_2bw.staleness") == (0, 1) * 8
    # SpecTrain predicts s // 2 updates ahead of the backward pass of stage s, thus none on the first two
    assert [small_pipeoptim.predictions(each) for each in small_pipeoptim.table("spectrain")] == [1, 1, 2, 2]
    assert counted("sec3b.predictions_per_minibatch.spectrain") == (1, 1, 2)
    assert counted("sec3b.predictions_per_minibatch.pipeoptim") == (1, 1, 1)


@pytest.mark.parametrize("graph", ["recompute", "keep"])
def test_versions_of_both_passes_on_two_stages(graph: str) -> None:
    """The first of two stages: a forward is one update late, and its backward, unless the graph is kept, reads anew."""
    stale = small_pipeoptim.ledgers(Latest(graph), 2)[0]
    ahead = small_pipeoptim.ledgers(Predict("inflight", graph), 2)[0]
    pairs = small_pipeoptim.pairs(stale)
    assert len(pairs) > 2
    assert all(second.version - first.version == (graph == "recompute") for first, second in pairs)
    assert len(small_pipeoptim.pairs(stale, steady=False)) == len(pairs) + 2
    assert (small_pipeoptim.predictions(stale), small_pipeoptim.predictions(ahead)) == (0, 1)


def test_figure_shows_ledgers_and_table_2() -> None:
    copies, late, _, ahead = find_figure("pipeoptim_small")[1](executor().lab, CLAIMS)
    assert copies.ours == copies.paper
    assert copies.ours["pipedream"] == [4, 3, 2, 1]
    assert late.ours["pipedream, backward"] == [3, 2, 1, 0]
    assert late.ours["pipeoptim, backward"] == [0, 0, 0, 0]
    assert late.ours["pipedream_2bw, forward"] == [1, 1, 1, 1]
    assert ahead.ours["spectrain, forward"] == [3, 2, 2, 1]


def test_figure_bytes_are_copies_of_stage_weights() -> None:
    """The stash holds what four, three, two and one copies of the stages take; the network's own size is known."""
    sizes = find_figure("pipeoptim_small")[1](executor().lab, CLAIMS)[2].ours
    once = [whole / copies for whole, copies in zip(sizes["pipedream"], (4, 3, 2, 1), strict=True)]
    assert sum(once) == pytest.approx(4 * GNMT().parameters / 2**20)
    assert sizes["pipeoptim"] == pytest.approx([2 * once[0], 2 * once[1], 2 * once[2], once[3]])


def test_every_cpu_claim_has_an_answer() -> None:
    expected = {claim.id for claim in CLAIMS.values() if claim.paper == "pipeoptim" and claim.reach == "cpu"}
    assert expected == {claim.id for claim, _ in answers_of_figure(claims.load(), "pipeoptim_small")}
