"""PipeOptim's claims by real ranks and printed cells, checked by hand and on changed code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from suite.claims.answer import Question, answer
from suite.core.errors import UnknownName
from suite.core.op import Kind, Op
from suite.core.protocols import Read
from suite.engine.optim.optimizer import SGD, Adam, AdamW
from suite.papers.pipeoptim import counts, memory_account, systems
from suite.papers.pipeoptim import measured_drift as drifts
from suite.papers.pipeoptim import measured_ranks as ranks
from suite.papers.pipeoptim.measured import DEPTH, WatchedTraining, train_watched
from suite.papers.pipeoptim.measured import RULES as WATCHED_RULES
from suite.papers.pipeoptim.systems import ASYNCHRONOUS
from suite.schedule import OneFOneB
from suite.weights import Predict
from tests.support.drawn import drawn
from tests.support.published_runs import cases_of, lab, panels, published

CONFIGURED = systems.configured
FOUR = [{"D": 4, "rank": stage} for stage in range(4)]
IN_FOUR = {"pipeline_stages": 4}
AnswerFunction = Callable[..., Any]


@pytest.fixture(autouse=True, scope="module")
def fresh() -> None:
    """Clear cached runs, as other tests run changed code."""
    ranks.cached_run.cache_clear()


def ours(
    function: AnswerFunction,
    setting: Mapping[str, Any] | None = None,
    points: Sequence[Mapping[str, float]] = (),
    terms: Sequence[str] = (),
    **arguments: Any,
) -> list[list[Any]]:
    return cases_of(function(Question(setting or {}, tuple(points), tuple(terms)), None, **arguments))


def test_systems_are_read_from_their_configs() -> None:
    assert [CONFIGURED(system, 4).every for system in (*ASYNCHRONOUS, "gpipe")] == [1, 4, 1, 1, None]
    assert CONFIGURED("pipedream_2bw", 8).every == 8
    assert all(CONFIGURED(system, 4).schedule == OneFOneB() for system in ASYNCHRONOUS)
    assert CONFIGURED("pipeoptim", 4).policy == Predict("paper", "recompute")
    with pytest.raises(UnknownName):
        CONFIGURED("pipemare", 4)


def test_passes_follow_the_configured_schedule() -> None:
    cases = ours(ranks.schedule, system="pipeoptim")
    assert all(first == second for first, second in cases)
    assert len(cases) == 48  # places of 24 mini-batches in two kinds, on eight stages
    assert ours(ranks.naive) == [[place, place] for place in range(32)]


BYTES = [(4, 0, 256), (4, 3, 1024), (8, 2, 576)]  # stages, stage, bytes of its weights
PEAK_BYTES = {  # versions times bytes of the stage
    "pipedream": [4 * 256, 1024, 6 * 576],
    "pipedream_2bw": [2 * 256, 2 * 1024, 2 * 576],
    "spectrain": [2 * 256, 2 * 1024, 2 * 576],
    "pipeoptim": [2 * 256, 1024, 2 * 576],
}


def test_weight_versions_by_hand() -> None:
    for system in ("pipedream", "pipeoptim"):
        assert [ranks.peak_bytes(system, *place) for place in BYTES] == PEAK_BYTES[system]
    assert ours(ranks.live_versions_by_stage, system="pipeoptim") == [[2], [2], [2], [1]]
    assert ours(ranks.live_versions_by_stage, system="pipedream_2bw") == [[2]] * 4
    assert [ranks.live_versions("pipedream", 4, 0), ranks.live_versions("pipedream", 8, 1)] == [4, 7]
    names = ("pipedream", "pipedream_2bw", "spectrain", "pipeoptim", "gpipe")
    assert [each / (8 * 64) for each in ours(ranks.most_weight_memory, terms=names)[0]] == [4, 2, 2, 2, 1]


def test_versions_that_passes_read_by_hand() -> None:
    passes = ["forward", "backward"]
    assert ours(ranks.missing_updates, points=FOUR, system="pipedream", passes=passes) == [[3, 2, 1, 0]] * 2
    assert ours(ranks.consistent, system="pipedream") == [[version, version] for version in range(1, 12)]
    assert ours(ranks.stashing, system="pipedream") == [[version] * 3 for version in range(12)]
    assert [ranks.forward_version("pipedream", 4, stage, 5) for stage in range(4)] == [2, 3, 4, 5]
    assert ours(ranks.double_stale, system="pipedream_2bw") == [[0, 1]] * 8
    assert ranks.updates_between(4, 0, 5) == 3
    assert [ranks.inconsistent(4, stage) for stage in range(4)] == [1, 1, 1, 0]


def test_predictions_by_hand() -> None:
    assert ours(ranks.backward_fresh, IN_FOUR) == [[5] * 5]
    assert ours(ranks.last_stage, depths=[3, 4]) == [[0], [0]]
    ahead = [ranks.version_difference(*place) for place in ((4, 0), (6, 1), (3, 2))]
    assert ahead == pytest.approx([3, 4, 0], abs=1e-9)
    assert ours(ranks.predictions_made, system="pipeoptim") == [[1], [1], [1]]
    # SpecTrain predicts s // 2 updates ahead of the backward pass of stage s, thus none on the first two
    assert ours(ranks.predictions_made, system="spectrain") == [[1], [1], [2]]
    small, large = ours(ranks.prediction_cost, terms=("pipeoptim", "spectrain"))[0]
    assert small == 3 * 64 < large


RULES = (
    (SGD(0.05, 0.9), True),
    (SGD(0.05, 0.9, direction="next"), False),
    (Adam(0.01), True),
    (AdamW(0.01, weight_decay=0.0), True),
    (AdamW(0.01, weight_decay=0.25), False),  # the decay of the last update is not predicted
)


def test_prediction_repeats_last_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """On every stage but the last."""
    for rule, same in RULES:
        monkeypatch.setattr(ranks, "RULES", {str(rule): rule})
        pairs = ours(ranks.by_the_optimizer)
        assert len({change for change, _ in pairs}) == ranks.DEPTH - 1
        assert all((predicted == pytest.approx(change, rel=1e-9)) is same for change, predicted in pairs), rule


def test_drift_and_predictions_by_hand() -> None:
    """Answers to PipeOptim's formulas follow the engine's update rules."""
    assert drifts.stepped(1.0, 0.5, d0=1.0, d1=2.0) == -0.5
    assert drifts.predict_sgd(1.0, 0.5, 0.25, 3) == 0.625
    assert drifts.predict_momentum(1.0, 0.5, 0.25, 2) == 0.75
    assert drifts.direction(SGD(0.5, 0.5, 0.25), 3.0, 2, velocity=-2.0) == 1.25
    assert drifts.direction(SGD(0.5, 0.5, 0.25, direction="next"), 3.0, 2, velocity=-2.0) == 0.5 * 1.25 + 2.25
    assert drifts.direction(Adam(0.5, eps=0.0), -0.25, 1) == pytest.approx(-1.0, rel=1e-15)
    without_decay = drifts.direction(AdamW(0.5, weight_decay=0.5), 1.0, 1)
    assert without_decay == pytest.approx(1.0, rel=1e-7)
    # the weight of 0.5 decayed to 0.375 and stepped to -0.125, which decays next
    decayed = drifts.direction(AdamW(0.5, weight_decay=0.5, predict_decay=True), 1.0, 1)
    assert decayed == pytest.approx(without_decay - 0.5 * 0.125, rel=1e-7)


def test_microbatches_learn_what_plain_training_learns() -> None:
    losses = ours(ranks.gpipe, microbatches=4)
    assert len(losses) == 13
    assert all(piped == pytest.approx(alone, rel=1e-9) for alone, piped in losses)


# batches that fit


def test_the_memory_account_hands_out_its_batches() -> None:
    simulated = lab("pipeoptim_clusters")
    chosen: dict[str, Any] = {"model": "resnet_101", "system": "pipeoptim", "graph": "keep"}
    batch = memory_account.largest(simulated, "resnet_101", "pipeoptim", "keep")
    assert memory_account.batch(Question({}), simulated, **chosen)[0] == [[batch]]
    roomy = replace(simulated, machine=replace(simulated.machine, memory=2 * simulated.machine.memory))
    ((more,),) = memory_account.batch(Question({}), roomy, **chosen)[0]
    assert more > batch


# -- pipeoptim's counted claims against hand counts

CLAIMS = published()
COUNTED = {
    claim.id: row
    for claim in CLAIMS.values()
    for row in claim.answers
    if row.function.startswith(f"{counts.__name__}.")
}
F, B = Kind.FORWARD, Kind.BACKWARD


def counted(name: str) -> tuple[float, ...]:
    """By the answer of ledgers and of the checker's orders, which reads nothing but the systems' configs."""
    claim_id = f"pipeoptim.{name}"
    return answer(CLAIMS[claim_id], COUNTED[claim_id], None).values


def test_1f1b_definition_by_hand() -> None:
    assert counts.by_definition(3, 1, 3) == [(F, 0), (F, 1), (B, 0), (F, 2), (B, 1), (B, 2)]
    assert counts.by_definition(3, 2, 2) == [(F, 0), (B, 0), (F, 1), (B, 1)]
    assert counts.by_definition(4, 0, 2) == [(F, 0), (F, 1), (B, 0), (B, 1)]


def test_counts_by_hand() -> None:
    """Stage s of 4 waits 2 (3 - s) units for its first backward pass, and no unit from then on."""
    units = 3 * (50_000 // 128 - 4) + 2 * 3 + 1  # from the last warm-up forward to the last of stage 0
    assert counted("sec2c.bubble_1f1b") == pytest.approx((100 * (2 + 4 + 6) / (4 * units),), rel=0.02)


def test_figure_shows_ledgers_and_table_2() -> None:
    copies, late = panels("pipeoptim_small", "pipeoptim_clusters")
    assert copies.ours == copies.paper
    assert copies.ours["pipedream"] == [4, 3, 2, 1]
    assert late.ours["pipedream, backward"] == [3, 2, 1, 0]
    assert late.ours["pipeoptim, backward"] == [0, 0, 0, 0]
    assert late.ours["pipedream_2bw, forward"] == [1, 1, 1, 1]


# -- watched training: weights read by each pass, and distances

MINI_BATCHES = 12


def batches(count: int = MINI_BATCHES) -> list[tuple[Any, Any]]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 8, 1, 8, 8), generator=generator, dtype=torch.uint8)
    return list(zip(images, torch.randint(0, 10, (count, 8), generator=generator), strict=True))


@pytest.mark.parametrize("optimizer", drawn(WATCHED_RULES, n=1))
def test_prediction_targets_version_of_backward_pass(optimizer: str) -> None:
    run = train_watched(Predict(), WATCHED_RULES[optimizer], batches())
    assert run.total(run.missed) == run.total(run.forward) == run.total(run.between) > 0
    assert run.total(run.moved) == run.total(run.late) > 0
    for index in run.steady:
        assert not run.forward(DEPTH - 1, index).any()  # the last stage predicts nothing
        for watch in run.stages:
            assert torch.equal(watch.rank.read[B, index][1], watch.rank.versions[index])


def one(
    versions: dict[int, float], read: float, *, index: int, updates: int, ahead: int, back: float
) -> WatchedTraining:
    """A stage of one weight that was seen in one mini-batch."""
    seen = ranks.WatchedRank(
        0,
        versions={number: torch.tensor([value]) for number, value in versions.items()},
        read={(F, index): (updates, torch.tensor([read])), (B, index): (index, torch.tensor([back]))},
    )
    passes = ((Op(0, F, index), Read(updates, ahead)),)
    watch = SimpleNamespace(rank=seen, engine=SimpleNamespace(passes=passes))
    stages: Any = [watch]
    return WatchedTraining(stages, 1, index + 1)


def test_distances_by_hand() -> None:
    """At 1 update the weight is 4; 3 later it is 10, where its gradient is added; one more leads to 12."""
    versions = {1: 4.0, 4: 10.0, 5: 12.0}
    run = one(versions, 9.0, index=4, updates=1, ahead=3, back=10.5)
    distances = [run.distance(4, each) for each in (run.late, run.forward, run.between, run.moved, run.missed)]
    assert distances == [6, 1, 1.5, 6, 1]
    assert run.removed_by_direction == pytest.approx(1)  # one weight, and the right way
    back, none = (one(versions, read, index=4, updates=1, ahead=3, back=10.5) for read in (3.0, 4.0))
    assert (back.removed_by_direction, none.removed_by_direction) == (0, 0)
    further = one(versions, 9.0, index=4, updates=1, ahead=4, back=10.5)
    assert [further.distance(4, each) for each in (further.forward, further.missed, further.moved)] == [1, 3, 8]
