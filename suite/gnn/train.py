"""Full-graph training: an epoch is one batch, and every process holds all weights.

The loss is the mean over the training vertices of the whole graph, and each process contributes its own vertices.
Weight gradients are therefore summed over a grid column only: the ranks of a grid row hold the same vertices, and a
sum over all ranks would count each vertex c times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from suite.config.locate import locate
from suite.config.protocols import System
from suite.config.run import RunConfig
from suite.core.errors import Diverged
from suite.core.protocols import Missing, Ready, UpdateRule, Value, World
from suite.core.trace import GEMM, REDUCE, STEP, Trace
from suite.engine.memory_tracker import MemoryTracker
from suite.engine.optim.optimizer import state_names
from suite.engine.states.flat_layout import LayoutFactory
from suite.engine.states.state import ModelState
from suite.gnn.exchange import Exchange, SpanRecorder
from suite.gnn.rank_shard import RankShard
from suite.gnn.settings import required, shape_of
from suite.memory import resident
from suite.models.gcn import layers
from suite.workload.gcn import GCN

MakeExchange = Callable[..., Exchange]


class Trainer:
    """Training of a graph convolution network on one process (Section 2.1).

    Args:
        shard: This rank's part of the graph.
        world: All ranks.
        exchange: Factory of distributed products, called as exchange(block, world, recorder=, dtype=).
        optimizer: Update rule of the weights.
        shape: Layers and width of the network.
        dtype: Name of the value type.
        seed: Seed of the initial weights, equal on all ranks.
        memory: Layout of the model states.
    """

    def __init__(
        self,
        shard: RankShard,
        world: World,
        *,
        exchange: MakeExchange,
        optimizer: UpdateRule,
        shape: GCN | None = None,
        dtype: str = "float32",
        seed: int = 0,
        memory: LayoutFactory = resident,
    ) -> None:
        self.shard, self.world, self.rule, self.shape = shard, world, optimizer, shape or GCN()
        torch_dtype, device = getattr(torch, dtype), world.device
        self.recorder = SpanRecorder(world)
        make_exchange = partial(exchange, world=world, recorder=self.recorder, dtype=torch_dtype)
        self.forward = make_exchange(shard.forward)
        self.backward = self.forward if shard.backward is shard.forward else make_exchange(shard.backward)
        self.features = torch.from_numpy(shard.features).to(device, torch_dtype)
        self.labels = torch.from_numpy(shard.labels).to(device)
        self.mask_indices = {name: torch.from_numpy(mask.nonzero()[0]).to(device) for name, mask in shard.masks.items()}
        self.products = 0  # sparse products so far, forward and backward

        def counted(product: Exchange) -> Callable[[torch.Tensor], torch.Tensor]:
            def multiply(x: torch.Tensor) -> torch.Tensor:
                self.products += 1
                return product(x)

            return multiply

        self.layers = layers(
            self.shape,
            self.features.shape[1],
            shard.classes,
            product=counted(self.forward),
            back=counted(self.backward),
            watch=self.recorder,
            seed=seed,
        ).to(device, torch_dtype)
        self.state = ModelState(self.layers.parameters(), state_names(optimizer, predicts=False), memory)
        self.epochs = 0

    # -- an epoch -----------------------------------------------------------------------------------------------------

    def outputs(self) -> torch.Tensor:
        """Logits of this rank's vertices, (n_i, classes)."""
        h = self.features
        for at, layer in enumerate(self.layers):
            h = layer(h)
            if at + 1 < len(self.layers):
                h = F.relu(h)
        return h

    def epoch(self) -> float:
        """Update the weights once by the gradient of the whole graph.

        Returns the mean loss over the training vertices before the update, equal on every rank. Raises Diverged if it
        is not finite.
        """
        self.recorder.restart()
        loss = self.gradients()
        begin = self.recorder.clock.mark()
        self.state.step(self.rule)
        self.state.finish(True)
        self.recorder.add(STEP, begin)
        self.epochs += 1
        return loss

    def gradients(self) -> float:
        """Compute the gradient of all weights into `state.gradient` and return the loss; both equal on all ranks."""
        own_loss = self._loss(self.outputs(), "train")
        own_loss.backward()
        loss = own_loss.detach().double().reshape(1)
        self.forward.wait_for_all()
        with self.recorder.span(REDUCE):
            self.forward.group.all_reduce(self.state.gradient).wait()
            self.forward.group.all_reduce(loss).wait()
        if not bool(torch.isfinite(loss)):
            raise Diverged(f"the loss of epoch {self.epochs} is {float(loss)}")
        return float(loss)

    def _loss(self, z: torch.Tensor, mask: str) -> torch.Tensor:
        """This process's summand of the mean cross entropy over the vertices of a mask."""
        indices, count = self.mask_indices[mask], self.shard.counts[mask]
        with self.recorder.span(GEMM):
            return F.cross_entropy(z[indices], self.labels[indices], reduction="sum") / max(1, count)

    @torch.no_grad()
    def score(self, mask: str = "validation") -> dict[str, float]:
        """Mean loss, and top-1 accuracy in percent, over the vertices of a mask."""
        enabled, self.recorder.enabled = self.recorder.enabled, False
        try:
            z, indices = self.outputs(), self.mask_indices[mask]
            correct = (z[indices].argmax(1) == self.labels[indices]).sum().double().reshape(1)
            totals = torch.cat([self._loss(z, mask).double().reshape(1), 100 * correct])
            self.forward.group.all_reduce(totals).wait()
        finally:
            self.recorder.enabled = enabled
        loss, correct_percent = totals.tolist()
        return {"loss": loss, "top_1": correct_percent / max(1, self.shard.counts[mask])}

    # -- content of a record ------------------------------------------------------------------------------------------

    @property
    def sent(self) -> int:
        """Bytes of rows of X that this process has sent so far."""
        return self.recorder.bytes_sent

    def memory(self) -> tuple[float, dict[str, int]]:
        """Train one epoch; return its loss and this process's peak bytes by kind, counted at allocation."""
        allocated = self.state.allocated()
        exchanges = {id(exchange): exchange for exchange in (self.forward, self.backward)}.values()
        allocated["graph"] = sum(exchange.matrix_bytes for exchange in exchanges)
        convolutions: Iterable[Any] = self.layers
        saved_inputs = [layer.cached_product[1] for layer in convolutions if layer.cached_product is not None]
        allocated["features"] = sum(tensor.nbytes for tensor in (self.features, *saved_inputs))
        with MemoryTracker() as live:
            loss = self.epoch()
        allocated["rows"] = sum(exchange.buffer_bytes for exchange in exchanges)
        return loss, {**allocated, "activations": live.peak}


