"""An engine whose ranks share this process: a notebook or a laptop needs no launcher, and one GPU holds a whole grid.

`Engine(layers, grid=Grid(inter=2))` in a process without a launcher makes one engine per rank; the ranks take turns
(comm.p2p.threads). A call on the engine is the same call on every rank. The first replica trains the user's modules,
and further replicas train copies. A weight that several layers share is one leaf per layer, as on ranks that are
processes.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import tee
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import nn

from suite.comm.p2p.threads import Hub, LoopbackWorld
from suite.core.errors import InvalidRequest, RankError, Unsupported
from suite.engine.engine_config import EngineConfig
from suite.engine.guards.asynchronous import within_stream
from suite.engine.guards.user_state import Follower
from suite.engine.layers import Layer, copied, copy_shared
from suite.engine.prefetch import map_tensors
from suite.engine.process_setup import device_of
from suite.engine.stream import Batch
from suite.engine.ties import as_pairs, find_ties
from suite.engine.train_state import TrainState

_T = TypeVar("_T")


class _Failed(NamedTuple):
    """The error that ended the iteration over the user's batches."""

    error: BaseException


class BatchReader:
    """The user's batches as one rank reads them. Every rank reads all batches; each is requested once.

    Args:
        batches: The user's iterable.
        items: Its batches; after an error the error, without end.
    """

    def __init__(self, batches: Iterable[Batch], items: Iterator[Batch | _Failed]) -> None:
        self.batches, self.items = batches, items

    def __len__(self) -> int:
        """Number of batches. Raises TypeError for an iterable without a length."""
        return len(self.batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = next(self.items)
        if isinstance(batch, _Failed):
            raise batch.error
        return batch


def _items(batches: Iterable[Batch]) -> Iterator[Batch | _Failed]:
    """Copies of the batches, as ranks read them at different times and a loader may use its tensors again."""
    try:
        for batch in batches:
            yield map_tensors(batch, torch.clone)
    except Exception as error:
        while True:
            yield _Failed(error)


def batch_readers(batches: Iterable[Batch], ranks: int) -> Sequence[Iterable[Batch]]:
    """The batches for each rank. Ranks read a list independently, and an iterator together."""
    if isinstance(batches, Sequence) or not isinstance(batches, Iterable):
        return [batches] * ranks  # anything else is refused by every rank
    return [BatchReader(batches, items) for items in tee(_items(batches), ranks)]


class RankOfGrid(Protocol):
    """The part of an engine that `ThreadRanks` uses."""

    state: TrainState
    ranks: ThreadRanks[Any] | None
    rank: int
    closed: bool

    def train(self, batches: Iterable[Batch]) -> Iterator[float]: ...

    def close(self) -> None: ...


_Engine = TypeVar("_Engine", bound=RankOfGrid)


class ThreadRanks(Generic[_Engine]):
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

    def __init__(self, config: EngineConfig, make: Callable[[EngineConfig], _Engine]) -> None:
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

        def make_rank(rank: int) -> _Engine:
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
            own: Layer = layer
            if isinstance(layer, nn.Module):
                ids = set(map(id, layer.parameters()))
                if ids & seen:
                    own = shared = copy_shared(layer, number, ids & seen)
                    self._followers.append(Follower(layer, shared))
                seen |= ids
            modules.append(own)
        lists: list[Sequence[Layer]] = [modules]
        for _ in range(1, self.grid.data):
            together = copied(nn.ModuleList(layer for layer in modules if isinstance(layer, nn.Module)), "the model")
            following = iter(together)  # one copy of all, so that copies share weights as the layers do
            copies: list[Layer] = []
            for original, layer in zip(layers, modules, strict=True):
                copies.append(next(following) if isinstance(layer, nn.Module) else layer)
                if isinstance(original, nn.Module):
                    self._followers.append(Follower(original, copies[-1]))  # type: ignore[arg-type]
            lists.append(copies)
        return lists

    def call(self, name: str, function: Callable[[_Engine], _T]) -> list[_T]:
        """Results of the same call on the engine of every rank.

        Raises InvalidRequest within a stream; `name` is the call in words."""
        self._check_idle(name)
        self._follow()
        return self.hub.run(lambda rank: function(self.engines[rank]))

    def call_with_batches(
        self, name: str, function: Callable[[_Engine, Iterable[Batch]], _T], batches: Iterable[Batch]
    ) -> list[_T]:
        """Results of the same call on every rank, all of which read the same batches; see `call`."""
        readers = batch_readers(batches, self.grid.size)
        return self.call(name, lambda engine: function(engine, readers[engine.rank]))

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
        """Train on each batch when its loss is requested; with streams see `_stream`."""
        self._check_idle("train()")
        readers = batch_readers(batches, self.grid.size)
        if self.state.settings.streams:
            yield from self._stream(readers)
            return
        self._follow()
        steps = self.hub.run(lambda rank: self.engines[rank].train(readers[rank]))
        try:
            while (loss := self.hub.run(lambda rank: next(steps[rank], None))[0]) is not None:
                yield loss
                if self.closed:
                    raise closed_engine("train()")
                self._follow()
        finally:
            for step in steps:
                if isinstance(step, Generator):
                    step.close()

    def _stream(self, readers: Sequence[Iterable[Batch]]) -> Iterator[float]:
        """Losses of batches that stream. One rank's loss needs the others' work, so all run until a loss is known.

        A stream that is not read to its end is interrupted, and the engine trains no more."""
        self._follow()
        losses: deque[float] = deque()

        def run(rank: int) -> None:
            for loss in self.engines[rank].train(readers[rank]):
                if rank == 0:
                    losses.append(loss)

        self.hub.start(run)
        self.streaming = True
        try:
            while self.hub.active or losses:
                self.hub.join(lambda: bool(losses))
                while losses:
                    yield losses.popleft()
        except GeneratorExit:
            self.hub.end(RankError("the stream was interrupted"))
            raise
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
