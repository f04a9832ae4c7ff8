"""Full-graph training: an epoch is one batch, and every process holds all weights.

The loss is a mean over the training vertices of the whole graph, of which each process adds its own part, so gradients
are sums over block rows: reduced over the column of the grid alone, as the ranks of a row hold the same vertices and
would count them c times.
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
from suite.core.errors import Diverged, InvalidRequest
from suite.core.protocols import Missing, Ready, UpdateRule, Value, World
from suite.core.trace import GEMM, REDUCE, STEP, Trace
from suite.engine.memory_tracker import LiveBytes
from suite.engine.optim.optimizer import states_of
from suite.engine.states.flat_layout import LayoutOf
from suite.engine.states.state import ModelState
from suite.gnn.exchange import Exchange, Watch
from suite.gnn.rank_shard import RankShard
from suite.gnn.settings import exchange_settings, graph_settings, shape_of, ways
from suite.memory import resident
from suite.models.gcn import layers
from suite.workload.gcn import GCN

MakeExchange = Callable[..., Exchange]


class Trainer:
    """One process's part of the training of a graph convolution network (Section 2.1).

    Attributes:
        holding: Its arguments.
        exchange: Makes its products, exchange(share, world, watch=, dtype=).
        order, epoch: See workload.gcn.how.
        seed: Selects initial weights.
    """

    def __init__(
        self,
        holding: RankShard,
        world: World,
        *,
        exchange: MakeExchange,
        optimizer: UpdateRule,
        shape: GCN | None = None,
        order: str = "paper",
        epoch: str = "paper",
        dtype: str = "float32",
        seed: int = 0,
        memory: LayoutOf = resident,
    ) -> None:
        if holding.forward.rank != world.rank:
            raise InvalidRequest(
                f"rank {world.rank} was given what rank {holding.forward.rank} holds", rule="each its own"
            )
        self.holding, self.world, self.rule, self.shape = holding, world, optimizer, shape or GCN()
        kind = getattr(torch, dtype)
        self.watch = Watch(world)
        self.forward = exchange(holding.forward, world, watch=self.watch, dtype=kind)
        same = holding.backward is holding.forward
        self.backward = self.forward if same else exchange(holding.backward, world, watch=self.watch, dtype=kind)
        device = world.device
        self.features = torch.from_numpy(holding.features).to(device, kind)
        self.labels = torch.from_numpy(holding.labels).to(device)
        self.asked = {name: torch.from_numpy(mask.nonzero()[0]).to(device) for name, mask in holding.masks.items()}
        self.products = 0  # sparse products so far, of either direction

        def counted(product: Exchange) -> Callable[[torch.Tensor], torch.Tensor]:
            def multiply(x: torch.Tensor) -> torch.Tensor:
                self.products += 1
                return product(x)

            return multiply

        widths = self.shape.widths(self.features.shape[1], holding.classes)
        self.layers = layers(
            widths,
            order=order,
            epoch=epoch,
            product=counted(self.forward),
            back=counted(self.backward),
            watch=self.watch,
            seed=seed,
        ).to(device, kind)
        self.state = ModelState(self.layers.parameters(), states_of(optimizer, predicts=False), memory)
        self.epochs = 0

    # -- an epoch -----------------------------------------------------------------------------------------------------

    def outputs(self) -> torch.Tensor:
        """Z of the last layer, (n_i, classes)."""
        h = self.features
        for at, layer in enumerate(self.layers):
            h = layer(h)
            if at + 1 < len(self.layers):
                h = F.relu(h)
        return h

    def epoch(self) -> float:
        """One update by the gradient of the whole graph; the mean loss over its training vertices before it, known on
        every rank. Raises Diverged where it is no number."""
        self.watch.trace = Trace()
        loss = self.gradients()
        begin = self.watch.now()
        self.state.step(self.rule)
        self.state.finish(True)
        self.watch.add(STEP, begin)
        self.epochs += 1
        return loss

    def gradients(self) -> float:
        """The loss, and in `state.gradient` the gradient of all weights, equal on all ranks."""
        own_loss = self._loss(self.outputs(), "train")
        own_loss.backward()
        loss = own_loss.detach().double().reshape(1)
        self.forward.meet()
        with self.watch.span(REDUCE):
            self.forward.group.all_reduce(self.state.gradient).wait()
            self.forward.group.all_reduce(loss).wait()
        if not bool(torch.isfinite(loss)):
            raise Diverged(f"the loss of epoch {self.epochs} is {float(loss)}")
        return float(loss)

    def _loss(self, z: torch.Tensor, mask: str) -> torch.Tensor:
        """This process's part of the mean negative log likelihood over the graph's vertices in a mask."""
        at, count = self.asked[mask], self.holding.counts[mask]
        with self.watch.span(GEMM):
            return F.cross_entropy(z[at], self.labels[at], reduction="sum") / max(1, count)

    @torch.no_grad()
    def score(self, mask: str = "validation") -> dict[str, float]:
        """Mean loss over a mask's vertices, and the percent of them whose largest output is their label."""
        on, self.watch.on = self.watch.on, False
        try:
            z, at = self.outputs(), self.asked[mask]
            right = (z[at].argmax(1) == self.labels[at]).sum().double().reshape(1)
            totals = torch.cat([self._loss(z, mask).double().reshape(1), 100 * right])
            self.forward.group.all_reduce(totals).wait()
        finally:
            self.watch.on = on
        loss, hundredfold = totals.tolist()
        return {"loss": loss, "top_1": hundredfold / max(1, self.holding.counts[mask])}

    # -- content of a record ------------------------------------------------------------------------------------------

    @property
    def sent(self) -> int:
        """Bytes of rows of X that this process has sent to others so far."""
        return self.watch.sent

    def memory(self) -> tuple[float, dict[str, int]]:
        """Trains one epoch: its loss, and this process's peak bytes by kind, counted at allocation."""
        allocated = self.state.allocated()
        allocated["graph"] = sum({id(one): one.bytes for one in (self.forward, self.backward)}.values())
        convolutions: Iterable[Any] = self.layers
        saved_inputs = [layer.kept[1] for layer in convolutions if layer.kept is not None]
        allocated["features"] = sum(tensor.numel() * tensor.element_size() for tensor in (self.features, *saved_inputs))
        with LiveBytes() as live:
            loss = self.epoch()
        allocated["rows"] = sum({id(one): one.held for one in (self.forward, self.backward)}.values())
        return loss, {**allocated, "activations": live.peak}


