"""PipeOptim's claims by real ranks and printed cells, checked by hand and on changed code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from suite.claims.answer import Question
from suite.core.errors import UnknownName
from suite.core.op import Kind, Op
from suite.core.protocols import Read
from suite.engine.optim.optimizer import SGD, Adam, AdamW
from suite.papers.pipeoptim import counts, memory_account, systems
from suite.papers.pipeoptim import measured_ranks as ranks
from suite.papers.pipeoptim.measured import DEPTH, WatchedTraining, train_watched
from suite.papers.pipeoptim.measured import RULES as WATCHED_RULES
from suite.papers.pipeoptim.systems import ASYNCHRONOUS
from suite.schedule import OneFOneB
from suite.weights import Predict
from tests.support.drawn import drawn
from tests.support.published_runs import cases_of, lab, panels

CONFIGURED = systems.configured
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

F, B = Kind.FORWARD, Kind.BACKWARD


def test_1f1b_definition_by_hand() -> None:
    assert counts.by_definition(3, 1, 3) == [(F, 0), (F, 1), (B, 0), (F, 2), (B, 1), (B, 2)]
    assert counts.by_definition(3, 2, 2) == [(F, 0), (B, 0), (F, 1), (B, 1)]
    assert counts.by_definition(4, 0, 2) == [(F, 0), (F, 1), (B, 0), (B, 1)]


def test_figure_shows_ledgers_and_table_2() -> None:
    (copies,) = panels("pipeoptim_small", "pipeoptim_clusters")
    assert copies.ours == copies.paper
    assert copies.ours["pipedream"] == [4, 3, 2, 1]


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
