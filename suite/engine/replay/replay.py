"""Replay in one process: run every op of every stage and replica with the code of the ranks.

The numbers of a run depend only on the order of ops on each rank, and on the version that each pass reads. So a replay
in the same order is bit-identical to the run on ranks, at any depth, without processes, messages and waiting. Accuracy
studies use it. A recorded order replays by its own list of ops and versions.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.op import Kind, Op
from suite.core.protocols import Read, StageVersions, Value, WeightPolicy
from suite.engine.engine import Engine
from suite.engine.engine_config import EngineConfig, check_names
from suite.engine.layers import Layer
from suite.engine.replay.recorded_order import Passes, RecordedSchedule, RecordedVersions
from suite.engine.replay.thread_ranks import ThreadRanks
from suite.engine.stage import Stage, as_value
from suite.engine.stream import Batch


class Replay(Engine):
    """An engine whose ranks share this process in any case, and train copies of the model.

    It takes the arguments of `Engine` except `world`, and these:

    Args:
        recorded: Passes of one interval for each rank, as `Engine.passes` returns them. The replay runs exactly these.
        recompute: Whether a pass runs again wherever it does on ranks, also if its graph gives the same numbers.
        record_trace: Whether to keep spans of time.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[Layer],
        *,
        grid: Grid = Grid(),  # noqa: B008 - frozen
        recorded: Sequence[Passes] | None = None,
        recompute: bool = False,
        record_trace: bool = False,
        **arguments: Any,
    ) -> None:
        if recorded is not None and len(recorded) != grid.size:
            raise InvalidRequest(
                f"recorded= holds passes of {len(recorded)} ranks for a grid of {grid.size} ranks",
                rule="one list of passes per rank",
            )

        def make_engine(config: EngineConfig) -> Engine:
            if recorded is not None and config.world is not None:
                passes = recorded[config.world.rank]
                schedule = RecordedSchedule(passes, _homes(grid, recorded))
                config = replace(config, schedule=schedule, weights=RecordedVersions(passes))
            engine = Engine(**vars(config))
            engine.state.record_trace = record_trace
            if recorded is None and not recompute:
                engine.state.versions.policy = KeepEqualReads(engine.state.versions.policy)
            return engine

        check_names(arguments)
        memo: dict[int, nn.Module] = {}  # one for all layers, so that copies share weights as the layers do
        if isinstance(model, nn.Module):
            copies: nn.Module | list[Layer] = copy.deepcopy(model)
        else:
            copies = [copy.deepcopy(layer, memo) if isinstance(layer, nn.Module) else layer for layer in model]
        arguments |= {"grid": grid, "compare_batches": False}
        config = EngineConfig(copies, **arguments)
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


def _homes(grid: Grid, recorded: Sequence[Passes]) -> tuple[int, ...]:
    """Pipeline rank of each stage."""
    homes = {op.stage: grid.position(rank).inter for rank, passes in enumerate(recorded) for op, _ in passes}
    return tuple(homes[stage] for stage in sorted(homes))


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
