"""Replay in one process: run every op of every stage and replica with the code of the ranks.

The numbers of a run depend only on the order of ops on each rank, and on the version that each pass reads. So a replay
in the same order is bit-identical to the run on ranks, at any depth, without processes, messages and waiting. Accuracy
studies use it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from suite.core.op import Kind, Op
from suite.core.protocols import Read, StageVersions, Value, WeightPolicy
from suite.engine.engine import Engine
from suite.engine.engine_config import EngineConfig, check_names
from suite.engine.layers import Layer
from suite.engine.replay.thread_ranks import ThreadRanks
from suite.engine.stage import Stage, as_value
from suite.engine.stream import Batch


class Replay(Engine):
    """An engine whose ranks share this process in any case, and train copies of the model.

    It takes the arguments of `Engine` except `world`, and these:

    Args:
        recompute: Whether a pass runs again wherever it does on ranks, also if its graph gives the same numbers.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[Layer],
        *,
        recompute: bool = False,
        **arguments: Any,
    ) -> None:
        def make_engine(config: EngineConfig) -> Engine:
            engine = Engine(**vars(config))
            engine.state.record_trace = False  # its times are not comparable
            if not recompute:
                engine.state.versions.policy = KeepEqualReads(engine.state.versions.policy)
            return engine

        check_names(arguments)
        copies = copy.deepcopy(model if isinstance(model, nn.Module) else list(model))
        config = EngineConfig(copies, **(arguments | {"compare_batches": False}))
        self.ranks: ThreadRanks
        self._begin(config, ThreadRanks(config, make_engine))

    @property
    def engines(self) -> list[Engine]:
        """The engine of each rank."""
        return self.ranks.engines

    @property
    def pipeline(self) -> list[Engine]:
        """Engines of the first replica, by pipeline rank."""
        return [self.engines[rank] for rank in self.grid.pipeline(0)]

    @property
    def stages(self) -> list[Stage]:
        """Stages of the first replica, in order."""
        return [self.engines[home].state.stages[stage] for stage, home in enumerate(self.state.settings.homes)]

    def memory_of_ranks(self, batch: Batch) -> list[tuple[float, dict[str, int]]]:
        """What `Engine.memory` returns, of each rank: its thread's allocations are its own."""
        return self.ranks.call("memory()", lambda engine: engine.memory(batch))

    def outputs(self, inputs: torch.Tensor | Sequence[torch.Tensor]) -> Value:
        """Outputs of the network in evaluation mode, with the newest weights and the statistics of replica 0."""
        half = self.state.settings.half
        value = tuple(tensor.to(self.state.comm.world.device) for tensor in as_value(inputs))
        value = tuple(tensor.to(half) if half and tensor.is_floating_point() else tensor for tensor in value)
        for stage in self.stages:
            value = stage.outputs(value)
        return value


@dataclass(frozen=True)
class KeepEqualReads(WeightPolicy):
    """A weight policy without the recomputations that would repeat the forward pass.

    If the backward pass reads the same weights as the forward pass, the forward's graph is kept instead. A backward
    pass runs after all updates before its own, so its read is known at the forward pass. The numbers are bit-identical
    for layers whose kernels compute alike with and without a graph (torch's float32 LSTM does not;
    models.recurrent.LSTM does).
    """

    policy: WeightPolicy

    def read(self, op: Op, versions: StageVersions) -> Read:
        read = self.policy.read(op, versions)
        if op.kind is not Kind.FORWARD or read.backward_mode != "recompute":
            return read
        at_backward = replace(versions, updates=versions.update, read_by={**versions.read_by, op.index: read})
        backward_read = self.policy.read(op._replace(kind=Kind.BACKWARD), at_backward)
        same_weights = (backward_read.version, backward_read.predict_steps) == (read.version, read.predict_steps)
        return replace(read, backward_mode="keep") if same_weights else read

    def needed(self, versions: StageVersions) -> frozenset[int]:
        return self.policy.needed(versions)
