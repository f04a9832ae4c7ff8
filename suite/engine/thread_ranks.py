"""An engine whose ranks are threads of this process: a notebook or a laptop needs no launcher.

`Engine(layers, grid=Grid(inter=2))` in a process without a launcher makes one engine per rank, each in a thread of its
own. A call on the engine is the same call on every rank. The first replica trains the user's modules, and further
replicas train copies. A weight that several layers share is one leaf per layer, as on ranks that are processes.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, TypeVar

import torch
from torch import nn

from suite.comm.p2p.threads import Hub, LoopbackWorld
from suite.core.errors import InvalidRequest, RankError, Unsupported
from suite.core.grid import Grid
from suite.core.protocols import Value
from suite.core.values import Json
from suite.engine.batch_stream import Batch
from suite.engine.checkpoint import restore
from suite.engine.engine import Engine
from suite.engine.layers import Layer, copy_shared
from suite.engine.ties import as_pairs, find_ties
from suite.pruning.mask import Key

_T = TypeVar("_T")
_GRACE = 2.0  # seconds in which the other ranks find an error by themselves, as they do where all raise
_POLL = 0.1  # seconds between two checks of the ranks of a stream
_END = object()


class RankThreads:
    """One thread per rank.

    Attributes:
        hub: State that the threads share.
    """

    def __init__(self, size: int) -> None:
        self.hub = Hub(size)
        self.pools = [ThreadPoolExecutor(1, thread_name_prefix=f"rank {rank}") for rank in range(size)]

    def run(self, function: Callable[[int], _T]) -> list[_T]:
        """`function(rank)` of every rank, each in its thread; the results by rank. Raises as `join` does."""
        return self.join(self.start(function))

    def start(self, function: Callable[[int], _T]) -> list[Future[_T]]:
        """Begin `function(rank)` of every rank, each in its thread."""
        return [pool.submit(function, rank) for rank, pool in enumerate(self.pools)]

    def join(self, futures: Sequence[Future[_T]]) -> list[_T]:
        """Wait for all ranks; the results by rank.

        Raises the error of the first rank that gives a rule, else the first error. A rank that has failed alone wakes
        the ranks that wait for it."""
        try:
            _, running = wait(futures, return_when=FIRST_EXCEPTION)
            if running:
                _, running = wait(futures, _GRACE)
        except BaseException as error:  # an interrupt of the main thread
            self.hub.fail(error)
            raise
        if running:
            self.hub.fail(next(filter(None, map(_error_of, futures))))
            wait(futures)
        errors = [error for error in map(_error_of, futures) if error is not None]
        if errors:
            raise min(errors, key=_order)
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the threads."""
        for rank, pool in enumerate(self.pools):
            self.hub.departures[rank].leave()
            pool.shutdown(wait=False)


def _error_of(future: Future[Any]) -> BaseException | None:
    return future.exception() if future.done() else None


def _order(error: BaseException) -> int:
    """Errors with a reason come first: other ranks only report that one has failed."""
    if isinstance(error, RankError):
        return 2
    return 1 if isinstance(error, InvalidRequest) and not error.rule else 0


class SharedBatches:
    """One iteration over the user's batches, which every rank reads in full.

    Args:
        batches: Iterable that is read once.
        ranks: Number of readers.
    """

    def __init__(self, batches: Iterable[Batch], ranks: int) -> None:
        self.lock, self.iterator = Lock(), iter(batches)
        self.kept: deque[Batch] = deque()
        self.first, self.positions = 0, [0] * ranks
        self.end: BaseException | None = None  # what ended the iteration

    def read(self, rank: int) -> Batch:
        """The next batch of a rank. Raises what the user's iterator raises, on every rank."""
        with self.lock:
            if self.positions[rank] == self.first + len(self.kept):
                if self.end is None:
                    try:
                        self.kept.append(next(self.iterator))
                    except BaseException as error:
                        self.end = error
                if self.end is not None:
                    raise self.end
            batch = self.kept[self.positions[rank] - self.first]
            self.positions[rank] += 1
            while self.kept and min(self.positions) > self.first:
                self.kept.popleft()
                self.first += 1
            return batch