class GraphSystem(System):
    """System that trains a whole graph by an exchange. Each rank reads the shard that the parent process wrote."""

    @classmethod
    def probe(cls, config: RunConfig) -> Ready | Missing:
        return Ready()

    def __init__(self, world: World, config: RunConfig) -> None:
        model, exchange, folder = config.model, required(config.exchange), required(required(config.graph).holdings)
        self.trainer = Trainer(
            RankShard.load(Path(folder) / f"rank-{world.rank}.npz"),
            world,
            exchange=partial(
                locate(exchange.target), form=exchange.form, overlap=exchange.overlap, barrier=exchange.barrier
            ),
            optimizer=config.optimizer.build(),
            shape=shape_of(model),
            dtype=model.dtype,
            seed=config.seed,
            memory=config.memory.layout.build(),
        )

    def train_batch(self, batch: Value) -> float:
        """Train one epoch; the graph is the batch."""
        return self.trainer.epoch()

    def evaluate(self, batches: Sequence[Value]) -> float:
        return self.trainer.score()["loss"]

    def score(self, batches: Sequence[Value]) -> dict[str, float]:
        """Loss and accuracy over the validation vertices of the whole graph; empty if there are none."""
        return self.trainer.score() if self.trainer.shard.counts["validation"] else {}

    def observe(self) -> Trace:
        return self.trainer.recorder.trace

    def memory(self, batch: Value) -> tuple[float, dict[str, int]]:
        return self.trainer.memory()

    def close(self) -> None:
        """Nothing to release."""
