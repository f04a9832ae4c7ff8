"""State of a training run on one rank.

`TrainState` is a record: the engine builds it (`build`), `flush` advances it, a checkpoint saves and
restores it, and pruning replaces its model states. These modules do not depend on the engine itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from suite.accelerator import Clock
from suite.core.grid import Grid
from suite.core.op import Op, Place
from suite.core.protocols import Group, Schedule, Transport, Value, World
from suite.core.trace import Trace
from suite.engine.engine_config import EngineConfig
from suite.engine.guards.asynchronous import within_stream
from suite.engine.guards.rank_consistency import RankConsistencyCheck
from suite.engine.guards.user_state import UserState
from suite.engine.layers import Copies, cast
from suite.engine.losses import LossCheck
from suite.engine.memory_tracker import MemoryTracker
from suite.engine.optim.loss_scaler import DynamicLossScaler
from suite.engine.optim.update import Update
from suite.engine.pruning.settings import Pruning
from suite.engine.stage import Stage
from suite.engine.states.state import ModelState
from suite.engine.stream import BatchSlicer
from suite.engine.ties import Ends, TieGroup
from suite.engine.torch_api.split_model import ModelParts
from suite.engine.torch_api.torch_optimizer import TorchOptimizer
from suite.engine.versions import WeightVersions


@dataclass(frozen=True)
class RunSettings:
    """Settings that stay constant over a run.

    Attributes:
        config: The engine's arguments.
        parts: Layers of the model.
        rank, place: This rank, and its stages and replica in `grid`.
        split: Layers of each stage.
        ties: Ends of each tied weight.
        half: Dtype of passes, messages and reductions in mixed precision; None in one precision.
    """

    config: EngineConfig
    parts: ModelParts
    rank: int
    place: Place
    split: Sequence[range]
    ties: Sequence[Ends]
    half: torch.dtype | None

    @cached_property
    def grid(self) -> Grid:
        return self.config.grid

    @cached_property
    def alone(self) -> bool:
        """Whether the grid has one rank."""
        return self.grid.size == 1

    @cached_property
    def streams(self) -> bool:
        """Whether batches stream through a pipeline that drains only after the last of them."""
        return self.config.update_interval is not None

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Layers of this rank, by their numbers in the whole model."""
        return tuple(number for stage in self.place.held_stages for number in self.split[stage])

    def name_of(self, layer: int, name: str) -> str:
        """Name in the whole model of a weight or buffer of a layer."""
        return self.parts.name_of(layer, name)

    def name_among(self, known: Container[str], layer: int, name: str) -> str:
        """The name of a weight, or of the first end of its tie, that is among `known`; empty if none is."""
        ends = next((ends for ends in self.ties if (layer, name) in ends), ((layer, name),))
        return next((known_name for end in ends if (known_name := self.name_of(*end)) in known), "")

    @cached_property
    def homes(self) -> tuple[int, ...]:
        """World rank of each stage of this rank's pipeline."""
        return self._homes_of(self.place.replica)

    def _homes_of(self, replica: int) -> tuple[int, ...]:
        pipeline = self.grid.pipeline(self.grid.rank(data=replica, inter=0))
        return tuple(pipeline[self.place.rank_of(stage)] for stage in range(self.place.stages))

    def ranks_of(self, ends: Ends, replica: int) -> tuple[int, ...]:
        """World rank of each end of a tied weight in a replica."""
        homes = self._homes_of(replica)
        rank_of = {layer: homes[stage] for stage, layers in enumerate(self.split) for layer in layers}
        return tuple(rank_of[layer] for layer, _ in ends)


@dataclass(slots=True)
class Communicators:
    """Communication of one rank.

    Attributes:
        transport: Messages to the neighbouring stages.
        data_parallel_group: Replicas of this rank's stages.
        tie_groups: For each tied weight, the ranks of this pipeline that hold ends of it.
        guard: Reductions of numbers, which also compare the calls and batches of the ranks.
    """

    world: World
    transport: Transport
    data_parallel_group: Group
    tie_groups: Sequence[Group]
    guard: RankConsistencyCheck


