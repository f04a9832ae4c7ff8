"""Protocols between the packages of the suite.

A new schedule, weight policy, optimizer, transport or compared system implements one of these and is named by its class
path in a YAML; nothing else in the suite has to change. Tensors appear as Any: this module loads no torch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from suite.core.op import FlushInterval, Op, Place, Program
from suite.core.record import Metric, Source
from suite.core.trace import Trace

Tensor = Any
Value = tuple[Tensor, ...]
Seconds = float
Bytes = int


class Schedule(Protocol):
    """The order of ops: one generator per stage, without clock, tensors or I/O."""

    def program(self, place: Place, interval: FlushInterval) -> Program:
        """Yields the acceptable ops, the preferred one first, and receives the op that ran. Ends with the last
        update.
        """

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        """A promised bound on forwards whose backward has not run; every driver asserts it."""


class PlacedSchedule(Schedule, Protocol):
    """A schedule that places several stages on a rank, or splits the backward pass.

    Every other schedule has one chunk per rank and whole backward passes.

    Attributes:
        chunks: Stages per rank.
        fold: Whether every second chunk returns in the opposite direction (`suite.core.op.Place`).
        split: Whether weight gradients are ops of their own.
    """

    @property
    def chunks(self) -> int: ...

    @property
    def fold(self) -> bool: ...

    @property
    def split(self) -> bool: ...


class TabledSchedule(Schedule, Protocol):
    """A schedule with a placement of its own, for example one that was read from a file.

    Attributes:
        homes: Rank of each stage.
    """

    @property
    def homes(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class Read:
    """What a pass reads, decided by a weight policy.

    version: updates that the weights have seen
    predict_steps: further updates to predict, from the newest version only
    backward_mode: decided at the forward pass, how its backward pass is made:
        keep       the forward's own graph and weights, held and counted; its backward is not asked
        recompute  the stage again, at the weights that the backward reads; random state replayed, statistics untouched
        swap       kept activations, the backward's weights for the input gradient
    """

    version: int
    predict_steps: int = 0
    backward_mode: str = "keep"


@dataclass(frozen=True, slots=True)
class StageVersions:
    """Versions of a stage, as a policy sees them when an op requests weights.

    Attributes:
        updates: Updates this stage has made.
        update: The update that this op's gradient enters.
        read_by: Reads of the open forward passes, by microbatch.
        drained_at: Updates made when nothing was last in flight.
        stages: Of the pipeline.
        forward_due: The update that the next forward pass's gradient enters, None when no forward pass is to come
            before the pipeline has drained.
    """

    updates: int
    update: int
    read_by: Mapping[int, Read]
    drained_at: int
    stages: int
    forward_due: int | None


class WeightPolicy(Protocol):
    """Which weights a pass reads: a pure decision, obeyed by engine.weight_versions and weights.ledger alike.

    A class that inherits from this one has the defaults below.

    Attributes:
        predicts: Reads may be ahead of the newest version, so the update rule needs a drift.
        smoothed: The prediction holds for SGD with momentum only.
    """

    predicts: bool = False
    smoothed: bool = False

    def check(self, stages: int, update_interval: int | None) -> None:
        """Raises InvalidRequest for a pipeline that its versions cannot serve. update_interval: None for a flush."""
        return

    @abstractmethod
    def read(self, op: Op, versions: StageVersions) -> Read: ...

    @abstractmethod
    def needed(self, versions: StageVersions) -> frozenset[int]:
        """The versions older than the newest that a later pass may read: the backward passes of open forwards, and
        forward passes to come. All others are freed. The newest version stays whether it is named or not. The ledger
        takes any iterable of whole numbers, and refuses anything else."""


class UpdateRule(Protocol):
    """An optimizer over flat tensors, and the change it expects next.

    drift_states: flat states that the drift alone needs, held where weights are predicted; a class that inherits from
    this one has none by default. A policy that predicts nothing uses `states` and `step` alone.
    """

    @property
    def states(self) -> tuple[str, ...]: ...

    @property
    def drift_states(self) -> tuple[str, ...]:
        return ()

    def step(self, state: Any, grad: Tensor) -> None: ...

    def drift(self, state: Any) -> Tensor:
        """The change per update, so that predicted = w + steps * drift. Pure: live weights are never written."""


class MaskMethod(Protocol):
    """How a mask is drawn (suite.pruning). A class that inherits from this one has the defaults below.

    Attributes:
        scope: Of a threshold: `layer`, or `global` over all weights.
        searches: Masks are drawn after several batches, and a checkpoint keeps the state of the search.
        distances: Between successive masks of a search; None without a search.
    """

    scope: str = "layer"
    searches: bool = False
    distances: Sequence[float] | None = None

    @abstractmethod
    def due(self, batches: int) -> bool:
        """Whether the weights are looked at after so many batches; 0: as they were drawn."""

    @abstractmethod
    def draw(self, view: Any) -> Mapping[tuple[int, str], Tensor] | None:
        """The places that stay of every key of a stage (suite.pruning.mask.View); None to look again later, on every
        stage alike."""

    def remembered(self) -> dict[str, Tensor]:
        """The state of a search, which continues from it in another process."""
        return {}

    def check(self, kept: Mapping[str, Tensor]) -> None:
        """Raises InvalidRequest for the state of a search with other settings. Changes nothing."""
        return

    def recall(self, kept: Mapping[str, Tensor]) -> None:
        """Continue from the state of a search."""
        return


class Transport(Protocol):
    """Channels between neighbouring stages: one-way, first in first out.

    A class that inherits from this one has the defaults below.

    Attributes:
        any_order: False: the program must run in the checker's order, and the record has order=static.
        turns: All ranks share one thread and take turns: none may wait for another (comm.coroutine).
        polls: A collective can be polled; False: only waited for, without a time limit.
    """

    any_order: bool
    turns: bool = False
    polls: bool = True

    def send(self, op: Op, value: Value) -> None:
        """Ship the output of `op` to the neighbour that needs it. Does not block in training (in_flight bounds what
        waits); in an evaluation it waits while `capacity` values of the channel are unreceived."""

    def recv_any(self, ops: Sequence[Op], timeout: float | None) -> tuple[Op, Value] | None:
        """Of the neighbours' ops in `wish` that are here, the first; waits `timeout` s (None: for ever, 0: polls)."""

    def progress(self) -> None:
        """Move messages. A rank that waits for anything else keeps calling it."""

    def close(self) -> None:
        """Wait until all sends are complete, and cancel posted receives."""