class _Reader:
    """The batches as one rank reads them."""

    def __init__(self, shared: SharedBatches, rank: int) -> None:
        self.shared, self.rank = shared, rank

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return self.shared.read(self.rank)


class _SizedReader(_Reader):
    """The batches of a loader with a length."""

    def __init__(self, shared: SharedBatches, rank: int, length: int) -> None:
        super().__init__(shared, rank)
        self.length = length

    def __len__(self) -> int:
        return self.length


def _readers(batches: Iterable[Batch], ranks: int) -> Sequence[Iterable[Batch]]:
    """The batches for each rank. Ranks read a list independently, and an iterator together."""
    if isinstance(batches, Sequence) or not isinstance(batches, Iterable):
        return [batches] * ranks  # anything else is refused by every rank
    shared = SharedBatches(batches, ranks)
    try:
        length = len(batches)  # type: ignore[arg-type]
    except TypeError:
        return [_Reader(shared, rank) for rank in range(ranks)]
    return [_SizedReader(shared, rank, length) for rank in range(ranks)]


class ThreadEngine(Engine):
    """An engine for each rank of a grid, in threads of this process. It takes the arguments of `Engine`.

    Attributes:
        engines: The engine of each rank.
        threads: The threads of the ranks.
    """

    def __init__(self, layers: Any, *, grid: Grid, **arguments: Any) -> None:
        self.threads = RankThreads(grid.size)
        self._followed: list[tuple[nn.Module, nn.Module]] = []  # a module of the user's, and its copy
        lists = self._lists_of_layers(layers, grid, arguments)
        hub = self.threads.hub

        def make(rank: int) -> Engine:
            world = LoopbackWorld(hub, rank)
            return Engine(lists[grid.place(rank).replica], grid=grid, world=world, **arguments)

        try:
            self.engines = self.threads.run(make)
        except BaseException:
            self.threads.close()
            raise
        first = self.engines[0]
        self.state, self.grid, self.rank, self.place = first.state, first.grid, first.rank, first.place

    def _lists_of_layers(self, layers: Any, grid: Grid, arguments: dict[str, Any]) -> list[Any]:
        """The layers of each replica. The ties that the user's list implies become the argument `tied`."""
        if isinstance(layers, nn.Sequential | nn.ModuleList):
            layers = list(layers)
        if not isinstance(layers, Sequence):
            return [layers] * grid.data  # the engine refuses it
        modules: list[Layer] = []
        seen: set[int] = set()
        for number, layer in enumerate(layers):
            ids = set(map(id, layer.parameters())) if isinstance(layer, nn.Module) else set()
            own = copy_shared(layer, number, ids & seen) if ids & seen else layer
            if own is not layer:
                self._followed.append((layer, own))
            modules.append(own)
            seen |= ids
        if seen:
            named = arguments.get("tied") or ()
            arguments["tied"] = [pair for ends in find_ties(layers, named) for pair in as_pairs(ends)]
        lists = [modules]
        for _ in range(1, grid.data):
            memo: dict[int, Any] = {}
            copies: list[Layer] = []
            for original, layer in zip(layers, modules, strict=True):
                copies.append(copy.deepcopy(layer, memo) if isinstance(layer, nn.Module) else layer)
                if isinstance(layer, nn.Module):
                    self._followed.append((original, memo[id(layer)]))
            lists.append(copies)
        return lists

    def _on_every_rank(self, call: Callable[[Engine], _T]) -> list[_T]:
        """Results of the same call on every rank."""
        self._follow_modes()
        return self.threads.run(lambda rank: call(self.engines[rank]))

    def _follow_modes(self) -> None:
        """Give the copies the modes (training or evaluation) of the user's modules."""
        for original, copied in self._followed:
            for module, follower in zip(original.modules(), copied.modules(), strict=True):
                follower.training = module.training

    def train(self, batches: Iterable[Batch]) -> Iterator[float]:
        readers = dict(zip(self.engines, _readers(batches, self.grid.size), strict=True))
        if self.streams:
            yield from self._stream(readers)
            return
        steps = dict(zip(self.engines, self._on_every_rank(lambda engine: engine.train(readers[engine])), strict=True))
        try:
            while (loss := self._on_every_rank(lambda engine: next(steps[engine], _END))[0]) is not _END:
                yield loss  # type: ignore[misc]
        finally:
            self._on_every_rank(lambda engine: steps[engine].close())  # type: ignore[attr-defined]

    def _stream(self, readers: Mapping[Engine, Iterable[Batch]]) -> Iterator[float]:
        """Losses of batches that stream. Ranks do not wait for requests, as one rank's loss needs the others' work.

        A stream that is not read to its end is interrupted, and the engine trains no more."""
        self._follow_modes()
        losses: SimpleQueue[float] = SimpleQueue()

        def run(rank: int) -> None:
            for loss in self.engines[rank].train(readers[self.engines[rank]]):
                if rank == 0:
                    losses.put(loss)

        futures = self.threads.start(run)
        try:
            while not (losses.empty() and all(future.done() for future in futures)):
                if any(map(_error_of, futures)):
                    break
                with suppress(Empty):
                    yield losses.get(timeout=_POLL)
        except BaseException as error:
            self.threads.hub.fail(
                RankError("the stream was interrupted") if isinstance(error, GeneratorExit) else error
            )
            wait(futures)
            raise
        self.threads.join(futures)

    def train_batch(self, batch: Batch) -> float:
        return self._on_every_rank(lambda engine: engine.train_batch(batch))[0]

    def gradients(self, batch: Batch) -> list[torch.Tensor]:
        """Reduced gradients of the weights of all ranks of the first replica, in pipeline order."""
        by_rank = self._on_every_rank(lambda engine: engine.gradients(batch))
        return [gradient for rank in self.grid.pipeline(0) for gradient in by_rank[rank]]

    def score(self, batches: Iterable[Batch]) -> dict[str, float]:
        readers = dict(zip(self.engines, _readers(batches, self.grid.size), strict=True))
        return self._on_every_rank(lambda engine: engine.score(readers[engine]))[0]

    def predict(self, inputs: torch.Tensor | Value) -> torch.Tensor | Value:
        return self._on_every_rank(lambda engine: engine.predict(inputs))[0]

    def prune(self, indices: Mapping[Key, torch.Tensor]) -> None:
        self._on_every_rank(lambda engine: engine.prune(indices))

    def memory(self, batch: Batch) -> tuple[float, dict[str, int]]:
        """Raises Unsupported: threads allocate from one process."""
        raise Unsupported(
            "memory() of ranks that are threads",
            rule="allocations are counted per process",
            legal="ranks under mpiexec, torchrun or srun",
        )

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self._on_every_rank(lambda engine: engine.state_dict())[0]

    def load_state_dict(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._on_every_rank(lambda engine: engine.load_state_dict(weights))

    def save_model(self, folder: str | Path, *, sharded: bool = False) -> Path:
        return self._on_every_rank(lambda engine: engine.save_model(folder, sharded=sharded))[0]

    def load_model(self, path: str | Path) -> None:
        self._on_every_rank(lambda engine: engine.load_model(path))

    def save(self, folder: str | Path, *, keep: int | None = None, extra: Mapping[str, Json] | None = None) -> Path:
        return self._on_every_rank(lambda engine: engine.save(folder, keep=keep, extra=extra))[0]

    def load(self, path: str | Path) -> restore.Loaded:
        return self._on_every_rank(lambda engine: engine.load(path))[0]

    def close(self) -> None:
        self._on_every_rank(lambda engine: engine.close())
        self.threads.close()
