"""Checks of mixed precision on one rank of a world, for threads and MPI ranks."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from suite.core.grid import Grid
from suite.engine.engine import Engine
from suite.engine.optim.loss_scaler import DynamicLossScaler
from suite.memory.layout import offloaded, resident
from tests.support.cases import Case, engine_of
from tests.support.reference import PlainLoop

BATCHES = (4, 1, 3, 2)  # microbatches per replica
PLAIN: dict[str, Any] = {}
OFFLOADED = {"memory": partial(offloaded, bucket=100), "bucket_numel": 100}
EVERYTHING = OFFLOADED | {"buckets_per_reduction": 3, "activation_checkpointing": 1}


def mixed_engine(case: Case, world: Any, grid: Grid, rule: Any, half: str | None, scale: float, **more: Any) -> Engine:
    """An engine in mixed precision whose loss scale starts at `scale`; `half=None` for one precision."""
    scaler = DynamicLossScaler(start=scale, least=2.0**-4) if half else None
    options = {"optimizer": rule, "half": half, "loss_scaler": scaler, "memory": resident, **more}
    return engine_of(case, world, grid, **options)


def state_tensors(engine: Engine) -> list[torch.Tensor]:
    """Full-precision weights, moments and half-precision copies of this stage."""
    state = engine.state.model_states
    return [t.reshape(-1).clone() for p in state.parameters for t in (*state.export(p).values(), p.data)]


class MixedPrecisionCheck:
    """States of a plain loop after every batch, for comparison with ranks."""

    def __init__(self, case: Case, grid: Grid, half: str, rule: Any, scale: float) -> None:
        self.case, self.grid, self.half, self.rule, self.scale = case, grid, half, rule, scale
        self.loop = loop = PlainLoop(case, grid.data, getattr(torch, half), rule, scale)
        self.batches = [case.batch(number, count, grid.data) for number, count in enumerate(BATCHES)]
        self.expected = []
        for batch in self.batches:
            loss = loop.train(batch)
            expected_tensors = {
                id(p): [t.reshape(-1).clone() for t in (*s.weights, *s.moments.values(), p.data)]
                for p, s in zip(loop.parameters(), loop.states, strict=True)
            }
            self.expected.append((loss, loop.scale, expected_tensors))

    def rank(self, world: Any, **more: Any) -> int:
        """Train on this rank of the grid and compare after every batch. Returns the number of skipped batches."""
        case, loop = self.case, self.loop
        engine = mixed_engine(case, world, self.grid, self.rule, self.half, self.scale, **more)
        stage_parameters = loop.parameters(engine.state.settings.layers)
        for number, (batch, (loss, after, states)) in enumerate(zip(self.batches, self.expected, strict=True)):
            where = f"{case.name} {self.grid} {self.half} batch {number} rank {world.rank}"
            assert engine.train_batch(batch) == pytest.approx(loss, rel=1e-12), f"{where}: loss"
            expected = [t for p in stage_parameters for t in states[id(p)]]
            assert all(torch.equal(a, b) for a, b in zip(state_tensors(engine), expected, strict=True)), where
            assert engine.state.loss_scaler is not None
            assert engine.state.loss_scaler.scale == after, where
            engine.evaluate([case.batch(90, 2, self.grid.data)])  # changes no training state, not even the loss scale
        assert engine.state.update.skipped == loop.skipped
        engine.close()
        return engine.state.update.skipped