@dataclass
class TrainState:
    """Everything that training changes on one rank, with the settings and communicators it needs.

    Attributes:
        schedule: Order of the ops.
        orders: Checked order of this rank's ops, by the number of microbatches; empty where it follows the schedule.
        slicer: Rows of each batch for this rank.
        user: The user's modules, as they were when the engine was made.
        stages: Stages of this rank, by their numbers in the pipeline.
        ties: Tied weights of the model, with this rank's ends.
        copies: Half-precision copies of the user's modules.
        versions: Weight versions that passes may read.
        loss_scaler: Loss scale of mixed precision; None in one precision.
        make_model_states: Allocates model states; `kept` maps the id of a pruned weight to its kept indices.
        make_update: Makes the optimizer step of such states.
        model_states: Weights, gradients and moments; absent until `allocated`, as a search for a mask may prune first.
        pruned_after: Updates before the network was pruned; None while it is not pruned.
        microbatches, updates: Microbatches and updates of the whole training, per replica.
        evaluated: Microbatches of all evaluations.
        drained: Whether no microbatch is in flight and no batch was interrupted.
        clock: Clock of this rank's work.
        trace: Spans of the last interval; recorded only if `record_trace`.
        batch_end_times: Seconds on the host's clock when this rank finished each batch of the last stream.
        peak_in_flight: Most forward passes open at once in the last interval.
        trained_weights: The user's trained weights of the whole model by name, a tied one once, in the order of a plain
            optimizer; empty where functions make layers.
        memory_tracker: Tracker of allocations, while `Engine.memory` runs.
        loss_check: Check of the loss, on the rank of the last stage; None while it is off.
        pairs: Whether the loss returns pairs (sum, count); None before all ranks know.
        noted: Whether a training has noted that modules take statistics of microbatches.
    """

    settings: RunSettings
    comm: Communicators
    clock: Clock
    schedule: Schedule
    slicer: BatchSlicer
    user: UserState
    stages: Mapping[int, Stage]
    ties: Sequence[TieGroup]
    copies: Copies
    versions: WeightVersions
    loss_scaler: DynamicLossScaler | None
    pruning: Pruning | None
    make_model_states: Callable[[Mapping[int, torch.Tensor]], ModelState]
    make_update: Callable[[ModelState], Update]
    model_states: ModelState = field(init=False)
    update: Update = field(init=False)
    allocated: bool = False
    orders: dict[int, tuple[Op, ...]] = field(default_factory=dict)
    pruned_after: int | None = None
    microbatches: int = 0
    updates: int = 0
    evaluated: int = 0
    drained: bool = True
    trace: Trace = field(default_factory=Trace)
    record_trace: bool = True
    batch_end_times: list[float] = field(default_factory=list)
    peak_in_flight: int = 0
    trained_weights: Mapping[str, nn.Parameter] = field(default_factory=dict)
    memory_tracker: MemoryTracker | None = None
    loss_check: LossCheck | None = None
    pairs: bool | None = None
    noted: bool = False

    @property
    def stage(self) -> Stage:
        """The stage of a rank that holds one."""
        (stage,) = self.stages.values()
        return stage

    def outputs(self, inputs: Value) -> Value:
        """Outputs of this rank's layers in evaluation mode, one stage after the other."""
        inputs = tuple(tensor.to(self.comm.world.device) for tensor in inputs)
        for stage in self.stages.values():
            inputs = stage.outputs(inputs)
        return inputs

    def note_statistics(self, microbatches: int) -> None:
        """Warn once where batches of `microbatches` per replica train a BatchNorm on the rows of one microbatch."""
        if microbatches * self.settings.place.replicas == 1:
            return
        self.noted = True
        modules = [module for stage in self.stages.values() for module in stage.layers.modules() if module.training]
        names = sorted({type(module).__name__ for module in modules if isinstance(module, _BatchNorm)})
        if names and self.settings.place.replica == 0:
            warnings.warn(
                f"{', '.join(names)} trains on statistics of a microbatch ({self.settings.config.microbatch} samples), "
                "not of the batch (docs/training.md)",
                stacklevel=2,
            )

    def allocate(self, kept: Mapping[int, torch.Tensor]) -> None:
        """Allocate the model states, in place of earlier ones.

        Args:
            kept: Kept indices of each pruned weight, by the id of the weight.
        """
        self.model_states, self.allocated = self.make_model_states(kept), True
        states = self.model_states
        if self.settings.half:
            for stage in self.stages.values():
                cast(stage.layers, self.settings.half)
            self.copies.lend(states)
        self.update = self.make_update(states)
        if isinstance(rule := self.update.rule, TorchOptimizer):
            rule.attach(states.flat)
        self.versions.attach(states, self.update.rule)

    def check_drained(self, call: str) -> None:
        """Raises InvalidRequest within a batch, and after an interrupted one."""
        if not self.drained:
            raise within_stream(call)

    def numbered_layers(self) -> Iterator[tuple[int, nn.Module]]:
        """Layers of this rank with their numbers in the whole model."""
        for number, stage in self.stages.items():
            yield from zip(self.settings.split[number], stage.layers, strict=True)
