"""The suite's engine as a compared system: built from a configuration, returns traces and bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from suite.config.modules import NetworkModule, network_module
from suite.config.protocols import System
from suite.config.run import RunConfig
from suite.core.keys import in_config_keys
from suite.core.protocols import Missing, Ready, Value, World
from suite.core.trace import Trace
from suite.core.values import Json
from suite.data.batches import map_batches
from suite.engine.checkpoint.restore import Loaded
from suite.engine.engine import Engine
from suite.engine.makers import Maker, configured, loss_of
from suite.engine.pruning.settings import Pruning
from suite.engine.stage import as_value
from suite.engine.train_state import TrainState
from suite.memory.checkpointing import resolve_interval
from suite.schedule.placement import homes_of
from suite.workload.split import blocks, divide_ranks


def network(config: RunConfig) -> NetworkModule:
    """The module of the configured network, with layers(shape, ...), ties(shape) and loss."""
    return network_module(config.model.network)


def to_tensors(batch: Value) -> tuple[Any, ...]:
    """A batch of arrays, or of tuples of arrays, as tensors that share their memory."""
    return tuple(to_tensors(part) if isinstance(part, tuple) else torch.from_numpy(part) for part in batch)


def pruning_of(config: RunConfig) -> Pruning | None:
    """The configured pruning; None without one."""
    settings = config.pruning
    return Pruning(settings.ticket.build(), settings.sparsity, settings.scope) if settings.ticket else None


def decode_outputs(module: NetworkModule, forward: Any, batches: Sequence[Value]) -> list[Any] | None:
    """Decoded outputs of the network for each batch, as arrays; None for a network without `decode`."""
    if module.decode is None:
        return None
    with torch.no_grad():
        return [module.decode(forward, as_value(to_tensors(batch)[0])).numpy() for batch in batches]


def loss_scale_notes(state: TrainState) -> dict[str, Any]:
    """Loss scale and number of skipped batches; empty in one precision."""
    return {"loss_scale": state.loss_scaler.scale, "skipped": state.update.skipped} if state.loss_scaler else {}


class EngineSystem(System):
    """Every system that is a schedule, a weight policy and a memory layout on the suite's engine."""

    @classmethod
    def probe(cls, config: RunConfig) -> Ready | Missing:
        return Ready()

    @in_config_keys()
    def __init__(self, world: World, config: RunConfig) -> None:
        self.network = network(config)
        self.engine = Engine(**self.engine_arguments(config), world=world)

    @property
    def streams(self) -> bool:
        """Whether batches stream through a pipeline that drains at the end of an epoch (`stream`, not train_batch)."""
        return self.engine.streams

    @classmethod
    def engine_arguments(cls, config: RunConfig) -> dict[str, Any]:
        """Arguments of `Engine`, without `world`."""
        shape, module = config.network(), network(config)
        grid, precision, optimizer = config.grid.build(), config.precision, config.optimizer
        schedule = config.schedule.build()
        split = divide_ranks(shape, homes_of(schedule, grid.inter), config.split)
        return {
            "model": configured(config.kernels, cls.layer_makers(config, shape), draws_on=config.launch.draws_on),
            "loss": loss_of(config.kernels, config.model.network),
            "optimizer": optimizer.build(),
            "microbatch": config.batch.microbatch,
            "grid": grid,
            "schedule": schedule,
            "weights": config.weights.build(),
            "memory": config.memory.layout.build(),
            "split": split,
            "tied": module.ties(shape),
            "seed": config.seed,
            "half": precision.half,
            "loss_scaler": precision.loss_scale.build() if precision.loss_scale else None,
            "bucket_numel": optimizer.bucket_numel,
            "buckets_per_reduction": optimizer.buckets_per_reduction,
            "clip_norm": optimizer.clip_norm,
            "fused": config.kernels.fused,
            "activation_checkpointing": resolve_interval(config.activation_checkpointing, blocks(shape, split)),
            "pruning": pruning_of(config),
            "update_interval": config.update_interval,
            "scores": module.scores,
            "score_names": module.SCORES,
            "check_loss": 0,  # every system averages microbatches, also those of GNMT, whose sentences are padded
            "compare_batches": False,  # all ranks draw batches from one seed, and hashes would be timed
        }

    @classmethod
    def layer_makers(cls, config: RunConfig, shape: Any) -> Sequence[Maker]:
        """Functions that make the layers, in order. A system with layers of its own overrides this method."""
        model = config.model
        layers: Sequence[Maker] = network(config).layers(shape, dropout=model.dropout, dtype=model.dtype)
        return layers

    def facts(self) -> dict[str, Any]:
        """Notes for the record: overlap of updates, bytes on the host, loss scale, pruning."""
        state = self.engine.state
        host_bytes = state.model_states.allocated("host")
        return {"overlap": state.update.overlap, "host": host_bytes, **loss_scale_notes(state), **self._pruning_notes()}

    def _pruning_notes(self) -> dict[str, Any]:
        """Sparsity and time of the pruning; for a search also the distances between its masks."""
        pruning, pruned_after = self.engine.state.pruning, self.engine.state.pruned_after
        if pruning is None:
            return {}
        notes = {"pruned_after": pruned_after, "sparsity": pruning.sparsity}
        distances = pruning.method.distances
        if distances is None:
            return notes
        outcome = (
            "not pruned: the masks did not settle" if pruned_after is None else f"pruned after {pruned_after} batches"
        )
        if distances:
            outcome += f", distance of the last two masks {100 * distances[-1]:.2g} %"
        outcome += "; predicted memory is that of dense states"
        return {**notes, "mask_distances": list(distances), "notes": [outcome]}

    def train_batch(self, batch: Value) -> float:
        return self.engine.train_batch(to_tensors(batch))

    def stream(self, batches: Sequence[Value]) -> tuple[list[float], list[float]]:
        """Losses of the batches, and the times at which this rank finished them, on the host's clock."""
        losses = list(self.engine.train(map_batches(batches, to_tensors)))
        return losses, self.engine.state.batch_end_times

    def evaluate(self, batches: Sequence[Value]) -> float:
        return self.score(batches)["loss"]

    def score(self, batches: Sequence[Value]) -> dict[str, float]:
        """Mean loss and scores; training state does not change."""
        return self.engine.score([to_tensors(batch) for batch in batches])

    def decode(self, batches: Sequence[Value]) -> list[Any] | None:
        """Decoded token ids per batch; None for a network without `decode`, and on several ranks."""
        if self.engine.grid.size > 1:
            return None
        return decode_outputs(self.network, self.engine.state.outputs, batches)

    def observe(self) -> Trace:
        return self.engine.state.trace

    def memory(self, batch: Value) -> tuple[float, dict[str, int]]:
        return self.engine.memory(to_tensors(batch))

    def save(self, folder: str | Path, *, keep: int | None = None, extra: Mapping[str, Json] | None = None) -> None:
        """Save a checkpoint as Engine.save does."""
        self.engine.save(folder, keep=keep, extra=extra)

    def load(self, path: str | Path) -> Loaded:
        return self.engine.load(path)

    def close(self) -> None:
        self.engine.close()
