"""The suite's engine as a system under comparison: built from a configuration, returns traces and bytes."""

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
from suite.data.batches import mapped
from suite.engine.checkpoint.restore import Loaded
from suite.engine.engine import Engine
from suite.engine.layers import Layer
from suite.engine.prune import Pruning
from suite.engine.stage import as_value
from suite.memory.checkpointing import chosen
from suite.workload.split import blocks, divide


def network(config: RunConfig) -> NetworkModule:
    """The module of a config's network: layers(shape, ...), ties(shape), loss."""
    return network_module(config.model.network)


def tensors(batch: Value) -> tuple[Any, ...]:
    """A batch of arrays, or of tuples of them, as torch sees it, nothing copied."""
    return tuple(tensors(part) if isinstance(part, tuple) else torch.from_numpy(part) for part in batch)


def pruning_of(config: RunConfig) -> Pruning | None:
    """The pruning that a configuration describes, None where it has none."""
    settings = config.pruning
    return Pruning(settings.ticket.build(), settings.sparsity, settings.scope) if settings.ticket else None


def decoded(made: NetworkModule, forward: Any, batches: Sequence[Value]) -> list[Any] | None:
    """Decoded outputs for the inputs of batches, as arrays, for a network with `decode`."""
    if made.decode is None:
        return None
    with torch.no_grad():
        return [made.decode(forward, as_value(tensors(batch)[0])).numpy() for batch in batches]


class EngineSystem(System):
    """Every system that is a schedule, a weight policy and a memory layout on the one engine."""

    @classmethod
    def probe(cls, config: RunConfig) -> Ready | Missing:
        return Ready()

    @in_config_keys()
    def __init__(self, world: World, config: RunConfig) -> None:
        self.network = network(config)
        self.engine = Engine(**self.settings(config), world=world)

    @property
    def streams(self) -> bool:
        """Whether batches stream through a pipeline that drains when a turn ends (`stream` instead of train_batch)."""
        return self.engine.update_every is not None

    @classmethod
    def settings(cls, config: RunConfig) -> dict[str, Any]:
        """The engine's arguments, but for its world."""
        shape, layers = config.network(), network(config)
        grid, precision, optimizer = config.grid.build(), config.precision, config.optimizer
        split = divide(shape, grid.inter, config.split)
        return {
            "layers": cls.makers(config, shape),
            "loss": layers.loss,
            "optimizer": optimizer.build(),
            "microbatch": config.batch.microbatch,
            "grid": grid,
            "schedule": config.schedule.build(),
            "weights": config.weights.build(),
            "memory": config.memory.layout.build(),
            "split": split,
            "tied": layers.ties(shape),
            "seed": config.seed,
            "half": precision.half,
            "scaler": precision.loss_scale.build() if precision.loss_scale else None,
            "bucket": optimizer.bucket_numel,
            "chunk": optimizer.buckets_per_reduction,
            "clip": optimizer.clip_norm,
            "checkpoints": chosen(config.activation_checkpointing, blocks(shape, split)),
            "pruning": pruning_of(config),
            "update_every": config.update_interval,
            "scores": layers.scores,
            "score_names": layers.SCORES,
            "compare_batches": False,  # each rank draws the batch of a number from one seed; a reduction is not timed
        }

    @classmethod
    def makers(cls, config: RunConfig, shape: Any) -> Sequence[Layer]:
        """The functions that make the layers, in order; a system that has layers of its own puts them here."""
        model = config.model
        layers: Sequence[Layer] = network(config).layers(shape, dropout=model.dropout, dtype=model.dtype)
        return layers

    def told(self) -> dict[str, Any]:
        """Notes of the record: overlap of updates, and the number of overflowed batches."""
        scaler = self.engine.scaler
        scale = {"loss_scale": scaler.scale, "skipped": self.engine.update.skipped} if scaler else {}
        host = self.engine.state.allocated("host")
        return {"overlap": self.engine.update.overlap, "host": host, **scale, **self._ticket()}

    def _ticket(self) -> dict[str, Any]:
        """The pruned weights and the time of pruning; for a search also the distances between its masks."""
        pruning = self.engine.pruning
        if pruning is None:
            return {}
        after, sparsity = self.engine.pruned, pruning.sparsity
        distances = pruning.method.distances
        if distances is None:
            return {"pruned_after": after, "sparsity": sparsity}
        note = "nothing is pruned: masks have not settled" if after is None else f"pruned after {after} batches"
        apart = f", the last masks {100 * distances[-1]:.2g} % apart" if distances else ""
        facts = {"pruned_after": after, "sparsity": sparsity, "mask_distances": list(distances)}
        return {**facts, "notes": [f"{note}{apart}; memory is predicted for whole states, as before"]}

    def train_batch(self, batch: Value) -> float:
        return self.engine.train_batch(tensors(batch))

    def stream(self, batches: Sequence[Value]) -> tuple[list[float], list[float]]:
        """Their losses, and when this rank was done with each, on the clock of perf_counter."""
        losses = list(self.engine.train(mapped(batches, tensors)))
        return losses, self.engine.ended

    def evaluate(self, batches: Sequence[Value]) -> float:
        return self.score(batches)["loss"]

    def score(self, batches: Sequence[Value]) -> dict[str, float]:
        """Mean loss and scores, changing no training state."""
        return self.engine.score([tensors(batch) for batch in batches])

    def decode(self, batches: Sequence[Value]) -> list[Any] | None:
        """The token ids that the network says, per batch; None where it says none, or stands on several ranks."""
        return decoded(self.network, self.engine.stage.outputs, batches) if self.engine.grid.size == 1 else None

    def observe(self) -> Trace:
        return self.engine.trace

    def memory(self, batch: Value) -> tuple[float, dict[str, int]]:
        return self.engine.memory(tensors(batch))

    def save(self, folder: str | Path, *, keep: int | None = None, extra: Mapping[str, Json] | None = None) -> None:
        """A checkpoint, as Engine.save writes it."""
        self.engine.save(folder, keep=keep, extra=extra)

    def load(self, path: str | Path) -> Loaded:
        return self.engine.load(path)

    def close(self) -> None:
        self.engine.close()
