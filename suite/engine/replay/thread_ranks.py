"""An engine whose ranks share this process: a notebook or a laptop needs no launcher, and one GPU holds a whole grid.

`Engine(layers, grid=Grid(inter=2))` in a process without a launcher makes one engine per rank; the ranks take turns
(comm.p2p.threads). A call on the engine is the same call on every rank. The first replica trains the user's modules,
and further replicas train copies. A weight that several layers share is one leaf per layer, as on ranks that are
processes.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import tee
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from suite.comm.p2p.threads import Hub, LoopbackWorld
from suite.core.errors import InvalidRequest, RankError, Unsupported
from suite.engine.engine_config import EngineConfig
from suite.engine.guards.asynchronous import within_stream
from suite.engine.guards.user_state import Follower
from suite.engine.layers import Layer, copied, copy_shared
from suite.engine.process_setup import device_of
from suite.engine.stream import Batch
from suite.engine.ties import as_pairs, find_ties
from suite.engine.train_state import TrainState

if TYPE_CHECKING:
    from suite.engine.engine import Engine

_T = TypeVar("_T")


class BatchReader:
    """The user's batches as one rank reads them: `items`. Every rank reads all batches; each is requested once."""

    def __init__(self, batches: Iterable[Batch], items: Iterator[Batch]) -> None:
        self.batches, self.items = batches, items

    def __len__(self) -> int:
        """Number of batches. Raises TypeError for an iterable without a length."""
        return len(self.batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        return self.items


def batch_readers(batches: Iterable[Batch], ranks: int) -> Sequence[Iterable[Batch]]:
    """The batches for each rank. Ranks read a list independently, and an iterator together."""
    if isinstance(batches, Sequence):
        return [batches] * ranks
    # copies, as ranks read them at different times and a loader may use its tensors again
    copies = (tree_map_only(torch.Tensor, torch.clone, batch) for batch in batches)
    return [BatchReader(batches, items) for items in tee(copies, ranks)]


class ThreadRanks:
    """An engine for each rank of a grid, in this process.

    Args:
        config: Arguments of the engine that the user makes.
        make: Makes the engine of one rank from its arguments.

    Attributes:
        engines: The engine of each rank.
        hub: The ranks, which take turns.
        closed: Whether `close` was called.
        streaming: Whether batches stream through the ranks.
    """

    def __init__(self, config: EngineConfig, make: Callable[[EngineConfig], Engine]) -> None:
        self.grid = config.grid
        if config.shard:
            raise Unsupported(
                "shard",
                True,
                rule="ranks that are threads read one iterable of whole batches",
                legal="shard=False, or ranks under mpiexec, torchrun or srun",
            )
        parts = config.parts()
        device = device_of(parts.layers, config.device)
        self.hub = Hub(self.grid.size)
        self.closed = self.streaming = False
        self._followers: list[Follower] = []  # copies of the user's modules
        lists = self._lists_of_layers(parts.layers)
        tied = config.tied
        if any(isinstance(layer, nn.Module) for layer in parts.layers):
            tied = [pair for ends in find_ties(parts.layers, config.tied) for pair in as_pairs(ends)]

        def make_rank(rank: int) -> Engine:
            own = replace(parts, layers=lists[self.grid.position(rank).data], originals=parts.layers)
            world = LoopbackWorld(self.hub, rank, device=device)
            policy = copy.deepcopy(config.weights)  # one with state counts the passes of its rank
            return make(replace(config, model=own, tied=tied, weights=policy, device=None, world=world))

        try:
            self.engines = self.hub.run(make_rank)
        except BaseException:
            self.hub.close()
            raise

    @property
    def state(self) -> TrainState:
        """State of rank 0."""
        return self.engines[0].state

    def _lists_of_layers(self, layers: Sequence[Layer]) -> list[Sequence[Layer]]:
        """The layers of each replica, in which each weight has one leaf per layer."""
        modules: list[Layer] = []
        seen: set[int] = set()
        for number, layer in enumerate(layers):
            modules.append(layer)
            if isinstance(layer, nn.Module):
                ids = set(map(id, layer.parameters()))
                if ids & seen:
                    modules[-1] = shared = copy_shared(layer, number, ids & seen)
                    self._followers.append(Follower(layer, shared))
                seen |= ids
        lists: list[Sequence[Layer]] = [modules]
        for _ in range(1, self.grid.data):
            lists.append(copied(modules, "the model"))  # all at once, so that copies share weights as the layers do
            for layer, own in zip(layers, lists[-1], strict=True):
                if isinstance(layer, nn.Module) and isinstance(own, nn.Module):
                    self._followers.append(Follower(layer, own))
        return lists

    def call(self, name: str, function: Callable[[Engine], _T]) -> list[_T]:
        """Results of the same call on the engine of every rank.

        Raises InvalidRequest within a stream; `name` is the call in words."""
        self._check_idle(name)
        self._follow()
        return self.hub.run(lambda rank: function(self.engines[rank]))

    def _check_idle(self, name: str) -> None:
        if (failure := self.hub.failure) is not None:
            raise InvalidRequest(
                f"{name} after a rank has failed ({type(failure).__name__}: {failure})",
                rule="ranks stand at different ops after a failure within a batch",
                legal="a new engine of the model, and load() of its last checkpoint",
            )
        if self.streaming:
            raise within_stream(name)

    def _follow(self) -> None:
        """Give the copies the modes, attributes and weights of the user's modules."""
        for follower in self._followers:
            follower.follow(trained=True)

    def train(self, batches: Iterable[Batch]) -> Iterator[float]:
        """Train on each batch when its loss is requested; batches that stream, all at once.

        A stream that is not read to its end is interrupted, and the engine trains no more."""
        self._check_idle("train()")
        if not self.state.settings.streams:
            for batch in batches:
                yield self.call("train()", lambda engine: engine.train_batch(batch))[0]  # noqa: B023
                if self.closed:
                    raise closed_engine("train()")
            return
        readers = batch_readers(batches, self.grid.size)
        self._follow()
        self.streaming = True
        try:
            with self.hub.as_rank_0(lambda rank: deque(self.engines[rank].train(readers[rank]), maxlen=0)):
                yield from self.engines[0].train(readers[0])
        finally:
            self.streaming = False

    def close(self) -> None:
        """Close the engines, and end the threads."""
        if self.hub.active:  # batches stream
            self.hub.end(RankError("the engine was closed"))
        try:
            self.hub.run(lambda rank: self.engines[rank].close())
        finally:
            self.closed = True
            self.hub.close()


def closed_engine(call: str) -> InvalidRequest:
    """The error for a call on a closed engine."""
    return InvalidRequest(
        f"{call} of a closed engine",
        rule="close() and the end of `with` are the last call on an engine",
        legal="a new engine of the same model, which holds the trained weights",
    )
