"""Decides whether PipeOptim's claims that need no cluster are counted as they are by hand, from what is configured."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from suite import claims
from suite.analytic.question import Question
from suite.clusters import Published, small_pipeoptim
from suite.clusters.figure import find
from suite.clusters.lab import Lab
from suite.config.compose import resolve
from suite.core.op import Kind
from suite.schedule import OneFOneB
from suite.weights import Latest, Predict
from suite.workload.recurrent import GNMT

CLAIMS = {claim.id: claim for claim in claims.load()}
ANSWERS = find("pipeoptim_small").answers
F, B = Kind.FORWARD, Kind.BACKWARD


@cache
def executor() -> Published:
    made = resolve(["executor=published", "executor.figure=pipeoptim_small"]).executor.build()
    assert isinstance(made, Published)
    return made


def ours(name: str, lab: Lab | None = None) -> tuple[float, ...]:
    return ANSWERS.answer(Question.of(CLAIMS[f"pipeoptim.{name}"]), lab or executor().lab).values


def other(**policies: object) -> Lab:
    """The lab with another policy under a system's name."""
    lab = executor().lab
    return replace(lab, policies={**lab.policies, **policies})  # type: ignore[arg-type]


def test_one_forward_one_backward_in_words_by_hand() -> None:
    assert small_pipeoptim.by_definition(3, 1, 3) == [(F, 0), (F, 1), (B, 0), (F, 2), (B, 1), (B, 2)]
    assert small_pipeoptim.by_definition(3, 2, 2) == [(F, 0), (B, 0), (F, 1), (B, 1)]
    assert small_pipeoptim.by_definition(4, 0, 2) == [(F, 0), (F, 1), (B, 0), (B, 1)]


def test_a_full_pipeline_is_never_idle_and_fills_once() -> None:
    """Stage s of 4 waits 2 (3 - s) units for its first backward pass, and no unit from then on."""
    (percent,) = ours("sec2c.bubble_1f1b")
    units = 3 * (small_pipeoptim.EPOCH - 4) + 2 * 3 + 1  # from the last warm-up forward to the last of stage 0
    assert 0 < percent < 1
    assert percent == pytest.approx(100 * (2 + 4 + 6) / (4 * units), rel=0.02)


def test_versions_are_those_of_the_policies_that_are_configured() -> None:
    """Another policy under a system's name answers otherwise, so every claim on versions can be refuted."""
    assert ours("sec2c.stash_versions") == (4, 2, 7)
    assert ours("sec2c.stash_versions", other(pipedream=Latest("recompute"))) == (1, 1, 1)
    assert ours("sec1.two_versions_at_most") == (2, 2, 2, 1)
    assert ours("sec1.two_versions_at_most", other(pipeoptim=Predict(graph="keep"))) == (5, 4, 3, 1)
    assert ours("table2.pipeoptim.weights_memory", other(pipeoptim=Predict("authors"))) == (6, 10, 14)
    assert ours("sec3.last_stage_no_prediction", other(pipeoptim=Predict("authors"))) == (12,)
    assert set(ours("table2.pipedream_2bw.staleness")[1::2]) == {1}
    assert set(ours("table2.pipedream_2bw.staleness", other(pipedream_2bw=Latest("recompute")))[2:4:2]) == {0}
    right, stale = (ours("table2.pipedream.inconsistency", lab) for lab in (None, other(pipedream=Latest("recompute"))))
    assert right[::2] == right[1::2]
    assert stale[::2] != stale[1::2]


def test_orders_are_those_of_the_schedules_that_are_configured() -> None:
    found = ours("table2.pipeoptim.schedule")
    assert found[::2] == found[1::2]
    assert len(set(found)) == 2 * 24  # three mini-batches a stage on eight stages
    changed = replace(executor().lab, orders={"one_f_one_b": resolve(["schedule=gpipe"]).schedule.build()})
    found = ours("table2.pipedream_2bw.schedule", changed)
    assert found[::2] != found[1::2]
    starts = ours("sec2c.gpipe_reduces_to_naive")
    assert starts[:8] == (0, 0, 1, 1, 2, 2, 3, 3)
    assert starts[-2:] == (34, 34)
    earlier = ours("sec2c.gpipe_reduces_to_naive", replace(executor().lab, orders={"gpipe": OneFOneB()}))
    assert earlier[::2] != earlier[1::2]


def test_predictions_of_a_mini_batch_by_stage() -> None:
    assert [small_pipeoptim.predictions(each) for each in small_pipeoptim.table(executor().lab, "spectrain")] == [
        1,
        1,
        2,
        2,
    ]
    assert ours("sec3b.predictions_per_minibatch.pipeoptim") == (1, 1, 1)


def test_the_figure_shows_what_the_ledgers_hold_beside_table_2() -> None:
    _, held, late, ahead = find("pipeoptim_small").panels(executor().lab, CLAIMS)
    assert held.ours == held.paper
    assert held.ours["pipedream"] == [4, 3, 2, 1]
    assert late.ours["pipedream, backward"] == [3, 2, 1, 0]
    assert late.ours["pipeoptim, backward"] == [0, 0, 0, 0]
    assert late.ours["pipedream_2bw, forward"] == [1, 1, 1, 1]
    assert ahead.ours["spectrain, forward"] == [3, 2, 2, 1]


def test_the_figures_bytes_are_copies_of_a_split_networks_weights() -> None:
    """The stash holds what four, three, two and one copies of the stages take; the network's own size is known."""
    sizes = find("pipeoptim_small").panels(executor().lab, CLAIMS)[0].ours
    once = [whole / copies for whole, copies in zip(sizes["pipedream"], (4, 3, 2, 1), strict=True)]
    assert sum(once) == pytest.approx(4 * GNMT().parameters / 2**20)
    assert sizes["pipeoptim"] == pytest.approx([2 * once[0], 2 * once[1], 2 * once[2], once[3]])
