"""Study of split backward passes: what it times, counts and records."""

from __future__ import annotations

from typing import Any

import pytest

from suite.comm.p2p.threads import Hub, LoopbackWorld
from suite.config.compose import resolve
from suite.config.run import RunConfig
from suite.core.errors import RankError
from suite.core.record import Source
from suite.engine.stage import Stage
from suite.runner.executors.split_passes import SplitPasses

PLAN = SplitPasses(widths=(8, 16), blocks=2, heads=2, sequence=4, samples=2, rounds=3)


def config() -> RunConfig:
    return resolve(["experiment=split_passes"])


def test_record_compares_both_splits_with_whole_passes() -> None:
    sampler = PLAN.on_rank(LoopbackWorld(Hub(1), 0), config())
    sampler.train_batch()
    sampler.train_batch()
    facts = sampler.samples()
    sweeps: list[Any] = [[sweep] for sweep in facts["sweeps"]]
    result = PLAN.summarize(config(), facts, sweeps)
    assert result.source is Source.MEASURED
    for width in PLAN.widths:
        for name in ("B", "I, ours", "W, ours", "I, torch", "W, torch"):
            values = result.metrics[f"{name}, {width}"].values
            assert len(values) == 2 * PLAN.rounds
            assert min(values) > 0
        assert result.metrics[f"I + W over B, ours, {width}"].values[0] > 0
    assert [panel.title.partition(": ")[2] for panel in result.panels][1:3] == [
        "time of I and W over that of a whole backward pass",
        "bytes held between I and W over those between F and I",
    ]
    assert sampler.samples()["sweeps"] == []


def test_bytes_are_those_of_the_paper() -> None:
    """M_W of a block is 16 numbers per entry of (b, s, h); torch's graph keeps everything and adds gradients."""
    facts = PLAN.on_rank(LoopbackWorld(Hub(1), 0), config()).samples()
    for at, width in enumerate(PLAN.widths):
        forward, ours = facts["held"]["ours"][at]
        assert ours == PLAN.blocks * 16 * 4 * PLAN.samples * PLAN.sequence * width
        assert ours < forward < facts["held"]["torch"][at][1]


def test_other_gradients_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Stage.weight_gradients

    def wrong(self: Stage, index: int) -> None:
        right(self, index)
        parameter = next(self.layers.parameters())
        assert parameter.grad is not None
        parameter.grad[0] += 1e-6

    monkeypatch.setattr(Stage, "weight_gradients", wrong)
    with pytest.raises(RankError, match="way=ours has other gradients"):
        PLAN.on_rank(LoopbackWorld(Hub(1), 0), config())
