"""Watched training: weights read by each pass, and distances."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baselines.pipedream import DoubleBuffer, Stash
from suite.core.op import Kind, Op
from suite.core.protocols import Read
from suite.papers.pipeoptim.probes import DEPTH, RULES, WatchedTraining, train_watched
from suite.weights import Predict

MINI_BATCHES = 12


def batches(count: int = MINI_BATCHES) -> list[tuple[Any, Any]]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 8, 1, 8, 8), generator=generator, dtype=torch.uint8)
    return list(zip(images, torch.randint(0, 10, (count, 8), generator=generator), strict=True))


def test_stash_reads_one_old_version_in_both_passes() -> None:
    run = train_watched(Stash(), RULES["sgdm"], batches())
    assert run.total(run.between) == 0
    assert run.total(run.forward) == run.total(run.late) > 0
    for stage, watch in enumerate(run.stages):
        assert sorted(watch.versions) == list(range(MINI_BATCHES + 1))
        for index in run.steady:
            assert watch.forward[index][0] == index - (DEPTH - 1 - stage)
            assert torch.equal(watch.forward[index][1], watch.versions[watch.forward[index][0]])


def test_double_buffer_lags_one_update() -> None:
    run = train_watched(DoubleBuffer(), RULES["adam"], batches(), every=4)
    assert list(run.steady) == list(range(4, MINI_BATCHES))
    for stage, watch in enumerate(run.stages):
        assert sorted(watch.versions) == [0, 1, 2, 3]
        for index in run.steady:
            step = watch.versions[index // 4 - 1] - watch.versions[index // 4]
            assert torch.equal(run.forward(stage, index), step)
            assert torch.equal(watch.forward[index][1], watch.versions[index // 4 - 1])
            assert torch.equal(watch.backward[index][1], watch.versions[index // 4 - 1])


@pytest.mark.parametrize("optimizer", RULES)
def test_prediction_targets_version_of_backward_pass(optimizer: str) -> None:
    run = train_watched(Predict(), RULES[optimizer], batches())
    assert run.total(run.missed) == run.total(run.forward) == run.total(run.between) > 0
    assert run.total(run.moved) == run.total(run.late) > 0
    for index in run.steady:
        assert not run.forward(DEPTH - 1, index).any()  # the last stage predicts nothing
        for watch in run.stages:
            assert torch.equal(watch.backward[index][1], watch.versions[index])


def one(
    versions: dict[int, float], read: float, *, index: int, updates: int, ahead: int, back: float
) -> WatchedTraining:
    """A stage of one weight that was seen in one mini-batch."""
    watch = SimpleNamespace(
        versions={number: torch.tensor([value]) for number, value in versions.items()},
        forward={index: (updates, torch.tensor([read]))},
        backward={index: (index, torch.tensor([back]))},
        engine=SimpleNamespace(passes=((Op(0, Kind.FORWARD, index), Read(updates, ahead)),)),
    )
    stages: Any = [watch]
    return WatchedTraining(stages, 1, index + 1)


def test_distances_by_hand() -> None:
    """At 1 update the weight is 4; 3 later it is 10, where its gradient is added; one more leads to 12."""
    versions = {1: 4.0, 4: 10.0, 5: 12.0}
    run = one(versions, 9.0, index=4, updates=1, ahead=3, back=10.5)
    distances = [run.distance(4, each) for each in (run.late, run.forward, run.between, run.moved, run.missed)]
    assert distances == [6, 1, 1.5, 6, 1]
    assert run.removed == pytest.approx(1 - 1 / 6)
    assert run.share([4], 0) == pytest.approx(1 / 6)
    assert run.removed_by_direction == pytest.approx(1)  # one weight, and the right way
    back, none = (one(versions, read, index=4, updates=1, ahead=3, back=10.5) for read in (3.0, 4.0))
    assert (back.removed, back.removed_by_direction, none.removed_by_direction) == (pytest.approx(-1 / 6), 0, 0)
    further = one(versions, 9.0, index=4, updates=1, ahead=4, back=10.5)
    assert [further.distance(4, each) for each in (further.forward, further.missed, further.moved)] == [1, 3, 8]
