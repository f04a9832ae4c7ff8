"""Replay in one process: run every op of every stage and replica with the code of the ranks.

The numbers of a run depend only on the order of ops on each rank, and on the version that each pass reads. So a replay
in the same order is bit-identical to the run on ranks, at any depth, without processes, messages and waiting. Accuracy
studies use it. A recorded order replays by its own list of ops and versions.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from suite.comm.p2p.coroutine import CoroutineHub
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.grid import Grid
from suite.core.op import Kind, Op
from suite.core.protocols import Read, StageVersions, Value, WeightPolicy, World
from suite.engine.batch_stream import Batch
from suite.engine.engine import Engine
from suite.engine.layers import Layer
from suite.engine.process_setup import device_of
from suite.engine.random_state import user_values
from suite.engine.recorded_order import Passes, RecordedSchedule, RecordedVersions
from suite.engine.stage import Stage, as_value
from suite.engine.step_runner import run_evaluation


class Replay:
    """A whole grid in one process. It takes the arguments of `Engine` except `world`, and these:

    Args:
        recorded: Passes of one interval for each rank, as `Engine.passes` returns them. The replay runs exactly these.
        record_trace: Whether to keep spans of time.

    Attributes:
        engines: The engine of each rank.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[Layer],
        *,
        grid: Grid | None = None,
        recorded: Sequence[Passes] | None = None,
        record_trace: bool = False,
        device: torch.device | str | None = None,
        **arguments: Any,
    ) -> None:
        self.grid = grid or Grid()
        layers = [model] if isinstance(model, nn.Module) else model
        self.hub = CoroutineHub(self.grid.size, device_of(layers, device))
        if recorded is not None and len(recorded) != self.grid.size:
            raise InvalidRequest(
                f"recorded= holds passes of {len(recorded)} ranks for a grid of {self.grid.size} ranks",
                rule="one list of passes per rank",
            )

        def make_engine(world: World) -> Engine:
            rank_arguments = dict(arguments)
            if recorded is not None:
                passes = recorded[world.rank]
                schedule = RecordedSchedule(passes, _homes(self.grid, recorded))
                rank_arguments |= {"schedule": schedule, "weights": RecordedVersions(passes)}
            memo: dict[int, nn.Module] = {}  # one for all layers, so that copies share weights as the layers do
            if isinstance(model, nn.Module):
                copies: nn.Module | list[Layer] = copy.deepcopy(model)
            else:
                copies = [copy.deepcopy(layer, memo) if isinstance(layer, nn.Module) else layer for layer in model]
            rank_arguments |= {
                name: copy.deepcopy(rank_arguments[name])
                for name in ("loss_scaler", "weights")
                if rank_arguments.get(name) is not None
            }
            state = (engine := Engine(copies, grid=self.grid, world=world, **rank_arguments)).state
            state.record_trace = record_trace
            if recorded is None:
                state.versions.policy = KeepEqualReads(state.versions.policy)
            return engine

        self.engines: list[Engine] = self.hub.create_ranks(make_engine)
        first = self.engines[0].state
        if first.pruning is not None and first.pruned_after is None:
            raise Unsupported(
                f"a search for a mask by {type(first.pruning.method).__name__} in a replay",
                rule="ranks of a replay cannot wait for one another between batches",
                legal="a method that draws its mask before the first batch",
            )

    @property
    def pipeline(self) -> list[Engine]:
        """Engines of the first replica, by pipeline rank."""
        return [self.engines[rank] for rank in self.grid.pipeline(0)]

    @property
    def stages(self) -> list[Stage]:
        """Stages of the first replica, in order."""
        settings = self.engines[0].state.settings
        return [self.engines[home].state.stages[stage] for stage, home in enumerate(settings.homes)]

    def train(self, batches: Iterable[Batch]) -> Iterator[float]:
        """Train on each batch when its loss is requested; yields the losses in order."""
        intervals: Iterable[Sequence[Batch]] = ([batch] for batch in batches)
        if self.engines[0].streams:  # each rank reads the batches
            intervals = [batches if isinstance(batches, Sequence) else list(batches)]
        for interval in intervals:
            previous = None
            for loss in user_values(self.hub.run([engine.steps(interval) for engine in self.engines])):
                if previous is not None:
                    yield previous
                previous = loss
            if previous is not None:  # the last loss only after every rank has finished
                yield previous

    def score(self, batches: Iterable[Batch]) -> Mapping[str, float]:
        """Means over `batches` in evaluation mode: the loss and the scores, by name."""
        batches = list(batches)
        ranks = [run_evaluation(engine.state, engine.batch_source(batches)) for engine in self.engines]
        (scores,) = user_values(self.hub.run(ranks))
        return dict(scores)

    def evaluate(self, batches: Iterable[Batch]) -> float:
        """Mean loss over `batches` in evaluation mode."""
        return self.score(batches)["loss"]

    def outputs(self, inputs: torch.Tensor | Sequence[torch.Tensor]) -> Value:
        """Outputs of the network in evaluation mode, with the newest weights and the statistics of replica 0."""
        state = self.engines[0].state
        half = state.settings.half
        value = tuple(tensor.to(state.comm.world.device) for tensor in as_value(inputs))
        value = tuple(tensor.to(half) if half and tensor.is_floating_point() else tensor for tensor in value)
        for stage in self.stages:
            value = stage.outputs(value)
        return value


def _homes(grid: Grid, recorded: Sequence[Passes]) -> tuple[int, ...]:
    """Pipeline rank of each stage."""
    homes = {op.stage: grid.place(rank).rank for rank, passes in enumerate(recorded) for op, _ in passes}
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