class GraphSystem(System):
    """Every system that trains a whole graph: an exchange on parts. A rank reads what its parent made."""

    @classmethod
    def probe(cls, config: RunConfig) -> Ready | Missing:
        return Ready()

    def __init__(self, world: World, config: RunConfig) -> None:
        model, exchange, folder = config.model, exchange_settings(config), graph_settings(config).holdings
        if folder is None:
            raise InvalidRequest("graph.holdings=null", rule="the folder of the ranks' parts, which their parent sets")
        order, epoch = ways(model)
        self.trainer = Trainer(
            RankShard.load(Path(folder) / f"rank-{world.rank}.npz"),
            world,
            exchange=partial(
                locate(exchange.target), form=exchange.form, overlap=exchange.overlap, barrier=exchange.barrier
            ),
            optimizer=config.optimizer.build(),
            shape=shape_of(model),
            order=order,
            epoch=epoch,
            dtype=model.dtype,
            seed=config.seed,
            memory=config.memory.layout.build(),
        )

    def train_batch(self, batch: Value) -> float:
        """An epoch; the graph is the batch."""
        return self.trainer.epoch()

    def evaluate(self, batches: Sequence[Value]) -> float:
        return self.trainer.score()["loss"]

    def score(self, batches: Sequence[Value]) -> dict[str, float]:
        """Over the validation vertices of the whole graph; nothing where there are none."""
        return self.trainer.score() if self.trainer.holding.counts["validation"] else {}

    def observe(self) -> Trace:
        return self.trainer.watch.trace

    def memory(self, batch: Value) -> tuple[float, dict[str, int]]:
        return self.trainer.memory()

    def close(self) -> None:
        """Nothing was opened."""
