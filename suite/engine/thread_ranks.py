"""An engine whose ranks are threads of this process: a notebook or a laptop needs no launcher.

`Engine(layers, grid=Grid(inter=2))` in a process without a launcher makes one engine per rank, each in a thread of its
own. A call on the engine is the same call on every rank. The first replica trains the user's modules, and further
replicas train copies. A weight that several layers share is one leaf per layer, as on ranks that are processes.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from torch import nn

from suite.comm.p2p.threads import Hub, LoopbackWorld
from suite.core.errors import InvalidRequest, RankError, Unsupported
from suite.core.grid import Grid
from suite.engine.arguments import EngineArguments, check
from suite.engine.asynchronous import check_stream, within_stream
from suite.engine.batch_stream import Batch
from suite.engine.layers import Layer, copy_shared
from suite.engine.process_setup import device_of
from suite.engine.random_state import engine_code
from suite.engine.ties import as_pairs, find_ties
from suite.engine.train_state import TrainState

_T = TypeVar("_T")
_P = ParamSpec("_P")
_GRACE = 2.0  # seconds in which the other ranks find an error by themselves, as they do where all raise
_POLL = 0.1  # seconds between two checks of the ranks of a stream


class RankThreads:
    """One thread per rank.

    Attributes:
        hub: State that the threads share.
        idents: Identifiers of the threads.
        closed: Whether the threads have ended.
    """

    def __init__(self, size: int) -> None:
        self.hub = Hub(size)
        self.closed = False
        self.idents = idents = set[int]()

        def begin() -> None:  # knows no engine, so that threads end with an engine that is not closed
            idents.add(threading.get_ident())

        self.pools = [
            ThreadPoolExecutor(1, thread_name_prefix=f"rank {rank}", initializer=begin) for rank in range(size)
        ]

    def run(self, function: Callable[[int], _T]) -> list[_T]:
        """`function(rank)` of every rank, each in its thread; the results by rank. Raises as `join` does."""
        return self.join(self.start(function))

    def start(self, function: Callable[[int], _T]) -> list[Future[_T]]:
        """Begin `function(rank)` of every rank, each in its thread.

        Raises InvalidRequest in a thread of a rank, which would wait for itself."""
        if threading.get_ident() in self.idents:
            raise InvalidRequest(
                "a call on an engine from its batches, its layers or its loss",
                rule="ranks that are threads run one call at a time",
                legal="a call between two losses of train(), or ranks under mpiexec, torchrun or srun",
            )
        return [pool.submit(function, rank) for rank, pool in enumerate(self.pools)]

    def join(self, futures: Sequence[Future[_T]]) -> list[_T]:
        """Wait for all ranks; the results by rank.

        Raises the error of the first rank that gives a rule, else the first error. A rank that has failed alone wakes
        the ranks that wait for it."""
        try:
            with engine_code():  # the batches of another engine may call this one
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
        self.closed = True
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
        with engine_code():  # a rank that waits for another's read keeps no layer of the batches' own engines waiting
            self.lock.acquire()
        try:
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
        finally:
            self.lock.release()


class _BatchReader:
    """The batches as one rank reads them."""

    def __init__(self, shared: SharedBatches, rank: int) -> None:
        self.shared, self.rank = shared, rank

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return self.shared.read(self.rank)


class _SizedBatchReader(_BatchReader):
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
        return [_BatchReader(shared, rank) for rank in range(ranks)]
    return [_SizedBatchReader(shared, rank, length) for rank in range(ranks)]


class RankOfThread(Protocol):
    """The part of an engine that `ThreadRanks` uses."""

    state: TrainState
    ranks: ThreadRanks[Any] | None
    closed: bool

    def train(self, batches: Iterable[Batch]) -> Iterator[float]: ...

    def close(self) -> None: ...


_Engine = TypeVar("_Engine", bound=RankOfThread)


class ThreadRanks(Generic[_Engine]):
    """An engine for each rank of a grid, in threads of this process.

    Args:
        args: Arguments of the engine that the user makes.
        make: Makes the engine of one rank from its arguments.

    Attributes:
        engines: The engine of each rank.
        threads: The threads of the ranks.
        streaming: Whether batches stream through the ranks.
    """

    def __init__(self, args: EngineArguments, make: Callable[[EngineArguments], _Engine]) -> None:
        self.grid = args.grid or Grid()
        if args.shard:
            raise Unsupported(
                "shard",
                True,
                rule="ranks that are threads read one iterable of whole batches",
                legal="shard=False, or ranks under mpiexec, torchrun or srun",
            )
        parts = check(args)
        device = device_of(parts.layers, args.device)
        self.threads = RankThreads(self.grid.size)
        self.streaming = False
        self._followed: list[tuple[nn.Module, nn.Module]] = []  # a module of the user's, and its copy
        lists = self._lists_of_layers(parts.layers)
        tied = args.tied
        if any(isinstance(layer, nn.Module) for layer in parts.layers):
            tied = [pair for ends in find_ties(parts.layers, args.tied or ()) for pair in as_pairs(ends)]
        hub = self.threads.hub

        def make_rank(rank: int) -> _Engine:
            own = replace(parts, layers=lists[self.grid.place(rank).replica])
            world = LoopbackWorld(hub, rank, device=device)
            return make(replace(args, model=own, tied=tied, device=None, world=world))

        try:
            self.engines = self.threads.run(make_rank)
        except BaseException:
            self.threads.close()
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
                    own = copied = copy_shared(layer, number, ids & seen)
                    self._followed.append((layer, copied))
                seen |= ids
            modules.append(own)
        lists: list[Sequence[Layer]] = [modules]
        for _ in range(1, self.grid.data):
            together = copy.deepcopy(nn.ModuleList(layer for layer in modules if isinstance(layer, nn.Module)))
            following = iter(together)  # one copy of all, so that copies share weights as the layers do
            copies: list[Layer] = []
            for original, layer in zip(layers, modules, strict=True):
                copies.append(next(following) if isinstance(layer, nn.Module) else layer)
                if isinstance(original, nn.Module):
                    self._followed.append((original, copies[-1]))  # type: ignore[arg-type]
            lists.append(copies)
        return lists

    def call(self, name: str, function: Callable[[_Engine], _T]) -> list[_T]:
        """Results of the same call on the engine of every rank.

        Raises InvalidRequest within a stream; `name` is the call in words."""
        self._check_idle(name)
        self._follow_modes()
        return self.threads.run(lambda rank: function(self.engines[rank]))

    def call_with_batches(
        self, name: str, function: Callable[[_Engine, Iterable[Batch]], _T], batches: Iterable[Batch]
    ) -> list[_T]:
        """Results of the same call on every rank, all of which read the same batches; see `call`."""
        self._check_idle(name)
        self._follow_modes()
        readers = _readers(batches, self.grid.size)
        return self.threads.run(lambda rank: function(self.engines[rank], readers[rank]))

    def _check_idle(self, name: str) -> None:
        if (failure := self.threads.hub.failure) is not None:
            raise InvalidRequest(
                f"{name} after a rank has failed ({type(failure).__name__}: {failure})",
                rule="ranks stand at different ops after a failure within a batch",
                legal="a new engine of the model, and load() of its last checkpoint",
            )
        if self.streaming:
            raise within_stream(name)

    def _follow_modes(self) -> None:
        """Give the copies the modes (training or evaluation) of the user's modules."""
        for original, copied in self._followed:
            for module, follower in zip(original.modules(), copied.modules(), strict=True):
                follower.training = module.training

    def train(self, batches: Iterable[Batch]) -> Iterator[float]:
        """Train on each batch when its loss is requested; with streams see `_stream`."""
        if not self.streaming:
            self._check_idle("train()")
        readers = _readers(batches, self.grid.size)
        if self.state.settings.streams:
            yield from self._stream(readers)
            return
        self._follow_modes()
        steps = self.threads.run(lambda rank: self.engines[rank].train(readers[rank]))
        try:
            while (loss := self.threads.run(lambda rank: next(steps[rank], None))[0]) is not None:
                yield loss
                check_open("train()", closed=self.threads.closed)
                self._follow_modes()
        finally:
            futures: list[Future[None]] = []
            with suppress(RuntimeError):  # the interpreter ends, and starts no threads
                futures = [] if self.threads.closed else self.threads.start(lambda rank: _close(steps[rank]))
            self.threads.join(futures)

    def _stream(self, readers: Sequence[Iterable[Batch]]) -> Iterator[float]:
        """Losses of batches that stream. Ranks do not wait for requests, as one rank's loss needs the others' work.

        A stream that is not read to its end is interrupted, and the engine trains no more."""
        check_stream(self.grid.inter, self.grid.inter, drained=not self.streaming)
        self._follow_modes()
        losses: SimpleQueue[float] = SimpleQueue()

        def run(rank: int) -> None:
            for loss in self.engines[rank].train(readers[rank]):
                if rank == 0:
                    losses.put(loss)

        futures = self.threads.start(run)
        self.streaming = True
        try:
            while not (losses.empty() and all(future.done() for future in futures)):
                if any(map(_error_of, futures)):
                    break
                with suppress(Empty):
                    with engine_code():
                        loss = losses.get(timeout=_POLL)
                    yield loss
        except BaseException as error:
            self.threads.hub.fail(
                RankError("the stream was interrupted") if isinstance(error, GeneratorExit) else error
            )
            wait(futures)
            raise
        finally:
            self.streaming = False
        self.threads.join(futures)

    def close(self) -> None:
        """Close the engines, and end the threads."""
        try:
            self.threads.run(lambda rank: self.engines[rank].close())
        finally:
            self.threads.close()


def _close(steps: Iterator[float]) -> None:
    if isinstance(steps, Generator):
        steps.close()


def check_open(call: str, *, closed: bool) -> None:
    """Raises InvalidRequest for a call on a closed engine."""
    if closed:
        raise InvalidRequest(
            f"{call} of a closed engine",
            rule="close() and the end of `with` are the last call on an engine",
            legal="a new engine of the same model, which holds the trained weights",
        )


def on_every_rank(method: Callable[Concatenate[_Engine, _P], _T]) -> Callable[Concatenate[_Engine, _P], _T]:
    """A method of an engine that, where ranks are threads, runs on every rank and returns the result of rank 0."""

    @wraps(method)
    def call(engine: _Engine, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        check_open(f"{method.__name__}()", closed=engine.closed)
        if engine.ranks is None:
            return method(engine, *args, **kwargs)
        return engine.ranks.call(f"{method.__name__}()", lambda rank: method(rank, *args, **kwargs))[0]

    return call
