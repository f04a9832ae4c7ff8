"""PipeOptim's counted claims against hand counts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from suite.config.compose import resolve
from suite.core.op import Kind
from suite.papers.common import claims
from suite.papers.common.answer import answer, answers_of_figure
from suite.papers.common.figure_executor import FigureExecutor, find_figure
from suite.papers.pipeoptim import counts as small_pipeoptim
from suite.papers.pipeoptim import systems
from suite.schedule import OneFOneB
from suite.weights import Latest, Predict
from suite.workload.recurrent import GNMT

CLAIMS = {claim.id: claim for claim in claims.load()}
ROWS = {claim.id: row for claim, row in answers_of_figure(claims.load(), "pipeoptim_small")}
COUNTED = {
    claim.id: row
    for claim in CLAIMS.values()
    for row in claim.answers
    if row.function.startswith(f"{small_pipeoptim.__name__}.")
}
CONFIGURED = systems.configured
F, B = Kind.FORWARD, Kind.BACKWARD


@cache
def executor() -> FigureExecutor:
    built = resolve(["executor=published", "executor.figure=pipeoptim_small"]).executor.build()
    assert isinstance(built, FigureExecutor)
    return built


def ours(name: str) -> tuple[float, ...]:
    """By the answer that the figure of small runs has."""
    claim_id = f"pipeoptim.{name}"
    return answer(CLAIMS[claim_id], ROWS[claim_id], executor().lab).values


def counted(name: str) -> tuple[float, ...]:
    """By the answer of ledgers and of the checker's orders, which reads nothing but the systems' configs."""
    claim_id = f"pipeoptim.{name}"
    return answer(CLAIMS[claim_id], COUNTED[claim_id], None).values


def configure(patch: pytest.MonkeyPatch, system: str, **changed: Any) -> None:
    """This system alone is configured with another schedule, policy or update interval."""

    def configured(name: str, stages: int) -> systems.Configured:
        configured_system = CONFIGURED(name, stages)
        return replace(configured_system, **changed) if name == system else configured_system

    patch.setattr(systems, "configured", configured)


def test_1f1b_definition_by_hand() -> None:
    assert small_pipeoptim.by_definition(3, 1, 3) == [(F, 0), (F, 1), (B, 0), (F, 2), (B, 1), (B, 2)]
    assert small_pipeoptim.by_definition(3, 2, 2) == [(F, 0), (B, 0), (F, 1), (B, 1)]
    assert small_pipeoptim.by_definition(4, 0, 2) == [(F, 0), (F, 1), (B, 0), (B, 1)]


def test_bubble_is_wait_for_first_backward_passes() -> None:
    """Stage s of 4 waits 2 (3 - s) units for its first backward pass, and no unit from then on."""
    (percent,) = counted("sec2c.bubble_1f1b")
    units = 3 * (small_pipeoptim.EPOCH - 4) + 2 * 3 + 1  # from the last warm-up forward to the last of stage 0
    assert 0 < percent < 1
    assert percent == pytest.approx(100 * (2 + 4 + 6) / (4 * units), rel=0.02)


def test_stash_versions_follow_configured_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version per mini-batch in flight: depth less rank, at ranks 0 and 2 of four and 1 of eight."""
    assert counted("sec2c.stash_versions") == (4, 2, 7)
    cases = counted("table2.pipedream.inconsistency")
    assert cases[::2] == cases[1::2]
    configure(monkeypatch, "pipedream", policy=Latest("recompute"))
    assert counted("sec2c.stash_versions") == (1, 1, 1)
    cases = counted("table2.pipedream.inconsistency")
    assert cases[::2] != cases[1::2]


def test_predicted_versions_follow_configured_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages of 1024, 2304 and 576 bytes, the second of which is a last stage. Predicted copies: on all but the last
    stage, on the last stage too, and one per mini-batch in flight."""
    assert counted("sec1.two_versions_at_most") == (2, 2, 2, 1)
    assert counted("table2.pipeoptim.weights_memory") == (2 * 1024, 2304, 2 * 576)
    assert counted("sec3.last_stage_no_prediction") == (0,) * 4
    configure(monkeypatch, "pipeoptim", policy=Predict("authors", "recompute"))
    assert counted("table2.pipeoptim.weights_memory") == (2 * 1024, 2 * 2304, 2 * 576)
    assert counted("sec3.last_stage_no_prediction") == (10, 12, 16, 20)  # forward passes of 2 * D + 4 mini-batches
    configure(monkeypatch, "pipeoptim", policy=Predict(graph="keep"))
    assert counted("sec1.two_versions_at_most") == (1 + 4, 1 + 3, 1 + 2, 1)


def test_double_buffer_staleness_follows_configured_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases compare serial training with the system, stage by stage, forward and backward."""
    assert counted("table2.pipedream_2bw.staleness") == (0, 1) * 8
    configure(monkeypatch, "pipedream_2bw", policy=Latest("recompute"))
    cases = counted("table2.pipedream_2bw.staleness")
    forward, backward = cases[1::4], cases[3::4]
    assert cases[::2] == (0,) * 8
    assert backward == (0,) * 4, "a backward pass that reads the newest weights is not late"
    # of every four mini-batches, as many as stages follow have their forward pass before the update of the four before
    assert forward == (3 / 4, 2 / 4, 1 / 4, 0)


def test_gpipe_with_one_microbatch_is_naive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mini-batch takes 4 * 1 and 4 * 2 units, so the third ends at 36, and its last pass starts 2 earlier."""
    starts = counted("sec2c.gpipe_reduces_to_naive")
    assert starts[:8] == (0, 0, 1, 1, 2, 2, 3, 3)
    assert starts[-2:] == (34, 34)
    assert starts[::2] == starts[1::2]
    configure(monkeypatch, "gpipe", schedule=OneFOneB(), every=1)
    earlier = counted("sec2c.gpipe_reduces_to_naive")
    assert earlier[::2] != earlier[1::2]


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


def test_predictions_of_a_mini_batch_by_stage() -> None:
    """SpecTrain predicts s // 2 updates ahead of the backward pass of stage s, thus none on the first two."""
    assert [small_pipeoptim.predictions(each) for each in small_pipeoptim.table("spectrain")] == [1, 1, 2, 2]
    assert counted("sec3b.predictions_per_minibatch.spectrain") == (1, 1, 2)
    assert counted("sec3b.predictions_per_minibatch.pipeoptim") == (1, 1, 1)


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