class Handle(Protocol):
    """A collective under way. Each poll of `done` also drives message progress (comm.p2p.polling.wait_until)."""

    def done(self) -> bool: ...

    def wait(self) -> None: ...


class Group(Protocol):
    """Ranks that reduce or broadcast together, in rank order."""

    ranks: tuple[int, ...]

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Handle: ...

    def broadcast(self, tensor: Tensor, root: int) -> Handle: ...

    def all_to_all(
        self, recv_buffer: Tensor, send_buffer: Tensor, *, recv_counts: Sequence[int], send_counts: Sequence[int]
    ) -> Handle:
        """Exchange rows with every member of the group.

        Args:
            recv_buffer: Receives the rows of all members, in rank order.
            send_buffer: Rows to send, in the rank order of their receivers.
            recv_counts: Number of rows received from each member.
            send_counts: Number of rows sent to each member.
        """

    def pairwise(self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]) -> Handle:
        """Messages to ranks and from ranks, by their numbers in the world, all at once; empty ones are none."""


class World(Protocol):
    """All ranks of one run, as one rank sees them."""

    rank: int
    size: int
    device: Any  # where this rank computes
    staged: bool  # device tensors are copied through host memory on the way
    backend: str  # what moves values between stages: threads, mpi, gloo, nccl
    order: str  # any, or static: every stage runs its ops in the checker's order

    def transport(self, before: int | None, after: int | None, stages: int) -> Transport:
        """Channels to the ranks of the stage before and the stage after."""

    def group(self, ranks: Sequence[int]) -> Group:
        """Collective over the world: every rank requests the same groups in the same order."""

    def all_reduce_scalar(self, value: float, op: str, progress: Callable[[], None]) -> float:
        """The sum or maximum (`op`: "sum" or "max") of one number per rank, none of them NaN; equal on every rank.

        `progress` is called while this rank waits.
        """

    def buffer(self, size: int) -> Tensor:
        """`size` bytes on the host that its channels and groups take, whatever is in them."""

    def close(self) -> None: ...


class GradSync(Protocol):
    """The reduction of an update, in the layout's own gradient form."""

    def reduce(self, parts: Sequence[tuple[Group, Tensor]]) -> Handle:
        """In the order given; parts that name one buffer run one after the other (replicas first, then the tie)."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an update: bytes that each rank sends to reduce it, then seconds to step. Chunks overlap."""

    reduce: Bytes
    step: Seconds


class CostModel(Protocol):
    """Costs of ops on a modelled machine. Raises InvalidRequest for an op that it has no cost for."""

    def compute(self, op: Op) -> Seconds:
        """Of a forward, backward or evaluation pass."""

    def message(self, op: Op) -> Bytes:
        """Of the value that `op` sends to its neighbour."""

    def update(self, stage: int) -> Sequence[Chunk]:
        """In order; the driver overlaps them, the network times the reductions."""

    def parts(self, op: Op) -> Mapping[str, Seconds]:
        """The share of `op` for each category of suite.core.trace that is not its pass or step itself; by default
        none is known."""
        return {}


@dataclass(frozen=True, slots=True)
class Ready:
    """A system that can run here."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A system that cannot; the reason reaches the report as a row."""

    reason: str


class DataSource(Protocol):
    """Data source of a run, which every rank reads; built from `data.source`. A batch is a tuple of numpy arrays,
    (inputs, targets), or of tuples of them where a network has several, samples first; `shape` is the network's, which
    says how long or how large a sample is. A source may also have `samples` and `held_out`, how many it trains on (an
    epoch is each of them once) and validates with. A class that inherits from this one has the defaults below.

    Its module may have two functions for the parent, which start nothing: check_folder(name, folder), and
    check_shape(name, folder, shape), which refuses a network that cannot read it.
    """

    def batch(self, number: int, *, size: int, seed: int, shape: Any) -> Value:
        """Training batch `number`: a function of (seed, number), the same on all ranks, at any time, in any order."""

    def validation_batches(self, *, size: int, shape: Any) -> Iterator[Value]:
        """All full batches of the validation data, in order."""

    def provenance(self) -> dict[str, str | int]:
        """Name, size and hash of the data, for the record."""

    def score(self, decoded: Sequence[Any], batches: Sequence[Value]) -> dict[str, float]:
        """Numbers by name, such as BLEU, of the token ids that a network has decoded from validation batches;
        by default none."""
        return {}


@dataclass(frozen=True, slots=True)
class ExecutorResult:
    """What a run without ranks leaves, as its record holds it; the rest of the record follows from the run's config.

    calibrated_on: the claims that some constant behind its numbers was fitted to
    """

    source: Source
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    memory: Mapping[str, dict[str, list[int]]] = field(default_factory=dict)
    series: Mapping[str, list[float]] = field(default_factory=dict)
    trace: Trace = field(default_factory=Trace)
    notes: tuple[str, ...] = ()
    calibrated_on: tuple[str, ...] = ()


Transform = Callable[[Any], Any]
